"""Run jobs that adapt beside fixed plans, on two cores of this machine: where lengths grow threefold, and where nothing pays.

    python benchmarks/adapting.py [--cases growing steady] [--seeds 0 1 ... 9] [--iterations N] [--profile FOLDER]
        [--out FOLDER] [--page FILE] [--awake]

GRPO of a tiny model on two devices, a core each: long prompts, responses that are as long as they are drawn (`ignore_eos`), weights
an update old at most. Generation of few sequences gains little from a second core, learning from them much, and the longer prompts are, the less of it grows with responses: while responses
are short, one pool of both cores is best; as they grow, a core that generates beside one that learns. First the machine is
measured for the job, as `rlplan profile --job` does it (`--profile` names a folder that is kept, and used if it is there). Forecasts on
this profile say where the two plans cross: the run begins at the last of some mean lengths (`GRID`) at which the one is still ahead of
the other. Two cases:

- `growing`: the mean length grows threefold over the run (`mean_at_end`).
- `steady`: it stays at the shortest of these lengths, far from where plans cross: whatever adapting does costs time.

Ways to run a case: by the plan that a search finds at the lengths of the start (`start`); by that one of the plans found at the lengths
of start, middle and end which is forecast to end the whole run first (`hindsight`); and by the first with what `rlplan execute
--adapt` has (`adapts`). The ways of a seed follow each other, in an order that turns from seed to seed, so that all see the same
machine.

Written after every run: `adapting.json` in `--out`, with seconds from the first iteration's start to the last one's end, moves included,
lengths at both ends, and decisions and outcomes from the ledger; runs that stand there are not run again. `--page` writes a
page of them. Runs of other lengths, or of another number of iterations, are none of theirs: they are refused.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from awake import NOTE, cores_awake
from modes import DEMO

from rlplan.errors import RlplanError
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.execute import execute
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import plain, write_json, write_text, write_yaml
from rlplan.job import Job
from rlplan.models import ModelArchitecture
from rlplan.plan import Plan
from rlplan.planner.adapting.adapter import LEDGER_FILE, AdaptOptions, MoveAdapter
from rlplan.planner.adapting.background import Background
from rlplan.planner.adapting.proposing import same_layout
from rlplan.planner.measured.ledger import read_ledger
from rlplan.planner.search import search
from rlplan.profiles.facts import Facts, load_facts
from rlplan.profiles.jobs.resolve import load_job
from rlplan.results.advice import Barred, Decision, NoSearch, Outcome
from rlplan.results.stored import read_run
from rlplan.simulator.simulate import simulate
from rlplan.simulator.whole_run import run_forecast
from rlplan.workload import Logged, Lognormal, mean_length, with_mean
from rlplan_cli.adapting import refusal
from rlplan_cli.measuring import measure_machine

ITERATIONS = 300
PROMPTS, SAMPLES, PROMPT_TOKENS, EPOCHS = 2, 2, 1024, 1
# A token of generation costs a pass of all layers, however narrow they are; a token that is learnt from costs what its products
# cost. Layers that are narrow and many make few long responses take as long as learning from long prompts, on a CPU. One narrow head: what
# is read of the cache for each sequence is little, so that four sequences on one core take hardly longer than two.
SHAPE: Mapping[str, int] = {
    "num_layers": 12,
    "hidden_size": 32,
    "num_heads": 1,
    "num_kv_heads": 1,
    "head_dim": 16,
    "ffn_size": 64,
    "max_positions": 4096,
}
# Mean response tokens with which a run may begin; how often longer they are at its end; how often longer than the first mean the
# longest response may be.
GRID = (16, 24, 32, 40, 48, 56, 64, 72, 80, 96)
GROWTH, MOST = 3, 8
# Iterations draw lengths by the sum of the job's seed and their number: those of runs with other seeds are others.
SEEDS_APART = 1000
ENDS = 5
WAYS = ("start", "hindsight", "adapts")
CASES = ("growing", "steady")
ROLES = ("actor", "reference")
# The most that a run that adapts is to take of a fixed plan's seconds, by case and the fixed plan's way.
WANTED: Mapping[tuple[str, str], tuple[float, str]] = {
    ("growing", "start"): (0.85, "15 % sooner than the plan that was best at the start"),
    ("growing", "hindsight"): (1.05, "within 5 % of the best plan in hindsight"),
    ("steady", "start"): (1.01, "at most 1 % more where nothing pays"),
}


def main() -> None:
    """Run every case with every seed, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--out", type=Path, default=Path("build/adapting"))
    parser.add_argument("--page", type=Path, help="write what was found as a page")
    parser.add_argument("--awake", action="store_true", help="keep cores from being clocked down")
    options = parser.parse_args()
    note = NOTE if options.awake else ""
    file = options.out / "adapting.json"
    found: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    with cores_awake(awake=options.awake), tempfile.TemporaryDirectory(prefix="rlplan-") as made:
        folder = Path(made)
        profile = options.profile or folder / "profile"
        job = job_of("growing", 0, options.iterations, GRID[-1], folder)
        measure_machine(profile, job=job, folder=folder, device="cpu", devices=2, quick=True)
        crossing = crossing_of(job, load_facts(job, profile))
        print(f"plans cross behind {crossing} tokens a response", flush=True)
        for seed in options.seeds:
            for name in options.cases:
                begins = crossing if name == "growing" else GRID[0]
                job = job_of(name, seed, options.iterations, begins, folder)
                for each in runs_of(name, job, seed, profile, folder, found):
                    found.append(each)
                    write_json(file, found)
                    print(json.dumps(each), flush=True)
    if options.page is not None:
        write_text(options.page, page(found, note))


def job_of(case: str, seed: int, iterations: int, begins: int, folder: Path) -> Job:
    """Return the job of a case, resolved: a model of narrow layers with long prompts.

    Args:
        begins: Mean response tokens at its start.
    """
    demo = load_job(DEMO)
    tiny = demo.models["actor"]
    assert demo.rewards is not None
    assert isinstance(tiny, ModelArchitecture)
    end = GROWTH * begins if case == "growing" else None
    lengths = Logged(mean=begins, mean_at_end=end, max=MOST * begins)
    job = replace(
        demo,
        name=case,
        seed=seed * SEEDS_APART,
        algorithm="grpo",
        models=FrozenDict(dict.fromkeys(ROLES, replace(tiny, name="narrow", **SHAPE))),
        workload=replace(
            demo.workload,
            prompts=PROMPTS,
            samples_per_prompt=SAMPLES,
            prompt_tokens=PROMPT_TOKENS,
            response_tokens=lengths,
            updates=1,
            epochs=EPOCHS,
            ignore_eos=True,
        ),
        prompts_file=None,
        rewards=replace(demo.rewards, function="digits", model_weight=0.0),
        specs=replace(demo.specs, staleness=1),
        iterations=iterations,
    )
    file = folder / f"{case}-{seed}.yaml"
    write_yaml(file, job)
    return load_job(file)


def at(plan: Plan, tokens: float) -> Plan:
    """Return a plan whose responses have a mean length."""
    lengths = with_mean(plan.job.workload.response_tokens, tokens)
    work = replace(plan.job.workload, response_tokens=lengths)
    return replace(plan, job=replace(plan.job, workload=work))


def crossing_of(job: Job, facts: Facts) -> int:
    """Return the last mean length of the grid at which the plan that is best for the shortest one is still ahead.

    Of the one that is best for the longest responses that a run may end with; a run may begin there.

    Raises:
        SystemExit: One plan is best for all of them.
    """
    short, long = (best_at(job, tokens, facts) for tokens in (GRID[0], GROWTH * GRID[-1]))
    ahead = [
        tokens
        for tokens in GRID
        if simulate(at(short, tokens), facts).iteration_seconds
        < simulate(at(long, tokens), facts).iteration_seconds
    ]
    if same_layout(short, long) or not ahead:
        raise SystemExit(f"on this machine one plan is best for all lengths: {words_of(long)}")
    return ahead[-1]


def best_at(job: Job, tokens: float, facts: Facts) -> Plan:
    """Return the plan of a job that a search finds for responses of a mean length, of those that are carried out here."""
    lengths = with_mean(job.workload.response_tokens, tokens)
    there = replace(job, workload=replace(job.workload, response_tokens=lengths))
    plans = (replace(each.plan, job=job) for each in search(there, facts).plans)
    return next(plan for plan in plans if not refusal(plan))


def fixed_plans(case: str, job: Job, facts: Facts) -> tuple[Plan, Plan]:
    """Return the plan that is best at the start, and the one that is forecast to end the whole run first."""
    lengths = job.workload.response_tokens
    assert isinstance(lengths, Lognormal), "logged lengths are resolved"
    first, last = lengths.training_means or (mean_length(lengths),) * 2
    means = (first, (first + last) / 2, last) if case == "growing" else (first,)
    plans = [best_at(job, tokens, facts) for tokens in means]
    assert job.iterations is not None, "the job says over how many iterations lengths grow"
    whole = [run_forecast(plan, facts, job.iterations).seconds for plan in plans]
    return plans[0], plans[whole.index(min(whole))]


def runs_of(
    case: str,
    job: Job,
    seed: int,
    profile: Path,
    folder: Path,
    found: Sequence[dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """Yield what the ways of a case take that have not been run, one after another."""
    facts, iterations = load_facts(job, profile), job.iterations
    assert iterations is not None, "the job says over how many iterations lengths grow"
    start, hindsight = fixed_plans(case, job, facts)
    done = {(each["case"], each["seed"], each["way"]) for each in found}
    lengths = plain(job.workload.response_tokens)
    for each in found:
        if each["case"] == case and (each["iterations"], each.get("lengths")) != (
            iterations,
            lengths,
        ):
            raise SystemExit(
                f"runs of {case} stand there with other lengths or iterations: give their --profile, or another --out"
            )
    turned = seed % len(WAYS)
    for way in (*WAYS[turned:], *WAYS[:turned]):
        if (case, seed, way) in done or (way == "hindsight" and same_layout(start, hindsight)):
            continue
        plan = hindsight if way == "hindsight" else start
        out = folder / f"{case}-{seed}-{way}"
        carry_out(plan, out, iterations, folder, profile if way == "adapts" else None)
        yield {
            "case": case,
            "seed": seed,
            "way": way,
            "iterations": iterations,
            "lengths": lengths,
            "plan": words_of(plan),
            "forecast_seconds": round(run_forecast(plan, facts, iterations).seconds, 2),
            **figures(out),
        }


def carry_out(plan: Plan, out: Path, iterations: int, folder: Path, profile: Path | None) -> None:
    """Run a plan; with a profile it may move, as `rlplan execute --adapt` lets it."""
    seed = plan.job.seed
    if profile is None:
        execute(plan, out, iterations=iterations, seed=seed, folder=folder, progress=tell)
        return
    facts = load_facts(plan.job, profile)
    with Background(profile, plan) as searching:
        adapter = MoveAdapter(
            facts, out / LEDGER_FILE, AdaptOptions(), searching, refusal, lambda line: line.kind
        )
        execute(
            plan,
            out,
            iterations=iterations,
            seed=seed,
            folder=folder,
            progress=tell,
            adapter=adapter,
        )


def tell(_done: int, _iterations: int, message: str) -> None:
    """Print what is no iteration."""
    if "tokens a response" not in message:
        print(f"  {message}", flush=True)


def words_of(plan: Plan) -> str:
    """Return a plan in words."""
    pools = " ".join(f"{pool.gpus}" for pool in plan.pools if not pool.is_host)
    return f"{plan.mode} {plan.placement} on {pools}"


def figures(out: Path) -> dict[str, Any]:
    """Return what a run took, how long its responses were at both ends, and its moves."""
    run, rows = read_run(out), read_metrics(out)
    try:
        lines = read_ledger(out / LEDGER_FILE)
    except RlplanError as error:
        raise SystemExit(f"{out}: {error}") from error
    tokens = [row["response_tokens"] for row in rows]
    return {
        "seconds": round(run.trace.iterations[-1].end_seconds, 2),
        "iterations_seconds": round(sum(row["seconds"] for row in rows), 2),
        "tokens_at_ends": [
            round(statistics.mean(part)) for part in (tokens[:ENDS], tokens[-ENDS:])
        ],
        "seconds_at_ends": [
            round(statistics.median(row["seconds"] for row in part), 3)
            for part in (rows[1 : ENDS + 1], rows[-ENDS:])
        ],
        "moves": [each.iteration for each in run.replanned],
        "last_plan": words_of(run.plan),
        "decisions": [decided(each) for each in lines if isinstance(each, Decision)],
        "outcomes": [came_of(each) for each in lines if isinstance(each, Outcome)],
        "barred": [each.reason for each in lines if isinstance(each, Barred)],
        "no_search": [(each.step, each.held) for each in lines if isinstance(each, NoSearch)],
    }


def decided(line: Decision) -> dict[str, Any]:
    """Return a decision's answer, cost and gain."""
    gain = line.gain
    ends = None if gain is None else (gain.p10_seconds, gain.p50_seconds, gain.p90_seconds)
    return {
        "step": line.step,
        "answer": line.answer,
        "gain": ends and [round(each, 3) for each in ends],
        "cost": line.restart_seconds and round(line.restart_seconds, 2),
        "measured": round(line.measured_seconds, 3),
        "forecast": round(line.forecast_seconds, 3),
    }


def came_of(line: Outcome) -> dict[str, Any]:
    """Return what a move was to gain, gained and took."""
    gain = line.gain
    return {
        "step": line.step,
        "gain": [round(each, 3) for each in (gain.p10_seconds, gain.p50_seconds, gain.p90_seconds)],
        "gained": round(line.gained_seconds, 3),
        "as_forecast": line.as_forecast,
        "took": line.restart_seconds and round(line.restart_seconds, 2),
        "notes": line.notes,
    }


def page(found: Sequence[dict[str, Any]], note: str) -> str:
    """Return a page: medians and spread over seeds, all runs, and what came of each move."""
    words = (
        "# Runs that adapt, beside fixed plans\n\n`python benchmarks/adapting.py` wrote this page: two devices of a core each. Seconds are "
        "from the first iteration's start to the last one's end, moves included. Spread: the shortest and the longest.\n"
    )
    parts = [words, f"\n{note}\n" if note else "", "\n## What is wanted\n\n", *wanted(found)]
    for case in dict.fromkeys(each["case"] for each in found):
        of_case = [each for each in found if each["case"] == case]
        parts += [
            f"\n## {case}\n\n",
            *summary(of_case),
            "\n",
            *runs_table(of_case),
            *moves_table(of_case),
        ]
    return "".join(parts)


def wanted(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield what is wanted of runs that adapt, and what came of it: by medians over seeds."""
    shares = shares_of(runs)
    for (case, way), (most, words) in WANTED.items():
        found = shares.get((case, way))
        if found is None:
            continue
        middle = statistics.median(found)
        answer = "met" if middle <= most else "**missed**"
        yield (
            f"- {case}: {words}: a run that adapts takes {middle:.3f} of its seconds, the median of {len(found)} seeds "
            f"({min(found):.3f} to {max(found):.3f}; wanted {most}): {answer}.\n"
        )
    judged = [each["as_forecast"] for run in runs for each in run["outcomes"]]
    moves = [
        len(run["moves"]) for run in runs if run["way"] == "adapts" and run["case"] == "steady"
    ]
    if judged:
        yield f"- {sum(judged)} of {len(judged)} moves gained what lies within their intervals (wanted: 8 of 10).\n"
    if moves:
        yield f"- steady: {sum(moves)} moves in {len(moves)} runs (wanted: none).\n"


def shares_of(runs: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[float]]:
    """Return what shares runs that adapt take of the seconds of fixed plans with their seeds, by case and way."""
    seconds = {(each["case"], each["way"], each["seed"]): each["seconds"] for each in runs}
    shares: dict[tuple[str, str], list[float]] = {}
    for (case, way, seed), taken in seconds.items():
        adapted = seconds.get((case, "adapts", seed))
        if way != "adapts" and adapted is not None:
            shares.setdefault((case, way), []).append(adapted / taken)
    return shares


def summary(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield medians by way, and the shares that a run that adapts takes of what fixed plans take with its seed."""
    by_way = {way: [each["seconds"] for each in runs if each["way"] == way] for way in WAYS}
    beside = {way: spread(shares, 3) for (_, way), shares in shares_of(runs).items()}
    yield "| way | runs | s, median | spread | `adapts` takes, of its seconds with the same seed: median | spread |\n|---|---|---|---|---|---|\n"
    for way, seconds in by_way.items():
        if not seconds:
            continue
        yield f"| {way} | {len(seconds)} | {spread(seconds, 1)} | {beside.get(way, ' |')} |\n"


def spread(values: Sequence[float], digits: int) -> str:
    """Return two cells: the median, and the least and the largest."""
    if not values:
        return "|"
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} | {low:.{digits}f} to {high:.{digits}f}"


def runs_table(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a row for each run."""
    yield "| seed | way | first plan | moves after | s | forecast as it began, s | tokens at both ends | s an iteration at both ends |\n"
    yield "|---|---|---|---|---|---|---|---|\n"
    for each in runs:
        moves = ", ".join(map(str, each["moves"])) or "none"
        ends = (
            " and ".join(map(str, each[name])) for name in ("tokens_at_ends", "seconds_at_ends")
        )
        first, second = ends
        yield (
            f"| {each['seed']} | {each['way']} | {each['plan']} | {moves} | {each['seconds']} | {each['forecast_seconds']} "
            f"| {first} | {second} |\n"
        )


def moves_table(runs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a row for each move: forecast gain, interval and outcome."""
    moved = [(run["seed"], each) for run in runs for each in run["outcomes"]]
    if not moved:
        yield "\nNo move was judged.\n"
        return
    yield "\n| seed | judged after | forecast gain, s an iteration | p10 to p90 | gained | within | the move took, s | what else |\n"
    yield "|---|---|---|---|---|---|---|---|\n"
    for seed, each in moved:
        low, middle, high = each["gain"]
        within = "yes" if each["as_forecast"] else "no"
        yield (
            f"| {seed} | {each['step']} | {middle} | {low} to {high} | {each['gained']} | {within} | {each['took']} "
            f"| {'; '.join(each['notes'])} |\n"
        )


if __name__ == "__main__":
    main()
