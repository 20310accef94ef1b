"""verl: colocated roles on one pool, generation and reward models on pools of their own where configured."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import USUAL_ROUNDS
from rlplan.job import (
    USUAL_WEIGHT_SYNC,
    DynamicSampling,
    Engines,
    Hyperparameters,
    KlPlace,
    Role,
    WeightSync,
)
from rlplan.models import Adapter, Precision, TrainingPrecision
from rlplan.plan import BATCH_AHEAD_MODE, ENDLESS_MODE, FLOWS, USUAL_MODE, InFlight, Mode, TaskPlan
from rlplan.planner.configs.broken import actor_of
from rlplan.planner.configs.losses import (
    NO_LIMIT,
    algorithm_notes,
    sampled_in_batches,
    sampling_guess,
)
from rlplan.planner.configs.models import published_four_bits
from rlplan.planner.configs.reading.settings import OFF, Settings
from rlplan.planner.configs.run import REWARD_POOL, ROLLOUT_POOL, TRAIN_POOL, Run, RunPool, Work
from rlplan.planner.configs.sizes import (
    FIRST_ENGINE,
    MOST_RUNNING,
    adapter_of,
    divided,
    eager_engine,
    lacks_running,
    models_of,
    most_turns,
)
from rlplan.planner.configs.verl_family import (
    doubt_attention,
    doubt_updates_of_critics,
    generated_prompts,
    hyperparameters_of,
    updates_of_rows,
)
from rlplan.planner.frameworks.verl import teaching
from rlplan.planner.frameworks.verl.trainers import (
    DISTILLATION,
    MEGATRON_CONFIG,
    algorithm_named,
    is_first_fsdp,
    keys_without_effect,
    layout_of,
    options_of,
    roles_of,
    trained,
    trainer_of,
)
from rlplan.planner.plans.trained import TrainerSizes
from rlplan.units import MIB

# The engine that cuts experts and spreads them out at once.
CUTS_EXPERTS: Final = "tensorrt"
# Up to this version engines sleep between uses though free_cache_engine is off (workers/sharding_manager/fsdp_vllm.py,
# fsdp_sglang.py, megatron_vllm.py); pull request 1464, of 0.5, made them obey. vLLM up to 0.6.3, which does not sleep, did.
LAST_SLEEPING = "0.4.1"
AT_ONCE: Final = WeightSync(shared_pool="verl-naive-at-once")
# A key that engines of up to 0.5 are not given; what stands among an engine's own words reaches it.
RUNNING: Final = "actor_rollout_ref.rollout.max_num_seqs"
ONE_STEP_OFF, FULLY_ASYNC = "one_step_off", "fully_async"
# What fully asynchronous training has; partial rollouts on the GPUs that train have it too.
ASYNC_KEYS: Final = "async_training.*"
# Recipes whose trainer generates whole batches of `gen_batch_size` prompts until enough groups differ in reward, and
# without the filter learns from such a batch: recipe/dapo/dapo_ray_trainer.py and recipe/entropy beside it.
IN_WHOLE_BATCHES: Final = ("dapo", "entropy")
# What a step samples where the key of groups that are left out is read by nothing.
ONCE: Final = DynamicSampling(max_rounds=1, expected_rounds=1.0)
# Whether its reward model writes judgements is for the function to know that asks it (verl, experimental/reward_loop).
JUDGES: Final = "a function asks the reward model, which may write judgements: say how long they are under rewards.judge of the job"
# Models that engines serve, and none trains.
SERVED: Final = ("reward", "teacher")
# Up to which version an adapter's path alone has it trained.
LAST_OF_PATHS: Final = "0.7.1"
PATH_ALONE: Final = "an adapter without lora_rank, which this version trains no part of: every weight learns, and the actor is its own reference"
COLOCATED_ASYNC: Final = "colocate_async"
# Engines of the trainer's own process in versions up to 0.6.1, by AsyncLLM where these are told to be asynchronous
# (workers/rollout/vllm_rollout/vllm_async_server.py of 0.5.0 and 0.6.1); no sheet is of that with vLLM 0.8.
BY_SERVERS: Final[Mapping[str, str]] = {"vllm-0.11-tokens": "vllm-0.11-server-nccl"}
UNSERVED: Final = "vllm-0.8-tokens"
SERVED_NOTE: Final = "an engine of vLLM 0.8 in a process of its own, which makes outputs beside it"


def run_of(settings: Settings) -> Run:
    """Return what a configuration trains, and how."""
    teaching.join(settings)
    mode, trainer = _mode(settings), trainer_of(settings)
    models, keys = _models(settings)
    gpus = settings.whole("nodes") * settings.whole("gpus_per_node")
    pools, groups = _pools(settings, tuple(models), mode, gpus)
    trains = {
        role: _served(settings, pools, role)
        if role in SERVED
        else trained(settings, trainer, role, gpus)
        for role in models
    }
    algorithm = algorithm_named(settings)
    _doubt(settings, models, algorithm)
    sampling = _sampling(settings, algorithm)
    return Run(
        framework=settings.sheet.trainers[trainer].framework,
        trainer=trainer,
        engines=_engines(settings, trainer, trains),
        algorithm=algorithm,
        models=models,
        model_keys=keys,
        work=_work(settings, mode),
        groups=groups,
        packs_nodes=True,
        pools=pools,
        generate=_generation(settings, pools[1] if FLOWS[mode].overlaps else pools[0]),
        runs_its_own=_runs_its_own(settings),
        trainers=trains,
        options={
            role: options_of(settings, trainer, role) for role in models if role not in SERVED
        },
        loss=_loss(settings),
        teacher=teaching.teacher_of(settings),
        old_log_prob="engine" if _bypasses(settings) else None,
        weight_sync=_weight_sync(settings, trainer),
        precision=_precision(settings, trainer),
        rollout_precision=_rollout_precision(settings),
        kv_cache=cast(TrainingPrecision | None, settings.value("kv_cache")),
        adapter=_synced_adapter(settings, trainer),
        dynamic_sampling=sampling,
        bucket_bytes=settings.whole("bucket_mebibytes") * MIB,
        notes=(
            *_without_effect(settings, trainer, models),
            *(() if algorithm == DISTILLATION else algorithm_notes(settings, algorithm)),
            *_notes(settings, trainer, mode),
        ),
        guesses=(*_guesses(settings, sampling), *teaching.guesses_of(settings)),
        mode=mode,
        **_async(settings, mode),
    )


def _engines(settings: Settings, trainer: str, trains: Mapping[Role, TrainerSizes]) -> Engines:
    """Return the engines of a run; where experts are spread out, that of the trainer's sheet."""
    spread = settings.sheet.trainers[trainer].engine
    spreads = any(each.ep > 1 for role, each in trains.items() if role not in SERVED)
    return Engines(
        train=spread if spreads else None,
        generate=_engine(settings),
        sleeps=settings.on("frees_cache") or _sleeps_anyway(settings),
    )


def _rollout_precision(settings: Settings) -> Precision | None:
    """Return the format of the engine's weights: as a key says, or as the checkpoint is published, to which new ones are cast.

    That is so of DeepSeek-V4 alone (docs/advance/deepseek_v4_integration.rst): trainers read no other quantised checkpoints.
    """
    said = cast(Precision | None, settings.value("rollout_quantised"))
    actor = actor_of(settings)
    if said is not None or actor is None:
        return said
    return published_four_bits(settings.model or settings.path("model"), actor.name)


def _weight_sync(settings: Settings, trainer: str) -> WeightSync:
    """Return how weights reach engines: FSDP 1 has the whole model on each GPU to collect adapters, unless layer by layer."""
    adapter = _adapter(settings)
    if adapter is None or adapter.sync != "adapter" or not is_first_fsdp(settings, trainer):
        return USUAL_WEIGHT_SYNC
    layered = settings.unmapped("summons_layers") in {True, "True", "true"}
    return USUAL_WEIGHT_SYNC if layered else AT_ONCE


def _engine_notes(settings: Settings, trainer: str) -> Iterator[str]:
    """Yield notes where the engine does not keep its memory though it is told to, and where all weights are gathered for it."""
    if _weight_sync(settings, trainer) == AT_ONCE:
        key, beside = settings.key_of("summons_layers"), ""
        if starts_empty(settings):
            beside = f", and needs {settings.key_of('load_format')}=safetensors"
        yield f"FSDP gathers the whole model on each GPU to collect its adapters: {key}=True gathers layer by layer{beside}"
    if lacks_running(settings.sheet) and settings.given(RUNNING) is not None:
        sheet = settings.sheet
        yield f"the engine decides itself how many sequences run at once: {RUNNING} reaches none in {sheet.title} {sheet.version}"
    if not settings.on("frees_cache") and _sleeps_anyway(settings):
        key, sheet = settings.key_of("frees_cache"), settings.sheet
        yield f"the engine sleeps while others work: {key}=False has no effect in {sheet.title} {sheet.version}"


def _sleeps_anyway(settings: Settings) -> bool:
    """Tell whether the engine leaves the GPU while others work, whatever the configuration says."""
    order, version = settings.sheet.versions.index, settings.sheet.version
    early = version in settings.sheet.versions and order(version) <= order(LAST_SLEEPING)
    return early and not settings.word("rollout_engine").startswith(FIRST_ENGINE)


def _without_effect(settings: Settings, trainer: str, roles: Iterable[Role]) -> Iterator[str]:
    """Yield a note where a role's sizes are not those of the process in which it runs, and for each key that nothing reads."""
    yield from keys_without_effect(settings, trainer)
    leader, sheet = layout_of(settings, trainer), settings.sheet
    if leader is None:
        return
    first = settings.of(trainer, leader)
    lost = {
        f"{own.key_of(name)}={own.value(name)}": f"{first.key_of(name)}={first.value(name)}"
        for own in (settings.of(trainer, role) for role in roles if role in sheet.roles)
        if own.role != leader
        for name in sheet.trainers[trainer].in_common
        if own.is_given(name) and own.value(name) != first.value(name)
    }
    if lost:
        yield (
            f"Megatron has one layout a process, and the {leader}'s counts ({', '.join(dict.fromkeys(lost.values()))}): "
            f"{', '.join(lost)} {'has' if len(lost) == 1 else 'have'} no effect in {sheet.title} {sheet.version}"
        )


def is_fully_async(settings: Settings) -> bool:
    """Return whether training is fully asynchronous: by what starts it, or by its keys whatever does."""
    if FULLY_ASYNC in settings.start:
        return True
    if settings.value("rllm_apart") is not None:
        return is_rllm_apart(settings)
    return any(settings.has(ASYNC_KEYS)) and settings.whole("rollout_nodes") > 0


def is_rllm_apart(settings: Settings) -> bool:
    """Tell whether rLLM generates on GPUs of its own: its configuration has verl's keys of that beside engines that share (verl_launcher.py)."""
    return settings.value("rllm_apart") is True


def _mode(settings: Settings) -> Mode:
    if ONE_STEP_OFF in settings.start:
        return BATCH_AHEAD_MODE
    if is_fully_async(settings) or settings.value("trainer_mode") == "separate_async":
        return ENDLESS_MODE
    return USUAL_MODE


def _async(settings: Settings, mode: Mode) -> dict[str, Any]:
    """Return how old weights may grow, how often they are synced, and what becomes of what is under way.

    An iteration is an update. verl counts staleness as a share of the samples between two syncs.
    """
    if mode == BATCH_AHEAD_MODE:
        return {"staleness": 1.0}
    if not FLOWS[mode].is_endless:
        return {}
    if is_fully_async(settings):
        rllm = is_rllm_apart(settings)
        trigger = "rllm_trigger" if rllm else "trigger"
        every = settings.whole(trigger)
        if every < 1:
            raise settings.refused(trigger, "never syncs weights", "at least 1")
        old = settings.number("rllm_staleness" if rllm else "staleness")
        staleness = old * every + every - 1
        partial = settings.on("rllm_partial" if rllm else "partial_rollout")
        kept: InFlight = "recompute" if partial else "drain"
        return {"staleness": max(staleness, 0.5), "sync_every": every, "in_flight": kept}
    every = settings.whole("sync_step")
    return {"staleness": float(max(settings.whole("off_policy_steps"), every)), "sync_every": every}


def _models(settings: Settings) -> tuple[dict[Role, str], dict[Role, str]]:
    keys: dict[Role, str] = {"actor": "model", "reference": "model", "critic": "critic_model"}
    names = {role: keys[role] for role in roles_of(settings)}
    if settings.on("reward_on"):
        names["reward"] = "reward_model"
    if teaching.teaches(settings):
        names["teacher"] = "teacher_model"
    return models_of(settings, names)


def _pools(
    settings: Settings, roles: tuple[Role, ...], mode: Mode, gpus: int
) -> tuple[tuple[RunPool, ...], tuple[tuple[int, int], ...]]:
    """Return the pools, and the nodes of each.

    Ray packs each pool's GPUs of a node, and several pools into one node that has room (single_controller/ray/base.py:
    STRICT_PACK); scripts of `one_step_off_policy/shell` that end in `2_6` share out a node of eight so.
    """
    apart = settings.on("reward_on") and settings.on("reward_pool")
    elsewhere = ("teacher", "reward") if apart else ("teacher",)
    trained = tuple(role for role in roles if role not in elsewhere)
    pools = [RunPool(name=TRAIN_POOL, gpus=gpus, roles=trained)]
    groups = [(settings.whole("gpus_per_node"), settings.whole("nodes"))]
    if FLOWS[mode].overlaps:
        per_node, nodes = settings.whole("rollout_gpus_per_node"), settings.whole("rollout_nodes")
        if nodes < 1:
            raise settings.refused("rollout_nodes", "leaves generation no GPU", "at least 1")
        pools.append(RunPool(name=ROLLOUT_POOL, gpus=per_node * nodes, roles=("actor",)))
        groups.append((per_node, nodes))
    if apart:
        per_node, nodes = settings.whole("reward_gpus_per_node"), settings.whole("reward_nodes")
        if nodes < 1:
            raise settings.refused("reward_nodes", "leaves the reward model no GPU", "at least 1")
        pools.append(RunPool(name=REWARD_POOL, gpus=per_node * nodes, roles=("reward",)))
        groups.append((per_node, nodes))
    if "teacher" in roles:
        per_node, nodes = teaching.teacher_nodes(settings)
        name = teaching.TEACHER_POOL
        pools.append(RunPool(name=name, gpus=per_node * nodes, roles=("teacher",)))
        groups.append((per_node, nodes))
    return tuple(pools), tuple(groups)


def _served(settings: Settings, pools: tuple[RunPool, ...], role: Role) -> TrainerSizes:
    """Return the sizes of a reward model or teacher, which an engine serves."""
    pool = next(pool for pool in pools if role in pool.roles)
    if role == "teacher":
        return teaching.teacher_sizes(settings, pool)
    tp = settings.whole("reward_tp")
    dp = divided(settings, settings.key_of("reward_tp"), pool.gpus, tp)
    return TrainerSizes(pool=pool.name, tp=tp, dp=dp, infer_micro_batch=8, offload=False)


def _work(settings: Settings, mode: Mode) -> Work:
    prompts = settings.whole("prompts")
    if FLOWS[mode].is_endless:
        prompts = settings.whole("mini_prompts") * (
            settings.whole("require_batches") if prompts < 1 else 1
        )
    else:
        prompts = _prompts(settings)
    agents = settings.whole("agents")
    samples, most = agents * settings.whole("copies"), settings.optional_whole("max_model_len")
    # Search-R1's ray_trainer.py repeats prompts `n_agent` times before they are sampled `rollout.n` times.
    updates = updates_of_rows(settings, prompts * agents, settings.whole("copies"))
    longest = settings.whole("max_prompt") + settings.whole("max_response")
    if settings.word("estimator") == "remax":  # every sample has a greedy response beside it
        prompts, samples = prompts * samples, 1
    return Work(
        prompts=prompts,
        samples=samples,
        updates=updates,
        epochs=settings.whole("epochs"),
        max_prompt=settings.whole("max_prompt"),
        max_response=settings.whole("max_response"),
        max_total=most if most is not None and most < longest else None,
        turns=1 if settings.unmapped("multi_turn") in OFF else most_turns(settings),
        max_response_of_all=True,
    )


def _in_whole_batches(settings: Settings) -> bool:
    return any(each in settings.start for each in IN_WHOLE_BATCHES)


def _filters(settings: Settings) -> bool:
    """Tell whether groups of equal rewards are left out: before 0.9 recipes alone read the key."""
    return settings.on("filters") and (settings.on("reads_filters") or _in_whole_batches(settings))


def _prompts(settings: Settings) -> int:
    """Return the prompts that a step learns from.

    verl 0.9.1 makes up `train_batch_size` prompts from reads of `gen_batch_size`, which has to divide it
    (trainer/ppo/v1/trainer_base.py: `_next_train_batch`); before, a step had as many as were read at once
    (trainer/ppo/ray_trainer.py: the data loader's `batch_size`), as in recipe/dapo.
    """
    prompts, read = settings.whole("prompts"), settings.optional_whole("gen_prompts")
    if not read or _filters(settings):
        return prompts
    return read if _in_whole_batches(settings) or prompts % read else prompts


def _sampling(settings: Settings, algorithm: str) -> DynamicSampling | None:
    """Return how groups of equal rewards are sampled again; None where they are not, or are not counted.

    The job counts rounds in batches of the prompts that a step learns from, a recipe in batches that it generates.
    """
    if not settings.on("filters") or not load_algorithm(algorithm).resamples:
        return None
    if not _filters(settings):
        return ONCE
    usual = DynamicSampling(expected_rounds=USUAL_ROUNDS)
    most = settings.whole("filter_rounds")
    if not _in_whole_batches(settings):
        return replace(usual, max_rounds=most if most > 0 else NO_LIMIT)
    prompts, batch = generated_prompts(settings)
    if prompts < 1:  # a fully asynchronous trainer's, which has no steps of its own
        return usual
    return sampled_in_batches(prompts, batch, most if most > 0 else None)


def _guesses(settings: Settings, sampling: DynamicSampling | None) -> Iterator[str]:
    """Yield what was assumed of the amount of work."""
    prompts, batch = generated_prompts(settings)
    if sampling is None or not _filters(settings) or prompts < 1:
        return
    yield sampling_guess(sampling, prompts, batch if _in_whole_batches(settings) else None)


def _doubt(settings: Settings, models: dict[Role, str], algorithm: str) -> None:
    """Say which settings change the amount of work in ways that no job has."""
    if trainer_of(settings).startswith("fsdp"):
        doubt_attention(settings)
    if settings.on("reward_on") and settings.unmapped("reward_function") not in OFF:
        settings.doubt("reward_on", JUDGES)
    if _filters(settings) and not load_algorithm(algorithm).resamples:
        settings.doubt(
            "filters", "prompts that are sampled again where all rewards of a group are equal"
        )
    if trainer_of(settings).startswith("fsdp"):
        doubt_attention(settings)
    teaching.say_doubts(settings)
    if "critic" not in models:
        return
    doubt_updates_of_critics(settings)


def _notes(settings: Settings, trainer: str, mode: Mode) -> Iterator[str]:
    """Yield what was assumed of modes and batches."""
    yield from _engine_notes(settings, trainer)
    served, key = _rollout_precision(settings), settings.key_of("rollout_quantised")
    if served is not None and settings.value("rollout_quantised") is None:
        yield f"the engine has weights in {served}, as its checkpoint is published; {key} says otherwise"
    if settings.on("kl_reward") and not (settings.is_given("kl_reward") or settings.on("kl_loss")):
        title = f"{settings.sheet.title} {settings.sheet.version}"
        yield f"{title} has a reference in every run, and its divergence in rewards where use_kl_loss is off"
    if settings.on("filters") and not _filters(settings):
        key, sheet = settings.key_of("filters"), settings.sheet
        yield f"no group is left out: {key}=True has no effect in {sheet.title} {sheet.version} but in recipes"
    if not FLOWS[mode].overlaps and settings.value("trainer_mode") == COLOCATED_ASYNC:
        yield "asynchronous generation on the GPUs that train is forecast as if it were synchronous"
    prompts, read = settings.whole("prompts"), settings.optional_whole("gen_prompts")
    if not FLOWS[mode].is_endless and read and _prompts(settings) != prompts:
        key = settings.key_of("gen_prompts")
        yield f"a step learns from all {read:,} prompts of {key}, as verl before 0.9 and its recipes do"
    yield from teaching.notes_of(settings)


def _engine(settings: Settings) -> str:
    """Return the engine sheet; that an engine without one runs without CUDA graphs is not counted."""
    name, eager = settings.word("rollout_engine"), settings.on("eager")
    if settings.value("rollout_mode") == "async":
        if name == UNSERVED:
            settings.leave_out("rollout_mode", SERVED_NOTE)
        name = BY_SERVERS.get(name, name)
    engine = eager_engine(name, eager=eager)
    if eager and engine == name:
        settings.leave_out("eager", "an engine without CUDA graphs")
    return engine


def _generation(settings: Settings, pool: RunPool) -> TaskPlan:
    tp, pp, whole = (settings.whole(f"rollout_{size}") for size in ("tp", "pp", "dp"))
    ep = settings.whole("rollout_ep")
    dp = divided(settings, settings.key_of("rollout_tp"), pool.gpus, tp * pp)
    expert_tp = _expert_tp(settings, ep, tp * whole)
    return TaskPlan(
        pool=pool.name,
        engine=_engine(settings),
        tp=tp,
        pp=pp,
        dp=dp,
        ep=ep,
        expert_tp=expert_tp,
        max_running=_max_running(settings),
        memory_fraction=settings.number("memory_fraction"),
    )


def _max_running(settings: Settings) -> int:
    """Return how many sequences an engine runs at once, at most where it decides itself."""
    return MOST_RUNNING if _runs_its_own(settings) else settings.whole("max_running")


def _runs_its_own(settings: Settings) -> bool:
    """Tell whether an engine decides itself how many sequences it runs, as the key reaches none (workers/rollout up to 0.5)."""
    return lacks_running(settings.sheet) and settings.key_of("max_running") == RUNNING


def _expert_tp(settings: Settings, ep: int, ranks: int) -> int | None:
    """Return over how many ranks the engine cuts each expert; None without expert parallelism."""
    if ep == 1:
        return None
    cuts = settings.word("rollout_engine").startswith(CUTS_EXPERTS) and ranks % ep == 0
    if not cuts and ep != ranks:
        raise settings.refused("rollout_ep", f"is not TP x DP = {ranks}", f"1 or {ranks}")
    return settings.optional_whole("rollout_expert_tp") or ranks // ep


def _loss(settings: Settings) -> Hyperparameters:
    kind: KlPlace = (
        "loss" if settings.on("kl_loss") else "reward" if settings.on("kl_reward") else "none"
    )
    weight = settings.number(f"kl_{kind}_weight") if kind != "none" else 0.0
    actor = settings.of(trainer_of(settings), "actor")
    found = hyperparameters_of(settings, actor, algorithm_named(settings), kind, weight)
    if not teaching.teaches(settings):
        return found
    coefficient, alone = settings.number("teacher_weight"), teaching.alone(settings)
    if coefficient < 0 or (alone and coefficient == 0):
        allowed = "above 0" if alone else "at least 0"
        raise settings.refused("teacher_weight", "is no weight of a teacher", allowed)
    # What a teacher alone says has no other weight to be weighed against.
    return found if alone else replace(found, teacher_coefficient=coefficient)


def _bypasses(settings: Settings) -> bool:
    """Tell whether the engine's log-probabilities are the old ones, without a pass of the trainer."""
    return settings.on("bypass") and not settings.on("passes_anyway")


def _precision(settings: Settings, trainer: str) -> Precision | None:
    if trainer != MEGATRON_CONFIG or settings.value("fp8") in OFF:
        return None
    return cast(Precision, settings.value("fp8_recipe"))


def _adapter(settings: Settings) -> Adapter | None:
    adapter = adapter_of(settings)
    if adapter is None:
        _check_adapters_path(settings)
    if adapter is None or settings.on("lora_merges"):
        return adapter
    return replace(adapter, sync="adapter")


def _synced_adapter(settings: Settings, trainer: str) -> Adapter | None:
    """Return what is trained, and whether its engine starts without weights (utils/fsdp_utils.py, collect_lora_params)."""
    adapter = _adapter(settings)
    if adapter is None or adapter.sync != "adapter" or trainer != "fsdp":
        return adapter
    return replace(adapter, whole_first=starts_empty(settings))


def starts_empty(settings: Settings) -> bool:
    """Tell whether the engine starts without weights, and gets them by a sync."""
    return "dummy" in settings.word("load_format")


def _check_adapters_path(settings: Settings) -> None:
    """Tell what an adapter that is trained on does where no rank is given.

    workers/fsdp_workers.py up to 0.7.1: its path alone makes the actor one with an adapter; workers/engine/fsdp since: the rank
    alone does, though the trainer takes the actor for its own reference (trainer/ppo/ray_trainer.py, ref_in_actor).

    Raises:
        MissingValueError: It is trained, and nothing says its rank.
    """
    if not settings.is_given("adapter_path"):
        return
    order, version = settings.sheet.versions.index, settings.sheet.version
    if version in settings.sheet.versions and order(version) <= order(LAST_OF_PATHS):
        beside = settings.key_of("adapter_path")
        problem = f"is missing beside {beside}, and no file at hand says the rank of that adapter"
        rank = settings.sheet.settings["lora_rank"]
        raise settings.missing(rank, rank.keys[0], problem, "at least 1")
    settings.doubt("adapter_path", PATH_ALONE)
