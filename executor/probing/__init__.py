"""Single passes of a model timed through the functions that tasks run, for profiles.

It runs no job.
"""
