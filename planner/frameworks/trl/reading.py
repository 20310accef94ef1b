"""TRL: one pool that trains, and generates in the trainers' own processes, in vLLM beside them, or on a server's GPUs."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, cast

from rlplan.job import USUAL_WEIGHT_SYNC, Engines, Hyperparameters, Role, WeightSync
from rlplan.models import Adapter, Precision, TrainingPrecision
from rlplan.plan import TaskPlan
from rlplan.planner.configs.losses import algorithm_notes, algorithm_of, given_losses, kl_place
from rlplan.planner.configs.models import model_of
from rlplan.planner.configs.reading.given import GivenValue
from rlplan.planner.configs.reading.python.values import NOT_GIVEN
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.run import ROLLOUT_POOL, TRAIN_POOL, Run, RunPool, Work
from rlplan.planner.configs.sizes import (
    MOST_RUNNING,
    divided,
    eager_engine,
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
from rlplan.planner.frameworks.trl import distilling
from rlplan.planner.frameworks.trl.batches import (
    UNSLOTH,
    assumes_server,
    batches_of,
    mode_of,
    processes_guesses,
    processes_of,
    raised_by_unsloth,
)
from rlplan.planner.plans.trained import TrainerSizes
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.trainers import TrainerOptions

TRANSFORMERS, SHARDED = "trl-transformers", "trl-transformers-sharded"
RLOO: Final = "rloo"
# Keys that RLOO alone has; a file of its own names no trainer.
OF_RLOO: Final = ("normalize_advantages", "reward_clip_range")
# What only accelerate's files have, which say how processes start and not what they train.
OF_ACCELERATE: Final = ("compute_environment", "distributed_type")
# Longest prompt where TRL cuts none: what it cut at up to 0.25, twice.
USUAL_PROMPT: Final = 1024
AT_ONCE: Final = WeightSync(shared_pool="trl-colocate-at-once", between_pools="trl-server-at-once")
# What a program gives its trainer of adapters; None where there are none.
PEFT: Final = "trainer.peft_config"
# TRL's own function (trainer/utils.py), which returns adapters where `use_peft` is on, and none else.
OF_USE_PEFT: Final = "get_peft_config("
# What a program makes adapters of.
MADE_OF: Final = "peft."
LORA: Final = "lora_"
# The model that a program gives its trainer.
MODEL: Final = "trainer.model"
# What a program gives its trainer of settings, and what tells that they are at hand where it makes none itself.
ARGUMENTS: Final = "trainer.args"
# What stands before a mapping of settings that a program gives, whose entries are not known.
SPREAD: Final = "**"
# Engines that are asked for a part of a batch after another, by what they are without.
IN_PARTS: Final = {"vllm-0.6": "vllm-0.6-in-parts"}
OF_STEPS: Final = ("device_batch", "accumulation", "samples", "max_response", "student_tokens")
# Rank and alpha of a LoraConfig that says none (peft, tuners/lora/config.py); ModelConfig's are others.
OF_PEFT: Final = 8
# Since then one key turns on Liger's kernels of layers and its loss.
ONE_LIGER: Final = "0.25"


def run_of(settings: Settings) -> Run:
    """Return what a configuration trains, and how."""
    _refuse(settings)
    _take_model_of_call(settings)
    _ask_for_unknown(settings)
    trainer = trainer_of(settings)
    processes = processes_of(settings)
    distils = distilling.distils(settings)
    if distils:
        distilling.check(settings)
    batches = (distilling.batches_of if distils else batches_of)(settings, processes)
    models, keys = _models(settings)
    pools = [RunPool(name=TRAIN_POOL, gpus=processes.count, roles=tuple(models))]
    if processes.engine_gpus:
        pools.append(RunPool(name=ROLLOUT_POOL, gpus=processes.engine_gpus, roles=("actor",)))
    generate = _generation(settings, pools[-1], batches, trainer)
    sizes = {role: _sizes(settings, trainer, role, processes.count, batches) for role in models}
    _say_doubts(settings, batches)
    sheet = settings.sheet.trainers[trainer]
    run = Run(
        framework=_framework(settings, trainer, generate.engine),
        trainer=trainer,
        engines=Engines(
            train=sheet.engine, generate=generate.engine, sleeps=not _stays_awake(settings)
        ),
        algorithm=_algorithm(settings),
        models=models,
        model_keys=keys,
        work=distilling.work_of(settings, batches) if distils else _work(settings, batches),
        groups=(processes.cluster,),
        pools=tuple(pools),
        assumed_pools=(ROLLOUT_POOL,) if assumes_server(settings) else (),
        generate=generate,
        usual_running=mode_of(settings) not in {"transformers", "colocate"},
        trainers=sizes,
        options={role: _options(settings, trainer, role) for role in models},
        loss=_loss(settings),
        old_log_prob="trainer" if passes_again(settings, batches) else "engine",
        weight_sync=_weight_sync(settings, trainer),
        precision=_precision(settings),
        kv_cache=_cache(settings),
        adapter=adapter_of(settings),
        notes=tuple(_notes(settings)),
        guesses=tuple(_guesses(settings, processes, batches)),
    )
    return distilling.distilled(settings, run) if distils else run


def _framework(settings: Settings, trainer: str, engine: str) -> str:
    """Return the sheet of steps: without vLLM the trained model generates, gathered first where it is sharded."""
    if settings.on("use_vllm"):
        return settings.sheet.trainers[trainer].framework
    whole = _stage(settings, trainer) < FULLY_SHARDED or engine == GATHERING
    return TRANSFORMERS if whole else SHARDED


def _weight_sync(settings: Settings, trainer: str) -> WeightSync:
    """Return how weights reach the engines: ZeRO-3 gathers all of them at once to merge adapters, else one by one."""
    sharded = trainer == "deepspeed" and _stage(settings, trainer) == FULLY_SHARDED
    merges = settings.on("use_vllm") and adapter_of(settings) is not None
    return AT_ONCE if sharded and merges else USUAL_WEIGHT_SYNC


def _refuse(settings: Settings) -> None:
    """Refuse a file that says only how processes start.

    Raises:
        FileError: It is accelerate's.
    """
    held = [key for key in OF_ACCELERATE if key in settings.flat]
    named = any(each in settings.flat for each in settings.sheet.settings["model"].keys)
    if len(held) == len(OF_ACCELERATE) and not named and settings.model is None:
        problem = "is of accelerate's configuration, which says how processes start and not what they train"
        allowed = "the recipe or script of the training, with this file behind it as --config_file"
        raise settings.refused_key(held[0], problem, allowed)


def _ask_for_unknown(settings: Settings) -> None:
    """Ask for what the amount of work is made of, where a program takes it from what is not known.

    Raises:
        MissingValueError: It may be given there, and nothing else gives it.
    """
    unknown = (each for key, each in settings.flat.items() if key.startswith(SPREAD))
    gap = next((gap for each in unknown for gap in each.gaps), None)
    if gap is None:
        return
    distils = distilling.distils(settings)
    others = ("max_response", "samples") if distils else ("student_tokens",)
    for name in OF_STEPS:
        if name not in others and not settings.is_given(name):
            setting, key = settings.sheet.settings[name], settings.key_of(name)
            problem = f"may be what `{gap.source}` (line {gap.line}) says, which {gap.reason}"
            raise settings.missing(setting, key, problem, "its value")


def _take_model_of_call(settings: Settings) -> None:
    """Let a model that a function of the program's own loads be the one that it is given by its name."""
    if not _is_loaded_elsewhere(settings):
        settings.elsewhere = ()
    key = settings.key_of("model")
    given = settings.flat.get(key)
    if settings.model is not None or given is None or not given.gaps:
        return
    gap = given.gaps[0]
    named = next((text for text in gap.texts if model_of(text) is not None), None)
    if named is None:
        keys = settings.sheet.settings["model"].keys
        loaded = [settings.flat[each] for each in keys if each in settings.flat and each != key]
        known = {str(each.value): each for each in loaded if not each.gaps}
        if len(known) == 1:
            (named,) = known
            settings.flat[key] = replace(known[named], value=named)
            note = f"the model is taken for {named}, the only one that the program loads ({known[named].where})"
            settings.notes = (*settings.notes, note)
            return
    if named is not None:
        settings.flat[key] = GivenValue(value=named, where=given.where)
        note = f"the model is taken for {named}, which is given to what returns `{gap.source}` (line {gap.line})"
        settings.notes = (*settings.notes, note)


def trainer_of(settings: Settings) -> str:
    """Return what wraps the model: `deepspeed`, `fsdp`, or `ddp`, which is one GPU alone as well.

    Raises:
        FileError: accelerate is to run something else.
    """
    if settings.is_given("deepspeed_file") or any(settings.has("deepspeed.*")):
        return "deepspeed"
    if settings.value("fsdp_words"):
        return "fsdp"
    chosen = settings.value("distribution")
    if chosen is not None:
        return str(chosen)
    if settings.on("uses_deepspeed") or "zero_stage" in settings.flat:
        return "deepspeed"
    return "fsdp" if settings.on("uses_fsdp") else "ddp"


def _models(settings: Settings) -> tuple[dict[Role, str], dict[Role, str]]:
    models: dict[Role, str] = {"actor": settings.path("model")}
    keys: dict[Role, str] = {"actor": settings.key_of("model")}
    if distilling.distils(settings):
        models["teacher"], keys["teacher"] = (
            settings.path("teacher_model"),
            settings.key_of("teacher_model"),
        )
        return models, keys
    if compares(settings) and adapter_of(settings) is None:
        models["reference"], keys["reference"] = models["actor"], keys["actor"]
    reward = _reward_model(settings)
    if reward is not None:
        models["reward"], keys["reward"] = reward
    return models, keys


def _reward_model(settings: Settings) -> tuple[str, str] | None:
    """Return a reward model and the key that names it: outright, or by its id among the reward functions."""
    if settings.is_given("reward_model"):
        return settings.path("reward_model"), settings.key_of("reward_model")
    key = settings.key_of("reward_functions")
    given = settings.given(key)
    listed = given if isinstance(given, list) else [given]
    named = (each for each in listed if isinstance(each, str) and each.count("/") == 1)
    found = next((each for each in named if not set(each) & set("( \n'\"")), None)
    return None if found is None else (found, key)


def compares(settings: Settings) -> bool:
    """Tell whether the actor is compared with a reference, if only with itself without its adapters."""
    return settings.number("kl_weight") != 0


def is_rloo(settings: Settings) -> bool:
    """Tell whether RLOO's trainer trains, by its start."""
    return RLOO in settings.start.lower()


def _algorithm(settings: Settings) -> str:
    if is_rloo(settings):
        return RLOO
    return algorithm_of(settings, compares=compares(settings))


def adapter_of(settings: Settings) -> Adapter | None:
    """Return the adapters that are trained, which are merged for generation; None where the model itself is."""
    loads = settings.on("loads_adapter")
    made = _makes_adapter(settings)
    problem = None if loads else _unknown_adapter(settings)
    wraps = settings.on("peft") or loads or made or problem is not None
    if problem is not None and not settings.is_given("lora_rank"):
        allowed, key = "a rank, or 0 where no adapters are trained", settings.key_of("lora_rank")
        raise settings.missing(settings.sheet.settings["lora_rank"], key, problem, allowed)
    if not wraps or settings.whole("lora_rank") < 1:
        return None
    rank, alpha = settings.whole("lora_rank"), settings.number("lora_alpha")
    if made and not any(settings.has(UNSLOTH)):
        rank = rank if settings.is_given("lora_rank") else OF_PEFT
        alpha = alpha if settings.is_given("lora_alpha") else OF_PEFT
    return Adapter(rank=rank, alpha=alpha, sync="merged")


def _makes_adapter(settings: Settings) -> bool:
    """Tell whether a program makes adapters, if only by a LoraConfig that says nothing."""
    given = settings.flat.get(PEFT)
    known = given is not None and not given.gaps
    if known and given is not None and given.value is None:
        return False
    return any(settings.has("peft.*")) or known


def _unknown_adapter(settings: Settings) -> str | None:
    """Return why it is not known which adapters a program trains; None where it trains none, or they are known.

    `use_peft` decides where its trainer is given what TRL's own function makes of its flags, and where it is given.
    """
    if settings.is_given("peft"):
        return None
    spread = f"{MADE_OF}{SPREAD}"
    given = settings.flat.get(PEFT)
    gaps = [
        gap
        for key, each in settings.flat.items()
        if key.startswith(spread) or (each is given and not any(settings.has("peft.*")))
        for gap in each.gaps
    ]
    gap = next((each for each in gaps if OF_USE_PEFT not in each.source), None)
    if gap is None:
        made = next((each for each in settings.elsewhere if each[0] == MADE_OF), None)
        if made is None or any(settings.has("peft.*")):
            return None
        return f"of adapters may be what {made[1]} is given ({made[2]}), beside a model that is loaded there"
    return f"of adapters may be what `{gap.source}` (line {gap.line}) says, which {gap.reason}"


def _is_loaded_elsewhere(settings: Settings) -> bool:
    """Tell whether the model that a trainer is given is what a function returns, whatever it is called."""
    given = settings.flat.get(MODEL)
    return given is not None and any(not gap.reason.endswith(NOT_GIVEN) for gap in given.gaps)


def _generation(settings: Settings, pool: RunPool, batches: Batches, trainer: str) -> TaskPlan:
    """Return the layout of generation: of the trainers' own GPUs each its part, of a server all of it."""
    mode = mode_of(settings)
    if mode == "transformers":
        sharded = trainer == "deepspeed" and _stage(settings, trainer) == FULLY_SHARDED
        return static_generation(settings, pool, batches, sharded=sharded)
    apart = mode != "colocate"
    tp = (
        settings.whole("server_tp" if mode == "server" else "rollout_tp") if mode != "device" else 1
    )
    key = settings.key_of("server_tp" if mode == "server" else "rollout_tp")
    eager = mode == "server" and settings.on("server_eager")
    engine = settings.word("rollout_engine")
    replicas = divided(settings, key, pool.gpus, tp)
    return TaskPlan(
        pool=pool.name,
        engine=IN_PARTS[engine]
        if batches.parts > 1 and engine in IN_PARTS
        else eager_engine(engine, eager=eager),
        tp=tp,
        dp=replicas,
        max_running=_running(batches, tp, replicas if apart else None),
        memory_fraction=settings.number("server_memory" if mode == "server" else "memory_fraction"),
    )


def _running(batches: Batches, tp: int, replicas: int | None) -> int:
    """Return how many sequences an engine decodes at a time at most.

    A colocated one may run all that its processes generate together, one apart its share of a part; where that is all there is, any
    number above does the same, and vLLM's own stands for it.

    Args:
        replicas: Of an engine apart from the trainers; None where it shares their GPUs.
    """
    if replicas is not None:
        own = math.ceil(batches.part / replicas)
        return MOST_RUNNING if batches.parts == 1 else min(own, MOST_RUNNING)
    own = batches.rank_part * tp
    return MOST_RUNNING if batches.parts == 1 and own <= MOST_RUNNING else own


def _stays_awake(settings: Settings) -> bool:
    """Tell whether an engine keeps weights and cache on the trainers' GPUs while these train."""
    return mode_of(settings) == "colocate" and not settings.on("sleeps")


def _cache(settings: Settings) -> Any:  # noqa: ANN401 -- a format, or none
    return settings.value("server_cache") if mode_of(settings) == "server" else None


def _stage(settings: Settings, trainer: str) -> int:
    """Return the ZeRO stage, or what stands for it in FSDP.

    Raises:
        FileError: There is no such stage.
    """
    if trainer == "ddp":
        return 0
    own = settings.of(trainer, "actor")
    if trainer == "fsdp" and own.optional_whole("zero") is None:
        words = str(settings.value("fsdp_words") or "")
        return 2 if "shard_grad_op" in words or "hybrid_shard_zero2" in words else FULLY_SHARDED
    return zero_stage(own)


def _sizes(
    settings: Settings, trainer: str, role: Role, gpus: int, batches: Batches
) -> TrainerSizes:
    """Return the sizes of a role's model: all of them are wrapped alike, and only a trained one has an optimizer."""
    own = settings.of(trainer, role)
    checkpoints = settings.on("checkpoints") or settings.on("fsdp_checkpoints")
    return TrainerSizes(
        pool=TRAIN_POOL,
        dp=gpus,
        micro_batch=batches.micro_batch,
        infer_micro_batch=batches.micro_batch,
        zero_stage=_stage(settings, trainer),
        recompute="full" if checkpoints else "none",
        offload=own.on("cpu_offload") or (role == "actor" and own.on("cpu_optimizer")),
    )


def _options(settings: Settings, trainer: str, role: Role) -> TrainerOptions:
    """Return how a role's trainer keeps its states and makes its logits.

    Without DeepSpeed and FSDP nothing keeps fp32 beside weights that are loaded in 16 bits.
    """
    own = settings.of(trainer, role)
    fused = "fused" if fuses_loss(settings) and role == "actor" else None
    options = trainer_options(own, fused)
    if trainer == "fsdp" and "offload" in str(settings.value("fsdp_words") or ""):
        options = replace(options, host_states=True)
    if trainer != "ddp" or adapter_of(settings) is not None:
        return options
    dtype = dtype_of(settings)
    return replace(options, weights=None if dtype == "fp32" else cast(TrainingPrecision, dtype))


def fuses_loss(settings: Settings) -> bool:
    """Tell whether Liger's kernel makes the loss: since 0.25 wherever its kernels of layers are on."""
    order = settings.sheet.versions.index
    alike = order(settings.sheet.version) >= order(ONE_LIGER)
    return settings.on("liger_loss") or (alike and settings.on("liger_kernel"))


def dtype_of(settings: Settings) -> str:
    """Return the format in which the model is loaded: transformers' own, fp32, where nothing says it."""
    value = settings.value("dtype")
    return "fp32" if value is None else str(value)


def _precision(settings: Settings) -> Precision:
    """Return the format of products: of mixed precision, or of weights that are loaded in 16 bits."""
    mixed = str(settings.value("mixed_precision") or "no")
    if settings.on("fp16") or mixed == "fp16":
        return "fp16"
    loaded = dtype_of(settings)
    if settings.on("bf16") or mixed in {"bf16", "fp8"} or loaded == "bf16":
        return "bf16"
    return cast(Precision, loaded)


def passes_again(settings: Settings, batches: Batches) -> bool:
    """Tell whether a pass for old log-probabilities follows generation (trainer/grpo_trainer.py).

    RLOO always makes one. GRPO does where samples are learnt from after an update, and, since 0.23, where vLLM's
    log-probabilities are corrected for.
    """
    if is_rloo(settings):
        return True
    corrects = settings.on("use_vllm") and settings.on("corrects_sampling")
    return batches.needs_old or not batches.divides or corrects


def _work(settings: Settings, batches: Batches) -> Work:
    samples = samples_of(settings, batches)
    agent = any(settings.is_given(each) for each in ("tools", "environments", "rollout_function"))
    longest = longest_response(settings)
    if longest is None:
        raise settings.refused("max_response", "leaves responses without a limit", "a whole number")
    total = longest_total(settings)
    return Work(
        prompts=batches.completions // samples,
        samples=samples,
        updates=batches.updates,
        epochs=batches.epochs,
        max_prompt=settings.optional_whole("max_prompt") or (None if total else USUAL_PROMPT),
        max_response=longest,
        max_total=total,
        turns=_most_turns(settings) if agent else 1,
    )


def _most_turns(settings: Settings) -> int | None:
    """Return the most turns of an episode: an answer before each round of tools' calls, and one behind the last."""
    rounds = settings.unmapped("tool_rounds")
    return rounds + 1 if isinstance(rounds, int) and rounds > 0 else None


def longest_response(settings: Settings) -> int | None:
    """Return the most tokens of a response: what is handed to the engine as it is goes over TRL's own limit."""
    own = settings.optional_whole("max_response")
    handed_on = settings.optional_whole("engine_response")
    return own if handed_on is None else handed_on


def longest_total(settings: Settings) -> int | None:
    """Return the most tokens of a sequence that the engine takes; None where nothing says it."""
    mode = mode_of(settings)
    if mode == "transformers":
        return None
    return settings.optional_whole("server_model_len" if mode == "server" else "max_total")


def _loss(settings: Settings) -> Hyperparameters:
    weight = settings.number("kl_weight")
    losses = given_losses(settings, _algorithm(settings))
    if is_rloo(settings):
        losses.pop("loss_mean", None)
    kind = "none" if not compares(settings) else "reward" if is_rloo(settings) else "loss"
    return Hyperparameters(
        **losses,
        temperature=settings.number("temperature") or 1.0,
        **kl_place(cast(Any, kind), abs(weight)),
    )


def _say_doubts(settings: Settings, batches: Batches) -> None:
    """Name what changes the amount of work, and is counted in part or not at all."""
    distilling.say_others(settings)
    if distilling.distils(settings):
        distilling.say_doubts(settings)
    _say_unknown(settings)
    settings.doubt("tools", "turns with tools")
    settings.doubt("environments", "turns in an environment")
    settings.doubt("rollout_function", "a rollout of one's own")
    doubt_uneven_steps(settings, batches)
    for key in () if is_rloo(settings) else OF_RLOO:
        if key in settings.flat:
            settings.doubts[key] = "RLOO: its start, as `trl rloo --config FILE`, is not said"
    if settings.value("mixed_precision") == "fp8":
        settings.leave_out("mixed_precision", "products in fp8: they are counted in bf16")
    for name in ("four_bits", "eight_bits"):
        if settings.on(name):
            settings.leave_out(name, "weights in 4 or 8 bits: they are counted in 16")
    for key in (each for each in settings.has(UNSLOTH) if each not in settings.used):
        settings.left_out.setdefault(key, "Unsloth's own kernels, memory and generation")


def _say_unknown(settings: Settings) -> None:
    """Name settings of which a program says none, and adapters that it loads and does something with."""
    given = settings.flat.get(ARGUMENTS)
    if given is not None and given.gaps and not any(map(settings.is_given, OF_STEPS)):
        settings.doubts[ARGUMENTS] = (
            "what it holds is not known: TRL's defaults are taken for all of it"
        )
    speaks = next((key for key in settings.flat if LORA in key.lower()), None)
    if settings.taken_as and speaks and not settings.is_given("peft") and not adapter_of(settings):
        settings.doubts[speaks] = (
            "whether the program trains adapters is not known: all weights are counted as trained; --set use_peft=True or "
            "False says it"
        )
    loaded = next(settings.has("adapter.base"), None)
    if loaded and not settings.is_given("loads_adapter") and adapter_of(settings) is None:
        settings.doubts[loaded] = (
            "whether these adapters are merged or trained is not known: all weights are counted as trained; "
            "--set adapter.is_trainable=True or False says it"
        )


def _notes(settings: Settings) -> Iterator[str]:
    if distilling.distils(settings):
        yield from distilling.notes_of(settings)
    elif not is_rloo(settings):
        yield from algorithm_notes(settings, _algorithm(settings))
    frozen = adapter_of(settings) is not None and dtype_of(settings) == "fp32"
    if frozen and trainer_of(settings) != "deepspeed":
        yield "frozen weights that are loaded in fp32 are counted in 16 bits: dtype=bfloat16 loads them so"
    if any(settings.has(UNSLOTH)):
        yield "a model of Unsloth's is forecast as transformers' and TRL's own, which take longer and hold more"
    words = [
        f"{settings.value('fsdp_words') or ''}",
        f"{settings.given('fsdp_config.fsdp_sharding_strategy')}",
    ]
    if any("hybrid" in each.lower() for each in words):
        yield "states that FSDP shards inside a node alone are counted as sharded over all of them"


def _guesses(settings: Settings, processes: Processes, batches: Batches) -> Iterator[str]:
    """Yield what was assumed of the amount of work, of adapters, and of the GPUs."""
    yield from processes_guesses(settings, processes)
    if trainer_of(settings) == "deepspeed" and not settings.of("deepspeed", "actor").is_given(
        "zero"
    ):
        yield "ZeRO stage 2, since nothing at hand says which: --set zero_stage=3 says another"
    if settings.on("loads_adapter") and not settings.is_given("lora_rank"):
        yield f"adapters of rank {settings.whole('lora_rank')}, since that of those that are loaded is in their own file: say lora_r"
    given = settings.flat.get(PEFT)
    if given is not None and given.gaps and any(settings.has("peft.*")):
        gap = given.gaps[0]
        yield f"adapters are trained, since `{gap.source}` (line {gap.line}) {gap.reason}: say lora_r=0 where they are not"
    if distilling.distils(settings):
        sharded = _stage(settings, trainer_of(settings)) == FULLY_SHARDED
        yield from distilling.guesses_of(settings, batches, sharded=sharded)
        return
    if raised_by_unsloth(settings, processes.count):
        yield (
            f"micro-batches of {settings.whole('samples')} completions, to which Unsloth raises "
            f"{settings.key_of('device_batch')}={settings.whole('device_batch')}: a multiple of num_generations"
        )
    if settings.optional_whole("max_prompt") is None and not longest_total(settings):
        yield (
            f"prompts of at most {USUAL_PROMPT:,} tokens: TRL {settings.sheet.version} cuts none; say "
            "--max_prompt_length"
        )
    in_turn = settings.word("rollout_engine") in IN_PARTS
    if batches.parts > 1 and settings.on("use_vllm") and not in_turn:
        yield batches.parts_guess
