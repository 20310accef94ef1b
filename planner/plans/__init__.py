"""Plans from complete choices: their assembly, and the plans one change away from a plan.

It searches nothing; which choice is best is decided in `planner.exact` and `planner.searchers`.
"""
