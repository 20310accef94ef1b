"""Weights of a shard: flat, sharded, off-loaded, stepped, resharded and stored.

It computes no loss and sends nothing to other pools.
"""
