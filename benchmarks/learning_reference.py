"""Train a tiny byte-level Llama by PPO or GRPO in one process: what the executor's curves must match.

    python benchmarks/learning_reference.py ppo --seeds 0 1 2 --iterations 30

Plain torch and transformers around the executor's own losses, advantages, rules and data: no Ray,
no parallelism. It shows that the small task is learnt with the default hyperparameters below, and
what mean reward to expect after how many iterations. A reward model with random weights may take
part (`--model-weight 0.1`), as in a job with four models; a large weight drowns the rule.
"""

import argparse
import copy
import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Algorithm
from rlplan.executor.data.prompts import ByteTokenizer, PromptStream, encode_prompts, load_prompts
from rlplan.executor.learning.experience import (
    EstimatorSettings,
    compute_advantages,
    effective_settings,
)
from rlplan.executor.learning.losses import load_loss
from rlplan.executor.learning.rules import load_rule
from rlplan.job import Hyperparameters, Rewards

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER = ByteTokenizer()


class Critic(nn.Module):
    """A Llama with a scalar head instead of the vocabulary's."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.body = LlamaForCausalLM(config).model
        self.head = nn.Linear(config.hidden_size, 1, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the value of the state before each token. Shape (B, T)."""
        scores = self.head(self.body(tokens).last_hidden_state).squeeze(-1)
        return nn.functional.pad(scores[:, :-1], (1, 0))


def policy_outputs(model: LlamaForCausalLM, tokens: Tensor) -> dict[str, Tensor]:
    """Return each token's log-probability and the entropy before it. Shape (B, T)."""
    log_probs = model(tokens).logits[:, :-1].log_softmax(-1)
    chosen = log_probs.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return {key: nn.functional.pad(value, (1, 0)) for key, value in
            {"log_probs": chosen, "entropy": entropy}.items()}  # fmt: skip


@torch.no_grad()
def generate(model: LlamaForCausalLM, prompts: Tensor, response_tokens: int,
             generator: torch.Generator) -> Tensor:  # fmt: skip
    """Return prompts with sampled responses of one length. Shape (B, P + R)."""
    tokens, step, cache = prompts, prompts, None
    for _ in range(response_tokens):
        out = model(step, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        step = torch.multinomial(out.logits[:, -1].softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, step], dim=1)
    return tokens


class Trainer:
    """Hold the models of one run and train them, iteration by iteration."""

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        self.options, self.seed = options, seed
        self.algorithm: Algorithm = load_algorithm(options.algorithm)
        self.settings = Hyperparameters(
            learning_rate=options.learning_rate,
            critic_learning_rate=options.critic_learning_rate,
            kl_coefficient=options.kl_coefficient,
        )
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        config = LlamaConfig(
            vocab_size=TOKENIZER.vocab_size, hidden_size=64, intermediate_size=options.ffn_size,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=options.kv_heads,
            max_position_embeddings=256, tie_word_embeddings=False,
        )  # fmt: skip
        self.actor = LlamaForCausalLM(config)
        self.reference = copy.deepcopy(self.actor)
        self.critic = Critic(config)
        self.reward = Critic(config)
        self.rows = load_prompts(ROOT / "examples" / "data" / "digits.jsonl")
        self.rule = load_rule(options.rule, ROOT)
        self.weights = Rewards(model_weight=options.model_weight)
        self.stream = PromptStream(self.rows, options.prompts, seed)
        self.optimizers = {
            "actor": torch.optim.AdamW(
                self.actor.parameters(), self.settings.learning_rate, weight_decay=0.0
            ),
            "critic": torch.optim.AdamW(
                self.critic.parameters(), self.settings.critic_learning_rate, weight_decay=0.0
            ),
        }

    def iterate(self, iteration: int) -> dict[str, float]:
        """Generate, prepare and train once; return the mean rule reward and the losses' metrics."""
        batch = self.prepare(iteration)
        metrics = {"reward/rule": float(batch["rule_scores"].mean())}
        size = self.options.prompts * self.options.samples // self.options.updates
        for start in range(0, size * self.options.updates, size):
            part = {key: value[start : start + size] for key, value in batch.items()}
            metrics |= self.update("actor", part)
            if "critic" in self.algorithm.required_roles:
                metrics |= self.update("critic", part)
        return metrics

    @torch.no_grad()
    def prepare(self, iteration: int) -> dict[str, Tensor]:
        """Return a generated batch with scores, values and advantages."""
        rows = [row for row in self.stream.batch(iteration) for _ in range(self.options.samples)]
        prompts = torch.tensor(encode_prompts(rows, TOKENIZER, 16).tokens)
        tokens = generate(self.actor, prompts, self.options.response_tokens, self.generator)
        mask = torch.zeros_like(tokens, dtype=torch.int8)
        mask[:, prompts.shape[1] :] = 1
        responses = [TOKENIZER.decode(row) for row in tokens[:, prompts.shape[1] :].tolist()]
        scores = [self.rule(row["prompt"], response, row)
                  for row, response in zip(rows, responses, strict=True)]  # fmt: skip
        batch = {
            "tokens": tokens,
            "response_mask": mask,
            "log_probs": policy_outputs(self.actor, tokens)["log_probs"],
            "reference_log_probs": policy_outputs(self.reference, tokens)["log_probs"],
            "values": self.critic(tokens),
            "rule_scores": torch.tensor(scores),
            "scores": self.reward(tokens)[:, -1],
        }
        terms = EstimatorSettings(
            settings=effective_settings(self.algorithm, self.settings),
            samples_per_prompt=self.options.samples,
            rewards=self.weights,
        )
        return compute_advantages(self.algorithm.advantage, batch, terms)

    def update(self, role: str, batch: dict[str, Tensor]) -> dict[str, float]:
        """Take one optimizer step of the actor or the critic; return the loss's metrics."""
        (task,) = [each for each in self.algorithm.tasks if each.name == f"{role}.update"]
        assert task.loss is not None
        if role == "actor":
            outputs = policy_outputs(self.actor, batch["tokens"])
        else:
            outputs = {"values": self.critic(batch["tokens"])}
        normalizer = batch["response_mask"].sum()
        total, metrics = load_loss(task.loss)(
            outputs, batch, effective_settings(self.algorithm, self.settings), normalizer
        )
        optimizer = self.optimizers[role]
        optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, self.settings.max_gradient_norm)
        optimizer.step()
        return {f"{role}/{key}": float(value) for key, value in metrics.items()} | {
            f"{role}/gradient_norm": float(norm)
        }


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algorithm", choices=["ppo", "grpo"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--rule", default="digits")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--response-tokens", type=int, default=16)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--critic-learning-rate", type=float, default=3e-3)
    parser.add_argument("--kl-coefficient", type=float, default=0.001)
    parser.add_argument("--model-weight", type=float, default=0.0)
    parser.add_argument("--ffn-size", type=int, default=128)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write every iteration's metrics here as JSON")
    return parser.parse_args()


def main() -> None:
    """Train once for each seed and print the curves."""
    options = read_options()
    torch.set_num_threads(1)
    curves = {}
    for seed in options.seeds:
        trainer, started = Trainer(options, seed), time.perf_counter()
        curve = [trainer.iterate(iteration) for iteration in range(options.iterations)]
        curves[seed] = curve
        rewards = [each["reward/rule"] for each in curve]
        shown = " ".join(f"{reward:.3f}" for reward in rewards[:: max(1, len(rewards) // 10)])
        seconds = (time.perf_counter() - started) / len(curve)
        last = {key: round(value, 4) for key, value in curve[-1].items()}
        print(f"{options.algorithm} seed {seed}: {shown} end {rewards[-1]:.3f}; {seconds:.2f} s an"
              f" iteration; last {last}", flush=True)  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
