"""AReaL: engines by allocation strings, FSDP2, Megatron or Archon beside SGLang or vLLM, which are never waited for."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from rlplan.algorithms import load_algorithm
from rlplan.job import Engines, Hyperparameters, OldLogProb, Role
from rlplan.models import Adapter, Precision, TrainingPrecision
from rlplan.plan import ENDLESS_MODE, Recompute, TaskPlan
from rlplan.planner.configs.broken import actor_of
from rlplan.planner.configs.losses import (
    algorithm_notes,
    algorithm_of,
    given_losses,
    gradient_norm,
    kl_place,
)
from rlplan.planner.configs.models import published_precision
from rlplan.planner.configs.reading.settings import RoleSettings, Settings
from rlplan.planner.configs.reading.versions import lacks_key
from rlplan.planner.configs.run import (
    ROLLOUT_POOL,
    TRAIN_POOL,
    USUAL_NODE,
    Run,
    RunPool,
    Work,
    nodes_of,
)
from rlplan.planner.configs.sizes import (
    MOST_RUNNING,
    adapter_of,
    eager_engine,
    models_of,
    most_turns,
    nearest_divisor,
    recomputed_parts,
)
from rlplan.planner.frameworks.areal.allocation import (
    ARCHON,
    FSDP,
    GENERATES,
    MEGATRON,
    TRAINS,
    Allocation,
    Allocations,
    allocation_of,
    allocations_of,
)
from rlplan.planner.plans.trained import TrainerSizes
from rlplan.trainers import TrainerOptions

PPO: Final = "ppo"
COLOCATION: Final = "colocation"
SGLANG: Final = "sglang"
DISK: Final = "disk"
# Hands weights over on shared GPUs, unless the newer service trains (trainer/rl_trainer.py, _is_v1_awex_colocate).
AWEX: Final = "awex"
FIRST_SERVICE: Final = "v1"
# Ways to proximal log-probabilities that need no pass of their own.
REUSED: Final = "reuse_train_logp"
PASSLESS: Final = ("loglinear", REUSED)
# The first version whose FSDP stores weights in a format of their own.
STORING: Final = "2.0"
# The first version whose Megatron no longer gathers logits over context-parallel ranks (engine/megatron_utils/packed_context_parallel.py).
UNGATHERED: Final = "1.0.4"
GATHERED: Final = "gathered"
OPTIMIZERS: Final = {"adam": "adam", "adam_bf16": "kahan-bf16"}
# Whose section makes a model of its own, beside the actor's.
SECTIONS: Final[Mapping[Role, str]] = {"reference": "ref.*", "critic": "critic.*"}
# What trained in the first system, which was built on ReaL: its transformer and its pipelines.
FIRST_TRAINER: Final = "real"
FIRST_KEYS: Final = ("ppo.*", "exp_ctrl.*", "dataset.train_bs_n_seqs")
FIRST_NOTE: Final = "AReaL's first system (realhf) is forecast by ReaL's trainer, on which it was built; weights reach engines over a disk, which is not counted"
OF_FILE_NOTE: Final = "what the command does not say is as in AReaL's own training/configs/{name}.yaml: an edited one is read where it is named itself"
OWN_FILES: Final = {"main_async_ppo": "async-ppo", "main_sync_ppo": "sync-ppo"}
OF_DIMENSIONS: Final = "a back end and sizes, as fsdp:d4t2 or sglang:d4"
ARCHON_NOTE: Final = "Archon's trainer is forecast as FSDP2 around compiled layers: what its selective recomputation keeps is not known"
PADDED_NOTE: Final = (
    "micro-batches without a budget of tokens are not padded, whatever pad_to_maximum says"
)
TREES_NOTE: Final = (
    "trees share the prompt of a group's samples; what else rows have in common, such as instructions that all prompts "
    "begin with and turns that are rows of their own, is computed each time, and FlexAttention is forecast at the rate of other kernels"
)
# What starts workers on GPUs that are free alone.
QUEUES: Final = ("ray", "slurm")
CROWDED_NOTE: Final = (
    "one node has GPUs for what trains or for what generates, not for both: each is given all of them, and neither sleeps; "
    "they are forecast one after the other"
)
FP8_KEYS: Final = "actor.megatron.fp8_config.*"
BATCH_NOTE: Final = "{key} is not given: a step has one prompt, as AReaL takes it, unless the program makes batches of its own"
WORKFLOW_NOTE: Final = "what a workflow does between turns only its program knows"


def run_of(settings: Settings) -> Run:
    """Return what a configuration trains, and how.

    Raises:
        FileError: It trains otherwise, or an allocation is not understood.
    """
    settings.refuse_others("a configuration of areal.api.cli_args.PPOConfig")
    actor, rollout = actor_allocation(settings), rollout_allocation(settings)
    trainer = actor.backend
    models, keys = models_of(settings, _named_models(settings))
    pools = _pools(settings, tuple(models))
    pool_of = {role: pool for pool in pools if pool.name != ROLLOUT_POOL for role in pool.roles}
    algorithm = _algorithm(settings)
    _doubt(settings, algorithm)
    cache = settings.value("sglang_cache") if rollout.backend == SGLANG else None
    return Run(
        framework=settings.sheet.trainers[trainer].framework,
        trainer=trainer,
        engines=Engines(
            train=_trains(settings, trainer),
            generate=_engine(settings),
            sleeps=not has_too_few(settings),
        ),
        algorithm=algorithm,
        models=models,
        model_keys=keys,
        work=_work(settings),
        groups=(_nodes(settings, sum(pool.gpus for pool in pools)),),
        pools=pools,
        generate=_generation(settings, pools[-1]),
        usual_running=rollout.backend == SGLANG and settings.value("sglang_running") is None,
        trainers={role: _sizes(settings, role, pool_of[role]) for role in models},
        options={role: _options(settings, role) for role in models},
        loss=_loss(settings, algorithm),
        old_log_prob=_old_log_prob(settings),
        precision=_precision(settings, trainer),
        rollout_precision=_rollout_precision(settings),
        kv_cache=cast(TrainingPrecision | None, cache),
        adapter=_adapter(settings),
        notes=(*_algorithm_notes(settings, algorithm), *_notes(settings, trainer)),
        **_modes(settings),
    )


def _precision(settings: Settings, trainer: str) -> Precision:
    """Return the format of products in training: Megatron's section of eight bits turns these on by being there."""
    if trainer != MEGATRON or not any(settings.has(FP8_KEYS)):
        return "bf16"
    settings.value("fp8")
    return cast(Precision, settings.word("fp8_recipe"))


def _rollout_precision(settings: Settings) -> Precision | None:
    """Return the format of the engine's weights, which is that of the checkpoint both begin with."""
    actor = actor_of(settings)
    named = settings.model or settings.path("model")
    return None if actor is None else published_precision(named, actor.name)


def is_first(settings: Settings) -> bool:
    """Tell whether a configuration is of the first system.

    Raises:
        FileError: It is of a later one, and has a key that only the first system has.
    """
    first = settings.on("is_first")
    for pattern in () if first else FIRST_KEYS:
        key = next(settings.has(pattern), None)
        if key is not None:
            problem = f"is of the system before AReaL-lite, and keys of AReaL {settings.sheet.version} stand beside it"
            raise settings.refused_key(key, problem, "--framework-version 0.2, for that system")
    return first


def _trains(settings: Settings, trainer: str) -> str | None:
    """Return what trains where that is not the framework's usual."""
    return FIRST_TRAINER if is_first(settings) else settings.sheet.trainers[trainer].engine


def roles_of(settings: Settings) -> tuple[Role, ...]:
    """Return the roles that have models of their own, the actor first."""
    return tuple(_named_models(settings))


def together_of(settings: Settings) -> Allocations | None:
    """Return what `allocation_mode` gives all engines, where engines say nothing themselves.

    Raises:
        FileError: It is not understood.
    """
    if settings.value("allocation") is None:
        return None
    own = (settings.value(name) for name in ("actor_backend", "rollout_backend"))
    if any(each is not None and allocation_of(str(each)) is not None for each in own):
        return None
    found = allocations_of(settings.word("allocation"), MEGATRON if is_first(settings) else FSDP)
    if found is None:
        allowed = "sizes of what generates and trains, as sglang:d4t2+fsdp:d8"
        raise settings.refused("allocation", "is not understood", allowed)
    return found


def actor_allocation(settings: Settings) -> Allocation:
    """Return what trains the actor.

    Raises:
        FileError: That is not said, or not understood.
    """
    together = together_of(settings)
    if together is not None:
        if together.trains is None:
            raise settings.refused("allocation", "trains nothing", "sglang:d4+fsdp:d4")
        return together.trains
    return _own(settings, "actor_backend", TRAINS)


def rollout_allocation(settings: Settings) -> Allocation:
    """Return what generates.

    Raises:
        FileError: That is not said, or not understood.
    """
    together = together_of(settings)
    if together is not None:
        if together.generates is None:
            problem = "generates nothing, as training on texts (SFT) does"
            raise settings.refused("allocation", problem, "sglang:d4+fsdp:d4")
        return together.generates
    return _own(settings, "rollout_backend", GENERATES)


def role_allocation(settings: Settings, role: Role) -> Allocation:
    """Return what trains, or passes over, a role's model: what the actor has where it says nothing.

    Raises:
        FileError: It is not understood.
    """
    own = None if role == "actor" else settings.value(f"{role}_backend")
    if own in {None, "", *TRAINS} or together_of(settings) is not None:
        return actor_allocation(settings)
    return _own(settings, f"{role}_backend", TRAINS)


def shares_gpus(settings: Settings) -> bool:
    """Tell whether what generates is on the GPUs that train: by what is asked for, or since there are no others."""
    return takes_turns(settings) or has_too_few(settings)


def takes_turns(settings: Settings) -> bool:
    """Tell whether the configuration asks for generation on the GPUs that train: each leaves them to the other."""
    together = together_of(settings)
    if together is not None:
        return together.shared
    if settings.word("update_mode") == AWEX and settings.word("actor_service") == FIRST_SERVICE:
        return True
    return COLOCATION in {settings.word("rollout_place"), settings.word("actor_place")}


def has_too_few(settings: Settings) -> bool:
    """Tell whether one node has GPUs for what generates or for what trains, but not for both: they are dealt out in turn, over and over.

    So do the local launcher (launcher/local.py, `_gpu_counter`) and its scheduler (infra/scheduler/local.py, `_allocate_gpus`) where nothing
    asks for shared ones; neither sleeps then. Ray and Slurm wait for more GPUs.
    """
    if takes_turns(settings) or settings.given("scheduler.type") in QUEUES:
        return False
    if not set(QUEUES).isdisjoint(re.split(r"\W", settings.start)):
        return False
    # Its own reading turns a word such as a variable of the shell into a number.
    if not settings.is_given("gpus_per_node") or str(settings.value("cluster_nodes")) != "1":
        return False
    trains, generates = actor_allocation(settings).gpus, rollout_allocation(settings).gpus
    return trains == generates == settings.whole("gpus_per_node")


def of_role(settings: Settings, role: Role) -> RoleSettings:
    """Return what is set of a role's model."""
    return settings.of(actor_allocation(settings).backend, role)


def _own(settings: Settings, name: str, backends: tuple[str, ...]) -> Allocation:
    if not settings.is_given(name):
        setting = settings.sheet.settings[name]
        if settings.is_given(
            "samples"
        ):  # responses are sampled, so that something generates and trains
            if lacks_key(settings.sheet, setting.keys[0], None):
                setting = settings.sheet.settings["allocation"]
            raise settings.missing(setting, setting.keys[0], "is missing", OF_DIMENSIONS)
        problem = "is missing, as where texts or preferences alone are learnt from (SFT, DPO)"
        raise settings.refused(name, problem, OF_DIMENSIONS)
    found = allocation_of(settings.word(name))
    if found is None or found.backend not in backends:
        allowed = f"one of {', '.join(backends)} and sizes, as {backends[0]}:d4"
        raise settings.refused(name, "is not understood", allowed)
    return found


def _named_models(settings: Settings) -> dict[Role, str]:
    """Return the settings that name the models (areal/trainer/rl_trainer.py)."""
    names: dict[Role, str] = {"actor": "model"}
    if _compares(settings):
        names["reference"] = "reference_model"
    if _has(settings, "critic"):
        names["critic"] = "critic_model"
    return names


def _has(settings: Settings, role: Role) -> bool:
    if role == "critic" and settings.on("no_values"):
        return False
    return next(settings.has(SECTIONS[role]), None) is not None


def _compares(settings: Settings) -> bool:
    return settings.number("kl_weight") > 0 and _has(settings, "reference")


def _algorithm(settings: Settings) -> str:
    if _has(settings, "critic"):
        return PPO
    return algorithm_of(settings, compares=_compares(settings))


def _algorithm_notes(settings: Settings, algorithm: str) -> tuple[str, ...]:
    return () if algorithm == PPO else algorithm_notes(settings, algorithm)


def _pools(settings: Settings, roles: tuple[Role, ...]) -> tuple[RunPool, ...]:
    """Return the pools, that in which the actor generates last.

    Raises:
        FileError: What shares the actor's GPUs takes another number of them.
    """
    together = together_of(settings)
    apart = [
        role
        for role in roles
        if role != "actor" and together is None and settings.word(f"{role}_place") != COLOCATION
    ]
    gpus = actor_allocation(settings).gpus
    beside = tuple(role for role in roles if role not in apart)
    for role in beside[1:]:
        asked = role_allocation(settings, role).gpus
        if asked != gpus:
            problem = f"takes {asked} GPUs, and shares the actor's {gpus}"
            raise settings.refused(f"{role}_backend", problem, f"sizes of {gpus} GPUs")
    pools = [RunPool(name=TRAIN_POOL, gpus=gpus, roles=beside)]
    pools += [
        RunPool(name=role, gpus=role_allocation(settings, role).gpus, roles=(role,))
        for role in apart
    ]
    engines = rollout_allocation(settings).gpus
    if shares_gpus(settings):
        if engines != gpus:
            problem = f"takes {engines} GPUs, and shares the actor's {gpus}"
            name = "allocation" if together is not None else "rollout_backend"
            raise settings.refused(name, problem, f"sizes of {gpus} GPUs")
        return (*pools[1:], pools[0])
    return (*pools, RunPool(name=ROLLOUT_POOL, gpus=engines, roles=("actor",)))


def _nodes(settings: Settings, gpus: int) -> tuple[int, int]:
    """Return the nodes that the engines take, of those that the cluster has."""
    per_node = settings.whole("gpus_per_node")
    if 1 <= per_node < gpus:
        return per_node, -(-gpus // per_node)  # some of the last node may be left over
    return nodes_of(gpus, max(per_node, USUAL_NODE))


def updates_of_step(settings: Settings, role: Role = "actor") -> int:
    """Return the updates of a step, of the nearest number that divides its samples.

    Raises:
        FileError: There are none.
    """
    name = "critic_minibatches" if role == "critic" else "minibatches"
    parts, samples = settings.whole(name), _samples(settings)
    if role != "critic" and settings.word("proximal") == REUSED:
        parts = 1
    if parts < 1:
        raise settings.refused(name, "makes no update", "at least 1")
    if samples % parts:
        settings.doubt(name, f"updates that do not divide a step's {samples:,} samples")
    return nearest_divisor(samples, parts)


def _samples(settings: Settings) -> int:
    samples = settings.whole("prompts") * settings.whole("samples")
    if samples < 1:
        raise settings.refused("prompts", "is no batch", "at least 1")
    return samples


def _sizes(settings: Settings, role: Role, pool: RunPool) -> TrainerSizes:
    own, allocation = of_role(settings, role), role_allocation(settings, role)
    budget = own.optional_whole("token_budget")
    parts = max(1, own.whole("micro_batches"))
    passed = math.ceil(_samples(settings) / (allocation.dp * parts))
    updated = math.ceil(passed / updates_of_step(settings))
    return TrainerSizes(
        pool=pool.name,
        tp=allocation.tp,
        pp=allocation.pp,
        dp=allocation.dp,
        cp=allocation.cp,
        ep=allocation.ep,
        expert_tp=allocation.expert_tp if allocation.ep > 1 else None,
        chunks=1 if role == "reference" else own.whole("chunks"),
        micro_batch=updated,
        infer_micro_batch=passed,
        token_budget=budget,
        infer_token_budget=own.optional_whole("passes_budget") or budget,
        recompute="none" if role == "reference" else _recompute(own),
        offload=_leaves(settings, own),
        infer_offload=own.on("leaves") if role == "reference" else None,
    )


def _leaves(settings: Settings, own: RoleSettings) -> bool:
    """Tell whether states leave the GPUs between uses: what generation takes turns with does."""
    return own.on("leaves") or (own.role != "reference" and takes_turns(settings))


def _recompute(own: RoleSettings) -> Recompute:
    if not own.on("checkpoints"):
        return "none"
    granularity = own.value("granularity") if "granularity" in own.names else "full"
    if granularity in {"selective", "memory_budget"}:
        return recomputed_parts(own)
    return "none" if granularity in {None, "none"} else "full"


def _options(settings: Settings, role: Role) -> TrainerOptions:
    """Return how a role's trainer keeps its states: as it loads them, but for Megatron, which has copies in fp32."""
    own = of_role(settings, role)
    # A tree is always padded, and refused where it is told not to be.
    trees = own.on("shares_prompts") and role != "critic"
    budget = own.optional_whole("token_budget")
    options = TrainerOptions(
        host_states=own.on("cpu_offload"),
        shares_prompts=trees,
        fills_budgets=budget is not None and (trees or own.on("padded")),
    )
    if own.trainer == MEGATRON:
        gathers = role_allocation(settings, role).cp > 1 and _is_before(settings, UNGATHERED)
        return replace(options, logits=GATHERED) if gathers and role != "critic" else options
    options = replace(options, weights=cast(TrainingPrecision | None, own.value(_format(own))))
    kind = OPTIMIZERS.get(str(own.value("optimizer")), "adam")
    kahan = kind != "adam" and options.weights == "bf16" and role != "reference"
    return replace(options, optimizer="kahan-bf16") if kahan else options


def _format(own: RoleSettings) -> str:
    """Return the size that says in which format a trainer stores and steps weights: FSDP's own, since it has one."""
    earlier = _is_before(own.settings, STORING)
    return "dtype" if own.trainer == ARCHON or earlier else "stored"


def _is_before(settings: Settings, version: str) -> bool:
    known = settings.sheet.versions
    return settings.sheet.version in known[: known.index(version)]


def _work(settings: Settings) -> Work:
    """Return the work of a step; both lengths together are limited by its own limit and its engine's."""
    prompt, response = settings.optional_whole("max_prompt"), settings.whole("max_response")
    total = min(settings.whole("max_tokens"), _context(settings))
    turns = None if settings.value("agent") else most_turns(settings)
    bound = prompt is None or prompt + response > total or response >= total
    return Work(
        prompts=settings.whole("prompts"),
        samples=settings.whole("samples"),
        updates=updates_of_step(settings),
        epochs=settings.whole("reuse"),
        max_prompt=prompt,
        max_response=response if turns == 1 and response < total else None,
        max_total=total if bound or turns != 1 else None,
        turns=turns,
    )


def _context(settings: Settings) -> int:
    name = "sglang_context" if rollout_allocation(settings).backend == SGLANG else "vllm_context"
    most = settings.optional_whole(name)
    return settings.whole("max_tokens") if most is None else most


def _doubt(settings: Settings, algorithm: str) -> None:
    """Say which settings change the amount of work, or may take time, in ways that no job has."""
    dropping = [
        ("filters", settings.on("filters") and not load_algorithm(algorithm).resamples),
        ("least_right", settings.number("least_right") > 0),
        ("most_right", settings.number("most_right") < 1),
    ]
    for name in (name for name, drops in dropping if drops):
        settings.doubt(name, "groups that are dropped, which others take the place of")
    if _has(settings, "critic") and settings.whole("critic_minibatches") != settings.whole(
        "minibatches"
    ):
        settings.doubt("critic_minibatches", "other updates of the critic than of the actor")
    if settings.is_given("concurrent"):
        settings.leave_out("concurrent", "fewer samples under way than staleness allows")
    if settings.word("update_mode") == DISK:
        settings.leave_out("update_mode", "weights that go over a disk")
    if settings.word("update_mode") == AWEX:
        settings.leave_out("update_mode", "weights that a service of its own hands over")
    for role in roles_of(settings):
        own = of_role(settings, role)
        if str(own.value("optimizer")) not in OPTIMIZERS and role != "reference":
            settings.left_out[own.key_of("optimizer")] = "states and steps of another optimizer"
        if own.value("dtype") is None:
            settings.left_out[own.key_of("dtype")] = "passes in fp32"


def _notes(settings: Settings, trainer: str) -> Iterator[str]:
    if trainer == ARCHON:
        yield ARCHON_NOTE
    every = [of_role(settings, role) for role in roles_of(settings)]
    if any(own.on("padded") and own.optional_whole("token_budget") is None for own in every):
        yield PADDED_NOTE
    if any(own.on("shares_prompts") for own in every):
        yield TREES_NOTE
    if settings.key_of("prompts") not in settings.flat and not is_first(settings):
        yield BATCH_NOTE.format(key=settings.key_of("prompts"))
    if has_too_few(settings):
        yield CROWDED_NOTE
    if not is_first(settings):
        yield WORKFLOW_NOTE
        return
    yield FIRST_NOTE
    for program, name in OWN_FILES.items():
        if program in settings.start:
            yield OF_FILE_NOTE.format(name=name)


def _engine(settings: Settings) -> str:
    backend = rollout_allocation(settings).backend
    name = str(settings.sheet.settings["rollout_engine"].values[backend])
    if backend == SGLANG:
        if settings.on("sglang_eager"):
            settings.leave_out("sglang_eager", "an engine without CUDA graphs")
        return name
    return eager_engine(name, eager=settings.on("vllm_eager"))


def _generation(settings: Settings, pool: RunPool) -> TaskPlan:
    own = rollout_allocation(settings)
    is_sglang = own.backend == SGLANG
    ep = settings.whole("sglang_ep") if is_sglang else 1
    layout = TaskPlan(
        pool=pool.name,
        engine=_engine(settings),
        tp=own.tp,
        pp=own.pp,
        dp=own.dp,
        ep=ep,
        expert_tp=1 if ep > 1 else None,
        memory_fraction=settings.number("sglang_memory" if is_sglang else "vllm_memory"),
    )
    running = settings.optional_whole("sglang_running" if is_sglang else "vllm_running")
    if running is None:
        return replace(layout, max_running=MOST_RUNNING) if is_sglang else layout
    return replace(layout, max_running=running)


def _loss(settings: Settings, algorithm: str) -> Hyperparameters:
    usual = Hyperparameters()
    rates: dict[str, Any] = {
        name: rate
        for name in ("learning_rate", "critic_learning_rate")
        if (rate := max(0.0, settings.number(name)))
    }
    return Hyperparameters(
        **given_losses(settings, algorithm),
        **rates,
        max_gradient_norm=gradient_norm(of_role(settings, "actor")),
        temperature=settings.number("temperature") or usual.temperature,
        **kl_place("reward" if _compares(settings) else "none", settings.number("kl_weight")),
    )


def _old_log_prob(settings: Settings) -> OldLogProb:
    """Return whose old log-probabilities are taken: the actor's own pass is left out unless something asks for it."""
    skips = settings.word("proximal") in PASSLESS
    decoupled = settings.on("decoupled")
    passes = (decoupled and not skips) or (not decoupled and settings.on("recomputes"))
    return "trainer" if passes else "engine"


def _adapter(settings: Settings) -> Adapter | None:
    """Return the adapter, which the engine gets as it is; a reference is a model of its own."""
    adapter = adapter_of(settings) if settings.on("lora") else None
    return None if adapter is None else replace(adapter, sync="adapter", shares_reference=False)


def _modes(settings: Settings) -> Mapping[str, Any]:
    """Return the mode: without an end, unless nothing may be older than the weights that train."""
    age = settings.whole("off_policyness")
    if age < 1 or not settings.on("is_async") or shares_gpus(settings):
        return {}
    return {"mode": ENDLESS_MODE, "staleness": float(age), "in_flight": "recompute"}
