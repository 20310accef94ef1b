"""ROLL: workers of each role on devices of their own or shared, a trainer a role, and engines that leave GPUs between uses."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from rlplan.job import Engines, Hyperparameters, KlPlace, OldLogProb, Role
from rlplan.models import Adapter, Precision, TrainingPrecision
from rlplan.plan import ENDLESS_MODE, Recompute, TaskPlan
from rlplan.planner.configs.losses import algorithm_notes, algorithm_of, given_losses, kl_place
from rlplan.planner.configs.reading.settings import RoleSettings, Settings, is_on
from rlplan.planner.configs.run import Run, RunPool, Work
from rlplan.planner.configs.sizes import (
    MOST_RUNNING,
    divided,
    even_stages,
    models_of,
    nearest_divisor,
    recomputed_parts,
    role_sizes,
    rollout_engine,
    trainer_options,
)
from rlplan.planner.frameworks.roll.devices import Placement, check_devices, placement_of
from rlplan.planner.plans.trained import TrainerSizes
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.trainers import TrainerOptions
from rlplan.units import MIB

MEGATRON, FSDP, DEEPSPEED = "megatron", "fsdp", "deepspeed"
PPO: Final = "ppo"
# A model whole on each GPU, as `hf_infer` has it.
PLAIN: Final = "plain"
PLAIN_ENGINE: Final = "ddp-hf-padded-to-limits"
AGENTIC: Final = "agentic"
# Fills updates of an agentic pipeline up where rows are missing.
COPIES: Final = "copy"
OF_EPISODES: Final = "train_env_manager.*"
GRADIENTS: Final = 2
BY_LOAD: Final = "load_balance"
# How log-probabilities are made where entropies are learnt from beside.
ENTROPY: Final = "entropy"
WHOLE_ENTROPY: Final = "whole-entropy"
USUAL_CLIP: Final = 0.2
STEPWISE: Final = ("gigpo", "step_reinforce")
MOST_TURNS: Final = ("max_steps", "max_actions_per_traj")
# ROLL's own mappings (examples/config/deepspeed_*.yaml of 0.1.0 to 0.2.1), to which strategies refer: the stage, and what is on the host.
NAMED_MAPPING: Final = re.compile(r"\$\{deepspeed_zero(2|3|)(_cpuoffload|)\}")
NAMED_NOTE: Final = "{} refers to {}, whose file is not there: its stage and what is on the host are those of ROLL's own"
ZERO: Final = "zero_optimization"


def run_of(settings: Settings) -> Run:
    """Return what a configuration trains, and how.

    Raises:
        FileError: It trains otherwise, or a key that matters cannot be imported; it is named.
    """
    refuse(settings)
    named = tuple(_lay_named_mappings(settings))
    trainer = trainer_of(settings)
    models, keys = models_of(settings, named_models(settings))
    placement = placement_of(settings, tuple(models))
    algorithm = _algorithm(settings)
    sizes = {role: _sizes(settings, role, placement.of(role)) for role in models}
    work = _work(settings, sizes["actor"])
    _say_doubts(settings, placement)
    _doubt_critic(settings, sizes)
    cache = settings.value("engine_cache")
    return Run(
        framework=settings.sheet.trainers[trainer].framework,
        trainer=trainer,
        engines=Engines(
            train=engine_of(settings, trainer, "actor"), generate=rollout_engine(settings)
        ),
        algorithm=algorithm,
        models=models,
        model_keys=keys,
        work=work,
        groups=(_nodes(settings, placement.gpus),),
        pools=placement.pools,
        generate=_generation(settings, placement.pools[-1]),
        usual_running=settings.optional_whole("running") is None and _is_vllm(settings),
        trainers=sizes,
        options={role: _options(settings, role) for role in models},
        loss=_loss(settings, algorithm),
        old_log_prob=_old_log_prob(settings, work),
        precision=cast(Precision, settings.word("dtype")),
        rollout_precision=_rollout_precision(settings),
        kv_cache=cast(TrainingPrecision | None, cache),
        adapter=adapter_of(settings),
        bucket_bytes=settings.whole("buffer_mb") * MIB,
        notes=(*named, *_notes(settings, algorithm)),
        **_modes(settings, placement),
    )


def _lay_named_mappings(settings: Settings) -> Iterator[str]:
    """Put what ROLL's own mappings say in the place of references to them whose file is not there; yield that they stand for it."""
    for role in ("actor_train", "reference", "critic"):
        key = f"{role}.strategy_args.strategy_config"
        given = settings.flat.get(key)
        found = None if given is None else NAMED_MAPPING.fullmatch(str(given.value))
        if given is None or found is None:
            continue
        del settings.flat[key]
        said: dict[str, object] = {"stage": int(found[1] or 0)}
        if found[2]:
            said["offload_optimizer.device"] = "cpu"
        for name, value in said.items():
            settings.flat[f"{key}.{ZERO}.{name}"] = replace(given, value=value, gaps=())
        yield NAMED_NOTE.format(key, given.value)


def refuse(settings: Settings) -> None:
    """Refuse configurations of other trainings, by their sections.

    Raises:
        FileError: It is of one.
    """
    settings.refuse_others("an RLVR or agentic pipeline's configuration")
    check_devices(settings)


def trainer_of(settings: Settings, role: Role = "actor") -> str:
    """Return what trains a role's model, or passes over it."""
    return settings.word(f"{role}_strategy")


def of_role(settings: Settings, role: Role) -> RoleSettings:
    """Return what is set of a role's model; of one that is whole on each GPU by the keys of the actor's trainer."""
    own = trainer_of(settings, role)
    return settings.of(FSDP if own == PLAIN else own, role)


def is_agentic(settings: Settings) -> bool:
    """Tell whether episodes in environments are learnt from: by the start, or a bare file's section."""
    return AGENTIC in settings.start or next(settings.has(OF_EPISODES), None) is not None


def compares(settings: Settings) -> bool:
    """Tell whether the actor is compared with a reference (configs/base_config.py)."""
    return settings.on("compares") or settings.on("kl_loss") or settings.number("kl_weight") > 0


def named_models(settings: Settings) -> dict[Role, str]:
    """Return the settings that name the models; an adapter's reference is the model below it."""
    names: dict[Role, str] = {"actor": "model"}
    if compares(settings) and adapter_of(settings) is None:
        names["reference"] = "reference_model"
    if settings.word("estimator") == PPO:
        names["critic"] = "critic_model"
    return names


def adapter_of(settings: Settings) -> Adapter | None:
    """Return the adapters that are trained, which engines take as they are; twice their rank is the usual alpha."""
    if settings.value("lora_target") is None or settings.whole("lora_rank") < 1:
        return None
    rank = settings.whole("lora_rank")
    alpha = settings.value("lora_alpha")
    return Adapter(
        rank=rank, alpha=settings.number("lora_alpha") if alpha else 2.0 * rank, sync="adapter"
    )


def _algorithm(settings: Settings) -> str:
    if settings.word("estimator") == PPO:
        return PPO
    return algorithm_of(settings, compares=compares(settings))


def engine_of(settings: Settings, trainer: str, role: Role) -> str | None:
    """Return the engine sheet of a role's trainer: rows are as long as they may be unless they are packed."""
    if trainer == PLAIN:
        return PLAIN_ENGINE
    sheet = settings.sheet.trainers[trainer]
    own = of_role(settings, role)
    by_tokens = own.on("by_tokens") or own.on("by_tokens_infer")
    return sheet.engine if own.on("packs") or by_tokens else sheet.padded


def _rollout_precision(settings: Settings) -> Precision | None:
    """Return the format of the engine's weights, where it is another than the trainer's."""
    own = settings.word("rollout_dtype")
    return None if own == settings.word("dtype") else cast(Precision, own)


def _nodes(settings: Settings, gpus: int) -> tuple[int, int]:
    per_node = settings.whole("gpus_per_node")
    return (per_node, -(-gpus // per_node)) if 1 <= per_node < gpus else (gpus, 1)


def copies_of(settings: Settings, role: Role, gpus: int) -> int:
    """Return the copies of a role's model on so many GPUs; 0 where its sizes do not divide them."""
    if trainer_of(settings, role) == PLAIN:
        return gpus
    own = of_role(settings, role)
    taken = own.whole("tp") * own.whole("pp") * own.whole("cp")
    return gpus // taken if taken > 0 and gpus % taken == 0 else 0


def _sizes(settings: Settings, role: Role, pool: RunPool) -> TrainerSizes:
    """Return the sizes of a role's model: its states leave the GPUs after each stage (pipeline/base_worker.py)."""
    own, trainer = of_role(settings, role), trainer_of(settings, role)
    engine = engine_of(settings, trainer, role) or ""
    if trainer == PLAIN:
        batch = own.whole("infer_micro_batch")
        return TrainerSizes(
            pool=pool.name, engine=engine, dp=pool.gpus, micro_batch=batch, infer_micro_batch=batch,
            zero_stage=0, offload=True, infer_offload=True,
        )  # fmt: skip
    sizes = even_stages(own, role_sizes(own, pool.gpus, pool.name))
    is_read = role == "reference"
    train, passed = _budget(own, "train"), _budget(own, "infer")
    stage = _stage(own, trainer)
    return replace(
        sizes,
        engine=engine,
        shard_ranks=_shard_ranks(own, trainer, sizes),
        micro_batch=own.whole("infer_micro_batch" if is_read else "micro_batch"),
        token_budget=passed if is_read else train,
        infer_micro_batch=own.whole("infer_micro_batch"),
        infer_token_budget=passed,
        zero_stage=stage,
        recompute="none" if is_read else _recompute(own, trainer),
        offload=not own.on("cpu_offload"),
        infer_offload=True if is_read else None,
    )


def _budget(own: RoleSettings, kind: str) -> int | None:
    """Return the tokens of a micro-batch where they are what it is filled by."""
    packed = own.on("packs") and own.value("packing") == BY_LOAD
    if packed:
        return own.optional_whole(f"packed_{kind}")
    switch = "by_tokens" if kind == "train" else "by_tokens_infer"
    return own.optional_whole(f"tokens_{kind}") or None if own.on(switch) else None


def _stage(own: RoleSettings, trainer: str) -> int | None:
    """Return the ZeRO stage, or what stands for it."""
    if trainer == MEGATRON:
        return 1 if own.on("distributed") else 0
    if trainer == DEEPSPEED:
        return own.optional_whole("zero")
    reshards = own.value("reshards")
    return GRADIENTS if reshards is not None and not is_on(reshards) else FULLY_SHARDED


def _shard_ranks(own: RoleSettings, trainer: str, sizes: TrainerSizes) -> int | None:
    """Return over how many ranks FSDP shards; all of them where it says more, or 1."""
    ranks = own.whole("fsdp_ranks") if trainer == FSDP else 1
    return ranks if 1 < ranks < sizes.dp * sizes.cp else None


def _recompute(own: RoleSettings, trainer: str) -> Recompute:
    if trainer == MEGATRON:
        granularity = cast(Recompute, own.value("granularity") or "none")
        return recomputed_parts(own) if granularity == "selective" else granularity
    return "none" if own.on("no_checkpoints") else "full"


def _options(settings: Settings, role: Role) -> TrainerOptions:
    if trainer_of(settings, role) == PLAIN:
        return TrainerOptions()
    learns = role == "actor" and settings.number("entropy_weight") > 0
    way = ENTROPY if trainer_of(settings) == MEGATRON else WHOLE_ENTROPY
    return trainer_options(of_role(settings, role), way if learns else None)


def _is_vllm(settings: Settings) -> bool:
    return settings.word("rollout_engine").startswith("vllm")


def _generation(settings: Settings, pool: RunPool) -> TaskPlan:
    """Return the layout of generation: of SGLang's engines the GPUs of a worker are what its tensors are cut over."""
    pp = settings.whole("rollout_pp")
    given = settings.is_given("rollout_tp")
    name = (
        "rollout_tp"
        if given or not settings.word("rollout_engine").startswith("sglang")
        else "engine_gpus"
    )
    tp = settings.whole(name)
    running = settings.optional_whole("running") or MOST_RUNNING
    return TaskPlan(
        pool=pool.name,
        engine=rollout_engine(settings),
        tp=tp,
        pp=pp,
        dp=divided(settings, settings.key_of(name), pool.gpus, tp * pp),
        max_running=min(running, settings.whole("requests")),
        memory_fraction=settings.number("memory_fraction"),
    )


def _work(settings: Settings, sizes: TrainerSizes) -> Work:
    """Return the work of a step.

    Raises:
        FileError: Its batches are empty, or nothing ends a response.
    """
    prompts, samples = settings.whole("prompts"), settings.whole("samples")
    agentic = is_agentic(settings)
    if samples < 1 or prompts < 1:
        raise settings.refused("prompts", "is no batch", "at least 1")
    if agentic:
        if prompts % samples:
            problem = f"has no whole groups of {samples} episodes"
            raise settings.refused("prompts", problem, f"a multiple of {samples}")
        prompts //= samples
    total, response = settings.optional_whole("max_total"), settings.optional_whole("max_response")
    prompt = settings.whole("max_prompt")
    if total is None and response is None:
        problem = "is missing, and nothing else ends a response"
        raise settings.refused("max_response", problem, "tokens, or sequence_length")
    total = total or prompt + (response or 0)
    limit = settings.optional_whole("max_model_len")
    most = min(total, limit) if limit is not None else total
    return Work(
        prompts=prompts,
        samples=samples,
        updates=_updates(settings, prompts * samples, sizes),
        epochs=max(1, settings.whole("epochs")),
        max_prompt=None if agentic else prompt,
        max_response=None if agentic else max(1, total - prompt),
        max_total=most if agentic or most < total else None,
        turns=turns_of(settings) if agentic else 1,
        over_provisioning=1 + settings.whole("redundancy") / samples if agentic else 1.0,
    )


def update_rows(own: RoleSettings, copies: int) -> int:
    """Return the rows of an update of a role's model, of which there are so many copies."""
    return own.whole("micro_batch") * own.whole("accumulation") * copies


def _updates(settings: Settings, rows: int, sizes: TrainerSizes) -> int:
    own = of_role(settings, "actor")
    update = update_rows(own, sizes.dp)
    if rows % update and (update < rows or is_agentic(settings)):
        key = own.key_of("accumulation")
        settings.doubts[key] = _uneven(settings, rows, update)
    return nearest_divisor(rows, max(1.0, rows / update))


def _uneven(settings: Settings, rows: int, update: int) -> str:
    """Return what becomes of rows that are no whole updates: an agentic pipeline fills them up, or leaves some out.

    pipeline/agentic/agentic_pipeline.py, adjust_batch: by copies, unless another mode is said.
    """
    mode = settings.given("batch_adjust_mode") or COPIES
    if not is_agentic(settings) or (mode != COPIES and update < rows):
        return f"updates that do not divide a step's {rows:,} rows"
    missing = update - rows % update
    return f"updates of {update:,} rows, which {missing:,} copies fill up beside a step's {rows:,}"


def _doubt_critic(settings: Settings, sizes: Mapping[Role, TrainerSizes]) -> None:
    """Say where a critic has other updates than the actor."""
    if "critic" in sizes:
        own, actor = of_role(settings, "critic"), of_role(settings, "actor")
        rows = update_rows(own, sizes["critic"].dp)
        if rows != update_rows(actor, sizes["actor"].dp):
            settings.doubts[own.key_of("accumulation")] = (
                "other updates of the critic than of the actor"
            )


def turns_of(settings: Settings) -> int | None:
    """Return the most turns of an episode in the first environment that is trained in; None where that is not said."""
    tags = settings.value("tags")
    first = str(tags[0]) if isinstance(tags, list) and tags else ""
    for section in ("custom_envs", "custom_env"):
        held = settings.given(f"{section}.{first}")
        for name in MOST_TURNS:
            value = held.get(name) if isinstance(held, Mapping) else None
            value = settings.given(f"{section}.{first}.{name}") if value is None else value
            if isinstance(value, int) and value > 0:
                return value
    return None


def _old_log_prob(settings: Settings, work: Work) -> OldLogProb:
    """Return whether a pass for old log-probabilities is made (configs/base_config.py, set_old_logprobs_status)."""
    if settings.on("no_old_pass"):
        return "engine"
    stepwise = settings.given(settings.key_of("estimator")) in STEPWISE
    again = stepwise or settings.on("old_pass") or settings.number("kl_weight") > 0
    return "trainer" if again or work.updates > 1 else "engine"


def _loss(settings: Settings, algorithm: str) -> Hyperparameters:
    losses, usual = given_losses(settings, algorithm), Hyperparameters()
    if algorithm != PPO:
        for name in ("gae_lambda", "discount", "critic_learning_rate"):
            losses.pop(name, None)
    if settings.on("dual_clip"):
        losses["clip_ratio_dual"] = 1 + 2 * float(losses.get("clip_ratio") or USUAL_CLIP)
    if settings.number("entropy_weight") > 0:
        losses["entropy_coefficient"] = settings.number("entropy_weight")
    kind: KlPlace = "none"
    weight = settings.number("kl_weight")
    if compares(settings):
        in_loss = settings.on("kl_loss") or not settings.on("kl_in_reward")
        kind = "loss" if in_loss else "reward"
        weight = settings.number("kl_loss_weight") if in_loss else weight
    return Hyperparameters(
        **losses,
        temperature=settings.number("temperature") or usual.temperature,
        **kl_place(kind, weight),
    )


def _modes(settings: Settings, placement: Placement) -> Mapping[str, Any]:
    """Return the mode: without an end where requests are begun ahead on GPUs of their own."""
    ahead = settings.number("ahead")
    if ahead <= 0 or not placement.apart:
        return {}
    return {"mode": ENDLESS_MODE, "staleness": max(1.0, ahead), "in_flight": "recompute"}


def _say_doubts(settings: Settings, placement: Placement) -> None:
    """Name what changes the amount of work, and is counted in part or not at all."""
    for name, what in placement.doubts.items():
        settings.doubt(name, what)
    _doubt_rewards(settings)
    if settings.on("keeps_spare"):
        settings.doubt("keeps_spare", "prompts begun beside those of a step")
    if settings.on("distils"):
        settings.doubt("distils", "passes of a teacher")
    if settings.given(settings.key_of("estimator")) in STEPWISE:
        settings.doubt("estimator", "turns of an episode that are sequences of their own")
    if settings.number("ahead") > 0 and not placement.apart:
        settings.doubt("ahead", "requests begun ahead on the GPUs that train")


def _doubt_rewards(settings: Settings) -> None:
    """Name rewards that models give, and groups that are dropped by them."""
    for name in ("judge_devices", "judges_devices"):
        settings.doubt(name, "rewards by a model")
    for key in settings.has("rewards.*.device_mapping"):
        settings.doubts[key] = "rewards by a model"
    for key in settings.has("rewards.*.judge_api_url"):
        if settings.given(key):
            settings.doubts[key] = "rewards by a model that a server has"
    for key in settings.has("rewards.*.query_filter_config.type"):
        if settings.given(key) not in {None, "no_filter"}:
            settings.doubts[key] = "groups that a filter drops"


def _notes(settings: Settings, algorithm: str) -> Iterator[str]:
    if algorithm != PPO:
        yield from algorithm_notes(settings, algorithm)
