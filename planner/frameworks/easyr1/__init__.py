"""EasyR1: verl's workers of early 2025, all on one pool, with FSDP and vLLM in one process."""
