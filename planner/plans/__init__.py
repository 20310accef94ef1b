"""Plans from complete choices: their assembly.

It searches nothing; which choice is best is decided in `planner.exact` and `planner.searchers`.
"""
