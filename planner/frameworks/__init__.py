"""What each framework needs of code: a package each, `planner/frameworks/NAME/`, by underscores for dashes.

`reading.py` makes a run of its settings (`run_of`), `writing.py` its settings and text of a plan (`write`, `text_of`),
`rules.py` or `rules/` has the rules that it finds broken only at run time (`RULES`). Any part may be absent. What it
needs of data stands in `profiles/frameworks/`, below the same name. `rlplan.planner.configs.frameworks` finds all of it;
nothing imports a framework by its name, and no framework another.
"""
