"""Which layouts a task can have on a pool, their costs, and those that no other beats.

It looks at one pool at a time, never at a whole placement.
"""
