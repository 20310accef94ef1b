"""How the sequences of an iteration are shared out, and what micro-batches they make.

It knows no device and prices nothing.
"""
