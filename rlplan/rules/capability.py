"""What a valid plan may ask for and an executor need not have: capabilities, by name."""

from collections.abc import Iterable
from dataclasses import dataclass

from rlplan.errors import CapabilityError


@dataclass(frozen=True, slots=True)
class Capability:
    """Name something that rules allow, and that not every executor or engine can do."""

    name: str

    def lacked_by(self, who: str, field: str, value: object, instead: str) -> CapabilityError:
        """Return what to say where an executor or engine cannot.

        Args:
            field: Dotted path of what asks for it, in the plan or its job.
            instead: What can be done, as a clause.
        """
        return CapabilityError(
            self.name, f"{field} is {value}: {who} cannot: {self.name}; {instead}"
        )


def refuse_first(lacks: Iterable[CapabilityError], file: str) -> None:
    """Raise the first thing that is lacking, if there is any.

    Args:
        file: What to call the plan in its message.

    Raises:
        CapabilityError: Names the file, what is lacked, and the field that asks for it.
    """
    for lack in lacks:
        raise CapabilityError(lack.capability, f"{file}: {lack}")
