"""A local page that answers while one moves a slider: what it is asked, the work behind it, the server, its assets.

It calls what the commands call, and holds no forecast, rule or search of its own. Why it is so: docs/decisions/0037.
"""
