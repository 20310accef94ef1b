"""Feeds of the controller: how the batches come to be that an iteration learns from.

`whole_batches` sends an iteration in one go; `sample_stream` takes samples through the transfer queue as they end. A
feed decides what is sent when, and knows no other one; the controller above knows none of their parts.
"""
