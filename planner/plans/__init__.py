"""Plans from complete choices: their assembly.

It searches nothing; which choice is best is decided in `rlplan.planner.exact` and `rlplan.planner.searchers`.
"""
