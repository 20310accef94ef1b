"""Jobs as users write them, turned into jobs that stand alone: names, paths and traces become values.

It judges no plan and prices nothing.
"""
