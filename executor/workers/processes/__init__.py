"""Processes and their ends: Ray for one run, clearing up behind it, a sandbox, a process's state.

Nothing here knows a task, a model or a pool.
"""
