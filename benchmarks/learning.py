"""Learn the small task with PPO and GRPO over three seeds, and publish the curves.

    python benchmarks/learning.py [--iterations 60] [--out reports/published]

Writes `learning.md`, `learning.json` and a picture: the mean reward of the rule by iteration.
"""

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from executor.execute import execute
from executor.metrics import read_metrics
from planner.search import search
from profiles.catalog import load_job
from profiles.facts import load_facts
from reports.learning import plot_learning
from rlplan.frozen import FrozenDict
from rlplan.job import Job
from rlplan.writing import write_json, write_text

DEMO = Path(__file__).parents[1] / "rlplan_cli" / "demo_job" / "job.yaml"
SEEDS = (0, 1, 2)
ENDS = 5


def main() -> None:
    """Run every algorithm with every seed, and publish what was learnt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("reports/published"))
    options = parser.parse_args()
    jobs = {"PPO": load_job(DEMO), "GRPO": grpo(load_job(DEMO))}
    curves = {
        name: [rewards(job, seed, options.iterations) for seed in SEEDS]
        for name, job in jobs.items()
    }
    publish(curves, options.out)


def grpo(job: Job) -> Job:
    """Return the demo's job with GRPO: four samples of each prompt instead of a critic."""
    samples = 4
    workload = replace(
        job.workload, prompts=job.workload.prompts // samples, samples_per_prompt=samples
    )
    models = {role: job.models[role] for role in ("actor", "reference")}
    return replace(
        job, name="demo-grpo", algorithm="grpo", workload=workload, models=FrozenDict(models)
    )


def rewards(job: Job, seed: int, iterations: int) -> list[float]:
    """Return the mean rule reward of every iteration of the best plan for this machine."""
    seconds_per_sample = 1e-5  # `digits` counts characters; the search asks for its cost
    priced = replace(job.rewards, function_seconds_per_sample=seconds_per_sample)
    job = replace(job, rewards=priced)
    plan = search(job, load_facts(job)).plans[0].plan
    with tempfile.TemporaryDirectory(prefix="rlplan-learning-") as folder:
        execute(plan, Path(folder), iterations=iterations, seed=seed, folder=DEMO.parent)
        curve = [row["rule_reward"] for row in read_metrics(Path(folder))]
    print(f"{job.algorithm}, seed {seed}: {curve[0]:.3f} -> {curve[-1]:.3f}", flush=True)
    return curve


def publish(curves: dict[str, list[list[float]]], out: Path) -> None:
    """Write curves, picture and table."""
    write_json(out / "learning.json", curves)
    picture = plot_learning(curves, out / "learning.svg", "Mean rule reward, three seeds each")
    lines = [
        "# The small task is learnt",
        "",
        (
            "Made by `python benchmarks/learning.py`: a byte-level Llama of 107,328 weights from random "
            "initialisation, rewarded with the share of digits in its response, run by the executor on "
            f"two CPU devices. Means over the first and last {ENDS} iterations."
        ),
        "",
        f"![learning curves]({picture.name})",
        "",
        "| algorithm | seed | start | end |",
        "|---|---:|---:|---:|",
    ]
    for name, runs in curves.items():
        for seed, curve in zip(SEEDS, runs, strict=True):
            start, end = statistics.fmean(curve[:ENDS]), statistics.fmean(curve[-ENDS:])
            lines.append(f"| {name} | {seed} | {start:.3f} | {end:.3f} |")
    write_text(out / "learning.md", "\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
