"""What to rent for a run: what is rented of whom, how many of it, and the front of time against money.

Every candidate cluster is searched as any job is (`rlplan.planner.configs.proposing.searching`); nothing here lays out a task.
"""
