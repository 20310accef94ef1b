"""OpenRLHF: DeepSpeed trainers and vLLM, colocated or on GPUs of their own."""
