"""The front door: one small file per command, which composes the rooms and holds no logic.

Commands import the rooms they need when they run, so that `rlplan --help` answers at once.
"""
