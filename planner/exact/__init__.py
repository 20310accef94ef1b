"""The exact search: bounds, branch and bound over placements, and the contest by simulation.

It takes requests as they are and explains nothing to users.
"""
