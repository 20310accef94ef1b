"""Train with TRL, a turn of iterations for every line on stdin; `executor_vs_trl.py` starts it.

It runs in TRL's own environment, and so imports nothing of this project. The first line on stdin is
the setting as JSON; every later one says how many iterations are next. For each turn it prints a
line of JSON with the seconds of each iteration, from the end of the one before to its own end.
"""

import json
import string
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    Trainer,
    TrainerCallback,
)


class Turns(TrainerCallback):
    """Wait for each turn, and time its iterations."""

    def __init__(self) -> None:
        self.left, self.seconds = 0, list[float]()
        self._since, self._cpu = 0.0, 0.0

    def await_turn(self) -> None:
        """Read how many iterations are next; nothing more ends the process."""
        line = sys.stdin.readline()
        if not line.strip():
            sys.stdout.flush()
            raise SystemExit(0)
        self.left, self.seconds, self._since = int(line), [], time.perf_counter()
        self._cpu = time.process_time()

    def on_train_begin(self, *_: object, **__: object) -> None:
        """Say that everything is loaded, and wait."""
        answer({"trl": trl.__version__, "transformers": transformers.__version__})
        self.await_turn()

    def on_step_end(self, *_: object, **__: object) -> None:
        """Note an iteration: one batch is generated, judged and learnt from in every step."""
        now = time.perf_counter()
        self.seconds.append(now - self._since)
        self._since = now
        if len(self.seconds) == self.left:
            answer({"seconds": self.seconds, "cpu_seconds": time.process_time() - self._cpu})
            self.await_turn()


def answer(values: dict[str, Any]) -> None:
    """Print a line for the benchmark; TRL's own prints go to stderr."""
    sys.__stdout__.write(json.dumps(values) + "\n")
    sys.__stdout__.flush()


def share_of_digits(completions: list[str], **_: object) -> list[float]:
    """Return the share of digits in each completion: the rule `digits` of the other side."""
    return [
        sum(character in string.digits for character in text) / max(1, len(text))
        for text in completions
    ]


def grpo_trainer(setting: dict[str, Any], turns: Turns, folder: Path) -> Trainer:
    """Return TRL's GRPO trainer of a setting."""
    rows = setting["prompts"] * setting["samples_per_prompt"]
    passes = setting.get("passes", 1)
    model = setting.get("folder")
    arguments = trl.GRPOConfig(
        **usual_arguments(setting, folder),
        **({"generation_kwargs": {"min_new_tokens": setting["response_tokens"]}} if model else {}),
        per_device_train_batch_size=rows // passes,
        gradient_accumulation_steps=passes,
        steps_per_generation=passes,
        num_generations=setting["samples_per_prompt"],
        max_completion_length=setting["response_tokens"],
        beta=setting["kl_coefficient"],
        loss_type="grpo",
        temperature=1.0,
        num_iterations=setting["epochs"],
        shuffle_dataset=False,
    )
    if model is None:
        model = str(folder / "model")  # the reference is loaded from where the policy came from
        LlamaForCausalLM(config_of(setting)).save_pretrained(model)
    return trl.GRPOTrainer(
        model=model,
        reward_funcs=share_of_digits,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": text} for text in setting["texts"]]),
        processing_class=AutoTokenizer.from_pretrained(setting["tokenizer"]),
        callbacks=[turns],
    )


def ppo_trainer(setting: dict[str, Any], turns: Turns, folder: Path) -> Trainer:
    """Return the PPO trainer of the last TRL that has one."""
    from trl.experimental.ppo import PPOConfig, PPOTrainer  # noqa: PLC0415 -- gone in later ones

    tokenizer = AutoTokenizer.from_pretrained(setting["tokenizer"])
    rows = setting["prompts"] * setting["samples_per_prompt"]
    arguments = PPOConfig(
        **usual_arguments(setting, folder),
        per_device_train_batch_size=rows,
        total_episodes=rows * setting["max_iterations"],
        local_rollout_forward_batch_size=rows,
        num_mini_batches=1,
        num_ppo_epochs=setting["epochs"],
        num_sample_generations=0,
        response_length=setting["response_tokens"],
        temperature=1.0,
        kl_coef=setting["kl_coefficient"],
    )
    config = config_of(setting, num_labels=1)
    ids = [tokenizer(text)["input_ids"] for text in setting["texts"]]
    return PPOTrainer(
        args=arguments,
        processing_class=tokenizer,
        model=LlamaForCausalLM(config_of(setting)),
        ref_model=LlamaForCausalLM(config_of(setting)),
        reward_model=LlamaForSequenceClassification(config),
        value_model=LlamaForSequenceClassification(config),
        train_dataset=Dataset.from_list([{"input_ids": each} for each in ids]),
        callbacks=[turns],
    )


def usual_arguments(setting: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return what both trainers are told: float32 on the CPU, nothing computed twice, nothing saved."""
    return {
        "output_dir": str(folder / "run"),
        "max_steps": setting["max_iterations"],
        "learning_rate": setting["learning_rate"],
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 10,
        "disable_tqdm": True,
        "seed": 0,
    }


def config_of(setting: dict[str, Any], **more: int) -> LlamaConfig:
    """Return the model's config; ids beyond its vocabulary end or pad nothing."""
    return LlamaConfig(
        **setting["model"],
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        **more,
    )


def main() -> None:
    """Build the trainer and train until stdin ends."""
    setting = json.loads(sys.stdin.readline())
    torch.set_num_threads(setting["threads"])
    torch.manual_seed(0)
    sys.stdout = sys.stderr
    turns = Turns()
    with tempfile.TemporaryDirectory(prefix="trl-") as folder:
        make = {"grpo": grpo_trainer, "ppo": ppo_trainer}[setting["algorithm"]]
        make(setting, turns, Path(folder)).train()


if __name__ == "__main__":
    main()
