"""Run one job in every mode on two pools of this machine: tokens per second, staleness and learning curves.

    python benchmarks/asynchronous.py [--iterations 40] [--seeds 0 1 2] [--runs sync streaming ...]
        [--profile FOLDER] [--out reports/published]

GRPO of the demo's tiny model, rewarded with the share of digits in its response; responses end by a
long-tailed distribution of lengths. A pool generates, another one has the trainer and the reference; each is
one core. First the machine is measured, as `rlplan profile --job` does it (three minutes; `--profile` names a folder
that is kept, and used if it is there), and each mode forecast from that. Runs of one seed follow each other, so that
all modes see the same machine. Prints mode, measured tokens per second, forecast and error, and writes
`asynchronous.md` and `asynchronous.json`: these, what samples lacked of updates, and the mean reward over the last
iterations beside its spread over the seeds. What is there of runs that are not run again stays.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from awake import NOTE, cores_awake

from executor.control.metrics import read_metrics
from executor.execute import execute
from executor.workers.processes.ray_session import running_ray
from profiles.catalog import load_job
from profiles.facts import load_facts
from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_json, write_text
from rlplan.job import Job
from rlplan.plan import HOST_DEVICE, Plan, ResourcePool, TaskPlan
from rlplan.results.forecast import Forecast
from rlplan.workload.lengths import Lognormal
from rlplan_cli.measuring import measure_machine
from simulator.simulate import simulate
from simulator.validation import machine_slowdown

DEMO = Path(__file__).parents[1] / "rlplan_cli" / "demo_job" / "job.yaml"
SAMPLES, PROMPTS, MAX_RUNNING = 4, 16, 32
# Most responses are short, and one in thirty three times as long as the mean: the tail of published runs.
LENGTHS = Lognormal(mean=24.0, std=24.0, max=128)
ENDS = 10
LEARNT = 0.9  # a reward that counts as learnt
# Until the policy says nothing but digits it ends some responses before their length: the first half is not timed.
WARMUP_SHARE = 0.5
ENGINES = {"generate": "torch-static", "rule": "python"}
RUNS: dict[str, dict[str, Any]] = {
    "sync": {},
    "streaming": {"mode": "streaming"},
    "one-step-off": {"mode": "one-step-off", "staleness": 1},
    "async, staleness 1": {"mode": "async", "staleness": 1, "in_flight": "recompute"},
    "async, staleness 4": {"mode": "async", "staleness": 4, "in_flight": "recompute"},
    "async, staleness 1, decoupled": {"mode": "async", "staleness": 1, "in_flight": "recompute"},
    "async, staleness 4, decoupled": {"mode": "async", "staleness": 4, "in_flight": "recompute"},
}
# Most that a token is weighed with in decoupled PPO.
IMPORTANCE_CAP = 2.0
Rows = list[dict[str, float]]


def main() -> None:
    """Run every mode with every seed, and publish."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", nargs="+", default=list(RUNS))
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--out", type=Path, default=Path("reports/published"))
    parser.add_argument("--awake", action="store_true", help="keep cores from being clocked down")
    options = parser.parse_args()
    with cores_awake(awake=options.awake):
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Run what is asked for, and publish after each run."""
    path = options.out / "asynchronous.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name in options.runs:
        found.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="rlplan-profile-") as folder:
        forecasts = forecasts_of(options.profile or Path(folder), options.runs)
    with running_ray(devices=2, hosts=1):
        for seed in options.seeds:
            for name in options.runs:
                rows, slowdown = measured(forecasts[name], name, options.iterations, seed)
                figured = figures(rows) | {
                    "forecast_seconds": round(forecasts[name].iteration_seconds, 4),
                    "machine_slowdown": round(slowdown, 4),
                }
                found.setdefault(name, []).append(figured)
                write_json(path, found)
                write_text(
                    options.out / "asynchronous.md",
                    page(found, options.iterations, NOTE if options.awake else ""),
                )
                rate, expected = figured["tokens_per_second"], expected_rate(figured)
                error = f"{expected / rate - 1:+.1%}"
                print(f"{name:32} {rate:8,.0f} tokens/s, forecast {expected:8,.0f}, {error}")


def forecasts_of(profile: Path, names: Sequence[str]) -> dict[str, Forecast]:
    """Return what is expected of each mode on this machine, which is measured if it was not."""
    job = small_job()
    if not profile.exists() or not any(profile.iterdir()):
        measure_machine(profile, job=job, folder=DEMO.parent, device="cpu", devices=2, quick=True)
    facts = load_facts(job, profile)
    return {name: simulate(plan_of(name), facts) for name in names}


def expected_rate(figured: Mapping[str, Any], slowdown: float = 1.0) -> float:
    """Return the tokens per second of a run whose iterations had taken what was expected.

    Args:
        slowdown: How many times as long the machine takes as when the forecast was right.
    """
    expected_seconds = figured["forecast_seconds"] * slowdown
    return float(figured["tokens_per_second"] * figured["mean_seconds"] / expected_seconds)


def small_job() -> Job:
    """Return the demo's job with GRPO, fewer prompts and long-tailed lengths."""
    job = load_job(DEMO)
    assert job.rewards is not None
    work = replace(
        job.workload,
        prompts=PROMPTS,
        samples_per_prompt=SAMPLES,
        response_tokens=LENGTHS,
        updates=2,
    )
    actor = job.models["actor"]
    return replace(
        job,
        name="modes",
        algorithm="grpo",
        workload=work,
        models=FrozenDict({"actor": actor, "reference": actor}),
        rewards=replace(job.rewards, function="digits"),
    )


def plan_of(name: str) -> Plan:
    """Return a run's plan: one core generates, one trains, a process judges."""
    job = small_job()
    if name.endswith("decoupled"):
        settings = replace(job.hyperparameters, importance_cap=IMPORTANCE_CAP)
        job = replace(job, old_log_prob="trainer", hyperparameters=settings)
    pools = (
        ResourcePool(name="train", device="cpu", gpus=1, roles=("actor", "reference")),
        ResourcePool(name="generate", device="cpu", gpus=1, roles=("actor",)),
        ResourcePool(name="judge", device=HOST_DEVICE, gpus=1, roles=("rule",)),
    )
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    where = {"generate": "generate", "rule": "judge"}
    layouts = {
        task.name: TaskPlan(
            pool=where.get(task.kind, "train"),
            micro_batch=16,
            max_running=MAX_RUNNING,
            engine=ENGINES.get(task.kind, "torch-3d"),
        )
        for task in tasks
    }
    order = {
        pool.name: tuple(task.name for task in tasks if layouts[task.name].pool == pool.name)
        for pool in pools
    }
    plan = Plan(
        job=job,
        pools=pools,
        tasks=FrozenDict(layouts),
        order=FrozenDict(order),
        transition="two-copies",
    )
    return replace(plan, **RUNS[name])


def measured(forecast: Forecast, name: str, iterations: int, seed: int) -> tuple[Rows, float]:
    """Return the metrics of each iteration of a run, and how much slower the machine was than for its profile."""
    with tempfile.TemporaryDirectory(prefix="rlplan-modes-") as folder:
        run = execute(
            plan_of(name), Path(folder), iterations=iterations, seed=seed, folder=DEMO.parent
        )
        return read_metrics(Path(folder)), machine_slowdown(forecast, run) or 1.0


def figures(rows: Rows) -> dict[str, Any]:
    """Return what a run comes to."""
    timed, ends = rows[int(WARMUP_SHARE * len(rows)) :], rows[-ENDS:]
    tokens = sum(row["tokens_per_second"] * row["seconds"] for row in timed)
    seconds = sum(row["seconds"] for row in timed)
    return {
        "tokens_per_second": round(tokens / seconds, 1),
        "mean_seconds": round(seconds / len(timed), 4),
        "iteration_seconds": round(statistics.median(row["seconds"] for row in timed), 4),
        "staleness_mean": round(
            statistics.mean(row.get("staleness_mean", 0.0) for row in timed), 3
        ),
        "staleness_max": max(row.get("staleness_max", 0.0) for row in timed),
        "reward": round(statistics.mean(row["rule_reward"] for row in ends), 4),
        "rewards": [round(row["rule_reward"], 4) for row in rows],
    }


def page(found: dict[str, list[dict[str, Any]]], iterations: int, note: str) -> str:
    """Return the page of all runs, with what is to be said of the machine meanwhile."""
    lines = [
        "# Modes on two pools of one machine",
        "",
        (
            f"Made by `python benchmarks/asynchronous.py --iterations {iterations}`: GRPO, {PROMPTS} prompts of"
            f" {SAMPLES} samples, lengths lognormal with mean and deviation {LENGTHS.mean:g}, at most"
            f" {LENGTHS.max} tokens; a core generates, a core trains. Medians over the seeds; the reward is the"
            f" mean of the last {ENDS} iterations with its deviation over the seeds. The second half of the"
            " iterations is timed: before that the policy ends responses before their length."
        ),
        "",
        (
            "Forecasts are from a profile of this machine that was measured just before (`rlplan profile --job"
            " --quick`). A fixed loop beside each run tells how fast the machine was by then: the second error is of"
            " forecasts corrected by that."
        ),
        "",
        *([note, ""] if note else []),
        (
            "| run | tokens/s | against sync | forecast | error | at the machine's rate | iteration (s) | staleness mean, most | reward"
            f" | iterations to {LEARNT:g} |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in (name for name in RUNS if name in found):
        runs = found[name]
        rates = [run["tokens_per_second"] for run in runs]
        ratios = [
            run["tokens_per_second"] / base["tokens_per_second"]
            for run, base in zip(runs, found.get("sync", runs), strict=False)
        ]
        rewards = [run["reward"] for run in runs]
        expected = statistics.median(expected_rate(run) for run in runs)
        corrected = statistics.median(
            expected_rate(run, run["machine_slowdown"]) / run["tokens_per_second"] - 1
            for run in runs
        )
        spread = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
        lines.append(
            f"| {name} | {statistics.median(rates):,.0f} | {statistics.median(ratios):.2f}"
            f" | {expected:,.0f} | {expected / statistics.median(rates) - 1:+.1%} | {corrected:+.1%}"
            f" | {statistics.median(run['iteration_seconds'] for run in runs):.3f}"
            f" | {statistics.mean(run['staleness_mean'] for run in runs):.2f},"
            f" {max(run['staleness_max'] for run in runs):g}"
            f" | {statistics.mean(rewards):.3f} +- {spread:.3f} | {_learnt(runs)} |"
        )
    return "\n".join([*lines, ""])


def _learnt(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return after how many iterations the reward is high, the median over the seeds that came so far."""
    reached = [
        next((at for at, reward in enumerate(run["rewards"], 1) if reward >= LEARNT), None)
        for run in runs
    ]
    known = [at for at in reached if at is not None]
    return f"{statistics.median(known):g}" if len(known) == len(reached) else "not all"


if __name__ == "__main__":
    main()
