"""Published runs of RL frameworks as jobs and plans: one record of settings, whatever table it stands in."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import nearest_name
from rlplan.files.frozen import FrozenDict
from rlplan.framework import FrameworkSheet
from rlplan.job import (
    DynamicSampling,
    Engines,
    Hyperparameters,
    Job,
    NodeGroup,
    OldLogProb,
    Rewards,
    Role,
    Speculation,
)
from rlplan.models import Precision
from rlplan.plan import (
    BATCH_AHEAD_MODE,
    BY_SAMPLE_MODE,
    ENDLESS_MODE,
    FLOWS,
    USUAL_MODE,
    WHOLE_BATCH_MODES,
    InFlight,
    Mode,
    Plan,
    ResourcePool,
    TaskPlan,
)
from rlplan.planner.configs.models import sheet_of_model
from rlplan.planner.measured.rows import Record
from rlplan.planner.plans.assembly import assemble
from rlplan.planner.plans.trained import TrainerSizes, trainer_task
from rlplan.profiles.catalog import device_names, load_engine, resolve_job
from rlplan.profiles.sheets import canonical_name, load_framework
from rlplan.sheets import EngineSheet
from rlplan.workload import Lengths, Workload

TRAIN_POOL, ROLLOUT_POOL = "train", "rollout"
NODE_GPUS = 8
# Devices by words of a cell that is no name of a sheet.
DEVICE_WORDS = {"a100/a800": "a100-80gb-sxm", "h20-96gb": "h20", "a800": "a800-80gb"}
# Sequences that an engine decodes at a time at most: verl's `max_num_seqs`, and vLLM's own default for offline
# use on cards of 70 GiB and more (EngineArgs, usage context LLM_CLASS).
MAX_RUNNING = 1024
# verl's and NeMo-RL's examples where a row does not say it.
MEMORY_FRACTION = 0.6
# NeMo-RL's own default of `reference_policy_kl_penalty`; only whether it is 0 matters to a step's time.
KL_COEFFICIENT = 0.01
FRAMEWORKS_OWN = Engines()


class UnknownSettingError(Exception):
    """Say what of a published run is not known, in words for a skipped row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """Hold the settings of a run as frameworks name them; None is not published.

    Attributes:
        framework: A framework sheet's name.
        engines: Those that are not the framework's own.
        train_gpus, rollout_gpus: Where generation has GPUs of its own; 0 where all share them.
        parts: Equal parts of a step that an asynchronous trainer takes one after another, between two syncs of
            weights.
        staleness: Updates that weights may be old, in parts of a step, where generation never stops.
        in_flight: What becomes of responses under way when weights come.
        rounds: Batches of the step's prompts that are generated, where groups of equal rewards are sampled again.
        sequences_per_update: The optimizer's batch.
        rollout_running: Sequences that a replica decodes at a time, at most.
        micro_batch, log_prob_micro_batch: Sequences of a micro-batch; where sequences are packed, as many of
            the longest ones as its tokens make.
        token_budget: Tokens of a micro-batch on a GPU.
        precision, rollout_precision: None is bf16.
        packs: Whether micro-batches are packed up to so many tokens where no budget is published.
        compares_reference: Whether a reference model is passed over.
        offloads: Whose states live in host memory between uses.
        speculation: None where nothing is guessed ahead.
    """

    framework: str
    engines: Engines = FRAMEWORKS_OWN
    algorithm: str
    model: str
    gpu: str
    gpus: int
    gpus_per_node: int | None = None
    mode: Mode = USUAL_MODE
    train_gpus: int = 0
    rollout_gpus: int = 0
    parts: int = 1
    staleness: float = 0.0
    in_flight: InFlight = "drain"
    prompts: int
    samples: int
    rounds: float = 1.0
    sequences_per_update: int
    prompt_tokens: Lengths
    response_tokens: Lengths
    longest_tokens: int
    max_total_tokens: int | None = None
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    shard_ranks: int | None = None
    rollout_tp: int = 1
    rollout_pp: int = 1
    rollout_memory_fraction: float | None = None
    rollout_running: int = MAX_RUNNING
    micro_batch: int | None = None
    log_prob_micro_batch: int | None = None
    token_budget: int | None = None
    precision: Precision | None = None
    rollout_precision: Precision | None = None
    packs: bool = True
    recomputes: bool | None = None
    old_log_prob: OldLogProb | None = None
    compares_reference: bool = False
    has_critic: bool = False
    offloads: frozenset[Role] = frozenset()
    last_stage_layers: int | None = None
    speculation: Speculation | None = None


def model_sheet(published: str) -> str:
    """Return the sheet of a model as a table names it.

    Raises:
        UnknownSettingError: No sheet is of that model.
    """
    sheet = sheet_of_model(published)
    if sheet is None:
        raise UnknownSettingError(f"no sheet is of the model {published}")
    return sheet


def device_sheet(published: str) -> str:
    """Return the sheet of a device as a table names it.

    Raises:
        UnknownSettingError: No sheet is of that device.
    """
    words = published.lower()
    for part, sheet in DEVICE_WORDS.items():
        if part in words:
            return sheet
    known = canonical_name("devices", words)
    if known in device_names():
        return known
    nearest = nearest_name(words, device_names())
    hint = f" (nearest: {nearest})" if nearest else ""
    raise UnknownSettingError(f"no sheet is of the device {published}{hint}")


def _engines(run: PublishedRun) -> Engines:
    """Return a run's engines: those that its framework had when it was published, and not those of its newest release."""
    usual = load_framework(run.framework).engines.generate
    return replace(run.engines, generate=run.engines.generate or usual)


def job_of(run: PublishedRun) -> Job:
    """Return a run's job, resolved; its iteration is a part of a step where a trainer takes it in parts.

    Raises:
        UnknownSettingError: No sheet is of the model or device, or prompts do not divide into parts.
    """
    return _job(run, model_sheet(run.model), device_sheet(run.gpu))


@lru_cache(maxsize=256)
def _job(run: PublishedRun, model: str, device: str) -> Job:
    if run.prompts % run.parts:
        raise UnknownSettingError(f"{run.prompts} prompts are no {run.parts} parts of a step")
    updates = run.prompts * run.samples / run.sequences_per_update
    roles: list[Role] = ["actor"]
    if run.compares_reference:
        roles.append("reference")
    if run.has_critic:
        roles.append("critic")
    per_node = min(run.gpus_per_node or NODE_GPUS, run.gpus)
    job = Job(
        name="published run",
        algorithm=run.algorithm,
        framework=run.framework,
        engines=_engines(run),
        old_log_prob=run.old_log_prob,
        models=FrozenDict(dict.fromkeys(roles, model)),
        workload=Workload(
            prompts=run.prompts // run.parts,
            samples_per_prompt=run.samples,
            prompt_tokens=run.prompt_tokens,
            response_tokens=run.response_tokens,
            max_total_tokens=run.max_total_tokens,
            updates=max(1, round(updates / run.parts)),
        ),
        cluster=(
            NodeGroup(gpu=device, gpus_per_node=per_node, nodes=max(1, run.gpus // per_node)),
        ),
        rewards=Rewards(function="exact_match"),
        dynamic_sampling=(
            DynamicSampling(expected_rounds=run.rounds)
            if load_algorithm(run.algorithm).resamples
            else None
        ),
        hyperparameters=Hyperparameters(
            kl_coefficient=KL_COEFFICIENT if run.compares_reference else 0.0
        ),
        precision=run.precision or "bf16",
        rollout_precision=run.rollout_precision,
        speculation=run.speculation,
    )
    return resolve_job(job, Path())


def plan_of(run: PublishedRun, job: Job) -> Plan:
    """Return a run's plan: the published layouts, and the framework's usual settings elsewhere.

    Raises:
        UnknownSettingError: Published sizes do not make up the GPUs.
    """
    apart = bool(run.rollout_gpus)
    device = job.cluster[0].gpu
    trains = run.train_gpus or run.gpus
    roles = tuple(job.models)
    pools = [ResourcePool(name=TRAIN_POOL, device=device, gpus=trains, roles=roles)]
    if apart:
        pools.append(
            ResourcePool(name=ROLLOUT_POOL, device=device, gpus=run.rollout_gpus, roles=("actor",))
        )
    assert job.engines.generate
    engine = load_engine(job.engines.generate)
    generate = TaskPlan(
        pool=pools[-1].name,
        engine=engine.name,
        tp=run.rollout_tp,
        pp=run.rollout_pp,
        dp=_copies(pools[-1].gpus, run.rollout_tp * run.rollout_pp, "rollout"),
        max_running=run.rollout_running,
        memory_fraction=run.rollout_memory_fraction or MEMORY_FRACTION,
    )
    tasks = {"actor.generate": generate} | dict(_trained(run, job, trains))
    mode: Mode = run.mode if apart else USUAL_MODE
    plan = assemble(job, pools, tasks, made_by=run.framework, mode=mode)
    if not FLOWS[mode].is_endless:
        return plan
    return replace(plan, staleness=run.staleness, sync_every=run.parts, in_flight=run.in_flight)


def _trained(run: PublishedRun, job: Job, gpus: int) -> Iterator[tuple[str, TaskPlan]]:
    """Yield the layouts of all tasks that the trainer's engine computes."""
    assert job.engines.train
    engine = load_engine(job.engines.train)
    sizes = _sizes(run, engine, gpus)
    for task in tasks_of(load_algorithm(job.algorithm), job):
        if task.stage_kind.engine == "train":
            away = replace(sizes, offload=task.role in run.offloads)
            yield task.name, trainer_task(away, engine, trains=task.trains)


def _sizes(run: PublishedRun, engine: EngineSheet, gpus: int) -> TrainerSizes:
    """Return the sizes of every trained model of a run, with its framework's usual settings."""
    size = run.micro_batch or 1
    infer_size = run.log_prob_micro_batch or size
    budget = run.token_budget * run.cp if run.token_budget else None
    packs = run.packs and budget is None
    usual = load_framework(run.framework).recompute
    recompute = usual if run.recomputes is None else "full" if run.recomputes else "none"
    return TrainerSizes(
        pool=TRAIN_POOL,
        tp=run.tp,
        pp=run.pp,
        cp=run.cp,
        dp=_copies(gpus, run.tp * run.pp * run.cp, "trainer"),
        ep=run.ep,
        expert_tp=1 if run.ep > 1 and engine.whole_experts else None,
        last_stage_layers=run.last_stage_layers,
        shard_ranks=run.shard_ranks,
        micro_batch=size,
        infer_micro_batch=infer_size,
        token_budget=size * run.longest_tokens if packs else budget,
        infer_token_budget=infer_size * run.longest_tokens if packs else budget,
        recompute=recompute,
    )


def _copies(gpus: int, model_gpus: int, what: str) -> int:
    if model_gpus > gpus or gpus % model_gpus:
        raise UnknownSettingError(
            f"the {what}'s sizes take {model_gpus} GPUs each, which do not divide its {gpus}"
        )
    return gpus // model_gpus


# verl V1 begins one batch before the first step (docs/advance/v1_async_trainer.md, num_warmup_batches).
BATCHES_AHEAD = 1.0
# verl's fully asynchronous trainer takes the engine's log-probabilities (docs/advance/fully_async.md,
# use_rollout_log_probs and rollout_correction.bypass_mode).
ENGINES_LOG_PROBS = "fully_async"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Hold how a step overlaps generation with training.

    Attributes:
        parts: Equal parts of a step that its trainer takes one after another, between two syncs of weights.
        staleness: In parts of a step, as a plan counts it in iterations.
        old_log_prob: None is the framework's own.
    """

    mode: Mode
    parts: int = 1
    staleness: float = 0.0
    in_flight: InFlight = "drain"
    old_log_prob: OldLogProb | None = None


def overlap_of(record: Record, sheet: FrameworkSheet) -> Overlap:
    """Return how a record's step overlaps generation with training.

    A published step is what lies between two syncs: verl's trainer takes it in `sync_step` parts (its
    `trigger_parameter_sync_step`, or V1's `parameter_sync_step`), with a bound of so many batches beside the one
    that is due (`staleness_threshold`). NeMo-RL's `8off` bounds the age in steps, and so does its `1off`, whose weights come
    while responses are under way: the next batch begins before all of this one has ended.

    Args:
        sheet: The framework's, which says what becomes of responses under way where the record does not.

    Raises:
        UnknownSettingError: The mode is no step.
    """
    if record["mode"] == BATCH_AHEAD_MODE and sheet.takes_batches and sheet.in_flight != "drain":
        return Overlap(mode=ENDLESS_MODE, staleness=1.0, in_flight=sheet.in_flight)
    for mode in WHOLE_BATCH_MODES:
        if record["mode"] == mode:
            return Overlap(mode=mode)
    if record["mode"] != ENDLESS_MODE:
        raise UnknownSettingError(f"the mode {record['mode']} is no step")
    text = record["mode_text"].lower()
    log_prob: OldLogProb | None = "engine" if ENGINES_LOG_PROBS in text else None
    ahead = _batches_ahead(record)
    if ahead == 0:
        return Overlap(mode=BY_SAMPLE_MODE, old_log_prob=log_prob)
    found = re.search(r"sync_step (\d+)", text)
    parts = int(found[1]) if found else 1
    return Overlap(
        mode=ENDLESS_MODE,
        parts=parts,
        staleness=parts - 1 + ahead * parts,
        in_flight="recompute" if "partial" in text else sheet.in_flight,
        old_log_prob=log_prob,
    )


def _batches_ahead(record: Record) -> float:
    """Return the batches that may be begun beside the one that is due.

    Raises:
        UnknownSettingError: The cell is no number.
    """
    cell = record["staleness_fraction"]
    steps = re.search(r"(\d+) ?off", record["mode_text"].lower())
    if not cell and steps:
        return float(steps[1])
    try:
        return float(cell) if cell else BATCHES_AHEAD
    except ValueError:
        raise UnknownSettingError(f"{cell} is no number") from None
