"""Processes of a run: pools, their worker groups, and how calls are spread over ranks.

It knows no algorithm and no loss.
"""
