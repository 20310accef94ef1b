"""What users ask of a planner: objectives, limits, partial plans, and answers why nothing fits.

It checks and words requests; the searching is done in `planner.exact`.
"""
