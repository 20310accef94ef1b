"""open-instruct: learners by node, packs of a given length, and vLLM's engines apart, up to so many steps ahead."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from rlplan.job import DynamicSampling, Engines, Hyperparameters, KlPlace, Role
from rlplan.models import Precision, TrainingPrecision
from rlplan.plan import ENDLESS_MODE, TaskPlan
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
from rlplan.planner.configs.sizes import (
    MOST_RUNNING,
    divided,
    nearest_divisor,
    role_sizes,
    rollout_engine,
    said_width,
    trainer_options,
    zero_stage,
)
from rlplan.planner.plans.trained import TrainerSizes
from rlplan.trainers import TrainerOptions

DEEPSPEED, OLMO = "deepspeed", "olmo"
OLMO_START: Final = ("grpo.py", ".grpo")
BY_TOKENS: Final = "token"
DROPS_GUESS: Final = "groups of equal rewards are left out of updates, which are forecast whole: --no_filter_zero_std_samples keeps them"
# model_utils.py, ModelConfig, has the flag for other programs; grpo_fast.py and grpo.py make no adapter.
NO_ADAPTER: Final = "has no effect: GRPO of open-instruct makes no adapter, and trains every weight"
OLMO_NOTE: Final = "OLMo-core's trainer is forecast as FSDP2 around compiled layers"
BUDGET_NOTE: Final = (
    "a compiler's budget of activations is forecast as layers that are wholly computed again"
)


def run_of(settings: Settings) -> Run:
    """Return what a configuration trains, and how.

    Raises:
        FileError: A key that matters cannot be imported; it is named.
    """
    trainer = trainer_of(settings)
    learners, engines = learners_of(settings), engine_gpus(settings)
    models, keys = _models(settings)
    pools = [RunPool(name=TRAIN_POOL, gpus=learners, roles=tuple(models))]
    if engines:
        pools.append(RunPool(name=ROLLOUT_POOL, gpus=engines, roles=("actor",)))
    algorithm = algorithm_of(settings, compares=compares(settings))
    sampling = sampling_of(settings, algorithm)
    _say_doubts(settings, sampling)
    sheet = settings.sheet.trainers[trainer]
    return Run(
        framework=sheet.framework,
        trainer=trainer,
        engines=Engines(
            train=sheet.engine, generate=rollout_engine(settings), sleeps=bool(engines)
        ),
        algorithm=algorithm,
        models=models,
        model_keys=keys,
        work=_work(settings, learners),
        groups=(_nodes(settings, learners + engines),),
        least_node=None if _said_width(settings) else max(_learners(settings)),
        pools=tuple(pools),
        generate=_generation(settings, pools[-1]),
        usual_running=True,
        trainers={role: _sizes(settings, trainer, role, learners) for role in models},
        options={role: _options(settings, trainer, role) for role in models},
        loss=_loss(settings, algorithm),
        old_log_prob="trainer" if passes_again(settings) else "engine",
        precision=cast(Precision, settings.word("dtype")),
        dynamic_sampling=sampling,
        notes=tuple(_notes(settings, algorithm, trainer)),
        guesses=tuple(_guesses(settings, sampling)),
        **_modes(settings),
    )


def trainer_of(settings: Settings) -> str:
    """Return what trains: OLMo-core behind `grpo.py`, else DeepSpeed."""
    return OLMO if settings.start.endswith(OLMO_START) else DEEPSPEED


def learners_of(settings: Settings) -> int:
    """Return the GPUs that train, on all nodes.

    Raises:
        FileError: There are none.
    """
    return sum(_learners(settings))


def _learners(settings: Settings) -> list[int]:
    """Return the GPUs that train on each node."""
    value = settings.value("learners")
    listed = value if isinstance(value, list) else [value]
    if not all(
        isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in listed
    ):
        raise settings.refused("learners", "leaves no GPU to training", "a number for each node")
    return cast(list[int], listed)


def engine_gpus(settings: Settings) -> int:
    """Return the GPUs of engines that have their own; 0 where one shares the GPU that trains."""
    if settings.on("shares"):
        return 0
    engines, tp = settings.whole("engines"), settings.whole("rollout_tp")
    if engines < 1 or tp < 1:
        raise settings.refused("engines", "leaves no GPU to generation", "at least 1")
    return engines * tp


def compares(settings: Settings) -> bool:
    """Tell whether the actor is compared with a reference, whatever the penalty's weight is (grpo_fast.py)."""
    return settings.on("has_reference")


def passes_again(settings: Settings) -> bool:
    """Tell whether a pass for old log-probabilities is made: where a step has several updates that do not take vLLM's."""
    return settings.whole("minibatches") > 1 and not settings.on("sampled")


def drops_equal_groups(settings: Settings) -> bool:
    """Tell whether groups of equal rewards are learnt nothing from."""
    return settings.on("drops") and not settings.on("keeps_equal")


def _models(settings: Settings) -> tuple[dict[Role, str], dict[Role, str]]:
    models: dict[Role, str] = {"actor": settings.path("model")}
    keys: dict[Role, str] = {"actor": settings.key_of("model")}
    if compares(settings):
        models["reference"], keys["reference"] = models["actor"], keys["actor"]
    return models, keys


def _said_width(settings: Settings) -> int | None:
    """Return the GPUs of a node, as mason.py's command or the script's own `ray start` says them."""
    return said_width(settings, max(_learners(settings)))


def _nodes(settings: Settings, gpus: int) -> tuple[int, int]:
    """Return GPUs of a node, and nodes, as it is launched."""
    per_node = _said_width(settings) or gpus
    return (gpus, 1) if gpus <= per_node else (per_node, -(-gpus // per_node))


def _generation(settings: Settings, pool: RunPool) -> TaskPlan:
    tp = settings.whole("rollout_tp")
    return TaskPlan(
        pool=pool.name,
        engine=rollout_engine(settings),
        tp=tp,
        dp=divided(settings, settings.key_of("rollout_tp"), pool.gpus, tp),
        max_running=MOST_RUNNING,
        memory_fraction=settings.number("memory_fraction"),
    )


def _sizes(settings: Settings, trainer: str, role: Role, gpus: int) -> TrainerSizes:
    """Return the sizes of a role's model: micro-batches are packs of so many tokens."""
    own = settings.of(trainer, role)
    budget = settings.whole("pack") * own.whole("micro_batch")
    return replace(
        role_sizes(own, gpus, TRAIN_POOL),
        token_budget=budget,
        infer_token_budget=budget,
        shard_ranks=_shard_ranks(settings, trainer, gpus),
        zero_stage=_stage(settings, trainer),
        recompute="full" if role == "actor" and _computes_again(settings, trainer) else "none",
    )


def _stage(settings: Settings, trainer: str) -> int | None:
    """Return the ZeRO stage; None is FSDP's, fully sharded.

    Raises:
        FileError: There is no such stage.
    """
    return None if trainer == OLMO else zero_stage(settings.of(trainer, "actor"))


def _shard_ranks(settings: Settings, trainer: str, gpus: int) -> int | None:
    if trainer != OLMO:
        return None
    ranks, copies = settings.optional_whole("shard_degree"), settings.optional_whole("replicas")
    ranks = ranks or (gpus // copies if copies else None)
    return ranks if ranks is not None and 0 < ranks < gpus else None


def _computes_again(settings: Settings, trainer: str) -> bool:
    if trainer == OLMO:
        return settings.number("memory_budget") < 1
    return settings.on("checkpoints")


def _options(settings: Settings, trainer: str, role: Role) -> TrainerOptions:
    options = trainer_options(settings.of(trainer, role))
    if trainer == DEEPSPEED and _stage(settings, trainer) == 0:
        dtype = settings.word("dtype")
        weights = None if dtype == "fp32" else cast(TrainingPrecision, dtype)
        return replace(options, weights=weights) if role == "reference" else options
    return options


def _work(settings: Settings, learners: int) -> Work:
    """Return the work of a step: its updates are parts of each learner's packs.

    Raises:
        FileError: Its batches are empty.
    """
    prompts, samples = settings.whole("prompts"), settings.whole("samples")
    updates = settings.whole("minibatches")
    for name, size in (("prompts", prompts), ("samples", samples), ("minibatches", updates)):
        if size < 1:
            raise settings.refused(name, "is no batch", "at least 1")
    total = prompts * samples
    if total < learners * updates:
        settings.doubt("minibatches", f"updates of fewer samples than the {learners} learners")
    return Work(
        prompts=prompts,
        samples=samples,
        updates=nearest_divisor(total, updates),
        epochs=max(1, settings.whole("epochs")),
        max_prompt=settings.whole("max_prompt"),
        max_response=settings.whole("max_response"),
        turns=turns_of(settings),
        max_response_of_all=True,
    )


def turns_of(settings: Settings) -> int | None:
    """Return the most turns of an episode; None where tools have no limit.

    Rows of data may name an environment each (data_loader.py, env_config), for which alone there is a limit without tools.
    """
    if not settings.value("tools") and not settings.is_given("environment_turns"):
        return 1
    most = settings.optional_whole("environment_turns")
    return most if most is not None and most > 0 else None


def _loss(settings: Settings, algorithm: str) -> Hyperparameters:
    losses = given_losses(settings, algorithm)
    losses["loss_mean"] = BY_TOKENS if settings.value("norm") == BY_TOKENS else "token-sum-norm"
    if algorithm != "cispo":
        losses["clip_ratio_high"] = settings.number("clip_high")
    kind: KlPlace = "loss" if compares(settings) else "none"
    return Hyperparameters(
        **losses,
        temperature=settings.number("temperature") or 1.0,
        **kl_place(kind, abs(settings.number("kl_weight"))),
    )


def _modes(settings: Settings) -> Mapping[str, Any]:
    """Return the mode: without an end, unless an engine shares the GPU that trains."""
    if settings.on("shares"):
        return {}
    kept = "keep" if settings.on("in_flight") else "drain"
    return {
        "mode": ENDLESS_MODE,
        "staleness": float(max(1, settings.whole("ahead"))),
        "in_flight": kept,
    }


def _say_doubts(settings: Settings, sampling: DynamicSampling | None) -> None:
    """Name what changes the amount of work, and is counted in part or not at all."""
    if settings.value("tools"):
        settings.doubt("tools", "turns with tools")
    else:
        settings.doubt("environment_turns", "turns in environments that rows of data name")
    if settings.on("filters") and sampling is None:
        settings.doubt("filters", "groups of equal rewards that are sampled again")
    if settings.on("rubrics"):
        settings.doubt("rubrics", "rubrics that a model writes")
    if settings.on("shares"):
        settings.doubt(
            "shares", "generation beside training on the same GPU, forecast one after the other"
        )


def _notes(settings: Settings, algorithm: str, trainer: str) -> Iterator[str]:
    yield from algorithm_notes(settings, algorithm)
    booked = settings.optional_whole("booked_nodes")
    used = _nodes(settings, learners_of(settings) + engine_gpus(settings))[1]
    if booked is not None and booked > used:
        yield f"{settings.key_of('booked_nodes')}={booked} books more nodes than learners and engines take, which is {used}"
    if settings.on("peft"):
        yield f"{settings.key_of('peft')} {NO_ADAPTER}"
    if trainer == OLMO:
        yield OLMO_NOTE
        if settings.number("memory_budget") < 1:
            yield BUDGET_NOTE


def _guesses(settings: Settings, sampling: DynamicSampling | None) -> Iterator[str]:
    """Yield what was assumed of the amount of work."""
    if sampling is not None:
        yield sampling_guess(sampling, settings.whole("prompts"))
    elif drops_equal_groups(settings):
        yield DROPS_GUESS
