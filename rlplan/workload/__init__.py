"""What a job works on: lengths of prompts and responses, environments, and what those take.

No job and no plan: both name these.
"""
