"""Plans resolved: where pools stand, and tasks in their layouts with all that costs and bytes ask for.

It looks things up and prices nothing.
"""
