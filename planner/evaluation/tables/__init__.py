"""Readers of published tables, one file per schema: `READER`; found by their file.

What several of them need stands one floor up, in `planner.evaluation`.
"""
