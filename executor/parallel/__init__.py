"""How ranks share one model: positions, meshes, and exchanges between them.

It holds no weights and no data.
"""
