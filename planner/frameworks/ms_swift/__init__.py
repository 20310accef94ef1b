"""ms-swift's GRPO: transformers' Trainer or Megatron, alone or under Ray, with vLLM in the trainers, behind a server, or none."""
