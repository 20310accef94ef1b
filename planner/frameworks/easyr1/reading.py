"""EasyR1: all roles on one pool, the reference sharded as the actor is, micro-batches of so many of the longest."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rlplan.algorithms import load_algorithm
from rlplan.job import DynamicSampling, Engines, Hyperparameters, KlPlace, Role
from rlplan.models import Adapter, OptimizerKind
from rlplan.plan import TaskPlan
from rlplan.planner.configs.broken import actor_of
from rlplan.planner.configs.losses import (
    algorithm_notes,
    algorithm_of,
    sampled_in_batches,
    sampling_guess,
)
from rlplan.planner.configs.models import has_visual
from rlplan.planner.configs.reading.settings import RoleSettings, Settings
from rlplan.planner.configs.run import TRAIN_POOL, Run, RunPool, Work
from rlplan.planner.configs.sizes import (
    MOST_RUNNING,
    adapter_of,
    divided,
    models_of,
    role_sizes,
    rollout_engine,
    trainer_options,
)
from rlplan.planner.configs.verl_family import (
    GRADIENTS,
    doubt_updates_of_critics,
    generated_prompts,
    hyperparameters_of,
    updates_of_rows,
)
from rlplan.planner.plans.trained import TrainerSizes
from rlplan.trainers import TrainerOptions

TRAINER: Final = "fsdp"
REMAX: Final = "remax"
OPTIMIZERS: Final[dict[object, OptimizerKind]] = {"adamw": "adam", "adamw_bf16": "kahan-bf16"}
# Those of an image where its limits allow it: EasyR1's own fewest, 512 x 512 (verl/trainer/config.py, min_pixels).
USUAL_PIXELS: Final = 262_144
# Pixels on a side of what becomes one token, by family: a patch times how many are merged on a side
# (preprocessor_config.json of each on Hugging Face: patch_size and merge_size).
TOKEN_SIDES: Final = {
    "qwen2_vl": 28,
    "qwen2_5_vl": 28,
    "qwen3_vl": 32,
    "qwen3_vl_moe": 32,
}


def run_of(settings: Settings) -> Run:
    """Return what a configuration trains, and how."""
    models, keys = models_of(settings, _named_models(settings))
    gpus = gpus_of(settings)
    algorithm = algorithm_of(settings, compares=compares(settings))
    _doubt(settings, models, algorithm)
    sampling = _sampling(settings, algorithm)
    return Run(
        framework=settings.sheet.trainers[TRAINER].framework,
        trainer=TRAINER,
        engines=Engines(generate=rollout_engine(settings)),
        algorithm=algorithm,
        models=models,
        model_keys=keys,
        work=_work(settings),
        groups=((settings.whole("gpus_per_node"), settings.whole("nodes")),),
        pools=(RunPool(name=TRAIN_POOL, gpus=gpus, roles=tuple(models)),),
        generate=_generation(settings, gpus),
        usual_running=True,
        trainers={role: _trained(settings, role, gpus) for role in models},
        options={role: _options(settings, role) for role in models},
        loss=_loss(settings, algorithm),
        adapter=_adapter(settings),
        dynamic_sampling=sampling,
        notes=(
            *algorithm_notes(settings, algorithm, sampled=sampling is not None),
            *_notes(settings, models),
        ),
        guesses=tuple(_guesses(settings, sampling)),
    )


def gpus_of(settings: Settings) -> int:
    """Return the GPUs, which all roles share."""
    return settings.whole("nodes") * settings.whole("gpus_per_node")


def longest_of(settings: Settings) -> int:
    """Return the tokens of the longest prompt with the longest response."""
    return settings.whole("max_prompt") + settings.whole("max_response")


def roles_of(settings: Settings) -> tuple[Role, ...]:
    """Return the roles that have models of their own, the actor first."""
    return tuple(_named_models(settings))


def compares(settings: Settings) -> bool:
    """Tell whether the actor is compared with a reference: whatever the penalty's weight is."""
    return not settings.on("no_kl")


def of_role(settings: Settings, role: Role) -> RoleSettings:
    """Return what is set of a role's model."""
    return settings.of(TRAINER, role)


def _named_models(settings: Settings) -> dict[Role, str]:
    """Return the settings that name the models; an adapter's reference is the actor without it."""
    names: dict[Role, str] = {"actor": "model"}
    if compares(settings) and settings.whole("lora_rank") < 1:
        names["reference"] = "model"
    if settings.word("estimator") == "ppo":
        names["critic"] = "critic_model"
    return names


def _trained(settings: Settings, role: Role, gpus: int) -> TrainerSizes:
    own = of_role(settings, role)
    sizes = role_sizes(own, gpus, TRAIN_POOL)
    packs = settings.on("critic_packs" if role == "critic" else "packs")
    infers = own.whole("infer_micro_batch")
    # States that live on the host for good (`enable_cpu_offload`) are an option of the trainer, not a move.
    weights, states = own.on("param_offload"), own.on("optimizer_offload")
    sizes = replace(
        sizes,
        offload=weights or (states and role != "reference"),
        infer_offload=weights if role == "reference" else None,
        engine="" if packs else settings.sheet.trainers[TRAINER].padded or "",
        infer_micro_batch=infers,
        recompute="full" if own.on("checkpoints") and role != "reference" else "none",
    )
    if own.value("reshards") is False:
        sizes = replace(sizes, zero_stage=GRADIENTS)
    if not own.on("dynamic"):
        return sizes
    longest = longest_of(settings)
    return replace(
        sizes,
        token_budget=sizes.micro_batch * longest,
        infer_token_budget=infers * longest,
    )


def _options(settings: Settings, role: Role) -> TrainerOptions:
    """Return how a role's trainer keeps its states and makes its logits.

    verl/workers/fsdp_workers.py: a reference is loaded in bf16 unless something else is said, and so are the frozen
    weights beside an adapter, whatever is said. utils/fsdp_utils.py: matrices of an adapter are FSDP units of their own.
    """
    own = of_role(settings, role)
    counts = role == "actor" and bool(settings.loss("entropy_coefficient"))
    options = trainer_options(own, "entropy" if counts else None)
    adapts = role == "actor" and settings.whole("lora_rank") > 0
    if adapts or (role == "reference" and not own.is_given("model_dtype")):
        options = replace(options, weights="bf16", adapters_apart=adapts)
    if role == "reference":
        return options
    model = actor_of(settings)
    frozen = model is not None and has_visual(model) and own.on("freezes_tower")
    optimizer = OPTIMIZERS.get(own.value("optimizer"), "adam")
    return replace(options, optimizer=optimizer, freezes_tower=frozen)


def _work(settings: Settings) -> Work:
    prompts, most = settings.whole("prompts"), settings.optional_whole("max_model_len")
    samples = settings.whole("samples")
    updates = updates_of_rows(settings, prompts, samples)
    if settings.word("estimator") == REMAX:
        prompts, samples = prompts * samples, 1
    return Work(
        prompts=prompts,
        samples=samples,
        updates=updates,
        epochs=settings.whole("epochs"),
        max_prompt=settings.whole("max_prompt"),
        max_response=settings.whole("max_response"),
        max_total=most if most is not None and most < longest_of(settings) else None,
        image_tokens=_image_tokens(settings),
    )


def _image_tokens(settings: Settings) -> int:
    """Return the tokens of an image of the usual size, or of the limits where they exclude it; 0 for a model of text alone.

    verl/utils/dataset.py, process_image: images are made `data.min_pixels` large at least and `data.max_pixels` at most.
    """
    model, least = actor_of(settings), settings.unmapped("min_pixels")
    side = None if model is None or not model.vision_parameters else TOKEN_SIDES.get(model.family)
    if side is None or not isinstance(least, int):
        return 0
    most = settings.given("data.max_pixels")
    pixels = max(least, USUAL_PIXELS)
    return round((min(pixels, most) if isinstance(most, int) else pixels) / side**2)


def _sampling(settings: Settings, algorithm: str) -> DynamicSampling | None:
    """Return how groups are sampled again where their mean reward is out of bounds; None where it is not counted.

    verl/trainer/ray_trainer.py, _make_batch_data: whole batches until enough prompts are kept, `max_try_make_batch` at
    most.
    """
    if not settings.on("filters") or not load_algorithm(algorithm).groups:
        return None
    most = settings.whole("filter_batches")
    prompts, batch = generated_prompts(settings)
    return sampled_in_batches(prompts, batch, most if most > 0 else None)


def _guesses(settings: Settings, sampling: DynamicSampling | None) -> Iterator[str]:
    """Yield what was assumed of the amount of work, and what of it is not counted though no key says it."""
    if sampling is not None:
        yield sampling_guess(sampling, *generated_prompts(settings))


def _doubt(settings: Settings, models: dict[Role, str], algorithm: str) -> None:
    """Say which settings change the amount of work in ways that no job has."""
    engine = settings.given(settings.key_of("rollout_engine"))
    if engine is not None and engine not in settings.sheet.settings["rollout_engine"].values:
        settings.doubt("rollout_engine", "turns, tools and observations of a copy's own rollout")
    resamples = load_algorithm(algorithm).groups
    if settings.on("filters") and not resamples:
        what = "prompts that are sampled again where the mean reward of a group is out of bounds"
        settings.doubt("filters", what)
    if algorithm == REMAX and settings.whole("samples") > 1:
        settings.doubt(
            "estimator",
            "greedy responses, of which there is one a prompt and one a sample is counted",
        )
    prompts, batch = generated_prompts(settings)
    if not (settings.on("filters") and resamples) and batch != prompts:
        dropped = math.ceil(prompts / batch) * batch - prompts
        if dropped > 0:
            settings.doubt("gen_prompts", f"{dropped:,} prompts that are generated and dropped")
        else:
            settings.leave_out("gen_prompts", "batches that are generated one after another")
    if "critic" not in models:
        return
    doubt_updates_of_critics(settings)


def _notes(settings: Settings, models: dict[Role, str]) -> Iterator[str]:
    """Yield that no tower is frozen, and what was assumed where the critic is given no updates of its own."""
    model, own = actor_of(settings), of_role(settings, "actor")
    reads_images = model is not None and bool(model.vision_parameters)
    if model is not None and reads_images and own.on("freezes_tower") and not has_visual(model):
        why = f"it freezes what a model calls visual, and {model.name} has no such part"
        yield f"{own.key_of('freezes_tower')} has no effect: {why}, and the tower learns"
    if settings.is_given("engine_running"):
        key = settings.key_of("engine_running")
        yield f"{key} has no effect: its workers hand it to no engine, which decides by its GPU how many sequences run"
    if "critic" not in models:
        return
    key = settings.key_of("critic_mini_prompts")
    size, actors = settings.whole("critic_mini_prompts"), settings.whole("mini_prompts")
    if size != actors and key not in settings.flat:
        yield f"the critic's updates are of {size:,} prompts, its usual {key}, and forecast as the actor's of {actors:,}"


def _generation(settings: Settings, gpus: int) -> TaskPlan:
    tp = settings.whole("rollout_tp")
    return TaskPlan(
        pool=TRAIN_POOL,
        engine=rollout_engine(settings),
        tp=tp,
        dp=divided(settings, settings.key_of("rollout_tp"), gpus, tp),
        max_running=MOST_RUNNING,
        memory_fraction=settings.number("memory_fraction"),
    )


def _loss(settings: Settings, algorithm: str) -> Hyperparameters:
    kind: KlPlace = "none"
    if compares(settings):
        kind = "loss" if settings.on("kl_loss") else "reward"
    weight = settings.number("kl_weight") if kind != "none" else 0.0
    return hyperparameters_of(settings, of_role(settings, "actor"), algorithm, kind, weight)


def _adapter(settings: Settings) -> Adapter | None:
    """Return the adapter, which goes to the engine as it is: verl/workers/sharding_manager/fsdp_vllm.py."""
    adapter = adapter_of(settings)
    return None if adapter is None else replace(adapter, sync="adapter")
