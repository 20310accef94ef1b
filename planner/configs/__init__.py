"""Configurations of RL frameworks as jobs and plans: read, mapped by a sheet of keys, checked.

`frameworks/` holds what is one framework's own; nothing else here names one.
"""
