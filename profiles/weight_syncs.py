"""Transitions that their sheets alone describe: methods of frameworks to sync weights, by name.

`rlplan.transfers` looks them up here beside the transitions that have a formula of their own.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from rlplan.profiles.sheets import load_transition, sheet_names
from rlplan.transfers import Transition, own_copy

# Behind all others where a usual transition is looked for.
METHOD_PLACE: Final = 10


class WeightSyncs(Mapping[str, Transition]):
    """Give the transition of every sheet that has a method; a sheet is opened when it is asked for."""

    def __getitem__(self, name: str) -> Transition:
        """Return a method as a transition: it reaches every cut and is tried only where it is named."""
        method = load_transition(name).method if name in sheet_names("transitions") else None
        if method is None:
            raise KeyError(name)
        return Transition(
            words=method.words,
            volume=partial(own_copy, collective="stream", group_ranks=1),
            on_one_pool="one" in method.pools,
            between_pools="two" in method.pools,
            method=True,
            reaches=lambda *_: True,
            place=METHOD_PLACE,
        )

    def __iter__(self) -> Iterator[str]:
        """Yield the names of all sheets of transitions, sorted, also of those that have no method."""
        return iter(sheet_names("transitions"))

    def __len__(self) -> int:
        """Return how many sheets there are."""
        return len(sheet_names("transitions"))


MEMBERS: Final = WeightSyncs()
