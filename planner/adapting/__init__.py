"""A run of the executor that moves where it pays: what it measured, a search beside it, decisions and what came of them.

It holds no way of moving: the executor does that (`rlplan.executor.control.moving`).
"""
