"""NeMo-RL: policy, reference and value model on one pool, generation inside it or on nodes of its own."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from rlplan.algorithms import load_algorithm
from rlplan.job import DynamicSampling, Engines, Hyperparameters, KlPlace, Role, Teacher
from rlplan.models import Adapter, OptimizerKind, Precision, TrainingPrecision
from rlplan.plan import BATCH_AHEAD_MODE, ENDLESS_MODE, TaskPlan
from rlplan.planner.configs.losses import (
    algorithm_notes,
    algorithm_of,
    given_losses,
    kl_place,
    sampled_in_batches,
    sampling_guess,
    sampling_of,
)
from rlplan.planner.configs.reading.settings import RoleSettings, Settings
from rlplan.planner.configs.run import ROLLOUT_POOL, TRAIN_POOL, Run, RunPool, Work
from rlplan.planner.configs.sizes import (
    EAGER,
    ONLY_READ,
    divided,
    eager_engine,
    models_of,
    most_turns,
    recomputed_parts,
    role_sizes,
    trainer_options,
    updates_of,
)
from rlplan.planner.plans.trained import TrainerSizes
from rlplan.profiles.sheets import engine_names, load_framework
from rlplan.trainers import TrainerOptions

# The engine sheet of each back end; Megatron's own has none, and is taken for vLLM.
ENGINE_SHEETS: Final = {
    "vllm": "vllm-0.15-ray",
    "sglang": "sglang-0.5",
    "trtllm": "tensorrt-llm-1",
    "megatron": "vllm-0.15-ray",
}
# Megatron-Core whose experts' tokens are permuted by PyTorch's own kernels, and of which version that is where a step's sheet names none.
UNFUSED: Final = "-unfused"
FIRST_MEGATRON: Final = "megatron-core-2025"
# What a file with keys of `ppo` learns by, whatever its estimator.
PPO: Final = "ppo"
DISTILLATION: Final = "on-policy-distillation"
# Sections of distillation on texts that are there.
TEXTS: Final = ("teachers", "teachers.*", "loss_fn.gold_loss")
OVERRIDES: Final = "on_policy_distillation.non_colocated_teachers.teacher_overrides"
TEACHERS: Final = "on_policy_distillation.teacher_model_by_agent_name"
# Where data sets name their environments, and the one that is a reward model on GPUs of its own (data/utils.py).
ENVIRONMENTS: Final = tuple(
    f"data.{part}env_name" for part in ("", "default.", "train.", "validation.")
)
DATA_SETS: Final = ("data.train", "data.validation")
REWARD_MODEL: Final = "reward_model"
# What told so up to 0.4, where no data set named its environment.
REWARDS_ON: Final = "env.reward_model.enabled"
GIB: Final = 1024**3
MEGATRON_NOTE: Final = "generation by Megatron's own engine is forecast as vLLM's"
VALUE_NOTE: Final = "the value model's trainer is forecast as the policy's, with its own sizes"
REFERENCE_NOTE: Final = "samples are dropped and drawn again, and the pass of a reference whose penalty is 0 is not counted"
PADDED_NOTE: Final = "rows are as wide as the longest of a step's samples: neither policy.sequence_packing nor policy.dynamic_batching is on"


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
        role: _trained(settings, _keys_of(settings, role), role, train_gpus, away=not rollout_gpus)
        for role in models
    }
    fp8 = trainer == "megatron" and settings.on("fp8")
    precision = settings.word("fp8_recipe") if fp8 else settings.word("precision")
    _say_doubts(settings)
    sampling = _sampling(settings)
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
        options={role: _options(settings, trainer, role) for role in models},
        loss=_loss(settings),
        teacher=_teacher(settings),
        old_log_prob="engine" if _takes_the_engines_log_probs(settings) else None,
        precision=cast(Precision, precision),
        rollout_precision=cast(Precision | None, settings.value("vllm_precision"))
        if backend == "vllm"
        else None,
        kv_cache=cast(TrainingPrecision | None, settings.value("kv_cache"))
        if backend == "vllm"
        else None,
        adapter=_adapter(settings, trainer),
        dynamic_sampling=sampling,
        bucket_bytes=_bucket_bytes(settings),
        notes=tuple(_notes(settings, backend)),
        guesses=tuple(_guesses(settings, sampling)),
        **_modes(settings, apart=bool(rollout_gpus)),
    )


def nodes_of_policy(settings: Settings) -> int:
    """Return the nodes that train and generate: the cluster's without those of teachers and judges.

    A reward model's nodes are among the cluster's in all versions. The judges of NeMo-Gym have nodes beside them,
    but among them in NeMo-RL's branches of Nemotron 3 (`super-v3`, `ultra-v3`: algorithms/grpo.py, setup).

    Raises:
        FileError: None is left.
    """
    nodes = settings.whole("nodes")
    left = nodes - _teacher_nodes(settings) - _judge_nodes(settings)
    if nodes > 1 and judged_by_model(settings):
        left -= settings.whole("reward_nodes")
    if left < 1:
        problem = "leaves no node to training beside teachers, judges and a reward model"
        raise settings.refused("nodes", problem, f"at least {nodes - left + 1}")
    return left


def gpus_of_policy(settings: Settings) -> int:
    """Return the GPUs that train and generate: of a single node without those of a reward model."""
    gpus = nodes_of_policy(settings) * settings.whole("gpus_per_node")
    alone = settings.whole("nodes") == 1 and judged_by_model(settings)
    return gpus - settings.whole("reward_gpus_per_node") if alone else gpus


def judged_by_model(settings: Settings) -> bool:
    """Tell whether a data set's environment is a reward model, which has GPUs of its own."""
    if settings.given(REWARDS_ON) is True and not any(key in settings.flat for key in ENVIRONMENTS):
        settings.used.add(REWARDS_ON)
        return True
    named = [key for key in ENVIRONMENTS if settings.given(key) == REWARD_MODEL]
    settings.used.update(named)
    sets = (settings.given(key) for key in DATA_SETS)
    listed = (each for one in sets if isinstance(one, list) for each in one)
    return bool(named) or any(
        isinstance(each, Mapping) and each.get("env_name") == REWARD_MODEL for each in listed
    )


def _judge_nodes(settings: Settings) -> int:
    """Return the nodes of NeMo-Gym's judges where they are among the cluster's.

    Keys of the branches that count them so tell it, and sizes that take whole copies of the model only then.
    """
    judges = settings.whole("judge_nodes") if settings.on("gym") else 0
    if not judges:
        return 0
    left = settings.whole("nodes") - _teacher_nodes(settings)
    if not settings.on("colocated"):
        left -= settings.optional_whole("rollout_nodes") or 0
    own, gpus = settings.of(_trainer(settings), "actor"), settings.whole("gpus_per_node")
    copy = math.prod(own.whole(name) for name in ("tp", "pp", "cp"))
    fits = (left - judges) * gpus % copy == 0 < left - judges
    inside = settings.is_given("judges_inside") or (left * gpus % copy > 0 and fits)
    return judges if inside else 0


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
    ranks = [settings.whole("expert_ranks")]
    if distils(settings):
        ranks.append(settings.whole("teacher_expert_ranks"))
    return "automodel" if max(ranks) > 1 else "dtensor"


def _keys_of(settings: Settings, role: Role) -> str:
    """Return the trainer by whose keys a role's sizes are given: a value model may have another than the policy."""
    name = {"critic": "value_megatron", "teacher": "teacher_megatron"}.get(role)
    own = settings.value(name) if name else None
    policy = _trainer(settings)
    if name is None or own is None or settings.on(name) == (policy == "megatron"):
        return policy
    return "megatron" if settings.on(name) else "dtensor"


def _trains(settings: Settings, trainer: str) -> str | None:
    """Return what trains where that is not the framework's usual; Megatron's permutation may be left to PyTorch."""
    known = settings.sheet.trainers[trainer]
    if trainer != "megatron" or settings.on("fuses_permutation"):
        return known.engine
    usual = load_framework(known.framework).engines.train or FIRST_MEGATRON
    return f"{usual.removesuffix(UNFUSED)}{UNFUSED}"


def _gpus(settings: Settings) -> tuple[int, int]:
    """Return the GPUs that train and those that only generate; the latter are taken off the cluster."""
    nodes, per_node = nodes_of_policy(settings), settings.whole("gpus_per_node")
    gpus = gpus_of_policy(settings)
    if settings.on("colocated"):
        return gpus, 0
    names = ("rollout_nodes", "rollout_gpus_per_node")
    own_nodes, own = map(settings.optional_whole, names)
    apart = (own or 1) if nodes == 1 else (own_nodes or 1) * (own or per_node)
    if apart >= gpus:
        problem = f"leaves no GPU of the cluster's {gpus} to training"
        raise settings.refused(names[nodes == 1], problem, "fewer")
    return gpus - apart, apart


def _models(settings: Settings) -> tuple[dict[Role, str], dict[Role, str]]:
    if settings.value("prompts") is None:
        settings.refuse_others("a configuration that trains with RL")
    if settings.value("prompts") is None and not any(settings.has("defaults: *")):
        raise settings.refused("prompts", "is missing", "a whole number")
    if any(any(settings.has(key)) for key in TEXTS):
        settings.refuse_others("distillation of a student's own responses")
    names: dict[Role, str] = {"actor": "model"}
    if distils(settings):
        names["teacher"] = "teacher_model"
    if _penalises(settings) and not (settings.on("lora") or settings.on("peft")):
        names["reference"] = "model"
    if _algorithm(settings) == PPO:
        names["critic"] = "critic_model"
    return models_of(settings, names)


def distils(settings: Settings) -> bool:
    """Tell whether a student learns from a teacher's likeliest tokens, and from nothing else (algorithms/distillation.py)."""
    return settings.value("distils") is not None


def _teacher(settings: Settings) -> Teacher | None:
    """Return what the teacher's passes tell; None without one.

    Raises:
        FileError: It tells of no token.
    """
    if not distils(settings):
        return None
    top = settings.whole("teacher_top")
    if top < 1:
        raise settings.refused("teacher_top", "is no number of tokens", "at least 1")
    return Teacher(top_tokens=top)


def _algorithm(settings: Settings) -> str:
    if distils(settings):
        return DISTILLATION
    if settings.value("critic_prompts") is not None:
        return PPO
    return algorithm_of(settings, compares=_penalises(settings))


def _notes(settings: Settings, backend: str) -> Iterator[str]:
    if backend == "megatron":
        yield MEGATRON_NOTE
    if _keys_of(settings, "critic") != _trainer(settings):
        yield VALUE_NOTE
    if _resamples(settings) and not _unloaded(settings):
        yield REFERENCE_NOTE
    own, sheet = settings.of(_trainer(settings), "actor"), settings.sheet
    if not own.on("packs") and not own.on("dynamic"):
        yield PADDED_NOTE
    if settings.is_given("refit_buffer_gib") and not settings.on("reads_refit_buffer"):
        key = settings.key_of("refit_buffer_gib")
        yield f"{key} has no effect in {sheet.title} {sheet.version}: a refit takes a share of what is free on its GPU"
    if settings.value("critic_prompts") is None and not distils(settings):
        yield from algorithm_notes(settings, _algorithm(settings))


def _say_doubts(settings: Settings) -> None:
    """Name what changes the amount of work, and is counted in part or not at all."""
    if settings.on("gym"):
        settings.doubt("gym", "turns, tools and judges of NeMo-Gym")
    if settings.on("teaches"):
        settings.doubt("teaches", "passes of teachers")
    if settings.on("gym") and settings.whole("judge_nodes") > 0:
        settings.doubt("judge_nodes", "judges on GPUs of their own")
    if judged_by_model(settings):
        settings.doubt("reward_model", "a reward model on GPUs of its own")
    if settings.on("filters") and not load_algorithm(_algorithm(settings)).resamples:
        settings.doubt("filters", "groups of equal rewards that are sampled again")


def _takes_the_engines_log_probs(settings: Settings) -> bool:
    """Tell whether the actor's own pass is left out; errors of sequences are measured by it (algorithms/grpo.py)."""
    if distils(settings):
        return True  # its loss has no ratio
    return settings.on("on_policy") and settings.value("error_threshold") is None


def _sampling(settings: Settings) -> DynamicSampling | None:
    """Return how groups are sampled again, in batches of the step's prompts; None where they are not, or uncounted.

    Whole batches are generated until enough groups differ, and all that is beyond a step is dropped
    (algorithms/grpo.py, dynamic_sampling).
    """
    usual = sampling_of(settings, _algorithm(settings))
    if usual is None:
        return None
    return sampled_in_batches(_work(settings).prompts, _generated(settings), usual.max_rounds)


def _generated(settings: Settings) -> int:
    """Return the prompts of a batch that is generated where groups are filtered.

    Raises:
        FileError: There are none.
    """
    batch = int(_work(settings).prompts * settings.number("multiplier"))
    if batch < 1:
        raise settings.refused("multiplier", "generates nothing", "above 0")
    return batch


def _guesses(settings: Settings, sampling: DynamicSampling | None) -> Iterator[str]:
    """Yield what was assumed of the amount of work."""
    if sampling is None:
        return
    yield sampling_guess(sampling, _work(settings).prompts, _generated(settings))


def _bucket_bytes(settings: Settings) -> int | None:
    """Return the buckets of a refit; vLLM on GPUs of its own gets weights packed otherwise (algorithms/grpo.py, refit_policy_generation)."""
    uses = settings.on("colocated") or settings.word("backend") == "sglang"
    if (
        not uses
        or not settings.on("reads_refit_buffer")
        or settings.value("refit_buffer_gib") is None
    ):
        return None
    return max(1, round(settings.number("refit_buffer_gib") * GIB))


def _resamples(settings: Settings) -> bool:
    return settings.on("filters") and not settings.number("kl_weight")


def _penalises(settings: Settings) -> bool:
    """Tell whether the actor is compared with a reference, if only with itself without its adapters."""
    skips = settings.on("skips_reference") or distils(settings) or _unloaded(settings)
    return not skips and not _resamples(settings)


def _unloaded(settings: Settings) -> bool:
    """Tell whether a penalty of 0 leaves the reference out; algorithms/ppo.py loads it always."""
    leaves = settings.value("critic_prompts") is None and not settings.on("loads_reference")
    return leaves and not settings.number("kl_weight")


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
    recompute = recomputed_parts(own) if own.value("granularity") == "selective" else "full"
    return replace(
        sizes,
        token_budget=budget,
        infer_token_budget=infer_budget or budget,
        infer_micro_batch=own.whole("infer_micro_batch", sizes.micro_batch),
        recompute=recompute if own.on("checkpoints") else "none",
        zero_stage=0 if own.value("distributed") is False else None,
        offload=away or sizes.offload or role in ONLY_READ,
        infer_offload=None,
    )


def _options(settings: Settings, trainer: str, role: Role) -> TrainerOptions:
    """Return how a role's trainer keeps its states and makes its logits."""
    way = None if role == "critic" else _logit_way(settings, trainer)
    own = settings.of(trainer, role)
    # What leaves for generation are values of the optimizer's state (models/policy/workers/megatron_policy_worker.py, move_optimizer); master
    # weights are its parameters unless FusedAdam keeps them (Megatron-Core, optimizer/distrib_optimizer.py).
    stays = trainer == "megatron" and role not in ONLY_READ and not own.on("precision_aware")
    options = replace(trainer_options(own, way), gradients=_gradients(own), masters_stay=stays)
    if own.role not in ONLY_READ and own.on("master_weights"):
        options = _with_masters(own, options)
    chunk = "fused_chunk" if way == "fused-linear" else "logprob_chunk"
    return replace(options, logit_chunk_tokens=settings.optional_whole(chunk) if way else None)


def _with_masters(own: RoleSettings, options: TrainerOptions) -> TrainerOptions:
    """Return how states are kept by Transformer Engine's FusedAdam with a master copy of its own.

    Of weights in bf16 it keeps what the copy has beyond them, of others a whole copy.
    """
    if own.on("narrow_beside_masters") and own.settings.word("precision") == "bf16":
        options = replace(options, weights="bf16")
    beyond = own.on("remainders") and options.weights == "bf16"
    moments = {str(own.value(name)) for name in ("first_moments", "second_moments")}
    narrow = all(name.endswith("bfloat16") for name in moments)
    kind = f"{'remainders' if beyond else 'masters'}{'-bf16' if narrow else ''}"
    return replace(options, optimizer=cast(OptimizerKind, kind))


def _gradients(own: RoleSettings) -> TrainingPrecision | None:
    """Return the format of gradients where it is not fp32.

    Megatron-Core keeps them as they are reduced (distributed/param_and_grad_buffer.py), and copies them to fp32 unless its
    optimizer is aware of precisions (optimizer/distrib_optimizer.py, `decoupled_grad`).
    """
    if own.role in ONLY_READ or own.settings.word("precision") != "bf16":
        return None
    reduced_so = own.value("reduces_in_fp32") is False
    return "bf16" if reduced_so and own.on("precision_aware") else None


def _logit_way(settings: Settings, trainer: str) -> str | None:
    """Return the way in which log-probabilities are made where it is not the usual one (distributed/model_utils.py)."""
    chunks = settings.optional_whole("logprob_chunk")
    if trainer != "megatron":
        return None  # chunks of the DTensor worker are kept until all are there
    if settings.on("fuses_head"):
        return "fused-linear"
    if settings.on("defers_logits"):
        return "deferred-chunked" if chunks else "deferred"
    return "vocab-parallel-chunked" if chunks else None


def _work(settings: Settings) -> Work:
    prompts = settings.optional_whole("prompts") or settings.whole("usual_prompts")
    samples = settings.whole("samples")
    return Work(
        prompts=prompts,
        samples=samples,
        updates=updates_of(settings, prompts * samples),
        epochs=settings.whole("epochs"),
        max_prompt=settings.optional_whole("max_prompt"),
        max_response=settings.optional_whole("max_response"),
        max_total=longest(settings),
        turns=None
        if settings.on("gym")
        else most_turns(settings),  # NeMo-Gym's agents have their own
    )


def longest(settings: Settings) -> int:
    """Return the most tokens of a sequence: what is trained at most, and what its engine takes at most."""
    engine = settings.optional_whole(f"{settings.word('backend')}_max_model_len")
    most = settings.whole("max_total")
    return most if engine is None else min(most, engine)


def _engine(settings: Settings) -> str:
    """Return the engine's sheet; where there is none of it without CUDA graphs, that it has none is not counted."""
    backend = settings.word("backend")
    name, key = ENGINE_SHEETS[backend], f"{backend}_eager"
    name = settings.sheet.engines.get(name, name)
    if EAGER.format(name) in engine_names():
        return eager_engine(name, eager=settings.on(key))
    settings.unmapped(key)
    return name


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
    decay = settings.of(trainer, "actor").value("weight_decay")
    return Hyperparameters(
        **given_losses(settings, _algorithm(settings)),
        **rates,
        weight_decay=decay if isinstance(decay, int | float) and decay >= 0 else None,
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
    """Return the mode: batches of so many steps ahead, or a whole one where weights wait for all that is under way."""
    ahead = settings.optional_whole("ahead")
    if not apart or not (ahead or settings.on("async")):
        return {}
    age = ahead or settings.whole("age")
    if age == 1 and not settings.on("in_flight"):
        return {"mode": BATCH_AHEAD_MODE, "staleness": 1.0}
    kept = "recompute" if settings.on("recomputes_cache") else "keep"
    return {
        "mode": ENDLESS_MODE,
        "staleness": float(age),
        "in_flight": kept if settings.on("in_flight") else "drain",
    }
