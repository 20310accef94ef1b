"""Transports of weights to a pool that only generates, one file each: `TRANSPORT`; a plan names it as the file.

A file says what a transport needs from a plan and how its seconds are known; how it runs stands in the executor.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

from rlplan.files.limits import OneOf
from rlplan.plug_ins import PlugIns

DEFAULT_TRANSPORT: Final = "object-store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """Describe a transport.

    Attributes:
        words: What it does, for people, as the end of a sentence.
        probed: Whether the `weight_sync` passes of a profile measure it; the seconds of others follow from
            the links between the pools alone.
        lacks: From the devices of the train and the generate pool to why it does not serve them, as a
            clause; None where it does.
    """

    words: str
    probed: bool
    lacks: Callable[[str, str], str | None]


def serves_all(train_device: str, generate_device: str) -> None:
    """Lack nothing, whatever the devices are."""
    del train_device, generate_device


KNOWN_TRANSPORTS = PlugIns[Transport](
    __name__, __path__, kind="transport of weights", attribute="TRANSPORT"
)
TransportName = Annotated[str, OneOf(KNOWN_TRANSPORTS.names)]
