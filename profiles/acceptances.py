"""How many guesses of speculative decoding were accepted, as published for models: facts that a job may take up, none that a forecast assumes."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlplan.files.decoding import decode, load_yaml
from rlplan.files.frozen import FrozenDict

_FILE = Path(__file__).parent / "acceptances.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedAcceptance:
    """Hold what a step gave of a model whose tokens were guessed by one draft.

    Attributes:
        model: Name of its sheet.
        draft: What guessed.
        tokens_by_guesses: Tokens that a step gave on average, its own counted, by how many were guessed.
        texts: What was generated, and how it was sampled.
    """

    model: str
    draft: str
    tokens_by_guesses: FrozenDict[int, float]
    texts: str
    source: str

    def words(self, guesses: int) -> str:
        """Return what was published, of so many guesses or of the nearest number, as a part of a sentence."""
        nearest = min(self.tokens_by_guesses, key=lambda count: (abs(count - guesses), count))
        tokens, noun = self.tokens_by_guesses[nearest], "guess" if nearest == 1 else "guesses"
        return f"{tokens:.2f} with {nearest} {noun} of {self.draft} ({self.texts}; {self.source})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Acceptances:
    acceptances: tuple[PublishedAcceptance, ...]


@cache
def published_acceptances() -> tuple[PublishedAcceptance, ...]:
    """Return all that were published, in the order of their file.

    Raises:
        FileError: The file is broken.
    """
    return decode(_Acceptances, load_yaml(_FILE), str(_FILE)).acceptances


def acceptances_of(model: str) -> tuple[PublishedAcceptance, ...]:
    """Return what was published of a model by the name of its sheet."""
    return tuple(each for each in published_acceptances() if each.model == model)
