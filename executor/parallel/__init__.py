"""How ranks share one model: meshes, tensor, pipeline, context and expert parallelism.

It knows no algorithm and no task.
"""
