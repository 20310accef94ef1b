"""A CPU demo with a run of twelve iterations, written by hand."""

import random
import statistics
from dataclasses import replace

from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup, Rewards
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.results.forecast import Forecast, MemoryForecast
from rlplan.results.measurement import Comparison, ComparisonRow, MeasuredRun
from rlplan.trace import IterationSpan, Trace, sorted_spans
from rlplan.workload import Workload
from tests.reports.samples import (
    GENERATE_PARTS,
    GIB,
    INFER_PARTS,
    MIB,
    ROLES,
    TINY,
    TRAIN_PARTS,
    spans_of,
    task_forecast,
)

CPU_STEPS = (
    ("transition", "trainers", 0.0, 0.011, "transition"),
    ("actor.generate", "trainers", 0.011, 0.431),
    ("rule.compute_reward", "rules", 0.431, 0.434),
    ("reference.compute_log_prob", "trainers", 0.431, 0.462),
    ("reward.compute_reward", "judges", 0.436, 0.492),
    ("critic.compute_values", "judges", 0.492, 0.548),
    ("transfer:values", "trainers", 0.548, 0.5495, "transfer"),
    ("actor.update", "trainers", 0.5495, 0.871),
    ("critic.update", "judges", 0.5495, 0.842),
)


def cpu_plan(name="demo-ppo"):
    job = Job(
        name=name,
        algorithm="ppo",
        models=FrozenDict(dict.fromkeys(ROLES, TINY)),
        workload=Workload(prompts=32, prompt_tokens=8, response_tokens=16, updates=2),
        cluster=(NodeGroup(gpu="cpu", gpus_per_node=2, inter_node_gbps=200.0),),
        rewards=Rewards(function="digits"),
    )
    one = TaskPlan(pool="trainers", engine="torch", micro_batch=16)
    other = replace(one, pool="judges")
    return Plan(
        job=job,
        pools=(
            ResourcePool(name="trainers", device="cpu", gpus=1, roles=("actor", "reference")),
            ResourcePool(name="judges", device="cpu", gpus=1, roles=("critic", "reward")),
            ResourcePool(name="rules", device="host", gpus=1, roles=("rule",)),
        ),
        tasks=FrozenDict(
            {
                "actor.generate": replace(one, engine="torch-generate"),
                "critic.compute_values": other,
                "reference.compute_log_prob": one,
                "reward.compute_reward": other,
                "rule.compute_reward": TaskPlan(pool="rules"),
                "actor.update": one,
                "critic.update": other,
            }
        ),
        order=FrozenDict({}),
        transition="none",
        made_by="exhaustive search",
    )


def cpu_forecast():
    def memory(pool, gib):
        return MemoryForecast(
            pool=pool, gpu_peak_bytes=round(gib * GIB), capacity_bytes=8 * GIB,
            terms=FrozenDict(
                {"process and libraries": round(gib * GIB) - 31 * MIB, "weights": 4 * MIB,
                 "gradients": 4 * MIB, "optimizer states": 8 * MIB, "activations": 15 * MIB}
            ),
            peak_task="actor.update",
        )  # fmt: skip

    parts = {
        "actor.generate": GENERATE_PARTS, "actor.update": TRAIN_PARTS, "critic.update": TRAIN_PARTS,
        "rule.compute_reward": {"rule": 0.7, "call overhead": 0.3}, "transition": {"copy": 1.0},
    }  # fmt: skip
    costs = tuple(
        task_forecast(
            name,
            pool,
            end - start,
            parts.get(name, INFER_PARTS),
            (*activity, "task")[0],
            "interpolated",
        )
        for name, pool, start, end, *activity in CPU_STEPS
        if not name.startswith("transfer:")
    )
    return Forecast(
        iteration_seconds=0.884,
        iteration_seconds_interval=(0.85, 0.97),
        tokens_per_second=32 * 24 / 0.884,
        stage_seconds=FrozenDict(
            {"generation": 0.42, "preparation": 0.12, "training": 0.32, "transition": 0.011}
        ),
        tasks=sorted_spans(spans_of(CPU_STEPS)),
        iterations=(IterationSpan(iteration=0, start_seconds=0.0, end_seconds=0.884),),
        costs=costs,
        memory=(memory("trainers", 0.42), memory("judges", 0.39)),
        feasible=True,
        infeasible_reasons=(),
        idle_seconds=FrozenDict({"waiting for another pool": 0.31}),
        cost_usd=0.0,
        energy_joules=0.0,
        warnings=(),
        profile="demo profile of this machine, 214 points",
    )


def cpu_run(iterations=12, warmup=2, seed=3):
    dice = random.Random(seed)
    spans, whole, origin = [], [], 0.0
    for number in range(iterations):
        factor = (1.9 if number < warmup else 1.03) * dice.uniform(0.96, 1.08)
        steps = [
            (name, pool, start * factor, end * factor, *activity)
            for name, pool, start, end, *activity in CPU_STEPS
        ]
        spans += spans_of(steps, number, origin)
        whole.append(
            IterationSpan(
                iteration=number, start_seconds=origin, end_seconds=origin + 0.89 * factor
            )
        )
        origin += 0.9 * factor
    return MeasuredRun(
        plan=cpu_plan(),
        trace=Trace(origin="measured", spans=sorted_spans(spans), iterations=tuple(whole)),
        warmup_iterations=warmup,
        memory_peak_bytes=FrozenDict({"trainers": 447 * MIB, "judges": 431 * MIB}),
        machine=FrozenDict({"fingerprint": "a1b2c3", "processor": "a laptop's", "cores": "2"}),
    )


def cpu_comparison(run, forecast):
    def row(name, pool, predicted, measured, source):
        cuts = statistics.quantiles(measured, n=10, method="inclusive")
        median = statistics.median(measured)
        return ComparisonRow(
            name=name, pool=pool, forecast_seconds=predicted, measured_median_seconds=median,
            measured_interval_seconds=(cuts[0], cuts[-1]),
            error_fraction=(predicted - median) / median, source=source,
        )  # fmt: skip

    kept = [span for span in run.trace.spans if span.iteration >= run.warmup_iterations]
    rows = tuple(
        row(
            task.name, task.pool, task.seconds,
            [span.seconds for span in kept if span.name == task.name], task.source,
        )
        for task in forecast.costs
    )  # fmt: skip
    whole = [each.seconds for each in run.trace.iterations[run.warmup_iterations :]]
    return Comparison(
        rows=rows,
        iteration=row("iteration", "", forecast.iteration_seconds, whole, "simulated"),
        warmup_iterations=run.warmup_iterations,
        compared_iterations=len(whole),
    )


def cpu_metrics(iterations=12, seed=5):
    dice = random.Random(seed)
    return [
        {
            "iteration": number,
            "reward/mean": -0.2 + 0.07 * number + dice.uniform(-0.05, 0.05),
            "reward/rule_mean": 0.1 + 0.06 * number + dice.uniform(-0.03, 0.03),
            "actor/reference_kl": 0.002 * number,
            "actor/approx_kl": 0.001 * number + dice.uniform(0, 0.001),
            "actor/policy_loss": dice.uniform(-0.02, 0.02),
            "critic/value_loss": 0.6 / (number + 1),
            "timing_s/actor.update": 0.3,
        }
        for number in range(iterations)
    ]


def cpu_evaluations():
    """Return what a run's evaluations found, and what they kept of what was said."""
    found = [
        {
            "iteration": 4.0 * place,
            "accuracy": accuracy,
            "pass@2": min(1.0, 1.3 * accuracy),
            "score": accuracy,
            "response_tokens": 14.0 - place,
            "cut": 0.1,
            "seconds": 0.4,
        }
        for place, accuracy in enumerate((0.25, 0.5, 0.75, 0.7))
    ]
    said = [
        {
            "iteration": int(row["iteration"]),
            "prompt": prompt,
            "response": f"{prompt} is {row['accuracy']}",
            "score": row["accuracy"],
            "tokens": 5,
        }
        for row in found
        for prompt in ("2 + 3", "x" * 900)
    ]
    return found, said


def cpu_report():
    """Return the arguments of a whole report."""
    run, forecast = cpu_run(), cpu_forecast()
    return {
        "plan": cpu_plan(),
        "forecast": forecast,
        "run": run,
        "comparison": cpu_comparison(run, forecast),
        "metrics": cpu_metrics(),
        "evaluations": cpu_evaluations()[0],
        "samples": cpu_evaluations()[1],
    }
