"""What commands say, with types: arguments, answers and mistakes as values, for agents (`mcp/`) and for the page (`serve/`).

It calls what the commands call, and holds no forecast, rule or search of its own.
"""
