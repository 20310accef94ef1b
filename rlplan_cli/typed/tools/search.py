"""`search`: the best plan of a job, its runners-up, and how far from the best it may be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rlplan.files.frozen import FrozenDict
from rlplan.plan import Mode
from rlplan_cli.typed.forecasts import (
    StepForecast,
    lines,
    memory_words,
    plan_document,
    step_forecast,
    step_words,
)
from rlplan_cli.typed.sources import Beside, given_beside
from rlplan_cli.typed.tool import Said

if TYPE_CHECKING:
    from rlplan.job import Job
    from rlplan.plan import Plan
    from rlplan.planner.requests.pinned import Pinned
    from rlplan.results.forecast import Candidate, SearchResult


# Placements that an answer names beside the best.
RUNNERS_UP = 5
# A search that a client waits for ends by itself; the gap then says how far from the best it may be.
SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments(Beside):
    """Say what is searched."""

    job: Annotated[
        str,
        Said(
            "Path of a job's file (YAML), of a partial plan's, or of a framework's script or recipe, whose own plan is then a candidate."
        ),
    ]
    objective: Annotated[
        str | None,
        Said(
            "What to minimise: throughput, cost, energy or time-to-score (which assumes what old samples cost); the job's where nothing is said."
        ),
    ] = None
    limits: Annotated[
        FrozenDict[str, float] | None,
        Said(
            "What every plan keeps, such as gpus, iteration_seconds, cost_usd, usd_per_hour, memory_headroom_fraction, staleness."
        ),
    ] = None
    mode: Annotated[
        Mode | None, Said("A mode in which plans may run where that is better than sync.")
    ] = None
    framework: Annotated[
        str | None,
        Said(
            "Search only what this framework can run, such as verl; of a script: whose it is, where its words do not tell."
        ),
    ] = None
    seconds: Annotated[float, Said("Stop after so long with the best plan so far.")] = SECONDS
    profile: Annotated[str | None, Said("Folder of `rlplan profile`.")] = None
    site: Annotated[str | None, Said("File of `rlplan calibrate`.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Hold the best plan of one placement.

    Attributes:
        loses_seconds: Of a step, to the winner.
    """

    placement: str
    gpus: int
    step_seconds: float
    loses_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Hold what was found.

    Attributes:
        plan: The best plan, for `export` and `explain`; saved as JSON it is a plan's file.
        gap: Share by which some plan may be better at most; 0 is proven under the cost model.
        space: In words, the plans of which it is the best.
        unseen: Placements that there was no time to look at: more `seconds` may find better plans.
        doubts: What makes the answer doubtful, what was assumed, and what is not understood of a script.
        as_it_stands_seconds: Of a step of the script's own plan; None where there is no script, or its plan is none.
        as_it_stands_faults: Why that plan is no answer: it does not fit, or breaks limits.
    """

    placement: str
    plan: dict[str, Any]
    step: StepForecast
    gap: float
    search_seconds: float
    space: str
    others: tuple[Placed, ...]
    unseen: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    as_it_stands_seconds: float | None = None
    as_it_stands_faults: tuple[str, ...] = ()


def call(asked: Arguments) -> Answer:
    """Find the best plan of a job: which models share GPUs, and with which TP/PP/DP each stage runs. It may take as long as `seconds` says."""
    from rlplan.errors import FileError
    from rlplan.executor.learning.rules import check_rule_names
    from rlplan.files.decoding import is_own_file
    from rlplan.planner.requests.drafts import load_request
    from rlplan_cli.configured import configured
    from rlplan_cli.data import check_data
    from rlplan_cli.typed.tool import ARGUMENTS

    if asked.seconds < 0:
        problem, allowed = "is too small", "0 or more"
        raise FileError(ARGUMENTS, problem, field="seconds", value=asked.seconds, allowed=allowed)
    path = Path(asked.job)
    named = None if is_own_file(path) else asked.framework
    script = configured(path, given_beside(asked), named)
    job, pinned = load_request(path) if script is None else (script.job, script.pinned)
    check_rule_names(job, path)
    check_data(job, path.parent if script is None else Path())
    own = None if script is None else script.candidate(*_known(asked))[0]
    found = _found(job, pinned, own, asked)
    best = found.plans[0]
    stands, wrong = (None, ()) if own is None else _stands(own, best.plan.job, asked)
    return Answer(
        placement=best.plan.placement,
        plan=plan_document(best.plan),
        step=step_forecast(best.forecast),
        gap=found.gap,
        search_seconds=found.search_seconds,
        space=found.space,
        others=tuple(map(_placed, found.plans[1 : 1 + RUNNERS_UP])),
        unseen=found.unseen,
        doubts=() if script is None else tuple(script.doubts()),
        as_it_stands_seconds=stands,
        as_it_stands_faults=wrong,
    )


def _found(job: Job, pinned: Pinned, own: Plan | None, asked: Arguments) -> SearchResult:
    """Return the best plans of a job that keep what is pinned, a script's own among the candidates."""
    from rlplan.planner.search import check_searched
    from rlplan_cli.configured import own_mode
    from rlplan_cli.interface import Asked, named_modes, search_pinned

    profile, site = _known(asked)
    mode = asked.mode or own_mode(own)
    pinned = named_modes(pinned, mode)
    check_searched(job, asked.job, pinned.asked.modes)
    wanted = Asked(
        profile=profile,
        site=site,
        objective=asked.objective,
        limits=asked.limits,
        seconds=asked.seconds,
        mode=mode,
        framework=asked.framework,
        as_it_stands=own,
        placements=1 + RUNNERS_UP,
    )
    return search_pinned(job, pinned, wanted)


def _stands(plan: Plan, job: Job, asked: Arguments) -> tuple[float, tuple[str, ...]]:
    """Return what a step of a script's own plan takes, and why it is no answer under the limits of the job as it was asked for."""
    from rlplan.planner.requests.specs import faults
    from rlplan.profiles.facts import load_facts
    from rlplan.simulator.simulate import simulate

    forecast = simulate(plan, load_facts(plan.job, *_known(asked)))
    asked_for = replace(plan, job=replace(plan.job, specs=job.specs))
    return forecast.iteration_seconds, faults(asked_for, forecast)


def _known(asked: Arguments) -> tuple[Path | None, Path | None]:
    """Return the files of a profile and of a site's factors."""
    return (
        None if asked.profile is None else Path(asked.profile),
        None if asked.site is None else Path(asked.site),
    )


def _placed(found: Candidate) -> Placed:
    return Placed(
        placement=found.plan.placement,
        gpus=sum(pool.gpus for pool in found.plan.pools if not pool.is_host),
        step_seconds=found.forecast.iteration_seconds,
        loses_seconds=found.loses_seconds,
    )


def words(answer: Answer) -> str:
    """Return the answer in a few lines."""
    from rlplan.reports.tables.searches import unseen_words
    from rlplan.units import show_seconds

    proof = "proven best" if answer.gap <= 0 else f"at most {answer.gap:.2%} from the best"
    took = show_seconds(answer.search_seconds)
    stands = answer.as_it_stands_seconds
    wrong = "".join(f"; it {each}" for each in answer.as_it_stands_faults)
    return lines(
        answer.doubts,
        f"best: {answer.placement}; {step_words(answer.step)}",
        memory_words(answer.step),
        "" if stands is None else f"the script as it stands: {show_seconds(stands)} a step{wrong}",
        f"{proof} under the cost model; searched in {took}; best of {answer.space}",
        (
            f"next: {each.placement} on {each.gpus} GPUs: a step {show_seconds(abs(each.loses_seconds))} "
            f"{'shorter' if each.loses_seconds < 0 else 'longer'}"
            for each in answer.others
        ),
        unseen_words(answer.unseen),
    )
