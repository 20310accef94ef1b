"""Rewards, advantages, losses and updates: what an algorithm learns from a batch.

It sends nothing between pools.
"""
