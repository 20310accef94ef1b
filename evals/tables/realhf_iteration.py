"""Whole PPO iterations of ReaL's figure (Mei et al. 2024, arXiv:2406.14088).

Only the heuristic's parallelism is known: every model on all GPUs, TP over the GPUs of a node, PP
over the nodes, DP 1; the reference's and the reward's weights come from host memory; 4 mini-batches.
"""

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Role
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.planner.measured.rows import Record, TableReader, forecast_row, skipped_row
from rlplan.planner.plans.assembly import assemble
from rlplan.profiles.catalog import load_model, resolve_job
from rlplan.profiles.facts import Facts, load_facts
from rlplan.results.accuracy import Row
from rlplan.results.forecast import Forecast
from rlplan.simulator.simulate import simulate
from rlplan.workload import Workload

DEVICE = "a800-80gb"  # "probably A800": NVLink 400 GB/s, a network of the 200 Gbps class
NETWORK_GBPS = 200.0
NODE_GPUS = 8
MINI_BATCHES = 4
MODELS = {7: "llama-2-7b", 13: "llama-2-13b", 34: "codellama-34b", 70: "llama-2-70b"}
POOL = "all"
HEURISTIC = "ReaL-Heuristic"
FITTED_CASE = "scale_actor"
UNKNOWN = "its parallel sizes are not published"


def rows_of(record: Record) -> Iterator[Row]:
    """Yield the forecast of an iteration by the heuristic's plan."""
    sizes = f"actor {record['actor_B']}B, critic {record['critic_B']}B"
    label = f"{sizes}, {record['gpus']} GPUs, {record['gen_len']} tokens"
    measured, system = float(record["iter_s"]), record["system"]
    reason = _reason(record)
    if reason:
        yield skipped_row(label, reason, kind=system, measured_seconds=measured)
        return
    yield forecast_row(
        label, measured, forecast(record),
        kind=system, fitted=is_fitted(record),
    )  # fmt: skip


def _reason(record: Record) -> str | None:
    if record["system"] != HEURISTIC:
        return UNKNOWN
    sizes = {float(record[f"{role}_B"]) for role in ("actor", "critic", "ref", "reward")}
    if not sizes <= set(MODELS):
        return f"models known by size: {', '.join(map(str, MODELS))} B"
    return None


def is_fitted(record: Record) -> bool:
    """Tell whether constants are fitted on a row: a chessboard of cluster sizes and lengths.

    So both sides of the split cover all sizes and lengths, which a hash of twelve rows does not.
    """
    sequence_tokens = int(record["gen_len"]) + int(record["prompt_len"])
    doublings = math.log2(int(record["gpus"]) / NODE_GPUS) + math.log2(sequence_tokens / 256)
    return record.get("case") == FITTED_CASE and round(doublings) % 2 == 1


def forecast(record: Record) -> Forecast:
    """Return the forecast of the heuristic's plan for a row."""
    return simulate(plan_of(record), facts_of())


def plan_of(record: Record) -> Plan:
    """Return the heuristic's plan for a row."""
    job = job_of(record)
    stages = job.gpus // NODE_GPUS
    batch, train, generate = job.workload.prompts, job.engines.train, job.engines.generate
    assert train
    assert generate

    def task(sequences: int, micro_batches: int, **more: object) -> TaskPlan:
        size = max(1, sequences // micro_batches)
        return TaskPlan(
            pool=POOL, tp=NODE_GPUS, pp=stages, engine=train, micro_batch=size, **more  # type: ignore[arg-type]
        )  # fmt: skip

    update = task(batch // MINI_BATCHES, 2 * stages, recompute="full")
    tasks = {
        "actor.generate": TaskPlan(
            pool=POOL, tp=NODE_GPUS, pp=stages, engine=generate, max_running=batch
        ),
        "critic.compute_values": task(batch, stages),
        "reference.compute_log_prob": task(batch, stages, offload=True),
        "reward.compute_reward": task(batch, stages, offload=True),
        "actor.update": update,
        "critic.update": update,
    }
    roles: tuple[Role, ...] = ("actor", "critic", "reference", "reward")
    pool = ResourcePool(name=POOL, device=DEVICE, gpus=job.gpus, roles=roles)
    return assemble(job, (pool,), tasks, made_by="ReaL-Heuristic", transition="hybridflow")


def job_of(record: Record) -> Job:
    """Return a row's job."""
    columns: dict[Role, str] = {
        "actor": "actor_B", "critic": "critic_B", "reference": "ref_B", "reward": "reward_B",
    }  # fmt: skip
    models = {role: load_model(MODELS[int(float(record[key]))]) for role, key in columns.items()}
    gpus = int(record["gpus"])
    job = Job(
        algorithm="ppo",
        models=FrozenDict(models),
        workload=Workload(
            prompts=int(record["batch"]),
            prompt_tokens=int(record["prompt_len"]),
            response_tokens=int(record["gen_len"]),
            updates=MINI_BATCHES,
        ),
        cluster=(
            NodeGroup(
                gpu=DEVICE,
                gpus_per_node=NODE_GPUS,
                nodes=gpus // NODE_GPUS,
                inter_node_gbps=NETWORK_GBPS,
            ),
        ),
        engines=Engines(train="real", generate="real-static"),
        precision="fp16",
    )
    return resolve_job(job, Path())


@cache
def facts_of() -> Facts:
    """Return the facts of ReaL's cluster."""
    group = NodeGroup(gpu=DEVICE, gpus_per_node=NODE_GPUS)
    model = load_model("llama-2-7b")
    job = Job(
        algorithm="ppo",
        models=FrozenDict({"actor": model}),
        workload=Workload(prompts=1, prompt_tokens=1, response_tokens=1),
        cluster=(group,),
    )
    return load_facts(job)


READER = TableReader(
    about=(
        "Seconds of a whole PPO iteration on nodes of 8 A800. Given: all models on all GPUs, TP 8, "
        "PP over nodes, DP 1, 4 mini-batches, static eager decoding. The network is taken as 200 "
        "Gbps a node."
    ),
    columns=frozenset({"actor_B", "critic_B", "gen_len", "system", "iter_s"}),
    rows_of=rows_of,
)
