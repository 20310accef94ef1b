"""slime: Megatron-Core trains and SGLang generates, on the same GPUs or on GPUs of their own."""
