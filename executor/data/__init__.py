"""Prompts, batches and their columns: read, tokenized, packed and balanced over micro-batches.

It knows no weights and no optimizer.
"""
