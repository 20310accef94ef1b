"""Weights of a shard: flat, sharded, off-loaded, resharded, sent to other pools and stored.

It computes no loss.
"""
