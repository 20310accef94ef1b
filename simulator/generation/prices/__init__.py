"""What a step of a generation engine takes: decoding and prefill, priced in parts and on grids.

Nothing here decides which sequences are in a step.
"""
