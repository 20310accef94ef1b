"""Time the search: `python benchmarks/search.py [JOB.yaml ...]` prints one line a job.

Without arguments it takes the example jobs and three larger clusters made from the first of them.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from planner.search import search
from profiles.catalog import load_job, load_model
from profiles.facts import load_facts
from rlplan.frozen import FrozenDict
from rlplan.job import Job

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LARGER = (("llama-2-7b", 4), ("llama-2-13b", 4), ("codellama-34b", 8))


def larger(job: Job, model: str, nodes: int) -> Job:
    """Return the job with another model in every role, on so many nodes."""
    return replace(
        job,
        name=f"ppo-{model}-{nodes * job.cluster[0].gpus_per_node}xa100",
        models=FrozenDict(dict.fromkeys(job.models, load_model(model))),
        cluster=(replace(job.cluster[0], nodes=nodes),),
    )


def jobs_of(paths: list[Path]) -> list[Job]:
    """Return the named jobs, or the examples and larger ones."""
    if paths:
        return [load_job(path) for path in paths]
    small = [
        load_job(EXAMPLES / name) for name in ("ppo-7b-16xa100.yaml", "grpo-qwen2.5-7b-8xh100.yaml")
    ]
    return [*small, *(larger(small[0], model, nodes) for model, nodes in LARGER)]


def main() -> None:
    """Search each job and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", type=Path)
    print(
        f"{'job':<34}{'GPUs':>5}{'seconds':>9}{'mappings':>12}{'simulated':>10}{'gap':>9}  best plan"
    )
    for job in jobs_of(parser.parse_args().jobs):
        found = search(job, load_facts(job))
        best, considered = found.plans[0], found.considered
        print(
            f"{job.name:<34}{job.gpus:>5}{found.search_seconds:>9.2f}"
            f"{considered['mappings']:>12,}{considered['simulated plans']:>10}{found.gap:>9.3%}"
            f"  {best.forecast.iteration_seconds:.1f} s: {best.plan.placement}",
            flush=True,
        )


if __name__ == "__main__":
    main()
