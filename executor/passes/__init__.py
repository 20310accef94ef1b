"""Passes of a model's shard over packed rows: forward, through a pipeline, and without gradients.

It knows no reward and updates no weights.
"""
