"""A plan on the nodes of a Ray cluster: which node takes what, what travels there, and what every node must see.

Nothing here trains or generates; pools start their workers where it says.
"""
