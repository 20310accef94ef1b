"""Reward copying: the share of the payload's characters that the response repeats in place."""

from typing import Any


def RULE(prompt: str, response: str, row: dict[str, Any]) -> float:  # noqa: N802
    """Return the share of positions at which the response repeats the payload.

    The payload is the row's `payload`, or the whole prompt where the row has none.
    """
    payload = str(row.get("payload", prompt))
    repeated = sum(ours == theirs for ours, theirs in zip(response, payload, strict=False))
    return repeated / max(1, len(payload))
