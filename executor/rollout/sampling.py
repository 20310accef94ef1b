"""The next token of each sequence, sampled from the logits or the likeliest."""

import torch
from torch import Tensor


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
