"""A framework's configured run as a job and a plan in which nothing is left open."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.files.decoding import read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.job import (
    USUAL_WEIGHT_SYNC,
    DynamicSampling,
    Engines,
    Hyperparameters,
    Job,
    NodeGroup,
    OldLogProb,
    Rewards,
    Role,
    Specs,
    Teacher,
    WeightSync,
)
from rlplan.models import Adapter, ModelArchitecture, Precision, TrainingPrecision
from rlplan.plan import USUAL_MODE, InFlight, Mode, PlanDraft, PoolDraft, TaskDraft, TaskPlan
from rlplan.planner.configs.sizes import own_running, usual_running
from rlplan.planner.plans.trained import TrainerSizes, trainer_task
from rlplan.profiles.sheets import (
    canonical_name,
    device_names,
    load_device,
    load_engine,
    load_framework,
    sheet_of,
)
from rlplan.sheets import DeviceSheet
from rlplan.simulator.workload import packed_sequences
from rlplan.trainers import USUAL_TRAINER, TrainerOptions
from rlplan.workload import Lengths, Logged, PromptImages, Texts, Workload, mean_length

USUAL_ENGINES, USUAL_LOSS = Engines(), Hyperparameters()
TRAIN_POOL, ROLLOUT_POOL, REWARD_POOL = "train", "rollout", "reward"
# Any built-in rule: what it computes takes no GPU, and how long it takes a configuration does not say.
RULE = "exact_match"
USUAL_NODE = 8
# GPUs of narrower nodes, the widest first.
NODE_SIZES = (8, 4, 2, 1)
# Where a configuration says no mean: about what tasks of mathematics have with their template (GSM8K, MATH and
# DAPO's in the frameworks' own examples).
USUAL_PROMPT_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Hold the work of an iteration in a configuration's own limits.

    Attributes:
        max_prompt, max_response: Longest lengths in tokens; None where only both together are limited.
        max_total: Most tokens of both together; None where each has a limit.
        turns: Most turns of an episode; None where no key says how many.
        turn_response: Most tokens of a turn, where how many turns there are is not known.
        max_response_of_all: Whether `max_response` limits what environments add too.
        image_tokens: What the smallest image adds to a prompt, where the model reads any; 0 where it reads none, or that
            is not known.
        over_provisioning: Prompts begun for each that is learnt from.
        texts: Share of batches whose responses are texts at hand.
        max_text: Most tokens of such a text.
    """

    prompts: int
    samples: int
    updates: int = 1
    epochs: int = 1
    max_prompt: int | None = None
    max_response: int | None = None
    max_total: int | None = None
    turns: int | None = 1
    turn_response: int | None = None
    max_response_of_all: bool = False
    image_tokens: int = 0
    over_provisioning: float = 1.0
    texts: float = 0.0
    max_text: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPool:
    """Hold the GPUs of a pool and the roles on it."""

    name: str
    gpus: int
    roles: tuple[Role, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Hold a configured run.

    Attributes:
        framework: A framework sheet's name.
        trainer: Name of its sizes in the sheet of keys.
        rollout: How settings of generation begin there, as `rollout` or `vllm`.
        engines: None takes the framework's usual one.
        models: By role, the model's Hugging Face id or path.
        model_keys: By role, the key that names it.
        architectures: By role, models that the configuration writes out itself, in place of a sheet's.
        groups: Equal nodes of the cluster: GPUs of a node, and nodes.
        least_node: Where nothing says how many GPUs a node has: how many one has at least. All GPUs of the groups then
            stand in nodes of the device's usual width. None: the groups are as they were said.
        asked_node: GPUs of a node that its script asks a scheduler for; they count in place of the usual width.
        packs_nodes: Whether groups are of one pool each, and those that are parts of a node stand together in one that
            has room.
        nodes_together: Nodes that it places by domain of a fast link; None leaves that to its framework.
        generate: Layout of generation.
        assumed_pools: Names of pools whose GPUs nothing at hand says, as those of a server that is started elsewhere.
        usual_running: Whether its engine decides by its GPU how many sequences it decodes at a time; then `generate` has
            what else limits them.
        runs_its_own: Whether no key reaches its engine, which decides by its version and GPU; `generate` has then what it may be at most.
        trainers: By role, its sizes.
        options: By role, how its trainer keeps states and makes logits.
        teacher: How its teacher answers; None without one, or where a pass tells of sampled tokens.
        scores: Whether responses get rewards.
        loss: What the losses need; the KL coefficient is 0 where no reference is passed over.
        notes: What was assumed, in sentences.
        guesses: What was assumed of the amount of work, in sentences.
    """

    framework: str
    trainer: str
    rollout: str = "rollout"
    engines: Engines = USUAL_ENGINES
    algorithm: str
    models: Mapping[Role, str]
    model_keys: Mapping[Role, str]
    architectures: Mapping[Role, ModelArchitecture] = field(default_factory=dict)
    work: Work
    groups: tuple[tuple[int, int], ...]
    least_node: int | None = None
    asked_node: int | None = None
    packs_nodes: bool = False
    nodes_together: int | None = None
    pools: tuple[RunPool, ...]
    generate: TaskPlan
    usual_running: bool = False
    runs_its_own: bool = False
    trainers: Mapping[Role, TrainerSizes]
    options: Mapping[Role, TrainerOptions] = field(default_factory=dict)
    loss: Hyperparameters = USUAL_LOSS
    teacher: Teacher | None = None
    scores: bool = True
    old_log_prob: OldLogProb | None = None
    weight_sync: WeightSync = USUAL_WEIGHT_SYNC
    precision: Precision | None = None
    rollout_precision: Precision | None = None
    kv_cache: TrainingPrecision | None = None
    adapter: Adapter | None = None
    critic_adapter: Adapter | None = None
    dynamic_sampling: DynamicSampling | None = None
    mode: Mode = USUAL_MODE
    staleness: float | None = None
    sync_every: int | None = None
    in_flight: InFlight | None = None
    bucket_bytes: int | None = None
    assumed_pools: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    guesses: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Hold the mean lengths in tokens that no configuration says; a prompt of None takes the usual."""

    response: float
    prompt: float | None = None


def job_of(
    run: Run, name: str, gpu: str, means: Means, host_memory_bytes: int | None = None
) -> Job:
    """Return a run's job, with names for its models and devices.

    Args:
        host_memory_bytes: Of a node; None is the usual node's of its GPUs.
    """
    return Job(
        name=name,
        algorithm=run.algorithm,
        framework=canonical_name("frameworks", run.framework),
        engines=run.engines,
        old_log_prob=run.old_log_prob,
        weight_sync=run.weight_sync,
        models=FrozenDict(run.models),
        adapters=_adapters(run),
        trainers=unusual(run.options),
        workload=_workload(run.work, means),
        cluster=tuple(
            NodeGroup(
                gpu=gpu,
                gpus_per_node=per_node,
                nodes=nodes,
                host_memory_bytes=host_memory_bytes,
                nvlink_domain_gpus=_domain_gpus(run, gpu, per_node),
            )
            for per_node, nodes in _nodes(run, gpu)
        ),
        rewards=Rewards(function=RULE) if run.scores and "reward" not in run.models else None,
        teacher=run.teacher,
        hyperparameters=run.loss,
        precision=run.precision,
        rollout_precision=run.rollout_precision,
        kv_cache=run.kv_cache,
        dynamic_sampling=run.dynamic_sampling,
        specs=Specs(staleness=run.staleness) if run.staleness else Specs(),
    )


def _nodes(run: Run, gpu: str) -> tuple[tuple[int, int], ...]:
    """Return the groups of nodes; pools that are parts of a node stand together in one as wide as the GPU's usual node."""
    if run.least_node is not None:
        total = sum(per_node * nodes for per_node, nodes in run.groups)
        widest = run.asked_node or max(run.least_node, _usual_node(gpu))
        return (nodes_of(total, widest, least=run.least_node),)
    gpus = sum(per_node for per_node, _ in run.groups)
    wide = gpus > _usual_node(gpu) or any(nodes > 1 for _, nodes in run.groups)
    return run.groups if not run.packs_nodes or wide else ((gpus, 1),)


def nodes_of(gpus: int, widest: int, *, least: int = 1) -> tuple[int, int]:
    """Return GPUs of a node, and nodes, of so many GPUs: few of them stand together in one.

    Args:
        widest: GPUs that a node has at most; nodes are narrower where it does not divide them.
        least: GPUs that a node has at least, as a part of a pool stands on one: where no such size divides them, some of the
            last node are left over.
    """
    if gpus <= widest:
        return gpus, 1
    sizes = (size for size in (widest, *NODE_SIZES) if least <= size <= widest)
    per_node = next((size for size in sizes if gpus % size == 0), widest)
    return per_node, -(-gpus // per_node)


def _usual_node(gpu: str) -> int:
    """Return the GPUs of a device's usual node; a name that nobody knows is refused later."""
    name, file = canonical_name("devices", gpu), Path(gpu).expanduser()
    if name in device_names():
        return load_device(name).gpus_per_node
    return read_yaml(DeviceSheet, file).gpus_per_node if file.is_file() else USUAL_NODE


def unusual(options: Mapping[Role, TrainerOptions]) -> FrozenDict[Role, TrainerOptions] | None:
    """Return the options that say something; None where none do."""
    said = {role: each for role, each in options.items() if each != USUAL_TRAINER}
    return FrozenDict(said) or None


def _adapters(run: Run) -> FrozenDict[Role, Adapter] | None:
    """Return the adapters by role; None where every model is trained itself."""
    found: dict[Role, Adapter | None] = {"actor": run.adapter, "critic": run.critic_adapter}
    return FrozenDict({role: each for role, each in found.items() if each is not None}) or None


def with_adapter(job: Job, role: Role, adapter: Adapter) -> Job:
    """Return a job in which a role trains an adapter, and the other roles' are as they were."""
    adapters = job.adapters or FrozenDict[Role, Adapter]()
    return replace(job, adapters=adapters.with_item(role, adapter))


def with_adapter_sent(job: Job, sync: Literal["adapter", "merged"]) -> Job:
    """Return a job whose engine gets the actor's adapter in the only way that a framework has: as it is, or merged into whole weights."""
    adapter = job.adapter("actor")
    if adapter is None:
        return job
    return with_adapter(job, "actor", replace(adapter, sync=sync))


def with_own_reference(job: Job) -> Job:
    """Return a job whose reference is a model of its own, as frameworks have it that never take the frozen weights of an adapter for one."""
    adapter = job.adapter("actor")
    if adapter is None or not load_algorithm(job.algorithm).shares_reference(job):
        return job
    return replace(
        with_adapter(job, "actor", replace(adapter, shares_reference=False)),
        models=FrozenDict({"reference": job.models["actor"], **job.models}),
    )


def _domain_gpus(run: Run, gpu: str, per_node: int) -> int | None:
    """Return the GPUs of a domain as far as the run places nodes by it; None takes what is usual."""
    name = canonical_name("devices", gpu)
    if run.nodes_together is None or name not in device_names():
        return None
    widest = load_device(name).nvlink_domain_gpus or 0
    together = min(run.nodes_together, widest // per_node) * per_node
    return together or None


def _workload(work: Work, means: Means) -> Workload:
    prompts = _prompts(work, means)
    mean = prompts.mean if isinstance(prompts, Logged) else mean_length(prompts)
    room = 0 < work.image_tokens <= mean
    return Workload(
        prompts=work.prompts,
        samples_per_prompt=work.samples,
        updates=work.updates,
        epochs=work.epochs,
        prompt_tokens=prompts,
        images=PromptImages(tokens=work.image_tokens) if room else None,
        response_tokens=_responses(work, means, mean),
        max_total_tokens=work.max_total,
        over_provisioning=work.over_provisioning,
        texts=_texts(work, means),
    )


def _texts(work: Work, means: Means) -> Texts | None:
    """Return the texts beside what is generated, as long on average."""
    if not work.texts:
        return None
    longest = work.max_text
    assert longest is not None, "a framework limits them"
    short = means.response < longest
    lengths = Logged(mean=means.response, max=longest) if short else longest
    return Texts(share=work.texts, response_tokens=lengths)


def _prompts(work: Work, means: Means) -> Lengths:
    most = work.max_prompt or work.max_total
    assert most is not None, "a framework limits prompts, responses or both"
    if work.max_total is not None:
        most = max(1, min(most, work.max_total - round(means.response)))
    mean = usual_prompt_tokens(most, work.image_tokens) if means.prompt is None else means.prompt
    return most if mean >= most else Logged(mean=mean, max=most)


def usual_prompt_tokens(most: int, image_tokens: int = 0) -> int:
    """Return the mean length of prompts that are at most so long, where nobody says it.

    Args:
        image_tokens: Of an image that each of them holds.
    """
    return min(USUAL_PROMPT_TOKENS + image_tokens, max(1, most // 2))


def _responses(work: Work, means: Means, prompt_tokens: float) -> Lengths:
    """Return the lengths of responses: one for all where the mean is the longest that there is room for beside the mean prompt."""
    most = work.max_response or work.max_total
    assert most is not None, "a framework limits prompts, responses or both"
    if work.max_total is not None and (means.prompt or 0) + means.response <= work.max_total:
        room = work.max_total - math.ceil(prompt_tokens)
        return most if means.response >= min(most, room) else Logged(mean=means.response, max=most)
    return most if means.response >= most else Logged(mean=means.response, max=most)


def draft_of(run: Run, job: Job, path: str) -> PlanDraft:
    """Return a run's plan: all layouts pinned, as its framework runs them.

    Args:
        job: Its job, resolved.
        path: What the plan calls the job's file.
    """
    gpu = job.cluster[0].gpu
    pools = tuple(
        PoolDraft(name=pool.name, device=gpu, gpus=pool.gpus, roles=pool.roles)
        for pool in run.pools
    )
    assert job.engines.train
    tasks = {}
    generate = run.generate
    if run.usual_running or run.runs_its_own:
        device, named = sheet_of(job, gpu), job.engines.generate or ""
        counts = own_running if run.runs_its_own else usual_running
        usual = counts(device, named)
        generate = replace(generate, max_running=min(usual, generate.max_running))
    for task in tasks_of(load_algorithm(job.algorithm), job):
        if task.generates:
            tasks[task.name] = _pinned(generate, task)
        elif task.stage_kind.engine == "train":
            sizes = run.trainers[task.role]
            engine = load_engine(sizes.engine or job.engines.train)
            if engine.padding != "none":
                sizes = _counted(sizes, job.workload)
            tasks[task.name] = _pinned(trainer_task(sizes, engine, trains=task.trains), task)
    return PlanDraft(
        job=path,
        pools=pools,
        tasks=FrozenDict(tasks),
        mode=run.mode,
        staleness=run.staleness,
        sync_every=run.sync_every,
        in_flight=run.in_flight,
        made_by=load_framework(run.framework).title,
        bucket_bytes=run.bucket_bytes,
    )


def _counted(sizes: TrainerSizes, workload: Workload) -> TrainerSizes:
    """Return sizes whose micro-batches are counted: budgets are of what sequences have, not of their padding."""
    trained, passed = sizes.token_budget, sizes.infer_token_budget
    if trained is not None:
        sizes = replace(sizes, token_budget=None, micro_batch=packed_sequences(trained, workload))
    if passed is not None:
        count = packed_sequences(passed, workload)
        sizes = replace(sizes, infer_token_budget=None, infer_micro_batch=count)
    return sizes


def _pinned(layout: TaskPlan, task: Task) -> TaskDraft:
    """Return a layout's fields that say something about a task of its kind."""
    names = {"pool", "engine", "tp", "pp", "dp", *task.stage_kind.layout_fields}
    given = {each.name: getattr(layout, each.name) for each in fields(TaskDraft)}
    return TaskDraft(**{name: value for name, value in given.items() if name in names})
