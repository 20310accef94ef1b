"""TRL's online trainers, GRPO and RLOO, which open-r1 trains with: DeepSpeed, FSDP or DDP, and vLLM or transformers."""
