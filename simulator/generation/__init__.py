"""Generation on one replica: batching, steps and their prices, jump by jump.

It knows one replica, not pools, plans or other tasks.
"""
