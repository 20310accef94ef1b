"""What devices, engines, transitions and machines are, as sheets in `profiles/` say it.

Types alone: no sheet is read here, and no job is known.
"""
