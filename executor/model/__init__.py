"""Models on a rank: how they are built, attend, keep keys and values, and choose experts.

It updates no weights and sends nothing to other pools.
"""
