"""What users are answered: best plans, completed plans, fronts, and why nothing fits or keeps the limits.

What they ask is read in `rlplan.planner.requests`; the searching is done in `rlplan.planner.searchers`.
"""
