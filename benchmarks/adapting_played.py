"""Play jobs that adapt in simulated time, on machines that are unlike their profile: many seeds in minutes, no workers.

    python benchmarks/adapting_played.py [--profile FOLDER] [--jobs grows fivefold short longer unplanned steady] [--seeds 8]

The job and its plans are those of `benchmarks/adapting.py`; so is the profile, if it is there not measured again, and what decides (`MoveAdapter`, with its search). Machines are
drawn: each differs from its profile by a factor for generation and one for training (`KINDS`), by one of its own for each plan
(`within_machine`, by which single forecasts on a profiled machine are off), and from iteration to iteration (`NOISE`); each iteration has lengths
that are drawn around the mean of its place in the run. What a search takes is the processor time that it took; an answer is there when as much
of the played run has passed. A move takes what it took in `reports/published/adapting.md`.

Jobs: `grows` threefold and `fivefold`, over 300 iterations; `short`, threefold over 120; `longer`, where responses end 1.8 times as long as
the job plans; `unplanned`, where they grow and the job does not say so; `steady`, where nothing pays. Printed by job: medians over seeds of the seconds of the run
that adapts over those of the plan of the start and over those of the better one of that and the plan that is best in hindsight, the iterations after which runs moved, and
how many moves gained what lies within their intervals.
"""

import argparse
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path

import adapting
import numpy as np

from rlplan.calibration import Calibration, Factor, WorkKind
from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan
from rlplan.planner.adapting.adapter import LEDGER_FILE, AdaptOptions, MoveAdapter
from rlplan.planner.adapting.proposing import (
    Proposals,
    Request,
    proposals,
    same_layout,
    searched_before,
)
from rlplan.planner.measured.ledger import read_ledger
from rlplan.planner.measured.measured_lengths import at_lengths
from rlplan.profiles.analytic.efficiencies import load_spreads
from rlplan.profiles.facts import Facts, load_facts
from rlplan.results.advice import DoneIteration, Outcome
from rlplan.results.forecast import Forecast
from rlplan.simulator.simulate import simulate
from rlplan.trace import IterationSpan
from rlplan.workload import Lognormal, mean_length, with_mean
from rlplan_cli.adapting import refusal
from rlplan_cli.measuring import measure_machine

# Logarithms' standard deviation of a machine's factors, and the share by which single iterations are off.
KINDS, NOISE = 0.15, 0.06
FACTORS: tuple[WorkKind, ...] = ("generation", "training")
# Seconds that a run stands still in a move, and that its first iteration takes longer (`reports/published/adapting.md`).
STANDS_SECONDS, FIRST_SECONDS = 1.1, 0.4
# How often longer than the first mean the longest response may be, as long as the last mean is no third of it.
MOST = adapting.MOST
# Forecasts are kept by mean lengths that lie so far apart, as a logarithm.
STEP = 0.02


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Say how a job's lengths grow, and what it says of that.

    Attributes:
        growth: Of mean lengths, from the run's first iteration to its last, as the job has it.
        times: By which responses end longer than that.
        is_planned: Whether the job says it.
        begins: Mean response tokens at first; None: where plans cross.
    """

    iterations: int = adapting.ITERATIONS
    growth: int = adapting.GROWTH
    times: float = 1.0
    is_planned: bool = True
    begins: int | None = None


JOBS = {
    "grows": Setting(),
    "fivefold": Setting(growth=5),
    "short": Setting(iterations=120),
    "longer": Setting(times=1.8),
    "unplanned": Setting(is_planned=False),
    "steady": Setting(growth=1, begins=adapting.GRID[0]),
}


class Machine:
    """Tell what iterations take on a machine that is drawn."""

    def __init__(self, known: Facts, seed: int) -> None:
        draw = np.random.default_rng(seed)
        factors = {kind: Factor(value=exp(KINDS * draw.standard_normal())) for kind in FACTORS}
        stages = FrozenDict[WorkKind, Factor](factors)
        self._facts = known.with_calibration(Calibration(site="machine", stages=stages))
        self._seed, self._own = seed, dict[str, float]()
        self._forecasts: dict[tuple[str, int], Forecast] = {}

    def iteration(self, plan: Plan, mean: float) -> tuple[Forecast, float]:
        """Return a forecast at a mean length, and how many times as long it takes here."""
        key = repr((plan.mode, plan.pools, plan.tasks))
        if key not in self._own:
            draw = np.random.default_rng((self._seed, zlib.crc32(key.encode())))
            within = load_spreads().within_machine.value
            self._own[key] = exp(within * draw.standard_normal())
        place = key, round(log(mean) / STEP)
        if place not in self._forecasts:
            self._forecasts[place] = simulate(
                at_lengths(plan, None, exp(STEP * place[1])), self._facts
            )
        return self._forecasts[place], self._own[key]


class Beside:
    """Search beside a played run: an answer is there after the processor time that it took."""

    def __init__(self, facts: Facts, plan: Plan) -> None:
        self._facts, self._before = facts, searched_before(plan, facts)
        self._open: Proposals | None = None
        self._ready, self.now = 0.0, 0.0

    def ask(self, request: Request) -> None:
        """Search."""
        self._open = proposals(request, self._facts, self._before)
        self._before, self._ready = None, self.now + self._open.cpu_seconds

    def answer(self) -> Proposals | None:
        """Return what was found, once and not too early."""
        if self._open is None or self.now < self._ready:
            return None
        found, self._open = self._open, None
        return found


def drawn_lengths(plan: Plan, setting: Setting, begins: float, seed: int) -> list[float]:
    """Return the mean response tokens of each iteration's batch."""
    lengths = plan.job.workload.response_tokens
    assert isinstance(lengths, Lognormal), "logged lengths are resolved"
    variance = log(1 + (lengths.std / lengths.mean) ** 2)
    draw, count = np.random.default_rng((1, seed)), plan.job.workload.sequences
    found = []
    for number in range(setting.iterations):
        part = (number + 0.5) / setting.iterations
        mean = begins * (1 + (setting.growth * setting.times - 1) * part)
        batch = draw.lognormal(log(mean) - variance / 2, variance**0.5, count)
        found.append(float(np.clip(batch, 1, lengths.max).mean()))
    return found


def seconds_of(plan: Plan, machine: Machine, lengths: Sequence[float], seed: int) -> float:
    """Return what a run takes that stays with a plan."""
    draw, total = np.random.default_rng((2, seed)), FIRST_SECONDS
    for mean in lengths:
        forecast, times = machine.iteration(plan, mean)
        total += times * forecast.iteration_seconds * (1 + NOISE * draw.standard_normal())
    return total


def adapted(
    plan: Plan, facts: Facts, machine: Machine, lengths: Sequence[float], seed: int, ledger: Path
) -> tuple[float, list[int]]:
    """Return what a run takes that adapts, and after which iterations it moved."""
    beside, draw = Beside(facts, plan), np.random.default_rng((2, seed))
    adapter = MoveAdapter(facts, ledger, AdaptOptions(), beside, refusal, lambda line: line.kind)
    adapter.begun(plan, 0, STANDS_SECONDS)
    moves, longer = list[int](), FIRST_SECONDS
    for number, mean in enumerate(lengths):
        forecast, times = machine.iteration(plan, mean)
        times *= 1 + NOISE * draw.standard_normal()
        done = _done(plan, forecast, times, number, len(lengths), beside.now, longer, mean)
        beside.now, longer = done.span.end_seconds, 0.0
        answer = adapter.after(done)
        if answer.plan is not None:
            plan, longer = answer.plan, FIRST_SECONDS
            beside.now += STANDS_SECONDS
            moves.append(number + 1)
            adapter.begun(plan, number + 1, STANDS_SECONDS)
    return beside.now, moves


def _done(
    plan: Plan,
    forecast: Forecast,
    times: float,
    number: int,
    iterations: int,
    begin: float,
    longer: float,
    mean: float,
) -> DoneIteration:
    """Return an iteration as a run measures it."""
    last = forecast.iterations[-1]
    spans = [
        replace(
            span,
            iteration=number,
            start_seconds=begin + times * (span.start_seconds - last.start_seconds),
            end_seconds=begin + times * (span.end_seconds - last.start_seconds),
        )
        for span in forecast.trace.of_iteration(last.iteration)
    ]
    seconds = times * forecast.iteration_seconds + longer
    return DoneIteration(
        plan=plan,
        iterations=iterations,
        span=IterationSpan(iteration=number, start_seconds=begin, end_seconds=begin + seconds),
        spans=spans,
        metrics={"seconds": seconds, "response_tokens": mean},
    )


def played(
    name: str, setting: Setting, profile: Path, crossing: int, seeds: int, folder: Path
) -> str:
    """Return a row of what runs of a job took.

    Args:
        crossing: Mean response tokens behind which another plan is better than that of the start.
    """
    adapting.GROWTH = setting.growth
    adapting.MOST = max(MOST, 3 * setting.growth)
    case = "growing" if setting.growth > 1 else "steady"
    job = adapting.job_of(case, 0, setting.iterations, adapting.GRID[-1], folder)
    facts = load_facts(job, profile)
    begins = setting.begins or crossing
    job = adapting.job_of(case, 0, setting.iterations, begins, folder)
    first, best = adapting.fixed_plans(case, job, facts)
    start = first if setting.is_planned else _unplanned(first, begins)
    rows, moved, within = list[tuple[float, float]](), list[list[int]](), list[bool]()
    for seed in range(seeds):
        machine, ledger = Machine(facts, seed), folder / f"{name}-{seed}" / LEDGER_FILE
        ledger.parent.mkdir()
        lengths = drawn_lengths(first, setting, begins, seed)
        seconds, moves = adapted(start, facts, machine, lengths, seed, ledger)
        fixed = [seconds_of(plan, machine, lengths, seed) for plan in (first, best)]
        rows.append((seconds / fixed[0], seconds / min(fixed)))
        moved.append(moves)
        lines = read_ledger(ledger)
        within += [line.as_forecast for line in lines if isinstance(line, Outcome)]
    beside = " | ".join(adapting.spread(values, 3) for values in zip(*rows, strict=True))
    after = ", ".join("+".join(map(str, each)) or "none" for each in moved)
    kept = "" if same_layout(first, best) else f", then {adapting.words_of(best)}"
    return f"| {name} | {adapting.words_of(first)}{kept} | {beside} | {after} | {sum(within)} of {len(within)} |"


def _unplanned(plan: Plan, begins: float) -> Plan:
    """Return a plan whose job takes responses to stay as long as they are at first."""
    lengths = plan.job.workload.response_tokens
    assert isinstance(lengths, Lognormal), "logged lengths are resolved"
    stays = with_mean(replace(lengths, training_means=None), begins)
    assert abs(mean_length(stays) - begins) < 1, "lengths have the mean that they are given"
    work = replace(plan.job.workload, response_tokens=stays)
    return replace(plan, job=replace(plan.job, workload=work))


def main() -> None:
    """Play the jobs, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=JOBS)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlplan-") as made:
        folder = Path(made)
        profile = options.profile or folder / "profile"
        job = adapting.job_of("growing", 0, adapting.ITERATIONS, adapting.GRID[-1], folder)
        if not profile.exists():
            measure_machine(profile, job=job, folder=folder, device="cpu", devices=2, quick=True)
        crossing = adapting.crossing_of(job, load_facts(job, profile))
        print(
            "| job | plan of the start | `adapts` takes, of its seconds: median | spread | of the better plan's: median | spread | moves after | "
            "gained within its interval |\n|---|---|---|---|---|---|---|---|"
        )
        for name in options.jobs:
            print(played(name, JOBS[name], profile, crossing, options.seeds, folder), flush=True)


if __name__ == "__main__":
    main()
