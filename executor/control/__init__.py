"""The single controller: loops, calls in flight, spans, metrics and checkpoints of a run.

It sees references to tensors, never their contents.
"""
