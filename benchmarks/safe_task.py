"""A task whose reward and cost contradict each other, with a known best answer.

A character that is an odd digit earns 1, an even one 1/2, any other nothing; odd digits cost 1. So
the most reward is 1, at a cost of 1; under a limit c of the cost it is c + (1 - c) / 2.
"""

from typing import Any

ODD, EVEN = frozenset("13579"), frozenset("02468")


def reward(prompt: str, response: str, row: dict[str, Any]) -> float:  # noqa: ARG001
    """Return what the response's characters earn on average; 0 for an empty response."""
    odd, even = _shares(response)
    return odd + even / 2


def cost(prompt: str, response: str, row: dict[str, Any]) -> float:  # noqa: ARG001
    """Return the share of odd digits; 0 for an empty response."""
    return _shares(response)[0]


def _shares(response: str) -> tuple[float, float]:
    count = max(1, len(response))
    odd = sum(character in ODD for character in response)
    even = sum(character in EVEN for character in response)
    return odd / count, even / count
