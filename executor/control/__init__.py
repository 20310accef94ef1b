"""The single controller of a run: its feeds, calls in flight, spans, metrics, evaluations and checkpoints.

It sees references to tensors, never their contents.
"""
