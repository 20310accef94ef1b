"""Time forecasts: `python benchmarks/forecast_speed.py [--repeats N]` prints three tables.

Generation stages of 1,024 sequences with mixed lengths on one replica, synchronous PPO iterations
on 128 GPUs, and many asynchronous iterations of the plans in `plans/`. Every repeat of the first two forecasts a workload that was not forecast before, so nothing of it is
remembered; what is known of the device's operators is remembered after the first, which has a column
of its own. Milliseconds of one core's CPU time, which on a quiet machine are those of the clock.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rlplan.files.frozen import FrozenDict
from rlplan.fingerprint import read_fingerprint
from rlplan.job import Engines, Job, NodeGroup, Role
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.planner.answers.completion import load_plan
from rlplan.profiles.catalog import load_engine, load_model, resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.simulator.costs.setting import setting_on
from rlplan.simulator.generation.generating import Steps, clock_of, limits_of, replica_of, steps_in
from rlplan.simulator.generation.playing import generate
from rlplan.simulator.generation.prices import ReplicaSetting
from rlplan.simulator.generation.replica import ReplicaLimits
from rlplan.simulator.placed import Site
from rlplan.simulator.simulate import simulate
from rlplan.units import gib_from_bytes
from rlplan.workload import Lengths, Lognormal, Uniform, Workload, sample_lengths

A100 = "a100-80gb-sxm"
SEQUENCES = 1024
GPUS = 128
ROLES: tuple[Role, ...] = ("actor", "critic", "reference", "reward")
TASK_ROLES: dict[str, Role] = {
    "actor.generate": "actor",
    "critic.compute_values": "critic",
    "reference.compute_log_prob": "reference",
    "reward.compute_reward": "reward",
    "actor.update": "actor",
    "critic.update": "critic",
}

PROMPTS = Lognormal(mean=256, std=200, max=1024)
TAILED = Lognormal(mean=512, std=400, max=2048)
LONG_TAILED = Lognormal(mean=400, std=800, max=3072)
EVEN = Uniform(low=16, high=1024)

# Plans in mode async: iterations that the trace shows, and the seconds that the forecast may take.
PLANS = Path(__file__).with_name("plans")
STREAMS = {"async-512xh100": (50, 5.0), "environments-15000": (100, 10.0)}
STREAM_REPEATS = 3

Run = Callable[[], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Stage:
    """Describe a generation stage on one replica.

    Attributes:
        blocks: Blocks of its KV cache; few of them preempt many sequences.
    """

    name: str
    engine: str
    model: str
    responses: Lengths
    blocks: int
    tp: int = 1
    running: int = 256


STAGES = (
    Stage("room for all", "vllm", "llama-3.1-8b", TAILED, 27_000),
    Stage("some preemptions", "vllm", "llama-2-7b", TAILED, 6_800),
    Stage("many preemptions", "vllm", "llama-2-7b", TAILED, 3_000),
    Stage("long tail", "vllm", "llama-3.1-8b", LONG_TAILED, 27_000),
    Stage("all at once", "vllm", "llama-2-7b", EVEN, 80_000, running=1024),
    Stage("TP 8", "vllm", "llama-2-70b", TAILED, 60_000, tp=8),
    Stage("prefill goes first", "vllm-0.3", "llama-2-7b", TAILED, 6_800),
    Stage("blocks reserved", "tensorrt-llm", "llama-2-7b", TAILED, 1_700),
    Stage("calls of 8", "vllm-0.3-calls", "llama-2-7b", TAILED, 6_800, running=8),
    Stage("static waves", "real-static", "llama-2-7b", TAILED, 400_000, running=64),
)


@dataclass(frozen=True, slots=True)
class Iteration:
    """Describe a PPO iteration on 128 GPUs.

    Attributes:
        pools: By colocated set: its GPUs.
        train: TP and PP of training and inference.
        generate: TP of generation.
    """

    name: str
    model: str
    responses: Lengths
    pools: tuple[tuple[tuple[Role, ...], int], ...]
    train: tuple[int, int]
    generate: int


COLOCATED = ((ROLES, GPUS),)
SPLIT: tuple[tuple[tuple[Role, ...], int], ...] = (
    (("actor", "reference"), 64),
    (("critic", "reward"), 64),
)
STANDALONE: tuple[tuple[tuple[Role, ...], int], ...] = tuple(((role,), 32) for role in ROLES)
ITERATIONS = (
    Iteration("7B colocated", "llama-2-7b", TAILED, COLOCATED, (8, 1), 1),
    Iteration("7B colocated, long tail", "llama-2-7b", LONG_TAILED, COLOCATED, (8, 1), 2),
    Iteration("13B split", "llama-2-13b", TAILED, SPLIT, (8, 1), 4),
    Iteration("34B standalone", "codellama-34b", TAILED, STANDALONE, (8, 2), 8),
    Iteration("70B colocated, PP 8", "llama-2-70b", EVEN, COLOCATED, (8, 8), 8),
)


def main() -> None:
    """Time all cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=21)
    repeats: int = parser.parse_args().repeats
    machine = read_fingerprint()
    memory = gib_from_bytes(int(machine["memory_bytes"]))
    print(
        f"{machine['cpu']}, {machine['cores']} cores, {memory:.0f} GiB, Python {machine['python']}, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    print(f"\nGeneration stages of {SEQUENCES:,} sequences on one replica (bar: 20 ms)")
    print(f"{'':<20}{'engine':<16}{'preempted':>10}{'jumps':>7}{HEADER}")
    for stage in STAGES:
        runs = stage_runs(stage)
        preempted, jumps = next(stage_runs(stage))()
        what = f"{stage.name:<20}{stage.engine:<16}{preempted:>10,}{jumps:>7,}"
        show(what, timed(runs, repeats))
    print(f"\nSynchronous PPO iterations on {GPUS} GPUs (bar: 50 ms)")
    print(f"{'':<36}{'iteration, s':>17}{HEADER}")
    for case in ITERATIONS:
        times = timed(iteration_runs(case), repeats)
        (iteration_seconds,) = next(iteration_runs(case))()
        show(f"{case.name:<36}{iteration_seconds:>17.1f}", times)
    print("\nAsynchronous iterations")
    print(f"{'':<20}{'iterations':>12}{'bar, s':>8}{HEADER}")
    for name, (iterations, bar_seconds) in STREAMS.items():
        times = timed(stream_runs(name, iterations), min(repeats, STREAM_REPEATS))
        show(f"{name:<20}{iterations:>12}{bar_seconds:>8.0f}", times)


HEADER = f"{'first, ms':>12}{'median, ms':>12}{'p90, ms':>10}"


def timed(runs: Iterator[Run], repeats: int) -> list[float]:
    """Return the seconds that each of some runs takes."""
    seconds = []
    for _ in range(repeats + 1):
        run = next(runs)
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return seconds


def show(what: str, seconds: list[float]) -> None:
    """Print a row: the first run, and median and p90 of the others."""
    later = sorted(seconds[1:])
    tenth = later[int(0.9 * (len(later) - 1))]
    first, middle = seconds[0], statistics.median(later)
    print(f"{what}{1e3 * first:>12.1f}{1e3 * middle:>12.1f}{1e3 * tenth:>10.1f}", flush=True)


def stage_runs(stage: Stage) -> Iterator[Run]:
    """Yield runs that simulate a stage, each on other lengths; they give preemptions and jumps."""
    sheet = load_engine(stage.engine)
    layout = TaskPlan(pool="", tp=stage.tp, engine=stage.engine)
    device = load_facts(job_of("llama-2-7b", TAILED)).device(A100)
    site = Site(A100, stage.tp, 8, 25e9)
    setting = setting_on(layout, sheet, device, site, "bf16")
    steps = steps_in(ReplicaSetting(load_model(stage.model), sheet, setting))
    limits = limits_of(sheet, stage.running, stage.blocks)
    seed = 0
    while True:
        prompts = sample_lengths(PROMPTS, SEQUENCES, seed)
        responses = sample_lengths(stage.responses, SEQUENCES, seed + 1)
        yield partial(play_stage, steps, limits, prompts, responses)
        seed += 2


def play_stage(
    steps: Steps, limits: ReplicaLimits, prompts: tuple[int, ...], responses: tuple[int, ...]
) -> tuple[float, ...]:
    """Return the preemptions and jumps of a stage."""
    outcome = generate(replica_of(clock_of(steps), limits), prompts, responses)
    return outcome.num_preemptions, outcome.num_jumps


def iteration_runs(case: Iteration) -> Iterator[Run]:
    """Yield runs that forecast an iteration, each of another workload; they give its seconds."""
    number = 0
    while True:
        number += 1
        plan = plan_of(case, job_of(case.model, case.responses, number))
        yield partial(play_iteration, plan)


def play_iteration(plan: Plan) -> tuple[float, ...]:
    """Return the seconds of an iteration."""
    return (simulate(plan, load_facts(plan.job)).iteration_seconds,)


def stream_runs(name: str, iterations: int) -> Iterator[Run]:
    """Yield runs that forecast a plan with iterations in its trace, again and again."""
    plan, facts = load_plan(PLANS / f"{name}.plan.yaml")
    while True:
        yield lambda: (simulate(plan, facts, iterations=iterations).iteration_seconds,)


def job_of(model: str, responses: Lengths, number: int = 0) -> Job:
    """Return a PPO job of one size of model; other numbers have other, as long, prompts."""
    job = Job(
        algorithm="ppo",
        models=FrozenDict(dict.fromkeys(ROLES, load_model(model))),
        workload=Workload(
            prompts=SEQUENCES,
            prompt_tokens=replace(PROMPTS, std=PROMPTS.std + number / 16),
            response_tokens=responses,
            updates=8,
        ),
        cluster=(NodeGroup(gpu=A100, gpus_per_node=8, nodes=GPUS // 8, inter_node_gbps=200),),
        engines=Engines(train="megatron-core", generate="vllm"),
        precision="bf16",
    )
    return resolve_job(job, Path())


def plan_of(case: Iteration, job: Job) -> Plan:
    """Return the plan of an iteration."""
    pools = tuple(
        ResourcePool(name="+".join(roles), device=A100, gpus=gpus, roles=roles)
        for roles, gpus in case.pools
    )
    tasks: dict[str, TaskPlan] = {}
    for name, role in TASK_ROLES.items():
        pool = next(each for each in pools if role in each.roles)
        tp, pp = case.train if name != "actor.generate" else (case.generate, 1)
        trains = name.endswith("update")
        tasks[name] = TaskPlan(
            pool=pool.name,
            tp=tp,
            pp=pp,
            dp=pool.gpus // (tp * pp),
            engine="vllm" if name == "actor.generate" else "megatron-core",
            micro_batch=1 if trains else 4,
            recompute="full" if trains else "none",
            zero=1 if trains else 0,
        )
    order = {
        pool.name: tuple(name for name, task in tasks.items() if task.pool == pool.name)
        for pool in pools
    }
    return Plan(
        job=job,
        pools=pools,
        tasks=FrozenDict(tasks),
        order=FrozenDict(order),
        transition="hybridflow",
        made_by="benchmarks/forecast_speed.py",
    )


if __name__ == "__main__":
    main()
