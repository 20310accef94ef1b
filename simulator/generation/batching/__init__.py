"""How sequences run together on one replica: static waves, waves that are joined, prefills first, mixed steps.

Nothing here knows what a step takes, or how many replicas there are.
"""
