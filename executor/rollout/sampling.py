"""Sampling: how responses are sampled, the sequences that hold them, and the next token of each."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlplan.executor.data.batches import PADDING, PROMPT


def greedy_tokens(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return each row's likeliest token, the first of equals, and its log-probability.

    Args:
        logits: Shape (B, vocab).
    """
    log_probs = torch.log_softmax(logits.float() / temperature, dim=-1)
    chosen = logits.float().argmax(dim=-1, keepdim=True)
    return chosen[:, 0], log_probs.gather(1, chosen)[:, 0]


def sampled_tokens(logits: Tensor, uniforms: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return each row's token by inverse transform sampling, and its log-probability.

    Args:
        logits: Shape (B, vocab).
        uniforms: Uniform in [0, 1). Shape (B,).
    """
    log_probs = torch.log_softmax(logits.float() / temperature, dim=-1)
    cumulative = log_probs.double().exp().cumsum(dim=-1)
    target = uniforms[:, None] * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, target, right=True).clamp(max=logits.shape[-1] - 1)
    return chosen[:, 0], log_probs.gather(1, chosen)[:, 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateSettings:
    """Say how responses are sampled.

    Attributes:
        max_running: Most sequences of a wave.
        seed: With the iteration and the row's number it starts the row's random numbers.
        end_ids: Tokens each of which ends a response early; it is the response's last token.
        turn: Of an episode, counted from 0; each has random numbers of its own.
        greedy: Take the likeliest token instead of sampling; log-probabilities are at the temperature.
    """

    max_running: int
    temperature: float
    seed: int
    iteration: int
    end_ids: tuple[int, ...]
    turn: int = 0
    greedy: bool = False


@dataclass(frozen=True, slots=True)
class Sequences:
    """Hold whole sequences: `tokens` and `parts` (B, P + R), and `log_probs` at the temperature."""

    tokens: Tensor
    parts: Tensor
    log_probs: Tensor


def without_responses(prompts: Tensor, present: Tensor, width: int) -> Sequences:
    """Return prompts with empty columns for their responses, on the prompts' device.

    Args:
        prompts: Left-padded prompts. Shape (B, P).
        present: Where they have tokens. Shape (B, P).
        width: R, the columns kept for responses.
    """
    batch, prompt_width = prompts.shape
    tokens = torch.cat([prompts, prompts.new_zeros(batch, width)], dim=1)
    parts = torch.zeros_like(tokens, dtype=torch.int8)
    parts[:, :prompt_width] = torch.where(present, PROMPT, PADDING).to(torch.int8)
    return Sequences(tokens, parts, torch.zeros(tokens.shape, device=tokens.device))


def uniform_numbers(rows: Tensor, width: int, settings: GenerateSettings) -> Tensor:
    """Return each row's own random numbers. Shape (B, R), float64."""
    turn = [settings.turn] if settings.turn else []
    streams = [
        np.random.default_rng([settings.seed, settings.iteration, row, *turn])
        for row in rows.tolist()
    ]
    return torch.from_numpy(np.stack([stream.random(width) for stream in streams]))
