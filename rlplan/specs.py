"""What a search is asked for beside its objective: hard limits that it keeps."""

from dataclasses import dataclass, fields
from typing import Annotated

from annotated_types import Ge, Lt

from rlplan.files.limits import AtLeastOne, Positive, Updates
from rlplan.files.tags import NotBool

Headroom = Annotated[float, Ge(0), Lt(1), NotBool()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Specs:
    """Hold limits that every plan must keep; None sets none.

    Attributes:
        iteration_seconds: Longest iteration.
        gpus: Most GPUs that the plan's pools hold together.
        cost_usd: Most money for one iteration.
        usd_per_hour: Most money for one hour of all the plan's GPUs.
        energy_joules: Most energy of one iteration.
        memory_headroom_fraction: Least share of every GPU's memory that stays free at its peak.
        staleness: Most iterations' updates that the weights which began a response may lack when it is
            learnt from. Without it only synchronous plans are looked at; 1 lets generation run one
            iteration ahead.
    """

    iteration_seconds: Positive | None = None
    gpus: AtLeastOne | None = None
    cost_usd: Positive | None = None
    usd_per_hour: Positive | None = None
    energy_joules: Positive | None = None
    memory_headroom_fraction: Headroom | None = None
    staleness: Updates | None = None

    @property
    def given(self) -> dict[str, float]:
        """Return the limits that are set, by name, in the order of the fields."""
        found = ((item.name, getattr(self, item.name)) for item in fields(self))
        return {name: limit for name, limit in found if limit is not None}


NO_SPECS = Specs()
