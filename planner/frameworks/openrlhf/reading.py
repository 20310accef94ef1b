"""OpenRLHF: every role and the engines on GPUs of their own, or colocated as configured."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from rlplan.algorithms import load_algorithm
from rlplan.job import Engines, Hyperparameters, Role
from rlplan.models import Adapter, Precision
from rlplan.plan import BATCH_AHEAD_MODE, ENDLESS_MODE, InFlight, TaskPlan
from rlplan.planner.configs.losses import algorithm_notes, algorithm_of, given_losses, kl_place
from rlplan.planner.configs.models import IDS_IN_MXFP4
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.run import REWARD_POOL, ROLLOUT_POOL, TRAIN_POOL, Run, RunPool, Work
from rlplan.planner.configs.sizes import (
    ONLY_READ,
    adapter_of,
    models_of,
    role_sizes,
    rollout_engine,
    trainer_options,
    updates_of,
)
from rlplan.planner.plans.trained import TrainerSizes
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.trainers import TrainerOptions

TRAINER: Final = "deepspeed"
PADDING: Final = "deepspeed-zero3"
# From which share on colocated engines get another one in its place, up to 0.6.0 (cli/train_ppo_ray.py).
TOO_MUCH: Final = 0.9
# What a reward's address begins with where it is no function's file.
PYTHON: Final = ".py"
NO_BF16_NOTE: Final = "forecast in bf16, which OpenRLHF {} trains in where --bf16 asks for it"
PLAIN_NOTE: Final = (
    "forecast with FlashAttention, which OpenRLHF {} takes where --flash_attn asks for it or samples are packed: plain attention "
    "keeps its scores, whose memory is not counted"
)
ADAPTER_NOTE: Final = (
    "weights are taken to be merged with their adapters before they are sent: OpenRLHF sends both under PEFT's names, which vLLM "
    "refuses at the first sync (issues 546, 991 and 1349), and runs with adapters by a copy of its code that merges them"
)
PACKED_NOTE: Final = (
    "samples that are not packed are forecast as if they were, unless ZeRO 3 trains them"
)


def run_of(settings: Settings) -> Run:
    """Return what a configuration trains, and how."""
    models, keys = _models(settings)
    pools = _pools(settings, tuple(models))
    pool_of = {role: pool for pool in pools for role in pool.roles if pool.name != ROLLOUT_POOL}
    sizes = {role: _sizes(settings, role, pool_of[role]) for role in models}
    rollout = next((pool for pool in pools if pool.name == ROLLOUT_POOL), pool_of["actor"])
    needs_more = any(each.cp > 1 or each.zero_stage != FULLY_SHARDED for each in sizes.values())
    trains = settings.sheet.trainers[TRAINER].engine
    _say_doubts(settings)
    return Run(
        framework=settings.sheet.trainers[TRAINER].framework,
        trainer=TRAINER,
        engines=Engines(
            train=trains if _packs(settings) or needs_more else PADDING,
            generate=rollout_engine(settings),
            sleeps=settings.on("rollout_sleeps"),
        ),
        algorithm=_algorithm(settings),
        models=models,
        model_keys=keys,
        work=_work(settings),
        groups=((sum(pool.gpus for pool in pools), 1),),
        least_node=settings.whole("actor_gpus_per_node"),
        pools=pools,
        generate=_generation(settings, rollout),
        usual_running=True,
        trainers=sizes,
        options={role: _options(settings, role) for role in models},
        loss=_loss(settings),
        precision=cast(Precision, settings.word("precision")),
        rollout_precision=_rollout_precision(settings),
        adapter=_adapter(settings),
        critic_adapter=adapter_of(settings) if "critic" in models else None,
        notes=tuple(_notes(settings, is_padded=not _packs(settings) and needs_more)),
        **_modes(settings, apart=rollout.name == ROLLOUT_POOL),
    )


def _notes(settings: Settings, *, is_padded: bool) -> Iterator[str]:
    yield from algorithm_notes(settings, _algorithm(settings))
    if settings.is_given("reward_model") and _is_ruled(settings):
        key, other = settings.key_of("reward_model"), settings.key_of("reward_address")
        other = settings.key_of("agent") if settings.is_given("agent") else other
        yield f"no reward model is loaded: {key} has no effect beside {other}"
    if (served := _rollout_precision(settings)) is not None:
        yield f"the engine has weights in {served}, as {settings.path('model')} is published"
    if adapter_of(settings) is not None:
        yield ADAPTER_NOTE
    if is_padded:
        yield PACKED_NOTE
    if not settings.unmapped("bf16"):
        yield NO_BF16_NOTE.format(settings.sheet.version)
    if not settings.unmapped("flash") and not _packs(settings):
        yield PLAIN_NOTE.format(settings.sheet.version)


def _packs(settings: Settings) -> bool:
    """Tell whether samples are packed: token budgets and rings pack them, asked for or not (cli/train_ppo_ray.py)."""
    actor = settings.of(TRAINER, "actor")
    return settings.on("packs") or actor.on("dynamic") or actor.whole("cp") > 1


def _say_doubts(settings: Settings) -> None:
    """Name what changes the amount of work, and is counted in part or not at all."""
    if settings.is_given("agent"):
        settings.doubt("agent", "turns and observations of an agent")
    elif settings.is_given("reward_address") and not _is_function(settings):
        settings.doubt("reward_address", "rewards that a server gives")
    if settings.on("filters") and not load_algorithm(_algorithm(settings)).resamples:
        settings.doubt("filters", "groups of equal rewards that are sampled again")


def _is_ruled(settings: Settings) -> bool:
    """Tell whether rewards come from elsewhere than a model that the trainer loads."""
    return settings.is_given("reward_address") or settings.is_given("agent")


def _is_function(settings: Settings) -> bool:
    """Tell whether a function in a file gives rewards: whatever else comes first is asked as a server (utils/agent.py)."""
    named = str(settings.given(settings.key_of("reward_address")))
    return named.split(",", maxsplit=1)[0].strip().endswith(PYTHON)


def _models(settings: Settings) -> tuple[dict[Role, str], dict[Role, str]]:
    names: dict[Role, str] = {"actor": "model"}
    if _compares(settings):
        names["reference"] = "model"
    named = settings.is_given("reward_model")
    ruled = _is_ruled(settings)
    if _algorithm(settings) == "ppo":
        source = "critic_model" if settings.is_given("critic_model") else "model"
        names["critic"] = "reward_model" if source == "model" and named and not ruled else source
    if named and not ruled:
        names["reward"] = "reward_model"
    return models_of(settings, names)


def _adapter(settings: Settings) -> Adapter | None:
    """Return the actor's adapter; a critic has one of the same rank (trainer/ray/ppo_actor.py, ppo_critic.py).

    A reference is a model of its own all the same (cli/train_ppo_ray.py, ReferenceModelActor).
    """
    adapter = adapter_of(settings)
    return None if adapter is None else replace(adapter, shares_reference=False)


def _rollout_precision(settings: Settings) -> Precision | None:
    """Return the format of the engine's weights, where that is the checkpoint's: of gpt-oss beside adapters.

    vLLM reads it as it is published (trainer/ray/vllm_engine.py hands it --pretrain alone), while transformers widens it to train. Where
    all weights are trained, new ones of 16 bits could not be laid over its experts: then a widened copy is meant. Adapters of linear
    modules leave these experts as they are, which are parameters of one module in transformers.
    """
    adapted = adapter_of(settings) is not None
    return "mxfp4" if adapted and settings.path("model") in IDS_IN_MXFP4 else None


def _algorithm(settings: Settings) -> str:
    return algorithm_of(settings, compares=_compares(settings))


def _compares(settings: Settings) -> bool:
    return settings.number("kl_weight") > 0


def _pools(settings: Settings, roles: tuple[Role, ...]) -> tuple[RunPool, ...]:
    def gpus(role: Role) -> int:
        return settings.whole(f"{role}_nodes") * settings.whole(f"{role}_gpus_per_node")

    everything = settings.on("colocate_all")
    trained: tuple[Role, ...] = roles if everything else ("actor",)
    if settings.on("colocate_actor_ref") and "reference" in roles and not everything:
        trained = ("actor", "reference")
    pools = [RunPool(name=TRAIN_POOL, gpus=gpus("actor"), roles=trained)]
    left = [role for role in roles if role not in trained]
    if settings.on("colocate_critic_reward") and {"critic", "reward"} <= set(left):
        pools.append(RunPool(name="critic", gpus=gpus("critic"), roles=("critic", "reward")))
        left = [role for role in left if role not in {"critic", "reward"}]
    for role in left:
        name = REWARD_POOL if role == "reward" else role
        pools.append(RunPool(name=name, gpus=gpus(role), roles=(role,)))
    if not everything or settings.on("async"):
        pools.append(RunPool(name=ROLLOUT_POOL, gpus=_rollout_gpus(settings), roles=("actor",)))
    return tuple(pools)


def _rollout_gpus(settings: Settings) -> int:
    engines = settings.optional_whole("engines")
    if engines is None or engines < 1:
        raise settings.refused("engines", "is missing: no engine generates", "at least 1")
    return engines * settings.whole("rollout_tp")


def _sizes(settings: Settings, role: Role, pool: RunPool) -> TrainerSizes:
    own = settings.of(TRAINER, role)
    sizes = role_sizes(own, pool.gpus, pool.name)
    budget = sizes.token_budget and settings.whole("infer_token_budget") * sizes.cp * sizes.tp
    zero, is_read = own.optional_whole("zero"), role in ONLY_READ
    away = settings.on("trainer_sleeps") or sizes.offload
    return replace(
        sizes,
        token_budget=sizes.token_budget and sizes.token_budget * sizes.tp,
        infer_token_budget=budget,
        infer_micro_batch=own.whole("infer_micro_batch"),
        shard_ranks=None,
        zero_stage=FULLY_SHARDED if zero is None else zero,
        recompute="full" if settings.on("checkpoints") else "none",
        offload=settings.on(f"{role}_offload") if is_read else away,
        infer_offload=None,
    )


def _options(settings: Settings, role: Role) -> TrainerOptions:
    """Return how a role's trainer keeps its states and makes its logits: entropies need a second gradient.

    A weight of 0 still computes them, for the log, since 0.8.3 (trainer/ray/ppo_actor.py; commit db57d18c).
    """
    weight = settings.loss("entropy_coefficient")
    counts = role == "actor" and (
        bool(weight) or (weight is not None and settings.on("entropy_counts"))
    )
    return trainer_options(settings.of(TRAINER, role), "entropy" if counts else None)


def _work(settings: Settings) -> Work:
    prompts, samples = settings.whole("prompts"), settings.whole("samples")
    max_prompt, max_response = _longest(settings)
    return Work(
        prompts=prompts,
        samples=samples,
        updates=updates_of(settings, prompts * samples),
        epochs=settings.whole("epochs"),
        max_prompt=max_prompt,
        max_response=max_response,
        max_total=None if max_prompt is not None else settings.whole("max_total"),
        turns=None if settings.is_given("agent") else 1,
    )


def _longest(settings: Settings) -> tuple[int | None, int | None]:
    """Return the longest prompt and response: before 0.10 each had a limit, since then both together have one."""
    if settings.is_given("max_prompt") or settings.is_given("max_response_apart"):
        return settings.whole("max_prompt"), settings.whole("max_response_apart")
    return None, settings.optional_whole("max_response")


def _generation(settings: Settings, pool: RunPool) -> TaskPlan:
    tp = settings.whole("rollout_tp")
    asked = _rollout_gpus(settings)
    if asked != pool.gpus:
        problem = f"engines x TP are {asked} GPUs, and colocated ones share the actor's {pool.gpus}"
        raise settings.refused("engines", problem, f"{pool.gpus // tp} engines of TP {tp}")
    return TaskPlan(
        pool=pool.name,
        engine=rollout_engine(settings),
        tp=tp,
        dp=pool.gpus // tp,
        max_running=settings.whole("most_running"),
        memory_fraction=_memory_fraction(settings),
    )


def _memory_fraction(settings: Settings) -> float:
    """Return the engines' share of their GPUs."""
    asked, instead = settings.number("memory_fraction"), settings.value("colocated_share")
    if instead is None or asked < TOO_MUCH or not settings.on("colocate_all"):
        return asked
    return settings.number("colocated_share")


def _loss(settings: Settings) -> Hyperparameters:
    weight = settings.number("kl_weight")
    kind = "none" if weight <= 0 else "loss" if settings.on("kl_loss") else "reward"
    losses = given_losses(settings, _algorithm(settings))
    pair = settings.value("clip_pair")
    if isinstance(pair, list) and len(pair) == 2:  # noqa: PLR2004 -- downwards and upwards
        losses |= {"clip_ratio": pair[0], "clip_ratio_high": pair[1]}
    return Hyperparameters(
        **losses,
        temperature=settings.number("temperature") or 1.0,
        **kl_place(cast(Any, kind), weight),
    )


def _modes(settings: Settings, *, apart: bool) -> Mapping[str, Any]:
    """Return the mode: a queue of one batch is one step off; weights change under way in partial rollouts."""
    if not settings.on("async") or not apart:
        return {}
    ahead, partial = settings.whole("queue"), settings.on("partial_rollout")
    if ahead == 1 and not partial:
        return {"mode": BATCH_AHEAD_MODE, "staleness": 1.0}
    kept: InFlight = "keep" if partial else "drain"
    return {"mode": ENDLESS_MODE, "staleness": float(ahead), "in_flight": kept}
