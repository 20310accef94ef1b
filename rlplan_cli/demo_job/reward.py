"""The demo's reward: how much of the room for a response is digits."""

from typing import Any

RESPONSE_TOKENS = 32  # as `job.yaml` has it; a digit is one token of the byte-level tokenizer


def digits_of_all(prompt: str, response: str, row: dict[str, Any]) -> float:  # noqa: ARG001
    """Return the digits in a response as a share of the tokens that it may have.

    Of the response's own length it would be worth as much in five tokens as in thirty-two, and short
    responses are learnt first. The forecast is of full ones.
    """
    return sum(character in "0123456789" for character in response) / RESPONSE_TOKENS
