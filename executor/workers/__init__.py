"""Processes of a run: pools, their worker groups, and how calls are spread over ranks.

It keeps no order of calls: the controller does.
"""
