"""Tools for agents by the Model Context Protocol: typed arguments, typed answers, typed mistakes.

It calls what the commands call, and holds no forecast, rule or search of its own. Why it is so: docs/decisions/0036.
"""
