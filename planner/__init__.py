"""Choices: strategies, baselines, feasibility, search and export.

The planner asks the simulator what a plan costs and answers with the best plan, the runners-up
and the reason why every other candidate was left out.
"""
