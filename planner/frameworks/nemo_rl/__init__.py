"""NeMo-RL: one policy on Megatron or DTensor, generation beside it or on nodes of its own."""
