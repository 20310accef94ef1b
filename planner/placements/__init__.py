"""Which models share which GPUs: placements, allocations, orders, and the plans they stand for.

It chooses no layout and prices nothing.
"""
