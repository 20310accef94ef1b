"""The next token of each sequence, out of what the model says of all tokens."""

import torch
from torch import Tensor


def likeliest_tokens(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return each row's likeliest token, the first of equals, and its log-probability.

    Args:
        logits: Shape (B, vocab).
    """
    log_probs = torch.log_softmax(logits.float() / temperature, dim=-1)
    chosen = logits.float().argmax(dim=-1, keepdim=True)
    return chosen[:, 0], log_probs.gather(1, chosen)[:, 0]


def draw_tokens(logits: Tensor, draws: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the token at which each row's distribution passes its draw, and its log-probability.

    Args:
        logits: Shape (B, vocab).
        draws: Uniform in [0, 1). Shape (B,).
    """
    log_probs = torch.log_softmax(logits.float() / temperature, dim=-1)
    cumulative = log_probs.double().exp().cumsum(dim=-1)
    target = draws[:, None] * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, target, right=True).clamp(max=logits.shape[-1] - 1)
    return chosen[:, 0], log_probs.gather(1, chosen)[:, 0]
