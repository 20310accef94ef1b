"""What users ask of a planner: limits, pinned parts of plans, a first job.

It reads and checks requests and searches nothing; answers are in `rlplan.planner.answers`.
"""
