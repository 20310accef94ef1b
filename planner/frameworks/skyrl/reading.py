"""SkyRL: everything on the policy's GPUs, or policy, reference, critic and engines apart; FSDP2 or Megatron, and vLLM."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from rlplan.algorithms import load_algorithm
from rlplan.job import DynamicSampling, Engines, Hyperparameters, KlPlace, OldLogProb, Role
from rlplan.models import Adapter, Precision
from rlplan.plan import BATCH_AHEAD_MODE, ENDLESS_MODE, Recompute, TaskPlan
from rlplan.planner.configs.broken import actor_of, divides
from rlplan.planner.configs.engine_keys import engine_weights
from rlplan.planner.configs.losses import (
    algorithm_notes,
    algorithm_of,
    given_losses,
    gradient_norm,
    kl_place,
    sampled_in_batches,
    sampling_guess,
)
from rlplan.planner.configs.models import published_precision
from rlplan.planner.configs.reading.settings import RoleSettings, Settings
from rlplan.planner.configs.run import ROLLOUT_POOL, TRAIN_POOL, Run, RunPool, Work
from rlplan.planner.configs.sizes import (
    adapter_of,
    eager_engine,
    models_of,
    most_turns,
    nearest_divisor,
    recomputed_parts,
    role_sizes,
    trainer_options,
)
from rlplan.planner.configs.verl_family import GRADIENTS, updates_of_rows
from rlplan.planner.plans.trained import TrainerSizes
from rlplan.trainers import TrainerOptions
from rlplan.units import GIB

FSDP, MEGATRON, DEEPSPEED = "fsdp", "megatron", "deepspeed"
ONE_STEP_OFF: Final = "main_async"
# What becomes of samples of an update that ranks do not divide (`uneven_updates` of the sheet).
LOSES, STOPS = "lose", "stop"
FULLY_ASYNC: Final = "fully_async"
# Losses that are of the log-probabilities which the engine sampled by (skyrl/backends/skyrl_train/utils/ppo_utils.py,
# LOSSES_WITHOUT_OLD_LOGPROBS), as the sheet of keys calls them.
OF_SAMPLED: Final = "sampled"
DUAL: Final = "dual"
CISPO: Final = "cispo"
# Ways to make log-probabilities that have chunks of tokens by a key.
CHUNKED: Final = ("vocab-parallel-chunked", "in-place-entropy")
# What trains where rows keep their padding, by trainer, is said by the sheet of keys; DeepSpeed's by its own engine.
DEEPSPEED_ENGINE: Final = "deepspeed-zero3"
DEEPSPEED_NOTE: Final = (
    "DeepSpeed's trainer, which SkyRL has no more, is forecast as ZeRO stage 3 with its own options"
)
# A start of examples whose engine has weights of eight bits, by a file of its environment.
FLASH_RL: Final = "flashrl"
FLASH_RL_NOTE: Final = "FlashRL's engine generates with weights of eight bits (its .env file says which), and is forecast with those of 16"
FORK_NOTE: Final = "keys of trainer.fully_async are given to a program of another name: it is taken to run without an end"
HARNESS_NOTE: Final = "no key limits prompts and responses: an episode of the program's own harness is limited by the engine's max_model_len"
TURNS_NOTE: Final = "multi-turn episodes are limited by all that a turn reads and writes: generator.max_input_length and one response"


def run_of(settings: Settings) -> Run:
    """Return what a configuration trains, and how."""
    trainer = trainer_of(settings)
    models, keys = models_of(settings, _named_models(settings))
    pools = pools_of(settings)
    pool_of = {role: pool for pool in pools if pool.name != ROLLOUT_POOL for role in pool.roles}
    algorithm = algorithm_of(settings, compares=compares(settings))
    sampling = _sampling(settings, algorithm)
    _doubt(settings, tuple(models), algorithm)
    _leave_out(settings)
    return Run(
        framework=settings.sheet.trainers[trainer].framework,
        trainer=trainer,
        engines=Engines(train=_trains(settings), generate=_engine(settings)),
        algorithm=algorithm,
        models=models,
        model_keys=keys,
        work=_work(settings),
        groups=(_nodes(settings, pools),),
        least_node=settings.whole("actor_gpus_per_node") if len(pools) > 1 else None,
        pools=pools,
        generate=_generation(settings, pools[-1]),
        trainers={role: _sizes(settings, role, pool_of[role]) for role in models},
        options={role: _options(settings, role) for role in models},
        loss=_loss(settings, algorithm),
        old_log_prob=_old_log_prob(settings),
        rollout_precision=_rollout_precision(settings),
        adapter=_adapter(settings),
        critic_adapter=_critic_adapter(settings) if "critic" in models else None,
        dynamic_sampling=sampling,
        bucket_bytes=_bucket_bytes(settings),
        notes=(*algorithm_notes(settings, algorithm), *_notes(settings)),
        guesses=tuple(_guesses(settings, sampling)),
        **_modes(settings),
    )


def _rollout_precision(settings: Settings) -> Precision | None:
    """Return the format of the engine's weights: as a key says, or int4 where a checkpoint of these is served.

    The trainer then has another one, of 16 bits (`fake_int4_qat.bf16_base_path`: skyrl/train/config/config.py of 0.3.0).
    """
    cast = engine_weights(settings)
    actor, trained = actor_of(settings), settings.value("trained_path")
    if cast is not None or actor is None or trained is None:
        return cast
    return published_precision(settings.path("model"), actor.name)


def trainer_of(settings: Settings) -> str:
    """Return the trainer's name in the sheet of keys; DeepSpeed's has the keys of FSDP."""
    return MEGATRON if settings.word("strategy") == MEGATRON else FSDP


def compares(settings: Settings) -> bool:
    """Tell whether the actor is compared with a reference: whatever the penalty's weight is."""
    return settings.on("kl_loss") or settings.on("kl_in_reward")


def gpus_of(settings: Settings, role: Role) -> int:
    """Return the GPUs that a role asks for."""
    return settings.whole(f"{role}_nodes") * settings.whole(f"{role}_gpus_per_node")


def rollout_gpus(settings: Settings) -> int:
    """Return the GPUs of all engines."""
    names = ("engines", "rollout_tp", "rollout_pp", "rollout_dp")
    gpus = 1
    for name in names:
        size = settings.whole(name)
        if size < 1:
            raise settings.refused(name, "is no size", "at least 1")
        gpus *= size
    return gpus


def unlike_gpus(settings: Settings) -> tuple[str, str] | None:
    """Return, in words, what is wrong with engines that do not fill the policy's GPUs, and what would do; None where nothing is."""
    gpus, engines = gpus_of(settings, "actor"), rollout_gpus(settings)
    if not settings.on("colocated") or engines == gpus:
        return None
    return (
        f"engines take {engines} GPUs, and share the policy's {gpus}",
        f"engines of {gpus} GPUs together",
    )


def pools_of(settings: Settings) -> tuple[RunPool, ...]:
    """Return the pools, that in which the actor generates last (skyrl/train/trainer.py, build_models).

    Raises:
        FileError: All is on the policy's GPUs, and engines ask for others.
    """
    roles = tuple(_named_models(settings))
    gpus, engines = gpus_of(settings, "actor"), rollout_gpus(settings)
    if settings.on("colocated"):
        problem = unlike_gpus(settings)
        if problem is not None:
            raise settings.refused("engines", *problem)
        return (RunPool(name=TRAIN_POOL, gpus=gpus, roles=roles),)
    together = settings.on("beside_reference") and "reference" in roles
    beside: tuple[Role, ...] = ("actor", "reference") if together else ("actor",)
    pools = [RunPool(name=TRAIN_POOL, gpus=gpus, roles=beside)]
    pools += [
        RunPool(name=role, gpus=gpus_of(settings, role), roles=(role,))
        for role in roles
        if role not in beside
    ]
    return (*pools, RunPool(name=ROLLOUT_POOL, gpus=engines, roles=("actor",)))


def of_role(settings: Settings, role: Role) -> RoleSettings:
    """Return what is set of a role's model."""
    return settings.of(trainer_of(settings), role)


def is_fully_async(settings: Settings) -> bool:
    """Tell whether generation never stops for training: by a key since 0.3, before by the start alone."""
    return settings.on("fully_async") or FULLY_ASYNC in settings.start or _fork_is_async(settings)


def _fork_is_async(settings: Settings) -> bool:
    """Tell whether another program is given what only runs without an end read, and nothing that switches these on or off."""
    if not settings.taken_as or settings.is_given("fully_async") or settings.on("colocated"):
        return False
    return any(settings.has("trainer.fully_async.*"))


def _named_models(settings: Settings) -> dict[Role, str]:
    """Return the settings that name the models; a critic is trained where its path is given."""
    names: dict[Role, str] = {"actor": "model"}
    if compares(settings):
        names["reference"] = "reference_model"
    if settings.word("estimator") == "ppo":
        names["critic"] = "critic_model"
    return names


def _nodes(settings: Settings, pools: tuple[RunPool, ...]) -> tuple[int, int]:
    if len(pools) == 1:
        return settings.whole("actor_gpus_per_node"), settings.whole("actor_nodes")
    return sum(pool.gpus for pool in pools), 1


def _trains(settings: Settings) -> str | None:
    """Return what trains where that is not the framework's usual: DeepSpeed, or rows that keep their padding."""
    if settings.word("strategy") == DEEPSPEED:
        return DEEPSPEED_ENGINE
    trainer = settings.sheet.trainers[trainer_of(settings)]
    return trainer.engine if settings.on("packs") else trainer.padded


def _shares(settings: Settings, role: Role) -> bool:
    """Tell whether a role shares its GPUs, so that it leaves them while others use them (worker_dispatch.py)."""
    beside = settings.on("beside_reference") and compares(settings)
    return settings.on("colocated") or (beside and role != "critic")


def _sizes(settings: Settings, role: Role, pool: RunPool) -> TrainerSizes:
    own = of_role(settings, role)
    sizes = role_sizes(own, pool.gpus, pool.name)
    budget = settings.whole("budget") if settings.whole("budget") > 0 else None
    away = _shares(settings, role) and not own.on("cpu_offload")
    reshards = own.value("reshards")
    stage = GRADIENTS if reshards is False else None
    return replace(
        sizes,
        token_budget=budget,
        infer_token_budget=budget,
        infer_micro_batch=own.whole("infer_micro_batch"),
        zero_stage=stage if trainer_of(settings) == FSDP else None,
        recompute=_recompute(settings, own) if role != "reference" else "none",
        offload=away,
        infer_offload=away if role == "reference" else None,
    )


def _recompute(settings: Settings, own: RoleSettings) -> Recompute:
    """Return what backward passes compute again; Megatron's by its own keys, unless all of it is switched off."""
    if not settings.on("checkpoints"):
        return "none"
    if trainer_of(settings) == FSDP:
        return "full"
    granularity = own.value("granularity")
    if granularity not in {None, "full", "selective"}:
        raise settings.refused_key(own.key_of("granularity"), "is not known", "full, selective")
    if granularity == "selective":
        return recomputed_parts(own)
    return "none" if granularity is None else "full"


def _options(settings: Settings, role: Role) -> TrainerOptions:
    """Return how a role's trainer keeps its states and makes its logits.

    skyrl/backends/skyrl_train/workers/fsdp/fsdp_worker.py: policy and critic are loaded in fp32, a reference in bf16.
    """
    own = of_role(settings, role)
    options = trainer_options(own, None if role == "critic" else _logit_way(settings, role))
    if options.logits in CHUNKED:
        options = replace(options, logit_chunk_tokens=settings.optional_whole("logprob_chunk"))
    if trainer_of(settings) == MEGATRON:
        return replace(
            options, offloads=None
        )  # what is left on the GPUs leaves them, wherever it is stepped
    if role == "reference":
        return replace(options, weights="bf16")
    stays = not settings.on("steps_offload" if role == "actor" else "critic_steps_offload")
    if stays and _shares(settings, role) and not own.on("cpu_offload"):
        options = replace(options, offloads=("weights", "gradients"))
    return options


def _logit_way(settings: Settings, role: Role) -> str | None:
    """Return the way in which log-probabilities are made, where it is not the usual one."""
    if trainer_of(settings) == MEGATRON:
        if settings.on("fuses_head"):
            return "fused-linear"
        chunks = settings.optional_whole("logprob_chunk")
        return "vocab-parallel" if chunks is None else "vocab-parallel-chunked"
    learns = role == "actor" and settings.on("entropy_loss") and settings.on("packs")
    return "in-place-entropy" if learns and settings.word("strategy") == FSDP else None


def _work(settings: Settings) -> Work:
    """Return the work of a step.

    Every turn of an episode may write `max_generate_length` tokens as long as what it reads is at most
    `max_input_length` (skyrl/train/generators/skyrl_gym_generator.py); a single turn reads its prompt alone.
    """
    if _limited_by_engine(settings):
        return _work_of_harness(settings)
    prompts, samples = settings.whole("prompts"), settings.whole("samples")
    turns, most = most_turns(settings), settings.whole("max_response")
    total = settings.whole("max_input") + most if turns != 1 else None
    limit = settings.optional_whole("max_model_len")
    longest = settings.whole("max_prompt") + most if total is None else total
    if limit is not None and limit < longest:
        total = limit
    return Work(
        prompts=prompts,
        samples=samples,
        updates=_updates(settings, prompts, samples),
        epochs=settings.whole("epochs"),
        max_prompt=settings.whole("max_prompt"),
        max_response=most if turns == 1 else None,
        max_total=total,
        turns=turns,
    )


def ranks_of(settings: Settings, role: Role) -> int:
    """Return a role's data-parallel ranks; 0 where its sizes do not divide its GPUs."""
    own = of_role(settings, role)
    copy = math.prod(own.whole(name) for name in ("tp", "pp", "cp"))
    gpus = gpus_of(settings, role)
    return gpus // copy if divides(copy, gpus) else 0


def _updates(settings: Settings, prompts: int, samples: int) -> int:
    """Return the updates of a step; what its ranks do not divide is a doubt, and makes more of them up to train-0.3."""
    ranks, mini = ranks_of(settings, "actor"), settings.whole("mini_prompts") * samples
    updates = updates_of_rows(settings, prompts, samples)
    way = settings.word("uneven_updates")
    # Where a start stops at that, a rule says so.
    if way == STOPS or not ranks or mini % ranks == 0 or mini < ranks:
        return updates
    kept = mini // ranks
    if way == LOSES:
        updates = nearest_divisor(prompts * samples, prompts * samples // ranks / kept)
        what = f"{mini} samples of an update on {ranks} ranks, of which each takes {kept}: {updates} updates a step"
    else:
        what = f"{mini} samples of an update on {ranks} ranks, which are filled up to {(kept + 1) * ranks}"
    settings.doubt("mini_prompts", what)
    return updates


def _limited_by_engine(settings: Settings) -> bool:
    """Tell whether another program leaves lengths to its harness: only the engine's limit is given, as in Harbor's examples."""
    if not settings.taken_as or settings.optional_whole("max_model_len") is None:
        return False
    return not any(settings.is_given(name) for name in ("max_prompt", "max_input", "max_response"))


def _work_of_harness(settings: Settings) -> Work:
    """Return the work of a step whose episodes a harness plays until they are as long as what engine and losses take."""
    prompts, samples = settings.whole("prompts"), settings.whole("samples")
    most, norm = settings.optional_whole("max_model_len"), settings.optional_whole("max_norm_len")
    assert most is not None, "that is why it is a harness's"
    return Work(
        prompts=prompts,
        samples=samples,
        updates=_updates(settings, prompts, samples),
        epochs=settings.whole("epochs"),
        max_total=most if norm is None else min(most, norm),
        turns=most_turns(settings) if settings.is_given("turns") else None,
    )


def _sampling(settings: Settings, algorithm: str) -> DynamicSampling | None:
    """Return how groups of equal rewards are sampled again: whole batches until a step's prompts are kept."""
    if not settings.on("filters") or not load_algorithm(algorithm).resamples:
        return None
    most, prompts = settings.whole("filter_rounds"), settings.whole("prompts")
    return sampled_in_batches(prompts, prompts, most if most > 0 else None)


def _guesses(settings: Settings, sampling: DynamicSampling | None) -> Iterator[str]:
    if sampling is not None:
        prompts = settings.whole("prompts")
        yield sampling_guess(sampling, prompts, prompts)


def _doubt(settings: Settings, roles: tuple[Role, ...], algorithm: str) -> None:
    """Say which settings change the amount of work in ways that no job has."""
    resamples = load_algorithm(algorithm).resamples
    if settings.value("resampling") == "replace":
        settings.doubt("resampling", "groups of equal rewards that others take the place of")
    elif settings.on("filters") and not resamples:
        settings.doubt("filters", "groups of equal rewards that are sampled again")
    if settings.on("step_wise"):
        settings.doubt("step_wise", "turns of an episode that are sequences of their own")
    if "critic" in roles:
        mini = settings.whole("critic_mini_prompts")
        if mini != settings.whole("mini_prompts"):
            settings.doubt("critic_mini_prompts", "other updates of the critic than of the actor")
    elif settings.is_given("critic_model"):
        settings.doubt("critic_model", "a critic whose values no advantage needs")


def _leave_out(settings: Settings) -> None:
    """Say which settings may take time and are not counted, of runs without an end among them."""
    if settings.word("sync_backend") != "nccl":
        settings.leave_out("sync_backend", "weights that go another way than CUDA IPC and NCCL")
    if not is_fully_async(settings):
        return
    if settings.on("full_batches"):
        settings.doubt("full_batches", "groups of equal rewards that are dropped")
    room = settings.whole("mini_prompts") * (settings.whole("staleness") + 1)
    if settings.whole("workers") < room:
        settings.leave_out("workers", "fewer prompts under way than staleness allows")


def _notes(settings: Settings) -> Iterator[str]:
    if _fork_is_async(settings) and FULLY_ASYNC not in settings.start:
        yield FORK_NOTE
    if FLASH_RL in settings.start.lower():
        yield FLASH_RL_NOTE
    if settings.word("strategy") == DEEPSPEED:
        yield DEEPSPEED_NOTE
    if _limited_by_engine(settings):
        yield HARNESS_NOTE
    elif most_turns(settings) != 1:
        yield TURNS_NOTE
    critic = settings.whole("critic_mini_prompts")
    if settings.word("estimator") == "ppo" and not settings.is_given("critic_mini_prompts"):
        actors = settings.whole("mini_prompts")
        if critic != actors:
            yield (
                f"the critic's updates are of {critic:,} prompts, its usual trainer.critic_mini_batch_size, and "
                f"forecast as the actor's of {actors:,}"
            )


def _engine(settings: Settings) -> str:
    """Return the engine's sheet; adapters that are synced as they are switch CUDA graphs on (config.py)."""
    synced = settings.whole("lora_rank") > 0 and not _merges(settings)
    eager = settings.on("eager") and not synced
    return eager_engine(settings.word("rollout_engine"), eager=eager)


def _generation(settings: Settings, pool: RunPool) -> TaskPlan:
    tp, pp, ep = (settings.whole(f"rollout_{name}") for name in ("tp", "pp", "ep"))
    return TaskPlan(
        pool=pool.name,
        engine=_engine(settings),
        tp=tp,
        pp=pp,
        dp=pool.gpus // (tp * pp),
        ep=ep,
        expert_tp=1 if ep > 1 else None,
        max_running=settings.whole("running"),
        memory_fraction=settings.number("memory_fraction"),
    )


def _loss(settings: Settings, algorithm: str) -> Hyperparameters:
    losses, usual = given_losses(settings, algorithm), Hyperparameters()
    if settings.word("policy_loss") == DUAL and settings.number("dual_clip") > 1:
        losses["clip_ratio_dual"] = settings.number("dual_clip")
    if settings.on("entropy_loss"):
        losses["entropy_coefficient"] = max(0.0, settings.number("entropy_weight"))
    kind: KlPlace = "none"
    if compares(settings):
        kind = "reward" if settings.on("kl_in_reward") else "loss"
    return Hyperparameters(
        **losses,
        max_gradient_norm=gradient_norm(of_role(settings, "actor")),
        learning_rate=_rate(settings, "learning_rate") or usual.learning_rate,
        critic_learning_rate=_rate(settings, "critic_learning_rate") or usual.critic_learning_rate,
        temperature=settings.number("temperature") or usual.temperature,
        **kl_place(kind, settings.number("kl_weight")),
    )


def _rate(settings: Settings, name: str) -> float:
    return max(0.0, settings.number(name))


def _old_log_prob(settings: Settings) -> OldLogProb | None:
    """Return whose old log-probabilities are taken: the engine's where nothing reads the policy's own."""
    sampled = settings.word("policy_loss") == OF_SAMPLED
    if settings.word("policy_loss") == CISPO:
        sampled = settings.word("cispo_anchor") == "rollout"
    corrects = (
        settings.value("importance_ratio") is not None
        or settings.value("sequence_mask") is not None
        or settings.on("importance_switch")
    )
    has = settings.value("sampled_log_probs") is not None and settings.on("skips_pass")
    skips = sampled and has and not settings.on("kl_in_reward") and not corrects
    return "engine" if skips else None


def _merges(settings: Settings) -> bool:
    return trainer_of(settings) == MEGATRON and settings.on("merges")


def _adapter(settings: Settings) -> Adapter | None:
    """Return the adapter: merged by Megatron unless that is switched off, else synced as it is.

    A reference is a model of its own all the same (skyrl/train/trainer.py, build_models).
    """
    adapter = adapter_of(settings)
    if adapter is None:
        return None
    sync = adapter.sync if _merges(settings) else "adapter"
    return replace(adapter, sync=sync, shares_reference=False)


def _critic_adapter(settings: Settings) -> Adapter | None:
    """Return the critic's adapter, which has a rank of its own (workers/fsdp/fsdp_worker.py)."""
    rank = settings.whole("critic_lora_rank")
    if rank < 1:
        return None
    return Adapter(rank=rank, alpha=settings.number("critic_lora_alpha"), sync="merged")


def _bucket_bytes(settings: Settings) -> int | None:
    size = settings.number("bucket_gib")
    return round(size * GIB) if settings.on("colocated") and size > 0 else None


def _modes(settings: Settings) -> Mapping[str, Any]:
    """Return the mode: without an end, or a batch ahead where the start is that of a queue of one."""
    if settings.on("colocated"):
        return {}
    if is_fully_async(settings):
        age = settings.whole("staleness")
        kept = "recompute" if settings.on("clears_cache") else "keep"
        return {"mode": ENDLESS_MODE, "staleness": float(age), "in_flight": kept}
    if settings.start.rpartition(".")[2] == ONE_STEP_OFF:
        return {"mode": BATCH_AHEAD_MODE, "staleness": 1.0}
    return {}
