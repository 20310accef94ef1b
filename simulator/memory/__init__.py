"""The bytes that tasks put on a GPU, and what lies there when a pool is fullest.

It gives bytes, never seconds.
"""
