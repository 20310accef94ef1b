"""Forecast, run and compare jobs that are unlike each other: other algorithms, models, lengths, batches.

    python benchmarks/jobs.py [--jobs grpo-256x4 ...] [--out reports/published] [--rounds 3]

Each job is profiled, searched and executed as `rlplan profile`, `search` and `execute` do. The page
`jobs.md` has a row for each task of each job, forecast beside measured, nothing left out. Nothing was
fitted to these jobs: forecasts come from the profile that was measured for the job alone. Prompts
have one length and the tokenizer's end token has an id that no model can say, so that responses are
as long as forecast; the models hardly learn.

A fixed loop before and after each run tells how fast the machine was (`rlplan.executor.probing`); errors are shown with
that and without. What `rlplan calibrate` finds in a job's first round is then tried on its other rounds.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from awake import NOTE, cores_awake
from placements import unlearning
from trl_setting import DATA_BATCHES, MODEL, write_prompts, write_tokenizer

from rlplan.algorithms import load_algorithm
from rlplan.executor.execute import execute
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_json, write_text
from rlplan.job import RANDOM, Job, NodeGroup, Rewards
from rlplan.models import ModelArchitecture
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_model, resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.results.forecast import Candidate, Forecast
from rlplan.results.measurement import Comparison, MeasuredRun
from rlplan.simulator.calibration import calibrate
from rlplan.simulator.observations import observations_of_run
from rlplan.simulator.simulate import simulate
from rlplan.simulator.validation import compare
from rlplan.units import show_seconds
from rlplan.workload import Workload
from rlplan_cli.measuring import measure_machine

DEVICES = 2
MORE_HEADS = "at the machine's rate | calibrated"
WIDE = replace(MODEL, name="wide-384x2", hidden_size=384, num_layers=2, num_heads=6, num_kv_heads=2)
WIDE = replace(WIDE, head_dim=64, ffn_size=1024)
DEEP = replace(MODEL, name="deep-96x10", hidden_size=96, num_layers=10, num_heads=4, num_kv_heads=4)
DEEP = replace(DEEP, head_dim=24, ffn_size=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Describe a job by what its forecast depends on."""

    name: str
    algorithm: str
    model: ModelArchitecture
    prompts: int
    prompt_tokens: int
    response_tokens: int
    samples: int = 1
    updates: int = 1


TINY = load_model("tiny")
CASES = (
    Case(
        name="ppo-tiny-long-prompts",
        algorithm="ppo",
        model=TINY,
        prompts=64,
        prompt_tokens=96,
        response_tokens=16,
    ),
    Case(
        name="ppo-tiny-long-responses",
        algorithm="ppo",
        model=TINY,
        prompts=48,
        prompt_tokens=16,
        response_tokens=160,
        updates=2,
    ),
    Case(
        name="ppo-wide",
        algorithm="ppo",
        model=WIDE,
        prompts=32,
        prompt_tokens=32,
        response_tokens=48,
        updates=2,
    ),
    Case(
        name="grpo-256x4",
        algorithm="grpo",
        model=MODEL,
        prompts=16,
        prompt_tokens=16,
        response_tokens=64,
        samples=4,
    ),
    Case(
        name="grpo-tiny-groups-of-16",
        algorithm="grpo",
        model=TINY,
        prompts=12,
        prompt_tokens=64,
        response_tokens=48,
        samples=16,
        updates=2,
    ),
    Case(
        name="rloo-deep",
        algorithm="rloo",
        model=DEEP,
        prompts=16,
        prompt_tokens=24,
        response_tokens=40,
        samples=4,
        updates=4,
    ),
    Case(
        name="reinforce-tiny",
        algorithm="reinforce-plus-plus",
        model=TINY,
        prompts=256,
        prompt_tokens=16,
        response_tokens=24,
        updates=4,
    ),
    Case(
        name="safe-rlhf-tiny",
        algorithm="safe-rlhf",
        model=TINY,
        prompts=64,
        prompt_tokens=24,
        response_tokens=40,
        updates=2,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Hold a forecast and the medians of each round's iterations."""

    name: str
    forecast_seconds: float
    measured_seconds: list[float]

    @property
    def error_fraction(self) -> float:
        """Return the forecast's error against the median of the rounds."""
        return self.forecast_seconds / statistics.median(self.measured_seconds) - 1

    @property
    def cells(self) -> str:
        """Return the cells of the row behind its name."""
        rounds = ", ".join(show_seconds(seconds) for seconds in self.measured_seconds)
        return f"{show_seconds(self.forecast_seconds)} | {rounds} | {self.error_fraction:+.1%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Hold what came of a job: a comparison of each round."""

    case: Case
    placement: str
    profile_seconds: float
    comparisons: list[Comparison]
    calibrated: list[Comparison] = field(default_factory=list)

    def corrected(self, name: str) -> float | None:
        """Return the median over rounds of a row's error, the machine's rate in each round taken into account."""
        return _median_error(name, self.comparisons, 1.0)

    def after_calibration(self, name: str) -> float | None:
        """Return the same of the rounds after the first, with the factors that the first has shown."""
        first = self.comparisons[0].machine_slowdown or 1.0
        return _median_error(name, self.calibrated, first)

    @property
    def rows(self) -> list[Row]:
        """Return forecast and measured seconds of each task, and of the iteration last."""
        by_round = [(*each.rows, each.iteration) for each in self.comparisons]
        return [
            Row(
                name=rows[0].name,
                forecast_seconds=rows[0].forecast_seconds,
                measured_seconds=[row.measured_median_seconds for row in rows],
            )
            for rows in zip(*by_round, strict=True)
        ]


def _median_error(name: str, comparisons: Sequence[Comparison], rate: float) -> float | None:
    """Return the median error of a row, on a machine whose slowdown was `rate` when its forecast was right."""
    errors = [
        row.error_at((each.machine_slowdown or 1.0) / rate)
        for each in comparisons
        for row in (*each.rows, each.iteration)
        if row.name == name
    ]
    known = [error for error in errors if error is not None]
    return statistics.median(known) if known else None


def main() -> None:
    """Profile and search all jobs, then run them in rounds, and publish the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", nargs="*", default=[case.name for case in CASES])
    parser.add_argument("--out", type=Path, default=Path("reports/published"))
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--note", default="", help="what the page says of the machine meanwhile")
    parser.add_argument("--awake", action="store_true", help="keep cores from being clocked down")
    options = parser.parse_args()
    note = " ".join(filter(None, (options.note, NOTE if options.awake else "")))
    with (
        cores_awake(awake=options.awake),
        tempfile.TemporaryDirectory(prefix="rlplan-jobs-") as name,
    ):
        chosen = [case for case in CASES if case.name in options.jobs]
        found = {case.name: planned(case, Path(name) / case.name) for case in chosen}
        after: dict[str, Forecast] = {}
        for turn in range(options.rounds):
            for outcome, best in found.values():
                folder = Path(name) / outcome.case.name
                run = execute(
                    best.plan,
                    folder / f"run-{turn}",
                    iterations=options.iterations,
                    warmup=options.warmup,
                    seed=1,
                    folder=folder,
                )
                outcome.comparisons.append(compare(best.forecast, run))
                if not turn:
                    after[outcome.case.name] = calibrated_forecast(best, run, folder)
                else:
                    outcome.calibrated.append(compare(after[outcome.case.name], run))
                print("\n".join(rows_of(outcome)), flush=True)
    publish([outcome for outcome, _ in found.values()], options.out, note)


def planned(case: Case, folder: Path) -> tuple[Outcome, Candidate]:
    """Profile and search one job; return its best plan, and where what is measured of it goes."""
    folder.mkdir()
    write_tokenizer(folder / "tokenizer")
    write_prompts(folder, DATA_BATCHES * case.prompts, case.prompt_tokens)
    job = job_of(case, folder)
    start = time.monotonic()
    measure_machine(
        folder / "profile", job=job, folder=folder, device="cpu", devices=DEVICES, quick=True
    )
    seconds = time.monotonic() - start
    best = search(job, load_facts(job, folder / "profile")).plans[0]
    outcome = Outcome(
        case=case, placement=best.plan.placement, profile_seconds=seconds, comparisons=[]
    )
    return outcome, best


def calibrated_forecast(best: Candidate, run: MeasuredRun, folder: Path) -> Forecast:
    """Return the forecast of a plan with the factors that one of its runs has shown."""
    fitted = calibrate(
        observations_of_run(run, best.forecast),
        site="first round",
        rests_on=best.forecast.profile,
        framework=best.plan.job.framework,
        sources=["the first round"],
    )
    facts = load_facts(best.plan.job, folder / "profile")
    return simulate(best.plan, facts.with_calibration(fitted.calibration))


def job_of(case: Case, folder: Path) -> Job:
    """Return the job of a case, all of whose models have one architecture."""
    algorithm = load_algorithm(case.algorithm)
    roles = (*algorithm.required_roles, *(("reward",) if case.algorithm == "ppo" else ()))
    job = Job(
        name=case.name,
        algorithm=case.algorithm,
        models=FrozenDict(dict.fromkeys(roles, case.model)),
        weights=RANDOM,
        workload=Workload(
            prompts=case.prompts,
            samples_per_prompt=case.samples,
            prompt_tokens=case.prompt_tokens,
            response_tokens=case.response_tokens,
            updates=case.updates,
        ),
        cluster=(NodeGroup(gpu="cpu", gpus_per_node=DEVICES),),
        rewards=Rewards(function="digits", cost_function="copy" if algorithm.constrained else None),
        prompts_file="prompts.jsonl",
        tokenizer="tokenizer",
    )
    return unlearning(resolve_job(job, folder))


def drift_of(outcome: Outcome) -> str:
    """Return what the fixed loop says of the machine in each round, and the iteration's error with it."""
    known = [each for each in outcome.comparisons if each.machine_slowdown is not None]
    if not known:
        return ""
    times = ", ".join(f"{each.machine_slowdown:.2f}" for each in known)
    errors = [each.iteration.error_at(each.machine_slowdown or 1.0) or 0.0 for each in known]
    return (
        f" A fixed loop took {times} times as long in the rounds as with the profile; with that the iteration"
        f" is off by {statistics.median(errors):+.1%}."
    )


def rows_of(outcome: Outcome) -> list[str]:
    """Return the lines of a job's table: its tasks, and the iteration last."""
    case, model = outcome.case, outcome.case.model
    samples = f" x {case.samples} samples" if case.samples > 1 else ""
    return [
        f"## {case.name}",
        "",
        (
            f"{case.algorithm}, models of hidden {model.hidden_size} and {model.num_layers} layers;"
            f" {case.prompts} prompts{samples}, {case.prompt_tokens} + {case.response_tokens} tokens,"
            f" {case.updates} updates. Plan: {outcome.placement}. The profile took"
            f" {outcome.profile_seconds:.0f} s.{drift_of(outcome)}"
        ),
        "",
        f"| task | forecast | measured | error | {MORE_HEADS} |",
        "|---|---:|---:|---:|---:|---:|",
        *(f"| {row.name} | {row.cells} | {_more(outcome, row.name)} |" for row in outcome.rows),
        "",
    ]


def _more(outcome: Outcome, name: str) -> str:
    """Return the cells of a row's other errors."""
    errors = (outcome.corrected(name), outcome.after_calibration(name))
    return " | ".join("" if error is None else f"{error:+.1%}" for error in errors)


def publish(outcomes: list[Outcome], out: Path, note: str) -> None:
    """Write the page and its numbers."""
    iterations = [outcome.rows[-1] for outcome in outcomes]
    sizes = sorted(abs(row.error_fraction) for row in iterations)
    lines = [
        "# Jobs that are unlike each other, forecast and measured",
        "",
        (
            "Made by `python benchmarks/jobs.py`: each job profiled (`--quick`), searched and run on this"
            " project's executor, on two cores of a shared virtual machine. All were profiled before the"
            " first ran, and each ran in rounds, minutes apart: measured is the median iteration of each"
            " round, and what rounds differ by is the machine. Nothing was fitted to these jobs, and none"
            " that ran is left out. Errors are of the forecast against the rounds' median: + is slower"
            " than measured. `At the machine's rate` multiplies the forecast by how much longer a fixed"
            " loop took in each round than with the profile; `calibrated` also has the factors that"
            " `rlplan calibrate` finds in the first round, and is judged on the other rounds."
        ),
        "",
        *([note, ""] if note else []),
        (
            f"Iterations of {len(sizes)} jobs: median error {statistics.median(sizes):.1%}, largest"
            f" {sizes[-1]:.1%}."
        ),
        "",
        f"| job | iteration, forecast | measured | error | {MORE_HEADS} |",
        "|---|---:|---:|---:|---:|---:|",
        *(
            f"| {outcome.case.name} | {row.cells} | {_more(outcome, row.name)} |"
            for outcome, row in zip(outcomes, iterations, strict=True)
        ),
        "",
        *(line for outcome in outcomes for line in rows_of(outcome)),
    ]
    numbers = [{"job": each.case.name, "comparisons": each.comparisons} for each in outcomes]
    write_json(out / "jobs.json", numbers)
    write_text(out / "jobs.md", "\n".join(lines))


if __name__ == "__main__":
    main()
