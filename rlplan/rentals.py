"""Rentals: what can be rented of whom, as files say it."""

import re
from dataclasses import dataclass
from typing import Final

from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import AtLeastOne, Positive

RENTALS_VERSION: Final = 1
# A month or a day: 2026-11 or 2026-11-09.
DATE: Final = re.compile(r"\d{4}-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalInstance:
    """Describe one type of instance: a node as it is rented.

    Attributes:
        name: As its provider has it.
        gpu: Name of a device sheet.
        gpus: Of one instance.
        usd_per_hour: Price of one instance, all that is in it included.
        price_date: When that was its price, `2026-11-09` or `2026-11`; None is not known.
        inter_node_gbps: Network between instances, all cards of one together, one direction; None is not known, and one
            instance alone is considered then.
        network: Kind of that network where exchanges over it have a sheet of their own (`efa`); None is any other.
        vcpus: As the provider counts them; None is not known.
        threads_per_core: Of these, to a core.
        host_memory_bytes: Of one instance; None is not known.
        counts: Numbers in which it is rented; None for powers of two.
        region: Where the price holds, if not that of the sheet.
        sources: Where figures are from, by their field.
    """

    name: str
    gpu: str
    gpus: AtLeastOne
    usd_per_hour: Positive
    price_date: str | None = None
    inter_node_gbps: Positive | None = None
    network: str | None = None
    vcpus: AtLeastOne | None = None
    threads_per_core: AtLeastOne = 2
    host_memory_bytes: AtLeastOne | None = None
    counts: tuple[AtLeastOne, ...] | None = None
    region: str | None = None
    sources: FrozenDict[str, str] = FrozenDict()

    @property
    def cores(self) -> int | None:
        """Return the cores of its host; None where they are not known."""
        return None if self.vcpus is None else max(1, self.vcpus // self.threads_per_core)


@dataclass(frozen=True, slots=True, kw_only=True)
class RentalSheet:
    """Hold what a provider rents.

    Attributes:
        provider: Its short name.
        region: Where the prices hold.
        notes: What else one should know of them.
    """

    version: int = RENTALS_VERSION
    provider: str
    title: str = ""
    region: str = ""
    notes: tuple[str, ...] = ()
    instances: tuple[RentalInstance, ...]
