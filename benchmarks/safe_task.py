"""A task whose reward and cost contradict each other, with a known best answer.

A response with shares o of odd and e of even digits earns o (3/2 - o) + e / 2 and costs o. So the
most reward is 3/4, at a cost of 1/2; under a limit c <= 1/2 of the cost it is 1/2 + c - c^2.

The reward is concave on purpose. Were it linear, o + e / 2, every mix of odd and even digits would be
worth the same at the multiplier that belongs to the best one: policy and multiplier then circle
around it for ever, whatever the step sizes, as in any bilinear game.
"""

from typing import Any

ODD, EVEN = frozenset("13579"), frozenset("02468")


def reward(prompt: str, response: str, row: dict[str, Any]) -> float:  # noqa: ARG001
    """Return what the shares of odd and even digits earn; 0 for an empty response."""
    odd, even = _shares(response)
    return odd * (1.5 - odd) + even / 2


def cost(prompt: str, response: str, row: dict[str, Any]) -> float:  # noqa: ARG001
    """Return the share of odd digits; 0 for an empty response."""
    return _shares(response)[0]


def most_reward(limit: float) -> float:
    """Return the most that a mean response can earn under a limit of its mean cost."""
    odd = min(limit, 0.5)
    return 0.5 + odd - odd**2


def least_cost(reward_: float) -> float:
    """Return the least mean cost of responses that earn that much on average: Jensen's inequality."""
    beyond = min(max(reward_ - 0.5, 0.0), 0.25)
    return (1 - (1 - 4 * beyond) ** 0.5) / 2


def _shares(response: str) -> tuple[float, float]:
    count = max(1, len(response))
    odd = sum(character in ODD for character in response)
    even = sum(character in EVEN for character in response)
    return odd / count, even / count
