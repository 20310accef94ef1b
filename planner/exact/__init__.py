"""The exact search: bounds, branch and bound over placements, and best-first simulation.

It takes requests as they are and explains nothing to users.
"""
