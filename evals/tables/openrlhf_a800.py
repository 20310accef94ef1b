"""OpenRLHF's own benchmark of 2024 on A800 (its branch wuxibin/benchmark): experience and training seconds.

The size of the work follows from the table: TFLOP/s a GPU x seconds x GPUs of the training columns are
the operations of actor and critic of 1,024 sequences of 2,048 tokens. DeepSpeed-Chat pads prompts to
1,024 tokens; OpenRLHF hands vLLM its prompts as they are, and pads to the longest of a micro-batch.

What the table does not say is from that branch (commit 8201f882): Adam steps on the hosts in every script of
OpenRLHF (--adam_offload; "DeepSpeed: ZeRO2 with Adam Offload" in its README), and ZeRO is of stage 2 but for 70B, which has 3.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from rlplan.estimate import Estimate, Source
from rlplan.evals.settings.hybridflow_jobs import MODELS, PROMPTS, TOKENS, TRUE_PROMPTS
from rlplan.files.frozen import FrozenDict
from rlplan.job import Engines, Job, NodeGroup, Role
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.planner.measured.rows import Record, TableReader, forecast_row, skipped_row
from rlplan.planner.plans.assembly import assemble
from rlplan.profiles.catalog import load_model, resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.results.accuracy import Row
from rlplan.results.forecast import Forecast
from rlplan.simulator.simulate import simulate
from rlplan.trainers import TrainerOptions
from rlplan.transfers import TransitionName
from rlplan.workload import Lengths, Workload

DEVICE, NODE_GPUS = "a800-80gb", 8
# Of two nodes, which 70B takes; engineering assumption: only the weight sync crosses nodes.
NETWORK_GBPS = 200.0
UPDATES = 8  # optimizer steps of 128 sequences, as OpenRLHF's scripts have them
TRAIN, PINNED, CALLS = "deepspeed-zero3", "deepspeed-hybrid", "vllm-0.3-calls"
ROLES: tuple[Role, ...] = ("actor", "critic", "reference", "reward")
ALL = "all"
ENGINES_POOL = "vllm"
NO_SHEET = "it generates by Hugging Face's own loop, of which rlplan has no engine"
HOST_WEIGHTS = (
    "weights lie on the hosts too (--offload): what brings them to the GPUs is not counted"
)
# Sizes whose scripts have ZeRO stage 3 (train_ppo_llama_ray_70b.sh), and TP of its engines there.
SHARDS_WEIGHTS = ("70B",)
ENGINE_TP = {"70B": 2}
EXPERIENCE, TRAINING = "make experience", "train"
# Forecasts of the other systems' engines are within about this much (one sigma).
SPREAD_FRACTION = 0.15


def rows_of(record: Record) -> Iterator[Row]:
    """Yield two rows: making experience, and training."""
    yield _row(record, EXPERIENCE)
    yield _row(record, TRAINING)


def _row(record: Record, what: str) -> Row:
    method = record["method"]
    label = f"{method} {record['model']}, {what}"
    column = "generation_s(make_experience)" if what == EXPERIENCE else "training_s"
    measured = float(record[column])
    reason = _reason(method, what)
    if reason:
        return skipped_row(label, reason, kind=what, measured_seconds=measured)
    forecast = forecast_of(record)
    # What the hosts hold is not published, and it ran: its GPUs alone are asked.
    if what == TRAINING and any(
        pool.gpu_peak_bytes > pool.capacity_bytes for pool in forecast.memory
    ):
        reason = "it does not fit"
        return skipped_row(label, reason, kind=what, measured_seconds=measured)
    stages = forecast.stage_seconds
    seconds = stages["training"]
    if what == EXPERIENCE:
        seconds = sum(stages.values()) - stages["training"]
        seconds -= stages["preparation"] * (1 - _scoring_share(record))
    estimate = Estimate(seconds, seconds * SPREAD_FRACTION, Source.FITTED)
    return forecast_row(label, measured, estimate, kind=what, fitted=_is_fitted(record))


def _reason(method: str, what: str) -> str | None:
    if what == EXPERIENCE and "OpenRLHF" in method and "vLLM" not in method:
        return NO_SHEET
    return HOST_WEIGHTS if what == TRAINING and "w/ offload" in method else None


def _is_fitted(record: Record) -> bool:
    """Tell whether a constant of an engine was fitted on a row (see the engines' sheets)."""
    return record["method"].startswith("DS-Chat") and record["model"] == "7B"


def _scoring_share(record: Record) -> float:
    """Return the share of what scoring takes that experience waits for.

    Each rank of the actor generates one micro-batch, has it scored and goes on (trainer/ppo_utils/experience_maker.py).
    Where ranks hold whole weights, none waits for another: one generates while the other's micro-batch is
    scored, and a rank waits for its own ones alone. Where weights are sharded, ranks compute log-probabilities together,
    and all wait for all.
    """
    shares = _shares(record)
    if len(shares) == 1 or record["model"] in SHARDS_WEIGHTS:
        return 1.0
    reference, _, actor, *_ = shares
    return min(1.0, reference / actor)


def _shares(record: Record) -> tuple[int, ...]:
    """Return the GPUs of reference, reward, actor, critic and engines; of all together where they share them."""
    return tuple(int(each) for each in record["gpus_ref_reward_actor_critic_vllm"].split(":"))


def forecast_of(record: Record) -> Forecast:
    """Return the forecast of a record's plan."""
    method, generated = record["method"], int(record["gen_micro_bs"])
    shares = _shares(record)
    deepspeed = method.startswith("DS-Chat")
    nodes = -(-sum(shares) // NODE_GPUS)
    job = _job(record["model"], TOKENS if deepspeed else TRUE_PROMPTS, nodes)
    if not deepspeed:
        away = TrainerOptions(host_optimizer=1.0)
        job = replace(job, trainers=FrozenDict({"actor": away, "critic": away}))
    if len(shares) == 1:
        plan = _colocated(job, generated, int(record["train_micro_bs"]))
    else:
        tp = ENGINE_TP.get(record["model"], 1)
        plan = _standalone(job, shares, tp, (generated, int(record["train_micro_bs"])))
    return simulate(plan, load_facts(job))


@lru_cache(maxsize=16)
def _job(model: str, prompt_tokens: Lengths, nodes: int) -> Job:
    architecture = load_model(MODELS[model])
    job = Job(
        algorithm="ppo",
        models=FrozenDict(dict.fromkeys(ROLES, architecture)),
        workload=Workload(
            prompts=PROMPTS, prompt_tokens=prompt_tokens, response_tokens=TOKENS, updates=UPDATES
        ),
        cluster=(
            NodeGroup(
                gpu=DEVICE, gpus_per_node=NODE_GPUS, nodes=nodes, inter_node_gbps=NETWORK_GBPS
            ),
        ),
        engines=Engines(train=TRAIN, generate=PINNED),
        precision="bf16",
    )
    return resolve_job(job, Path())


def _colocated(job: Job, generated: int, micro_batch: int) -> Plan:
    """Return the plan of DeepSpeed-Chat's kind: all models on all GPUs."""
    generate = TaskPlan(pool=ALL, dp=NODE_GPUS, engine=PINNED, max_running=generated)
    sharded = TaskPlan(pool=ALL, dp=NODE_GPUS, engine=TRAIN, zero=3)
    pools = (ResourcePool(name=ALL, device=DEVICE, gpus=NODE_GPUS, roles=ROLES),)
    return _plan(job, pools, generate, dict.fromkeys(ROLES, sharded), (generated, micro_batch))


def _standalone(job: Job, shares: tuple[int, ...], tp: int, batches: tuple[int, int]) -> Plan:
    """Return the plan of OpenRLHF's kind: GPUs of their own for every role, and for vLLM if named.

    Args:
        tp: Of engines.
        batches: Sequences of a micro-batch, of generation and of training.
    """
    reference, reward, actor, critic, *engines = shares
    sizes = {"actor": actor, "critic": critic, "reference": reference, "reward": reward}
    pools = [
        ResourcePool(name=role, device=DEVICE, gpus=gpus, roles=(role,))  # type: ignore[arg-type]
        for role, gpus in sizes.items()
    ]
    generate = TaskPlan(pool="actor", dp=actor, engine=PINNED, max_running=batches[0])
    if engines:
        pools.append(
            ResourcePool(name=ENGINES_POOL, device=DEVICE, gpus=engines[0], roles=("actor",))
        )
        generate = TaskPlan(
            pool=ENGINES_POOL, tp=tp, dp=engines[0] // tp, engine=CALLS, max_running=batches[0]
        )
    layouts = {
        role: TaskPlan(pool=role, dp=gpus, engine=TRAIN, zero=3) for role, gpus in sizes.items()
    }
    return _plan(job, tuple(pools), generate, layouts, batches)


def _plan(
    job: Job,
    pools: tuple[ResourcePool, ...],
    generate: TaskPlan,
    layouts: dict[Role, TaskPlan] | dict[str, TaskPlan],
    batches: tuple[int, int],
) -> Plan:
    by_role: dict[str, TaskPlan] = dict(layouts)  # type: ignore[arg-type]
    tasks = {"actor.generate": generate}
    for name, is_training in _TASKS.items():
        layout = by_role[name.partition(".")[0]]
        tasks[name] = replace(
            layout,
            micro_batch=batches[1] if is_training else batches[0],
            recompute="full" if is_training else "none",
        )
    same = generate.pool == tasks["actor.update"].pool
    transition: TransitionName = "all-gather" if same else "two-copies"
    return assemble(job, pools, tasks, made_by="OpenRLHF's benchmark", transition=transition)


# Whether a task trains, by its name.
_TASKS = {
    "critic.compute_values": False,
    "reference.compute_log_prob": False,
    "reward.compute_reward": False,
    "actor.update": True,
    "critic.update": True,
}


READER = TableReader(
    about=(
        "Seconds of generation with preparation, and of training, of OpenRLHF 0.2 and "
        "DeepSpeed-Chat on 8 A800-80GB. Given: GPUs of every role, micro-batches. The size of the "
        "work is derived from the table's TFLOP/s."
    ),
    columns=frozenset({"model", "method", "gpus_ref_reward_actor_critic_vllm", "e2e_s"}),
    rows_of=rows_of,
)
