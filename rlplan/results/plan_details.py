"""What a page shows of a plan beside its forecast: other jobs, responses under way, memory in every stage."""

from dataclasses import dataclass

from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan
from rlplan.results.forecast import Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Hold one change of a job, simulated.

    Attributes:
        change: In words, such as `responses twice as long`.
        plan: Of the changed job; None where there is none.
        is_same_plan: Whether pools and layouts are those of the plan that was asked about; else they were
            searched anew.
        forecast: Of the plan.
        reason: Why there is no plan; empty where there is one.
        gap: How far a plan that was searched may be from the best; 0 is proven.
    """

    change: str
    plan: Plan | None = None
    is_same_plan: bool = True
    forecast: Forecast | None = None
    reason: str = ""
    gap: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesUnderWay:
    """Hold how many responses of an iteration are still under way, as a step function of time.

    Attributes:
        seconds: From the start of generation, ascending, the first one 0.
        responses: That have not ended from then on, running or waiting for a place; the last one 0.
        most_running: That run at a time, as far as the plan's limit says.
    """

    seconds: tuple[float, ...]
    responses: tuple[int, ...]
    most_running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMoment:
    """Hold what lies in the memory of a pool's fullest GPU during one task, or the transition.

    Attributes:
        terms: Bytes by term.
    """

    pool: str
    during: str
    terms: FrozenDict[str, int]
    capacity_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDetails:
    """Hold what is worked out of a plan when a page of it is written.

    Attributes:
        what_ifs: The plan's job with one change each.
        under_way: Responses during generation; None in modes that never stop generating.
        memory: By pool, in the order of the dataflow.
    """

    what_ifs: tuple[WhatIf, ...] = ()
    under_way: ResponsesUnderWay | None = None
    memory: tuple[MemoryMoment, ...] = ()
