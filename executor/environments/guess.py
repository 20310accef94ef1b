"""Several turns: a hidden letter is guessed, and each guess is answered with `earlier` or `later`.

The letter is the row's `answer`, or else the first one of the prompt. A right guess gives 1, and half of it is lost
by each guess before.
"""

from typing import Any

from rlplan.executor.environments import Step

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Environment:
    """Hide a letter."""

    def reset(self, prompt: str, row: dict[str, Any]) -> str:
        """Choose the letter."""
        text = str(row.get("answer", prompt)).lower()
        self._letter = next((letter for letter in text if letter in LETTERS), LETTERS[0])
        self._worth = 1.0
        return ""

    def step(self, response: str) -> Step:
        """Answer the first letter of a response; what has none is a wrong guess."""
        guess = next((letter for letter in response.lower() if letter in LETTERS), "")
        if guess == self._letter:
            return Step(reward=self._worth, ends=True)
        self._worth /= 2
        if not guess:
            return Step(observation="?\n")
        return Step(observation="later\n" if guess < self._letter else "earlier\n")
