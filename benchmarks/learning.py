"""Learn small tasks with every algorithm over three seeds, and publish the curves.

    python benchmarks/learning.py [--iterations 60] [--algorithms ppo grpo ...] [--out reports/published]

Writes `learning.md`, `learning.json` and two pictures: the mean reward of the rule by iteration for
every algorithm, and the cost under PPO and Safe-RLHF of a task whose reward and cost contradict each
other (`safe_task.py`). What is there of algorithms that are not run again stays.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from safe_task import least_cost, most_reward

from rlplan.algorithms import algorithm_names, load_algorithm
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.execute import execute
from rlplan.executor.workers.processes.ray_session import running_ray
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_json, write_text
from rlplan.job import Constraint, DynamicSampling, Job, Rewards
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import load_facts
from rlplan.reports.pictures.curves import plot_learning

DEMO = Path(__file__).parents[1] / "rlplan_cli" / "demo_job" / "job.yaml"
SAFE_TASK = Path(__file__).parent / "safe_task.py"
SEEDS = (0, 1, 2)
ENDS = 5
SAMPLES = 4
COST_LIMIT = 0.2
# What the job asks for, since the cost swings around it: with 0.2 itself three seeds ended at 0.19 to 0.22.
COST_TARGET = 0.15
# The default step of 0.1 takes the multiplier from 1 to below 1/2 in 50 iterations: too late for a
# run of 60, whose policy has forgotten the odd digits by then.
MULTIPLIER_LEARNING_RATE = 1.0
# Policy and multiplier swing around their ends, so that the means there are longer ones.
CONSTRAINED_ENDS = 20
# What the constrained task's two runs are called beside those of the small task.
CONSTRAINED = ("ppo, constrained task", "safe-rlhf, constrained task")

Curves = dict[str, dict[str, list[list[float]]]]


def main() -> None:
    """Run every algorithm with every seed, and publish what was learnt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--algorithms", nargs="+", default=[*algorithm_names(), *CONSTRAINED])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--out", type=Path, default=Path("reports/published"))
    options = parser.parse_args()
    jobs = {name: small_task(name) for name in algorithm_names()}
    jobs |= {name: constrained_task(name.split(",")[0]) for name in CONSTRAINED}
    curves = known_curves(options.out)
    with running_ray(devices=2, hosts=1):
        for name in options.algorithms:
            curves[name] = learnt(jobs[name], options.seeds, options.iterations)
            publish({name: curves[name] for name in jobs if name in curves}, options.out)


def small_task(algorithm: str) -> Job:
    """Return the demo's job with another algorithm, the rule `digits`, and as many responses an iteration."""
    job, chosen = load_job(DEMO), load_algorithm(algorithm)
    roles = [*chosen.required_roles, *(["reward"] if algorithm == "ppo" else [])]
    work, rewards = job.workload, job.rewards
    assert rewards is not None
    rewards = replace(rewards, function="digits")
    if chosen.groups:
        prompts = work.prompts // SAMPLES
        work = replace(work, prompts=prompts, samples_per_prompt=SAMPLES)
    if chosen.constrained:  # a cost that never comes above its limit
        rewards = replace(rewards, cost_function=f"{SAFE_TASK}:cost")
        job = replace(job, constraint=Constraint(cost_limit=1.0))
    if chosen.resamples:  # once all groups earn everything, more rounds find no better ones
        job = replace(job, dynamic_sampling=DynamicSampling(max_rounds=2))
    models = dict.fromkeys(roles, job.models["actor"])
    return replace(
        job,
        name=f"learn-{algorithm}",
        algorithm=algorithm,
        workload=work,
        models=FrozenDict(models),
        rewards=rewards,
    )


def constrained_task(algorithm: str) -> Job:
    """Return a job of the task whose reward and cost contradict each other."""
    job = small_task(algorithm)
    rewards = Rewards(function=f"{SAFE_TASK}:reward")
    roles = ("actor", "critic", "reference")
    if load_algorithm(algorithm).constrained:
        roles = (*roles, "cost_critic")
        rewards = replace(rewards, cost_function=f"{SAFE_TASK}:cost")
        constraint = Constraint(
            cost_limit=COST_TARGET, multiplier_learning_rate=MULTIPLIER_LEARNING_RATE
        )
        job = replace(job, constraint=constraint)
    models = FrozenDict(dict.fromkeys(roles, job.models["actor"]))
    return replace(job, name=f"constrained-{algorithm}", models=models, rewards=rewards)


def learnt(job: Job, seeds: Sequence[int], iterations: int) -> dict[str, list[list[float]]]:
    """Return by name of a metric its curve for each seed, of the best plan for this machine."""
    seconds_per_sample = 1e-5  # the rules count characters; the search asks for their cost
    assert job.rewards is not None
    priced = replace(job.rewards, function_seconds_per_sample=seconds_per_sample)
    job = replace(job, rewards=priced)
    plan = search(job, load_facts(job)).plans[0].plan
    found: dict[str, list[list[float]]] = {}
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="rlplan-learning-") as folder:
            execute(plan, Path(folder), iterations=iterations, seed=seed, folder=DEMO.parent)
            rows = read_metrics(Path(folder))
        for name in ("rule_reward", "rule_cost", "lagrange_multiplier"):
            if name in rows[0]:
                found.setdefault(name, []).append([round(row[name], 5) for row in rows])
        ends = {name: f"{runs[-1][0]:.3f} -> {runs[-1][-1]:.3f}" for name, runs in found.items()}
        print(f"{job.name}, seed {seed}: {ends}", flush=True)
    return found


def known_curves(out: Path) -> Curves:
    """Return the curves that were published before."""
    path = out / "learning.json"
    known: Curves = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: curves for name, curves in known.items() if isinstance(curves, dict)}


def publish(curves: Curves, out: Path) -> None:
    """Write curves, pictures and tables."""
    write_json(out / "learning.json", curves)
    rewards = {name: runs["rule_reward"] for name, runs in curves.items() if "," not in name}
    lines = [
        "# Small tasks are learnt by every algorithm",
        "",
        (
            "Made by `python benchmarks/learning.py`: a byte-level Llama of 107,328 weights from random"
            " initialisation, rewarded with the share of digits in its response, run by the executor on"
            f" two CPU devices. Means over the first and last {ENDS} iterations."
        ),
        "",
    ]
    if rewards:
        picture = plot_learning(rewards, out / "learning.svg", "Mean rule reward, by algorithm")
        lines += [f"![learning curves]({picture.name})", "", *table(rewards)]
    charged = {name: runs for name, runs in curves.items() if "," in name}
    if charged:
        lines += constrained_section(charged, out)
    write_text(out / "learning.md", "\n".join([*lines, ""]))


def table(rewards: dict[str, list[list[float]]]) -> list[str]:
    """Return the lines of a table with each run's start and end."""
    lines = ["| algorithm | seed | start | end |", "|---|---:|---:|---:|"]
    for name, runs in rewards.items():
        for seed, curve in enumerate(runs):
            start, end = statistics.fmean(curve[:ENDS]), statistics.fmean(curve[-ENDS:])
            lines.append(f"| {name} | {seed} | {start:.3f} | {end:.3f} |")
    return lines


def constrained_section(charged: Curves, out: Path) -> list[str]:
    """Return the lines on the task with a cost."""
    costs = {name.split(",")[0]: costs_of(runs) for name, runs in charged.items()}
    picture = plot_learning(
        costs, out / "learning-cost.svg", "Cost of a response", axis="mean cost of an iteration"
    )
    lines = [
        "",
        "## A cost under its limit",
        "",
        (
            "`benchmarks/safe_task.py`: a response with shares o of odd and e of even digits earns"
            f" o (3/2 - o) + e / 2 and costs o. The limit of the mean cost is {COST_LIMIT}; the most"
            f" reward under it is {most_reward(COST_LIMIT):.2f}, and {most_reward(1):.2f} without a limit."
            f" Safe-RLHF is asked for {COST_TARGET} (most reward {most_reward(COST_TARGET):.2f}). PPO does"
            " not see the cost: its reward says what it is at least. Means over the last"
            f" {CONSTRAINED_ENDS} iterations."
        ),
        "",
        (
            "The cost swings around what is asked for, since the multiplier follows it with a lag: asked for"
            " the limit itself, three seeds ended at 0.203, 0.192 and 0.223, hence the margin. With a linear reward (o + e / 2) and the default step of the"
            " multiplier (0.1) the runs ended at reward 0.50 and cost 0: the multiplier began at 1 and"
            " fell below 1/2, from where odd digits pay, in iteration 52 of 60, and the policy had none"
            " left by then. Tried on it with seed 0: an entropy bonus of 0.01 changed nothing; a step of"
            " 1.0, with or without that bonus, let the cost swing between 0 and 0.96 or 0.77; a step of"
            " 0.3 from 1/2 with a bonus of 0.1 between 0 and 0.83. At a multiplier of 1/2 all mixes are"
            " worth the same there, and policy and multiplier circle. So this task's reward is concave,"
            f" and the step {MULTIPLIER_LEARNING_RATE}; the algorithm is unchanged."
        ),
        "",
        f"![cost]({picture.name})",
        "",
        "| algorithm | seed | reward, end | cost, end | multiplier, end |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, runs in charged.items():
        for seed, curve in enumerate(runs["rule_reward"]):
            reward, cost = (
                statistics.fmean(each[-CONSTRAINED_ENDS:]) for each in (curve, costs_of(runs)[seed])
            )
            multipliers = runs.get("lagrange_multiplier")
            shown = f"{multipliers[seed][-1]:.2f}" if multipliers else ""
            lines.append(f"| {name.split(',')[0]} | {seed} | {reward:.3f} | {cost:.3f} | {shown} |")
    return lines


def costs_of(runs: dict[str, list[list[float]]]) -> list[list[float]]:
    """Return each seed's costs, or the least that they can be where a run did not measure them."""
    if "rule_cost" in runs:
        return runs["rule_cost"]
    return [[least_cost(reward) for reward in curve] for curve in runs["rule_reward"]]


if __name__ == "__main__":
    main()
