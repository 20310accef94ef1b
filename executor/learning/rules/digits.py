"""Reward digits: the share of the response's characters that are 0 to 9."""

from typing import Any

DIGITS = frozenset("0123456789")


def RULE(prompt: str, response: str, row: dict[str, Any]) -> float:  # noqa: ARG001, N802
    """Return the share of digits among the response's characters; 0 for an empty response."""
    return sum(character in DIGITS for character in response) / max(1, len(response))
