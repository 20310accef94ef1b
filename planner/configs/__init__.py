"""Configurations of RL frameworks as jobs and plans: read, mapped by a sheet of keys, checked.

`reading/` makes values by key of files, scripts and command lines, `writing/` makes scripts and files of a plan's
values, `proposing/` finds what another setting, placement or framework would bring. What is one framework's own stands in
`planner/frameworks/` and `profiles/frameworks/`, and `frameworks.py` finds it.
"""
