"""Run a job that adapts beside fixed plans, on two pools of this machine: where lengths grow, where a plan is bad, where nothing pays.

    python benchmarks/adapting.py [--cases growing misplaced settled] [--seeds 0 1 2] [--iterations N]
        [--room TOKENS] [--profile FOLDER] [--datasheet] [--out FOLDER] [--awake]

PPO of four tiny models on two cores, weights an update old at most. Three cases:

- `growing`: the reward is the share of the room that a response fills, so that the actor learns not to end: of 260 tokens one
  ends a response, which makes 246 tokens on average of the 768 (`--room`) that are allowed at first, and about three times as many once that is
  learnt. It starts by the plan that a search finds at the lengths of the start.
- `misplaced`: nothing is learnt, responses keep their lengths, and it starts by the slowest of the plans that a search lists.
- `settled`: the same, from the best plan: whatever is done costs time.

Each is run by the plan of the start, by the plan that a search finds at the lengths of the end, and by the first with
`--adapt`. Runs of one seed follow each other, so that all see the same machine. First the machine is measured for the job, as
`rlplan profile --job` does it (`--profile` names a folder that is kept, and used if it is there); with `--datasheet` forecasts rest on
the sheet of a CPU core, and on the run's own factors. Printed and written to
`adapting.json` and `adapting.md`: seconds from the first iteration's start to the last one's end, moves included; iterations' lengths at both
ends; moves, their forecast gains and what came of them, from the ledger.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from typing import Any

from awake import NOTE, cores_awake
from modes import DEMO

from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.execute import execute
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_json, write_text
from rlplan.job import Job
from rlplan.models import ModelArchitecture
from rlplan.plan import Plan
from rlplan.planner.adapting.adapter import LEDGER_FILE, AdaptOptions, MoveAdapter
from rlplan.planner.adapting.background import Background
from rlplan.planner.measured.ledger import read_ledger
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import Facts, load_facts
from rlplan.results.advice import Decision, Outcome
from rlplan.results.stored import read_run
from rlplan_cli.adapting import refusal
from rlplan_cli.measuring import measure_machine

ROOM, VOCABULARY = 768, 260
PROMPTS, ITERATIONS = 32, 60
# Of runs in which nothing is learnt: updates still take their time.
NO_LEARNING, LEARNING = 1e-12, 0.003
# Iterations draw lengths by the sum of the job's seed and their number: those of runs with other seeds are others.
SEEDS_APART = 1000
ENDS = 5
REWARD = """
def filled(prompt, response, row):
    return min(1.0, len(response) / {room})
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Say what a case is.

    Attributes:
        learns: Whether responses grow.
        starts_badly: Whether it starts by the slowest plan that a search lists, and not by the best.
    """

    learns: bool
    starts_badly: bool


CASES = {
    "growing": Case(learns=True, starts_badly=False),
    "misplaced": Case(learns=False, starts_badly=True),
    "settled": Case(learns=False, starts_badly=False),
}


def main() -> None:
    """Run every case with every seed, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    parser.add_argument("--room", type=int, default=ROOM, help="most tokens of a response")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--datasheet", action="store_true", help="measure no profile")
    parser.add_argument("--out", type=Path, default=Path("build/adapting"))
    parser.add_argument("--awake", action="store_true", help="keep cores from being clocked down")
    options = parser.parse_args()
    with cores_awake(awake=options.awake), tempfile.TemporaryDirectory(prefix="rlplan-") as made:
        folder = Path(made)
        (folder / "filled.py").write_text(REWARD.format(room=options.room), encoding="utf-8")
        (folder / "digits.jsonl").write_bytes((DEMO.parent / "digits.jsonl").read_bytes())
        profile = None if options.datasheet else options.profile or folder / "profile"
        if profile is not None:
            job = job_of(CASES["settled"], 0, options.room)
            measure_machine(profile, job=job, folder=folder, device="cpu", devices=2, quick=True)
        found: list[dict[str, Any]] = []
        for seed in options.seeds:
            for name in options.cases:
                found += runs_of(name, seed, options, profile, folder)
                write_json(options.out / "adapting.json", found)
                note = NOTE if options.awake else ""
                write_text(options.out / "adapting.md", page(found, note))


def job_of(case: Case, seed: int, room: int) -> Job:
    """Return the demo's job with more room for responses, and a reward of what they fill."""
    job = load_job(DEMO)
    assert job.rewards is not None
    tiny = job.models["actor"]
    assert isinstance(tiny, ModelArchitecture)
    rate = LEARNING if case.learns else NO_LEARNING
    return replace(
        job,
        name="adapting",
        seed=seed * SEEDS_APART,
        models=FrozenDict(dict.fromkeys(job.models, replace(tiny, max_positions=1024))),
        workload=replace(job.workload, prompts=PROMPTS, response_tokens=room),
        rewards=replace(job.rewards, function="filled.py:filled", model_weight=0.0),
        hyperparameters=replace(
            job.hyperparameters, learning_rate=rate, critic_learning_rate=rate, kl_coefficient=0.0
        ),
        specs=replace(job.specs, staleness=1),
    )


def plans_at(job: Job, tokens: int, facts: Facts) -> list[Plan]:
    """Return plans of a job that are best for responses of a length, the best first."""
    there = replace(job, workload=replace(job.workload, response_tokens=tokens))
    found = search(there, facts).plans
    return [replace(each.plan, job=job) for each in found]


def runs_of(
    name: str, seed: int, options: argparse.Namespace, profile: Path | None, folder: Path
) -> list[dict[str, Any]]:
    """Run a case by the plan of its start, by that of its end, and by the first, adapting."""
    case = CASES[name]
    job = job_of(case, seed, options.room)
    facts = load_facts(job, profile)
    # As many as a response has until it ends by chance, or is cut.
    tokens = round(VOCABULARY * (1 - exp(-options.room / VOCABULARY)))
    listed = plans_at(job, tokens, facts)
    start = listed[-1] if case.starts_badly else listed[0]
    end = plans_at(job, options.room if case.learns else tokens, facts)[0]
    found = []
    for way, plan in (("start", start), ("end", end), ("adapts", start)):
        out = folder / f"{name}-{seed}-{way}"
        with Background(profile) as searching:
            adapter = MoveAdapter(
                facts, out / LEDGER_FILE, AdaptOptions(), searching, refusal, lambda line: line.kind
            )
            execute(
                plan,
                out,
                iterations=options.iterations,
                seed=job.seed,
                folder=folder,
                adapter=adapter if way == "adapts" else None,
            )
        figured = figures(out) | {"case": name, "seed": seed, "way": way}
        figured["plan"] = f"{plan.mode} {plan.placement}"
        found.append(figured)
        print(json.dumps(figured), flush=True)
    return found


def figures(out: Path) -> dict[str, Any]:
    """Return what a run took, how long its responses were at both ends, and its moves."""
    run, rows = read_run(out), read_metrics(out)
    lines = read_ledger(out / LEDGER_FILE)
    tokens = [row["response_tokens"] for row in rows]
    return {
        "seconds": round(run.trace.iterations[-1].end_seconds, 2),
        "iterations_seconds": round(sum(row["seconds"] for row in rows), 2),
        "tokens_at_ends": [
            round(statistics.mean(part)) for part in (tokens[:ENDS], tokens[-ENDS:])
        ],
        "moves": [each.iteration for each in run.replanned],
        "last_plan": f"{run.plan.mode} {run.plan.placement}",
        "decisions": [decided(each) for each in lines if isinstance(each, Decision)],
        "outcomes": [came_of(each) for each in lines if isinstance(each, Outcome)],
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
    """Return what a move gained and took."""
    return {
        "step": line.step,
        "gained": round(line.gained_seconds, 3),
        "as_forecast": line.as_forecast,
        "took": line.restart_seconds and round(line.restart_seconds, 2),
        "notes": line.notes,
    }


def page(found: Sequence[dict[str, Any]], note: str) -> str:
    """Return a table of all runs."""
    head = "# Runs that adapt, beside fixed plans\n\n`python benchmarks/adapting.py` wrote this page. Seconds are from the first "
    head += "iteration's start to the last one's end.\n\n| case | seed | run | first plan | moves after | s | tokens at the start and end |\n"
    rows = [
        f"| {each['case']} | {each['seed']} | {each['way']} | {each['plan']} | {each['moves'] or 'none'} "
        f"| {each['seconds']} | {each['tokens_at_ends']} |\n"
        for each in found
    ]
    return "".join([head, "|---|---|---|---|---|---|---|\n", *rows, f"\n{note}\n" if note else ""])


if __name__ == "__main__":
    main()
