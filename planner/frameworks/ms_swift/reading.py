"""ms-swift: one pool that trains, by transformers' Trainer or Megatron, and generates there, or vLLM on GPUs of its own."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

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
from rlplan.plan import BATCH_AHEAD_MODE, Recompute, TaskPlan
from rlplan.planner.configs.broken import actor_of
from rlplan.planner.configs.losses import (
    algorithm_notes,
    algorithm_of,
    given_losses,
    kl_place,
    sampling_guess,
    sampling_of,
)
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.run import ROLLOUT_POOL, TRAIN_POOL, Run, RunPool, Work
from rlplan.planner.configs.sizes import adapter_of as lora_of
from rlplan.planner.configs.sizes import (
    divided,
    eager_engine,
    most_turns,
    recomputed_parts,
    role_sizes,
    trainer_options,
    zero_stage,
)
from rlplan.planner.configs.trl_family import (
    GATHERING,
    Batches,
    Processes,
    doubt_uneven_steps,
    samples_of,
    static_generation,
)
from rlplan.planner.frameworks.ms_swift.batches import (
    MEGATRON,
    assumes_servers,
    batches_of,
    is_megatron,
    is_of_ray,
    processes_guesses,
    processes_of,
    shares_gpus,
    uses_vllm,
)
from rlplan.planner.plans.trained import TrainerSizes
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.trainers import TrainerOptions

GRPO: Final = "grpo"
AT_ONCE: Final = WeightSync(
    shared_pool="ms-swift-colocate-at-once", between_pools="ms-swift-server-at-once"
)
# The last series of versions that gathers what it trains whole parameter by parameter; adapters are merged a group at a time
# (swift/trainers/rlhf_trainer/grpo_trainer.py of v3.9.3, _move_model_to_vllm; groups of both since 8eda1d30c, in v3.10.0).
OF_PARAMETERS: Final = "3.9"
# The series of versions one of which, 3.12.3, gathers groups of layers all together.
OF_GROUPS_TOGETHER: Final = "3.12"
# What `--rlhf_type` trains by that is not RL, or that is not read.
OTHERWISE: Final[Mapping[str, str]] = {
    "dpo": "trains on preferences (DPO)",
    "orpo": "trains on preferences (ORPO)",
    "simpo": "trains on preferences (SimPO)",
    "cpo": "trains on preferences (CPO)",
    "kto": "trains on preferences (KTO)",
    "rm": "trains a reward model",
    "gkd": "distils from a teacher (GKD)",
    "ppo": "trains by TRL's PPO, whose steps are not known",
}
TRANSFORMERS, SHARDED = "ms-swift-transformers", "ms-swift-transformers-sharded"
# Longest prompt where nothing limits it.
USUAL_PROMPT: Final = 1024
# The level at which an engine drops its weights: they come anew, an adapter's too.
DROPS_WEIGHTS: Final = 2
OF_DEEPSPEED: Final = "deepspeed*"


def run_of(settings: Settings) -> Run:
    """Return what a configuration trains, and how.

    Raises:
        FileError: It trains otherwise than by GRPO and its relatives, or a key that matters cannot be imported.
    """
    check_kind(settings)
    trainer = trainer_of(settings)
    processes = processes_of(settings)
    batches = batches_of(settings, processes.count)
    models, keys = _models(settings)
    pools = [RunPool(name=TRAIN_POOL, gpus=processes.count, roles=tuple(models))]
    if processes.engine_gpus:
        pools.append(RunPool(name=ROLLOUT_POOL, gpus=processes.engine_gpus, roles=("actor",)))
    generate = _generation(settings, pools[-1], batches, trainer)
    algorithm = algorithm_of(settings, compares=compares(settings))
    sampling = sampling_of(settings, algorithm)
    _say_doubts(settings, batches, sampling)
    work = _work(settings, batches)
    return Run(
        framework=_framework(settings, trainer, generate.engine),
        trainer=trainer,
        engines=Engines(
            train=_train_engine(settings, trainer),
            generate=generate.engine,
            sleeps=not stays_awake(settings),
        ),
        algorithm=algorithm,
        models=models,
        model_keys=keys,
        work=work,
        groups=(processes.cluster,),
        pools=tuple(pools),
        assumed_pools=(ROLLOUT_POOL,) if assumes_servers(settings, processes) else (),
        generate=generate,
        trainers={role: _sizes(settings, trainer, role, processes, batches) for role in models},
        options={role: _options(settings, trainer, role) for role in models},
        loss=_loss(settings, algorithm),
        old_log_prob="trainer" if passes_again(settings, batches) else "engine",
        weight_sync=_weight_sync(settings, trainer),
        precision=_precision(settings),
        adapter=adapter_of(settings),
        dynamic_sampling=sampling,
        notes=tuple(_notes(settings, trainer, algorithm)),
        guesses=tuple(_guesses(settings, processes, batches, work, sampling)),
        **_modes(settings),
    )


def check_kind(settings: Settings) -> None:
    """Refuse what is no training by RL, or none whose steps are known.

    Raises:
        FileError: `rlhf_type` is another.
    """
    kind = settings.word("kind")
    if kind != GRPO:
        what = OTHERWISE.get(kind, "is not known")
        raise settings.refused(
            "kind", f"{what}; rlplan reads ms-swift's GRPO and its relatives", GRPO
        )


def trainer_of(settings: Settings) -> str:
    """Return what trains: `megatron`, or what wraps transformers' model, `deepspeed`, `fsdp` or `ddp`."""
    if is_megatron(settings):
        return MEGATRON
    if any(settings.has(OF_DEEPSPEED)):
        return "deepspeed"
    return "fsdp" if settings.value("fsdp_words") else "ddp"


def packs(settings: Settings) -> bool:
    """Tell whether the samples of a micro-batch stand in one row: Megatron's do where nothing is said."""
    given = settings.value("packs")
    return is_megatron(settings) if given is None else settings.on("packs")


def compares(settings: Settings) -> bool:
    """Tell whether the actor is compared with a reference."""
    return settings.number("kl_weight") != 0


def passes_again(settings: Settings, batches: Batches) -> bool:
    """Tell whether a pass for old log-probabilities follows generation: always since 3.11.0, and under Megatron.

    Before, transformers' Trainer made it only where samples are learnt from after an update
    (swift/trainers/rlhf_trainer/grpo_trainer.py of v3.9.3 to v3.10.3, old_policy).
    """
    sometimes = settings.sheet.version == OF_PARAMETERS and not is_megatron(settings)
    return batches.needs_old or not sometimes


def is_tuned(settings: Settings) -> bool:
    """Tell whether adapters are trained: transformers' Trainer does where nothing is said."""
    given = settings.value("tuner")
    return not is_megatron(settings) if given is None else given != "full"


def adapter_of(settings: Settings) -> Adapter | None:
    """Return the adapters that are trained, merged for generation unless the engine takes them as they are."""
    adapter = lora_of(settings) if is_tuned(settings) else None
    if adapter is None:
        return None
    drops = shares_gpus(settings) and settings.whole("sleep_level") == DROPS_WEIGHTS
    apart = settings.on("syncs_adapter") and not drops
    return replace(adapter, sync="adapter" if apart else "merged")


def stays_awake(settings: Settings) -> bool:
    """Tell whether an engine keeps weights and cache on the trainers' GPUs while these train."""
    return uses_vllm(settings) and shares_gpus(settings) and settings.whole("sleep_level") < 1


def stage_of(settings: Settings, trainer: str) -> int:
    """Return the ZeRO stage, or what stands for it in FSDP.

    Raises:
        FileError: There is no such stage.
    """
    return 0 if trainer == "ddp" else zero_stage(settings.of(trainer, "actor"))


def _framework(settings: Settings, trainer: str, engine: str) -> str:
    """Return the sheet of steps: without vLLM the trained model generates, gathered first where it is sharded."""
    if uses_vllm(settings) or trainer == MEGATRON:
        return settings.sheet.trainers[trainer].framework
    whole = stage_of(settings, trainer) < FULLY_SHARDED or engine == GATHERING
    return TRANSFORMERS if whole else SHARDED


def _weight_sync(settings: Settings, trainer: str) -> WeightSync:
    """Return how weights reach the engines: ZeRO-3 gathers all of them at once, unless groups are asked for or usual."""
    groups = settings.unmapped("sync_groups") is not None
    one_by_one = settings.sheet.version == OF_PARAMETERS and not is_tuned(settings)
    pieces = groups or one_by_one
    return AT_ONCE if _is_sharded(settings, trainer) and not pieces else USUAL_WEIGHT_SYNC


def _is_sharded(settings: Settings, trainer: str) -> bool:
    """Tell whether ZeRO-3 shards weights that vLLM generates with."""
    sharded = trainer == "deepspeed" and stage_of(settings, trainer) == FULLY_SHARDED
    return sharded and uses_vllm(settings)


def _train_engine(settings: Settings, trainer: str) -> str | None:
    sheet = settings.sheet.trainers[trainer]
    return sheet.engine if packs(settings) else sheet.padded


def _models(settings: Settings) -> tuple[dict[Role, str], dict[Role, str]]:
    models: dict[Role, str] = {"actor": settings.path("model")}
    keys: dict[Role, str] = {"actor": settings.key_of("model")}
    if compares(settings) and not is_tuned(settings):
        models["reference"], keys["reference"] = (
            settings.path("reference_model"),
            settings.key_of("reference_model"),
        )
    named = settings.value("reward_model")
    listed = named if isinstance(named, list) else [named]
    if listed[0]:
        models["reward"], keys["reward"] = str(listed[0]), settings.key_of("reward_model")
    if len(listed) > 1:
        settings.doubt("reward_model", "several reward models, of which the first is counted")
    return models, keys


def engine_number(settings: Settings, name: str) -> str:
    """Return the setting that says a size of the engine: its own section's, or a server's, or the trainer's own."""
    if shares_gpus(settings) and not is_of_ray(settings):
        return name
    own = {
        "rollout_tp": "server_tp",
        "memory_fraction": "server_memory",
        "max_total": "server_model_len",
        "running": "server_running",
        "eager": "server_eager",
    }[name]
    return own if not is_of_ray(settings) or settings.is_given(own) else name


def _generation(settings: Settings, pool: RunPool, batches: Batches, trainer: str) -> TaskPlan:
    """Return the layout of generation: of the trainers' own GPUs each its part, of engines apart all of it."""
    if not uses_vllm(settings):
        sharded = trainer == "deepspeed" and stage_of(settings, trainer) == FULLY_SHARDED
        return static_generation(settings, pool, batches, sharded=sharded)
    size = engine_number(settings, "rollout_tp")
    tp = settings.whole(size)
    eager = settings.on(engine_number(settings, "eager"))
    alone = is_of_ray(settings)  # Ray's engines are not told what is generated together
    running = settings.optional_whole("running") if alone else None
    running = running or settings.optional_whole(
        "server_running" if alone else engine_number(settings, "running")
    )
    return TaskPlan(
        pool=pool.name,
        engine=eager_engine(settings.word("rollout_engine"), eager=eager),
        tp=tp,
        dp=divided(settings, settings.key_of(size), pool.gpus, tp),
        max_running=running or max(1, batches.rank_part * tp),
        memory_fraction=settings.number(engine_number(settings, "memory_fraction")),
    )


def _leaves(settings: Settings, name: str) -> bool:
    """Tell whether weights, or optimizer states, go to the host while an engine generates on their GPUs."""
    return uses_vllm(settings) and shares_gpus(settings) and settings.on(name)


def _sizes(
    settings: Settings, trainer: str, role: Role, processes: Processes, batches: Batches
) -> TrainerSizes:
    own = settings.of(trainer, role)
    sizes = role_sizes(own, processes.count, TRAIN_POOL)
    weights, states = _leaves(settings, "offloads_model"), _leaves(settings, "offloads_optimizer")
    away = weights if role != "actor" else weights or states
    sizes = replace(
        sizes,
        micro_batch=batches.micro_batch,
        infer_micro_batch=batches.micro_batch,
        recompute=_recompute(settings, trainer),
        offload=sizes.offload or away,
        infer_offload=(sizes.offload or weights) if role != "actor" else None,
    )
    return sizes if trainer == MEGATRON else replace(sizes, zero_stage=stage_of(settings, trainer))


def _recompute(settings: Settings, trainer: str) -> Recompute:
    """Return what backward passes compute again."""
    if trainer == MEGATRON:
        own = settings.of(trainer, "actor")
        granularity = cast(Recompute, own.value("granularity") or "none")
        return recomputed_parts(own) if granularity == "selective" else granularity
    on = settings.on("fsdp_checkpoints" if trainer == "fsdp" else "checkpoints")
    return "full" if on or settings.on("checkpoints") else "none"


def _freezes_tower(settings: Settings) -> bool:
    """Tell whether the tower of a model that reads images does not learn: by itself where all weights are trained.

    Beside adapters nothing else learns anyway.
    """
    model = actor_of(settings)
    reads_images = model is not None and bool(model.vision_parameters)
    return reads_images and not is_tuned(settings) and settings.on("freezes_tower")


def _options(settings: Settings, trainer: str, role: Role) -> TrainerOptions:
    """Return how a role's trainer keeps its states: what leaves the GPUs while an engine generates on them.

    Without DeepSpeed, FSDP and Megatron nothing keeps fp32 beside weights that are loaded in 16 bits.
    """
    own = settings.of(trainer, role)
    fused = "fused" if settings.on("liger_kernel") and role == "actor" else None
    options = trainer_options(own, fused if trainer != MEGATRON else None)
    if role == "actor":
        options = replace(options, freezes_tower=_freezes_tower(settings))
    weights, states = _leaves(settings, "offloads_model"), _leaves(settings, "offloads_optimizer")
    if role == "actor" and weights != states:
        options = replace(options, offloads=("weights", "gradients") if weights else ("optimizer",))
    if trainer != "ddp" or is_tuned(settings):
        return options
    dtype = settings.word("dtype")
    return replace(options, weights=None if dtype == "fp32" else cast(TrainingPrecision, dtype))


def _precision(settings: Settings) -> Precision:
    if settings.on("fp16"):
        return "fp16"
    given = settings.value("bf16")
    if given is not None and settings.on("bf16"):
        return "bf16"
    return cast(Precision, settings.word("dtype"))


def longest_total(settings: Settings) -> int | None:
    """Return the most tokens of a sequence that the engine takes; None where nothing says it."""
    if not uses_vllm(settings):
        return None
    return settings.optional_whole(engine_number(settings, "max_total"))


def turns_of(settings: Settings) -> int | None:
    """Return the most turns of an episode; None where they have no limit."""
    played = settings.is_given("scheduler") or settings.is_given("environment")
    if not (played or settings.on("plays")):
        return 1
    return most_turns(settings)


def _work(settings: Settings, batches: Batches) -> Work:
    samples = samples_of(settings, batches)
    turns, total = turns_of(settings), longest_total(settings)
    prompt, response = settings.optional_whole("max_prompt"), settings.whole("max_response")
    prompt = prompt or (None if total else USUAL_PROMPT)
    of_turns = turns != 1 and settings.word("turn_scope") == "per_round" and total is not None
    if total is not None and prompt is not None and not of_turns:
        total = total if total < prompt + response else None
    return Work(
        prompts=batches.completions // samples,
        samples=samples,
        updates=batches.updates,
        epochs=batches.epochs,
        max_prompt=prompt,
        max_response=None if of_turns else response,
        max_total=total,
        turns=turns,
    )


def _loss(settings: Settings, algorithm: str) -> Hyperparameters:
    losses, usual = given_losses(settings, algorithm), Hyperparameters()
    if algorithm in {"rloo", "reinforce-plus-plus", "reinforce-plus-plus-baseline"}:
        losses.pop("loss_mean", None)
    rate = losses.pop("learning_rate", None)
    if rate is None:
        rate = 1e-4 if is_tuned(settings) else 1e-5
    return Hyperparameters(
        **losses,
        learning_rate=rate,
        temperature=settings.number("temperature") or usual.temperature,
        **kl_place(_kl_kind(settings), abs(settings.number("kl_weight"))),
    )


def _kl_kind(settings: Settings) -> KlPlace:
    """Return where the penalty goes: of rewards with other estimators than GRPO's where transformers' Trainer is not told."""
    if not compares(settings):
        return "none"
    given = settings.value("kl_in_reward")
    if given is None:
        by_reward = settings.word("estimator") != "grpo" and not is_megatron(settings)
        return "reward" if by_reward else "loss"
    return "reward" if settings.on("kl_in_reward") else "loss"


def _modes(settings: Settings) -> Mapping[str, Any]:
    """Return the mode: a batch ahead where generation is asynchronous."""
    if settings.on("runs_ahead") and not shares_gpus(settings):
        return {"mode": BATCH_AHEAD_MODE, "staleness": 1.0}
    return {}


def _say_doubts(settings: Settings, batches: Batches, sampling: DynamicSampling | None) -> None:
    """Name what changes the amount of work, and is counted in part or not at all."""
    for name, what in (
        ("scheduler", "turns with tools"),
        ("environment", "turns in environments"),
        ("teacher", "passes of a teacher"),
        ("teacher_gpus", "passes of a teacher"),
        ("reweighs", "passes of a teacher"),
    ):
        if settings.value(name):
            settings.doubt(name, what)
    if settings.number("distils_beside") > 0:
        settings.doubt("distils_beside", "passes of a teacher")
    if settings.on("plays"):
        settings.doubt("plays", "turns in environments")
    if settings.on("filters") and sampling is None:
        settings.doubt("filters", "groups of equal rewards that are sampled again")
    doubt_uneven_steps(settings, batches)
    if settings.value("bits") is not None:
        settings.leave_out("bits", "weights in few bits: they are counted in 16")
    if settings.on("syncs_reference"):
        settings.leave_out("syncs_reference", "a reference that follows the actor now and then")


def _notes(settings: Settings, trainer: str, algorithm: str) -> Iterator[str]:
    yield from algorithm_notes(settings, algorithm)
    if _weight_sync(settings, trainer) == AT_ONCE:
        yield "ZeRO-3 gathers the whole model on each GPU for the engine: --move_model_batches N gathers groups of layers"
    elif _is_sharded(settings, trainer) and settings.sheet.version == OF_GROUPS_TOGETHER:
        yield (
            "weights are counted as gathered in groups of layers: 3.12.3 gathers the whole model first, whatever "
            "--move_model_batches says (modelscope/ms-swift issue 7986, mended by pull request 8078)"
        )
    if settings.on("syncs_adapter") and stays_awake(settings) is False:
        adapter = adapter_of(settings)
        if adapter is not None and adapter.sync == "merged":
            yield "an engine that drops its weights (sleep_level 2) gets all of them anew, with adapters merged"


def _guesses(
    settings: Settings,
    processes: Processes,
    batches: Batches,
    work: Work,
    sampling: DynamicSampling | None,
) -> Iterator[str]:
    """Yield what was assumed of the amount of work, and of the GPUs."""
    yield from processes_guesses(settings, processes)
    if settings.optional_whole("max_prompt") is None and not longest_total(settings):
        yield f"prompts of at most {USUAL_PROMPT:,} tokens, since nothing limits them: say --max_length"
    if batches.parts > 1 and uses_vllm(settings):
        yield batches.parts_guess
    if sampling is not None:
        yield sampling_guess(sampling, work.prompts)
