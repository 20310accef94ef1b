"""What users are answered: best plans, completed plans, fronts, and why nothing fits or keeps the limits.

What they ask is read in `planner.requests`; the searching is done in `planner.searchers`.
"""
