"""Configurations of RL frameworks as jobs and plans: read, mapped by a sheet of keys, checked.

`reading/` makes values by key of files, scripts and command lines, `writing/` makes scripts and files of a plan's
values; `frameworks/`, `exports/` and `rules/` hold what is one framework's own; nothing else here names one.
"""
