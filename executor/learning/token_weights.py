"""Weights of tokens in a loss, so that sequences weigh the same, or other texts are mixed in.

A loss divides its sum over tokens by the response tokens of the whole optimizer step. Weights here
are scaled by that number, so that a weighted sum of the step is the mean that was asked for.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Reduce = Callable[[Tensor], Tensor]


def sequence_weights(mask: Tensor, updates: int, reduce_sum: Reduce) -> Tensor:
    """Return weights under which every response of an update weighs the same. Shape (B, T).

    w = (T / N) / length, with the T tokens of the update's N responses over all ranks: the mean of
    the means of responses (Shao et al. 2024, GRPO, arXiv:2402.03300, eq. 3). Empty ones do not count.

    Args:
        mask: Response tokens of a rank's rows, the shares of the updates one after another. (B, T).
    """
    lengths = mask.sum(dim=1).double()
    tokens, sequences = _update_sums(lengths, (lengths > 0).double(), updates, reduce_sum)
    share = (tokens / sequences.clamp(min=1)).repeat_interleave(len(lengths) // updates)
    weights: Tensor = (share / lengths.clamp(min=1)).float()[:, None] * mask
    return weights


def text_weights(texts: Tensor, mask: Tensor, updates: int, reduce_sum: Reduce) -> Tensor:
    """Return weights whose sum over an update's texts is its number of response tokens. (B, T).

    Args:
        texts: Tokens of the texts that are predicted, row by row beside the responses. (B, T').
        mask: The response tokens. (B, T).
    """
    of_texts, of_responses = texts.sum(dim=1).double(), mask.sum(dim=1).double()
    predicted, tokens = _update_sums(of_texts, of_responses, updates, reduce_sum)
    # A step without any response is normalised by 1.
    share = tokens.clamp(min=1) / predicted.clamp(min=1)
    weights: Tensor = share.repeat_interleave(len(of_texts) // updates).float()[:, None] * texts
    return weights


def _update_sums(first: Tensor, second: Tensor, updates: int, reduce_sum: Reduce) -> Tensor:
    """Return the sums of both over the rows of each update, on all ranks. Shape (2, updates)."""
    rows = torch.stack([first, second]).view(2, updates, -1)
    return reduce_sum(rows.sum(dim=2))
