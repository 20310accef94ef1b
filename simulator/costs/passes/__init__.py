"""Infer and train tasks: passes of micro-batches, their pipeline, what ranks exchange, measured passes.

Operators are priced above, in `rlplan.simulator.costs.pricing`; nothing here knows generation.
"""
