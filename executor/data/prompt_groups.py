"""Neighbouring rows with one prompt: found by their tokens, whoever cut or joined the batch."""

import torch
from torch import Tensor

from executor.data.batches import PROMPT


def prompt_leaders(tokens: Tensor, parts: Tensor) -> Tensor:
    """Return each row's leader: the first of the neighbouring rows that have its prompt. Shape (B,).

    Args:
        tokens: Prompts stand in the same columns where they are the same. Shape (B, T).
        parts: What stands where. Shape (B, T).
    """
    prompts = torch.where(parts == PROMPT, tokens, -1)
    leads = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
    leads[1:] = (prompts[1:] != prompts[:-1]).any(dim=1)
    rows = torch.arange(len(tokens), device=tokens.device)
    return torch.where(leads, rows, 0).cummax(dim=0).values


def shared_part(parts: Tensor) -> Tensor:
    """Return which tokens the samples of a prompt share: all of it but its last token. Shape (B, T).

    What follows the last token differs by sample.
    """
    prompt = parts == PROMPT
    ordinals = prompt.cumsum(dim=1)
    return prompt & (ordinals < ordinals[:, -1:])
