"""What a user of an A100 says of his GRPO run without vLLM (August 2026)."""

from trl import GRPOConfig, GRPOTrainer

args = GRPOConfig(
    per_device_train_batch_size=8,
    gradient_accumulation_steps=8,
    num_generations=8,
    max_completion_length=1280,
    gradient_checkpointing=True,
)
trainer = GRPOTrainer(model="Qwen/Qwen2.5-0.5B-Instruct", args=args)
trainer.train()
