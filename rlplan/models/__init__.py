"""What a transformer is made of: its sizes, adapters, number formats and operators.

No costs, and no kinds of parts: these are in `rlplan/parts/`.
"""
