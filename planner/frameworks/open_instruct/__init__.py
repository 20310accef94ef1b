"""open-instruct's GRPO: learners under DeepSpeed or OLMo-core and engines of vLLM that are never waited for."""
