"""Run one job in every mode on two pools of this machine: tokens per second, staleness and learning curves.

    python benchmarks/asynchronous.py [--jobs tiny wider] [--seeds 0 1 2] [--runs sync streaming ...]
        [--iterations N] [--profile FOLDER] [--out reports/published] [--awake] [--again]

GRPO rewarded with the share of digits in a response; responses end by a long-tailed distribution of lengths. A pool
generates, another one has the trainer and the reference; each is one core. Two jobs: the demo's `tiny` model, which
learns, and a `wider` one, whose iterations are passes of the model for the most part, so that modes differ by more
than calls and chance do. First the machine is measured for each, as `rlplan profile --job` does it (some minutes;
`--profile` names a folder that is kept, and used if it is there), and each mode forecast from that. A small
fixed work on each core tells how much slower the machine was for a run than for its profile (`steady.py`), and each mode
is forecast once more at the mean length that its responses had: some end before the length that is drawn, and few
batches have the mean of many. Runs of one seed follow each other, so that all modes see the same machine. Prints
mode, measured tokens per second, forecast and error, and writes `asynchronous.md` and `asynchronous.json`: these, the
order of the modes, what samples lacked of updates, and the mean reward over the last iterations beside its spread over
the seeds. What is there of runs that are not run again stays; with `--again` nothing is run or measured, and what is
there is forecast anew from `--profile`.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from awake import NOTE, cores_awake
from modes import DEMO, PROMPTS, RUNS, SAMPLES, SETTINGS, Setting, plan_of, small_job
from steady import watched

from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.execute import execute
from rlplan.executor.workers.processes.ray_session import running_ray
from rlplan.files.writing import write_json, write_text
from rlplan.planner.measured.measured_lengths import at_lengths
from rlplan.profiles.facts import Facts, load_facts
from rlplan.simulator.simulate import simulate
from rlplan_cli.measuring import measure_machine

ENDS = 10
# Iterations draw lengths by the sum of the job's seed and their number: those of runs with other seeds are others.
SEEDS_APART = 1000
LEARNT = 0.9  # a reward that counts as learnt
Rows = list[dict[str, float]]
# By run: what each of its seeds came to.
Found = dict[str, list[dict[str, Any]]]


def main() -> None:
    """Run every mode with every seed, and publish."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--iterations", type=int, help="of each run, else the job's own number")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--out", type=Path, default=Path("reports/published"))
    parser.add_argument("--awake", action="store_true", help="keep cores from being clocked down")
    parser.add_argument(
        "--again", action="store_true", help="forecast what was run anew, from --profile"
    )
    options = parser.parse_args()
    if options.again and not options.profile:
        parser.error("--again needs --profile")
    with cores_awake(awake=options.awake):
        for name in options.jobs:
            measure(name, options)


def measure(job: str, options: argparse.Namespace) -> None:
    """Run what is asked for of one job, and publish after each run."""
    setting = SETTINGS[job]
    iterations = options.iterations or setting.iterations
    path = options.out / "asynchronous.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found: Found = kept.setdefault(job, {})
    note = NOTE if options.awake else ""
    if options.again:
        facts = load_facts(small_job(setting), options.profile / job)
        for name, runs in found.items():
            runs[:] = [run | forecast_of(setting, name, facts, run) for run in runs]
        publish(options.out, kept, note)
        return
    for name in options.runs:
        found.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="rlplan-profile-") as folder:
        profile = options.profile / job if options.profile else Path(folder)
        facts, work_seconds = measured_facts(setting, profile)
    with running_ray(devices=2, hosts=1):
        for seed in options.seeds:
            for name in options.runs:
                rows, run_work_seconds = measured(setting, name, iterations, seed)
                figured = figures(rows, setting.warmup_share)
                figured |= forecast_of(setting, name, facts, figured)
                figured["machine_slowdown"] = round(run_work_seconds / work_seconds, 4)
                found.setdefault(name, []).append(figured)
                publish(options.out, kept, note)
                rate, expected = figured["tokens_per_second"], expected_rate(figured)
                words = f"{job:6} {name:30} {rate:8,.0f} tokens/s, forecast {expected:8,.0f}"
                print(f"{words}, {expected / rate - 1:+.1%}", flush=True)


def publish(out: Path, kept: Mapping[str, Found], note: str) -> None:
    """Write what was found."""
    write_json(out / "asynchronous.json", kept)
    write_text(out / "asynchronous.md", page(kept, note))


def forecast_of(
    setting: Setting, name: str, facts: Facts, figured: Mapping[str, Any]
) -> dict[str, float]:
    """Return the seconds of an iteration that are expected of a run, and those at the lengths that it had."""
    plan = plan_of(setting, name)
    as_run = at_lengths(plan, None, figured["response_tokens"])
    each = {"forecast_seconds": plan, "as_run_seconds": as_run}
    return {key: round(simulate(some, facts).iteration_seconds, 4) for key, some in each.items()}


def measured_facts(setting: Setting, profile: Path) -> tuple[Facts, float]:
    """Return what a job's passes cost on this machine, and the fixed work's seconds while that was measured."""
    job = small_job(setting)
    meanwhile = profile / "steady.json"
    if not meanwhile.exists():
        with watched() as cores:
            measure_machine(
                profile, job=job, folder=DEMO.parent, device="cpu", devices=2, quick=True
            )
        write_json(meanwhile, cores.work_seconds())
    return load_facts(job, profile), float(json.loads(meanwhile.read_text(encoding="utf-8")))


def expected_rate(figured: Mapping[str, Any]) -> float:
    """Return the tokens per second of a run whose iterations had taken what was forecast."""
    return _rate_of(figured, figured["forecast_seconds"])


def rate_as_run(figured: Mapping[str, Any], *, at_its_speed: bool = True) -> float:
    """Return what was to be expected of a run whose responses had the lengths that they had.

    Args:
        at_its_speed: On the machine as it was meanwhile; else as it was for the profile.
    """
    slowdown = figured["machine_slowdown"] if at_its_speed else 1.0
    return _rate_of(figured, figured["as_run_seconds"] * slowdown)


def _rate_of(figured: Mapping[str, Any], iteration_seconds: float) -> float:
    return float(figured["tokens_per_second"] * figured["mean_seconds"] / iteration_seconds)


def measured(setting: Setting, name: str, iterations: int, seed: int) -> tuple[Rows, float]:
    """Return the metrics of each iteration of a run, and the fixed work's seconds in those that are timed."""
    ends: list[float] = []
    with tempfile.TemporaryDirectory(prefix="rlplan-modes-") as folder, watched() as cores:
        execute(
            plan_of(setting, name, seed * SEEDS_APART),
            Path(folder),
            iterations=iterations,
            seed=seed,
            folder=DEMO.parent,
            progress=lambda *_: ends.append(time.monotonic()),
        )
        rows = read_metrics(Path(folder))
    return rows, cores.work_seconds(ends[int(setting.warmup_share * iterations)], ends[-1])


def figures(rows: Rows, warmup_share: float) -> dict[str, Any]:
    """Return what a run comes to."""
    timed, ends = rows[int(warmup_share * len(rows)) :], rows[-ENDS:]
    tokens = sum(row["tokens_per_second"] * row["seconds"] for row in timed)
    seconds = sum(row["seconds"] for row in timed)
    return {
        "tokens_per_second": round(tokens / seconds, 1),
        "mean_seconds": round(seconds / len(timed), 4),
        "response_tokens": round(statistics.mean(row["response_tokens"] for row in timed), 2),
        "iteration_seconds": round(statistics.median(row["seconds"] for row in timed), 4),
        "staleness_mean": round(
            statistics.mean(row.get("staleness_mean", 0.0) for row in timed), 3
        ),
        "staleness_max": max(row.get("staleness_max", 0.0) for row in timed),
        "reward": round(statistics.mean(row["rule_reward"] for row in ends), 4),
        "rewards": [round(row["rule_reward"], 4) for row in rows],
    }


def page(kept: Mapping[str, Found], note: str) -> str:
    """Return the page of all runs, with what is to be said of the machine meanwhile."""
    lines = [
        "# Modes on two pools of one machine",
        "",
        (
            f"Made by `python benchmarks/asynchronous.py`: GRPO, {PROMPTS} prompts of {SAMPLES} samples; a core"
            " generates, a core trains. Medians over the seeds."
        ),
        "",
        (
            "Forecasts are from a profile of this machine that was measured just before (`rlplan profile --job"
            " --quick`). A small fixed work on each core ten times a second tells how many times as long the machine took"
            " for the same by then, others of its host considered (`benchmarks/steady.py`): the second error is of"
            " forecasts at the mean length that a run's responses had, corrected by that."
        ),
        "",
        *([note, ""] if note else []),
    ]
    for job in (job for job in SETTINGS if kept.get(job)):
        lines += [*section(job, kept[job]), ""]
    return "\n".join(lines)


def section(job: str, found: Found) -> list[str]:
    """Return the lines of one job: its table, and whether its modes are in the order that was forecast."""
    setting = SETTINGS[job]
    iterations = len(next(iter(found.values()))[0]["rewards"])
    lines = [
        f"## `{job}`",
        "",
        (
            f"Of {setting.words}, {setting.updates} updates an iteration, lengths lognormal with mean and deviation"
            f" {setting.lengths.mean:g}, at most {setting.lengths.max} tokens; {iterations} iterations, of which the"
            f" last {1 - setting.warmup_share:.0%} are timed. The reward is the mean of the last {ENDS} iterations"
            " with its deviation over the seeds."
        ),
        "",
        (
            "| run | tokens/s | against sync | forecast | error | as it ran | iteration (s) | staleness mean, most | reward"
            f" | iterations to {LEARNT:g} |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    names = [name for name in RUNS if name in found]
    return [*lines, *(_row(found, name) for name in names), "", _order(found, names)]


def _row(found: Found, name: str) -> str:
    runs = found[name]
    rates = [run["tokens_per_second"] for run in runs]
    ratios = [
        run["tokens_per_second"] / base["tokens_per_second"]
        for run, base in zip(runs, found.get("sync", runs), strict=False)
    ]
    rewards = [run["reward"] for run in runs]
    expected = statistics.median(expected_rate(run) for run in runs)
    corrected = statistics.median(rate_as_run(run) / run["tokens_per_second"] - 1 for run in runs)
    spread = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
    return (
        f"| {name} | {statistics.median(rates):,.0f} | {statistics.median(ratios):.2f}"
        f" | {expected:,.0f} | {expected / statistics.median(rates) - 1:+.1%} | {corrected:+.1%}"
        f" | {statistics.median(run['iteration_seconds'] for run in runs):.3f}"
        f" | {statistics.mean(run['staleness_mean'] for run in runs):.2f},"
        f" {max(run['staleness_max'] for run in runs):g}"
        f" | {statistics.mean(rewards):.3f} +- {spread:.3f} | {_learnt(runs)} |"
    )


def _order(found: Found, names: Sequence[str]) -> str:
    """Return which of two modes is faster, measured and forecast, for all pairs that every seed has alike.

    Each run counts as on a machine as fast as for its profile, and is forecast at its lengths.
    """
    told, wrong, unlike = 0, [], []
    for one, other in itertools.combinations(names, 2):
        pairs = list(zip(found[one], found[other], strict=False))
        ratios = [
            a["tokens_per_second"]
            * a["machine_slowdown"]
            / (b["tokens_per_second"] * b["machine_slowdown"])
            for a, b in pairs
        ]
        expected = statistics.median(
            rate_as_run(a, at_its_speed=False) / rate_as_run(b, at_its_speed=False)
            for a, b in pairs
        )
        words = f"{one} / {other}: {statistics.median(ratios):.2f}, forecast {expected:.2f}"
        if min(ratios) < 1 < max(ratios):
            unlike.append(words)
            continue
        told += 1
        if (expected > 1) != (statistics.median(ratios) > 1):
            wrong.append(words)
    text = (
        f"Order, at the machine's rate: of {told} pairs of modes of which every seed says the same one is faster, the forecast has"
        f" {told - len(wrong)} in that order"
    )
    text += f" (not {'; '.join(wrong)})." if wrong else "."
    return text + (f" Seeds differ about {'; '.join(unlike)}." if unlike else "")


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
