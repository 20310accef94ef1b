"""ROLL's RLVR and agentic pipelines: workers on lists of devices, Megatron or FSDP2, and vLLM or SGLang."""
