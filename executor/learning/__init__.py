"""Rewards, advantages, losses and updates: what an algorithm learns from a batch.

It knows no optimizer's layout and sends nothing between pools.
"""
