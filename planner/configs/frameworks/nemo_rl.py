"""NeMo-RL: policy, reference and value model on one pool, generation inside it or on nodes of its own."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from planner.configs.losses import (
    algorithm_notes,
    algorithm_of,
    given_losses,
    kl_place,
    sampling_of,
)
from planner.configs.reading.settings import Settings
from planner.configs.run import ROLLOUT_POOL, TRAIN_POOL, Run, RunPool, Work
from planner.configs.sizes import divided, eager_engine, models_of, most_turns, role_sizes
from planner.plans.trained import TrainerSizes
from rlplan.job import Engines, Hyperparameters, KlPlace, Role
from rlplan.models.adapter import Adapter
from rlplan.models.precision import Precision, TrainingPrecision
from rlplan.plan import Mode, Recompute, TaskPlan

# The engine sheet of each back end; Megatron's own has none, and is taken for vLLM.
ENGINE_SHEETS: Final = {
    "vllm": "vllm-0.15-ray",
    "sglang": "sglang-0.5",
    "trtllm": "tensorrt-llm-1",
    "megatron": "vllm-0.15-ray",
}
# Megatron-Core whose experts' tokens are permuted by PyTorch's own kernels.
UNFUSED: Final = "megatron-core-2025-unfused"
# What a file with keys of `ppo` learns by, whatever its estimator.
PPO: Final = "ppo"
OVERRIDES: Final = "on_policy_distillation.non_colocated_teachers.teacher_overrides"
TEACHERS: Final = "on_policy_distillation.teacher_model_by_agent_name"
MEGATRON_NOTE: Final = "generation by Megatron's own engine is forecast as vLLM's"
REFERENCE_NOTE: Final = "samples are dropped and drawn again, and the pass of a reference whose penalty is 0 is not counted"


def run_of(settings: Settings) -> Run:
    """Return what a configuration trains, and how."""
    trainer = _trainer(settings)
    train_gpus, rollout_gpus = _gpus(settings)
    models, keys = _models(settings)
    backend = settings.word("backend")
    pools = [RunPool(name=TRAIN_POOL, gpus=train_gpus, roles=tuple(models))]
    if rollout_gpus:
        pools.append(RunPool(name=ROLLOUT_POOL, gpus=rollout_gpus, roles=("actor",)))
    sizes = {
        role: _trained(settings, trainer, role, train_gpus, away=not rollout_gpus)
        for role in models
    }
    fp8 = trainer == "megatron" and settings.on("fp8")
    precision = settings.word("fp8_recipe") if fp8 else settings.word("precision")
    notes = [MEGATRON_NOTE] if backend == "megatron" else []
    if _resamples(settings):
        notes.append(REFERENCE_NOTE)
    if settings.value("critic_prompts") is None:
        notes.extend(algorithm_notes(settings, _algorithm(settings)))
    return Run(
        framework=settings.sheet.trainers[trainer].framework,
        trainer=trainer,
        rollout=backend,
        engines=Engines(train=_trains(settings, trainer), generate=_engine(settings)),
        algorithm=_algorithm(settings),
        models=models,
        model_keys=keys,
        work=_work(settings),
        groups=((settings.whole("gpus_per_node"), nodes_of_policy(settings)),),
        nodes_together=settings.optional_whole("nodes_together"),
        pools=tuple(pools),
        generate=_generation(settings, backend, pools[-1]),
        trainers=sizes,
        loss=_loss(settings),
        old_log_prob="engine" if settings.on("on_policy") else None,
        precision=cast(Precision, precision),
        rollout_precision=cast(Precision | None, settings.value("vllm_precision"))
        if backend == "vllm"
        else None,
        kv_cache=cast(TrainingPrecision | None, settings.value("kv_cache"))
        if backend == "vllm"
        else None,
        adapter=_adapter(settings, trainer),
        dynamic_sampling=sampling_of(settings, _algorithm(settings)),
        notes=tuple(notes),
        **_modes(settings, apart=bool(rollout_gpus)),
    )


def nodes_of_policy(settings: Settings) -> int:
    """Return the nodes that train and generate: the cluster's without those of teachers (algorithms/grpo.py)."""
    return settings.whole("nodes") - _teacher_nodes(settings)


def _teacher_nodes(settings: Settings) -> int:
    """Return the nodes of teachers: agents that share a checkpoint share its teacher, unless that is switched off."""
    if not settings.on("teaches") or not settings.on("teachers_apart"):
        return 0
    usual, nodes, seen = settings.whole("teacher_nodes"), 0, set()
    for key in settings.has(f"{TEACHERS}.*"):
        checkpoint = str(settings.flat[key].value)
        if settings.on("teachers_shared") and checkpoint in seen:
            continue
        seen.add(checkpoint)
        own = settings.flat.get(f"{OVERRIDES}.{key.removeprefix(f'{TEACHERS}.')}.num_nodes")
        nodes += own.value if own is not None and isinstance(own.value, int) else usual
    return nodes


def _trainer(settings: Settings) -> str:
    chosen = settings.value("megatron")
    if chosen or (chosen is None and settings.value("megatron_tensor_ranks") is not None):
        return "megatron"
    return "automodel" if settings.whole("expert_ranks") > 1 else "dtensor"


def _trains(settings: Settings, trainer: str) -> str | None:
    """Return what trains where that is not the framework's usual; Megatron's permutation may be left to PyTorch."""
    if trainer == "megatron" and not settings.on("fuses_permutation"):
        return UNFUSED
    return settings.sheet.trainers[trainer].engine


def _gpus(settings: Settings) -> tuple[int, int]:
    """Return the GPUs that train and those that only generate; the latter are taken off the cluster."""
    nodes, per_node = nodes_of_policy(settings), settings.whole("gpus_per_node")
    if settings.on("colocated"):
        return nodes * per_node, 0
    names = ("rollout_nodes", "rollout_gpus_per_node")
    own_nodes, own = map(settings.optional_whole, names)
    apart = (own or 1) if nodes == 1 else (own_nodes or 1) * (own or per_node)
    if apart >= nodes * per_node:
        problem = f"leaves no GPU of the cluster's {nodes * per_node} to training"
        raise settings.refused(names[nodes == 1], problem, "fewer")
    return nodes * per_node - apart, apart


def _models(settings: Settings) -> tuple[dict[Role, str], dict[Role, str]]:
    for pattern, what in settings.sheet.refused_keys.items():
        if settings.value("prompts") is None and any(settings.has(pattern)):
            raise settings.refused_key(
                next(settings.has(pattern)), what, "a configuration that trains with RL"
            )
    if settings.value("prompts") is None and not any(settings.has("defaults: *")):
        raise settings.refused("prompts", "is missing", "a whole number")
    names: dict[Role, str] = {"actor": "model"}
    if _penalises(settings) and not (settings.on("lora") or settings.on("peft")):
        names["reference"] = "model"
    if _algorithm(settings) == PPO:
        names["critic"] = "critic_model"
    return models_of(settings, names)


def _algorithm(settings: Settings) -> str:
    if settings.value("critic_prompts") is not None:
        return PPO
    return algorithm_of(settings, compares=_penalises(settings))


def _resamples(settings: Settings) -> bool:
    return settings.on("filters") and not settings.number("kl_weight")


def _penalises(settings: Settings) -> bool:
    """Tell whether the actor is compared with a reference, if only with itself without its adapters."""
    return not settings.on("skips_reference") and not _resamples(settings)


def _trained(
    settings: Settings, trainer: str, role: Role, gpus: int, *, away: bool
) -> TrainerSizes:
    """Return a role's sizes.

    Args:
        away: Whether its states leave the GPUs while others use them, as colocated ones do.
    """
    own = settings.of(trainer, role)
    sizes = role_sizes(own, gpus, TRAIN_POOL)
    packed = "token_budget" if own.on("dynamic") else "packed_tokens"
    packs = own.on("packs") or packed == "token_budget"
    budget, infer_budget = (
        own.optional_whole(name) if packs else None for name in (packed, f"infer_{packed}")
    )
    recompute: Recompute = "selective" if own.value("granularity") == "selective" else "full"
    return replace(
        sizes,
        token_budget=budget,
        infer_token_budget=infer_budget or budget,
        infer_micro_batch=own.whole("infer_micro_batch", sizes.micro_batch),
        recompute=recompute if own.on("checkpoints") else "none",
        zero=0 if own.value("distributed") is False else None,
        offload=away or sizes.offload or role == "reference",
        infer_offload=None,
    )


def _work(settings: Settings) -> Work:
    prompts = settings.optional_whole("prompts") or settings.whole("usual_prompts")
    samples = settings.whole("samples")
    update = settings.optional_whole("update_sequences") or prompts * samples
    return Work(
        prompts=prompts,
        samples=samples,
        updates=max(1, round(prompts * samples / update)),
        epochs=settings.whole("epochs"),
        max_prompt=settings.optional_whole("max_prompt"),
        max_response=settings.optional_whole("max_response"),
        max_total=settings.whole("max_total"),
        turns=most_turns(settings),
    )


def _engine(settings: Settings) -> str:
    backend = settings.word("backend")
    name = ENGINE_SHEETS[backend]
    name = settings.sheet.engines.get(name, name)
    return eager_engine(name, eager=settings.on(f"{backend}_eager"))


def _generation(settings: Settings, backend: str, pool: RunPool) -> TaskPlan:
    tp, pp = settings.whole(f"{backend}_tp"), settings.whole(f"{backend}_pp")
    ep = settings.optional_whole(f"{backend}_ep") or 1
    dp = divided(settings, settings.key_of(f"{backend}_tp"), pool.gpus, tp * pp)
    return TaskPlan(
        pool=pool.name,
        engine=_engine(settings),
        tp=tp,
        pp=pp,
        dp=dp,
        ep=ep,
        expert_tp=1 if ep > 1 else None,
        max_running=settings.optional_whole(f"{backend}_running") or 1024,
        memory_fraction=settings.number(f"{backend}_memory"),
    )


def _loss(settings: Settings) -> Hyperparameters:
    kind: KlPlace = "reward" if settings.on("kl_in_reward") else "loss"
    trainer = _trainer(settings)
    rates: dict[str, Any] = {
        name: rate
        for role, name in (("actor", "learning_rate"), ("critic", "critic_learning_rate"))
        if isinstance(rate := settings.of(trainer, role).value("learning_rate"), float) and rate > 0
    }
    return Hyperparameters(
        **given_losses(settings, _algorithm(settings)),
        **rates,
        temperature=settings.number("temperature") or 1.0,
        **kl_place(kind if _penalises(settings) else "none", settings.number("kl_weight")),
    )


def _adapter(settings: Settings, trainer: str) -> Adapter | None:
    name = "peft" if trainer == "megatron" else "lora"
    if not settings.on(name):
        return None
    rank, alpha = settings.whole(f"{name}_rank"), settings.number(f"{name}_alpha")
    return Adapter(rank=rank, alpha=alpha, sync="merged")


def _modes(settings: Settings, *, apart: bool) -> Mapping[str, Any]:
    """Return the mode: one step off, as published steps of it are forecast, or further off."""
    ahead = settings.optional_whole("ahead")
    if not apart or not (ahead or settings.on("async")):
        return {}
    age = ahead or settings.whole("age")
    if age == 1:
        mode: Mode = "one-step-off"
        return {"mode": mode, "staleness": 1.0}
    kept = "recompute" if settings.on("recomputes_cache") else "keep"
    return {
        "mode": "async",
        "staleness": float(age),
        "in_flight": kept if settings.on("in_flight") else "drain",
    }
