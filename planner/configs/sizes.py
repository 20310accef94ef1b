"""Sizes that frameworks have in common: copies of a model, micro-batches, off-loading, engines without graphs."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from rlplan.dispatchers import DEFAULT_DISPATCHER
from rlplan.job import Role
from rlplan.models import Adapter, TrainingPrecision
from rlplan.plan import Recompute
from rlplan.planner.configs.reading.settings import RoleSettings, Settings
from rlplan.planner.configs.reading.sheet import ConfigSheet
from rlplan.planner.plans.trained import TrainerSizes
from rlplan.profiles.sheets import engine_names
from rlplan.rules.layouts import divisors
from rlplan.sheets import DeviceSheet
from rlplan.trainers import WHOLE_STEP, Captured, State, TrainerOptions
from rlplan.units import GIB

# Roles whose models are read and not trained: they have weights alone.
ONLY_READ: Final = ("reference", "reward", "teacher")
# What a job says of a server whose answers are waited for.
SERVICE: Final = (
    "say how long it takes, and how many calls at a time, under rewards.service of the job"
)
# Of GPUs on which vLLM decodes many sequences at a time by itself; how many it does there, and on others.
LARGE_MEMORY_BYTES: Final = 70 * GIB
MOST_RUNNING, FEW_RUNNING = 1024, 256
# Sheets of vLLM: of its first engine (V0), and of those whose images (0.8.5) look at a GPU's memory alone.
VLLM, FIRST_ENGINE, BY_MEMORY = "vllm", "vllm-0.6", "vllm-0.8"
# Megatron's dispatcher whose backend is named beside it.
FLEXIBLE: Final = "flex"
# Megatron's kinds of CUDA graphs that are of layers or their parts (`--cuda-graph-impl`), and what their scopes capture.
LAYERS_OF_GRAPHS: Final = ("local", "transformer_engine")
GRAPHED: Final[Mapping[str, Captured]] = {
    "attn": "attention",
    "mamba": "mamba",
    "mlp": "mlp",
    "moe": "experts",
    "moe_router": "router",
    "moe_preprocess": "router",
    "full_iteration": WHOLE_STEP,
}
WHOLE_LAYERS: Final[tuple[Captured, ...]] = ("attention", "mamba", "mlp", "experts")
# DeepSpeed's stages of ZeRO.
STAGES: Final = (0, 1, 2, 3)
# Launches every kernel, without CUDA graphs, where there is such a sheet.
EAGER: Final = "{}-eager"
# Options of a job's trainer by which states live on the host for good, the one that costs less first, with the sizes of
# sheets that say so, and what the options are where all states that they speak of do. Tried changes of a plan have them
# among the fields of the pass that updates.
ON_HOST: Final = {"host_optimizer": "cpu_optimizer", "host_states": "cpu_offload"}
ALL_ON_HOST: Final[dict[str, Any]] = {"host_optimizer": 1.0, "host_states": True}
# Modules of Megatron-Core that are computed again and that forecasts count (`recompute_modules`), with words for none.
EXPERTS_AGAIN: Final = "moe"
# What Megatron repeats where no modules are named, and how files say that none are.
CORE_OF_ATTENTION: Final = frozenset({"core_attn", "None", "null", ""})
COUNTED_MODULES: Final = CORE_OF_ATTENTION | {EXPERTS_AGAIN}
OTHER_MODULES: Final = "modules computed again that are neither experts nor the core of attention"
UNLIKE: Final = "stages of unlike layers, forecast as even ones that are not interleaved"


def said_width(settings: Settings, least: int) -> int | None:
    """Return the GPUs of a node, as a key or a script's own `ray start` says them; None where neither does, or that says too few.

    Args:
        least: GPUs that a node has at least, as other keys have it.
    """
    said = settings.optional_whole("gpus_per_node")
    if said:
        return said
    given = settings.flat.get(settings.key_of("ray_gpus"))
    if given is None or given.gaps or not isinstance(given.value, int):
        return None
    return given.value if given.value >= least else None


def divided(settings: Settings, key: str, gpus: int, model_gpus: int) -> int:
    """Return how many copies of a model's GPUs a pool has.

    Raises:
        FileError: The sizes do not divide the pool.
    """
    if model_gpus < 1 or gpus % model_gpus:
        taken = f"the sizes take {model_gpus} GPUs together"
        problem = f"{taken}, which do not divide the pool's {gpus}"
        raise settings.refused_key(key, problem, "sizes whose product divides it")
    return gpus // model_gpus


def updates_of(settings: Settings, samples: int) -> int:
    """Return the updates of a step of so many samples: where they do not divide, of the next size that does.

    A setting `update_sequences` says how many samples an update takes; where it does not divide, that is a doubt.
    """
    update = settings.optional_whole("update_sequences") or samples
    if update < 1:
        raise settings.refused("update_sequences", "is no batch", "at least 1")
    if samples % update:
        settings.doubt("update_sequences", f"updates that do not divide a step's {samples} samples")
    return nearest_divisor(samples, samples / update)


def nearest_divisor(number: int, wanted: float) -> int:
    """Return the divisor of a number that is nearest to what is wanted; of two the smaller."""
    return min(divisors(number), key=lambda each: (abs(each - wanted), each))


def zero_stage(own: RoleSettings) -> int:
    """Return the ZeRO stage of a role's trainer.

    Raises:
        FileError: There is no such stage.
    """
    stage = own.optional_whole("zero")
    if stage not in STAGES:
        key = own.key_of("zero")
        raise own.settings.refused_key(key, "is no stage of ZeRO", "0, 1, 2 or 3")
    return stage


def role_sizes(own: RoleSettings, gpus: int, pool: str) -> TrainerSizes:
    """Return the sizes of a role's model as a sheet's trainer has them, without recomputation."""
    settings, is_read = own.settings, own.role == "reference"
    tp, pp, cp, ep = (own.whole(name) for name in ("tp", "pp", "cp", "ep"))
    parts = [name for name in ("tp", "cp", "pp") if name in own.names]
    named = next((name for name in parts if own.whole(name) > 1), parts[0])
    dp = divided(settings, own.key_of(named), gpus, tp * pp * cp)
    shard_ranks = own.whole("shard_ranks", -1)
    ranks = 1 if settings.sheet.trainers[own.trainer].tokens_of_all_ranks else cp
    budget = own.whole("token_budget", 0) * ranks or None if own.on("dynamic") else None
    micro_batch = _micro_batch(own, dp)
    held = own.on("param_offload") or own.on("cpu_offload")
    held = held or (is_read and own.on("reads_from_host"))
    away = held or own.on("optimizer_offload") or _stepped_on_host(own) > 0
    return TrainerSizes(
        pool=pool,
        tp=tp,
        pp=pp,
        cp=cp,
        dp=dp,
        ep=ep,
        expert_tp=own.optional_whole("expert_tp") if ep > 1 else None,
        first_stage_layers=own.optional_whole("first_stage_layers"),
        last_stage_layers=own.optional_whole("last_stage_layers"),
        chunks=1 if is_read else own.whole("chunks"),
        shard_ranks=shard_ranks if 0 < shard_ranks < dp * cp else None,
        micro_batch=micro_batch,
        token_budget=budget,
        infer_micro_batch=micro_batch,
        infer_token_budget=budget,
        offload=held if is_read else away,
        infer_offload=held if is_read else None,
    )


def _micro_batch(own: RoleSettings, dp: int) -> int:
    """Return the sequences of a role's micro-batch on a rank; what the role says of all ranks comes before what it follows of another role."""
    if own.whole("micro_batch", 0) < 0:
        raise own.settings.refused_key(own.key_of("micro_batch"), "is no batch", "at least 1")
    of_all = max(1, own.whole("global_micro_batch", 0) // dp)
    says = "global_micro_batch" in own.names and own.is_given("global_micro_batch")
    if says and not own.is_given("micro_batch"):
        return of_all
    return own.whole("micro_batch", 0) or of_all


def served_sizes(pool: str, *, tp: int, pp: int, dp: int, ep: int) -> TrainerSizes:
    """Return how an engine that serves a teacher is cut, on a pool that its replicas fill; experts are whole where they are spread."""
    return TrainerSizes(
        pool=pool,
        tp=tp,
        pp=pp,
        dp=dp,
        ep=ep,
        expert_tp=1 if ep > 1 else None,
        infer_micro_batch=1,
        offload=False,
    )


def even_stages(own: RoleSettings, sizes: TrainerSizes) -> TrainerSizes:
    """Return sizes without interleaving where stages have unlike parts, the embedding or the head among them."""
    words = own.value("stage_words") is not None
    if not (own.on("embeds") or own.on("heads") or words):
        return sizes
    names = ("embeds", "heads", "stage_words", *(("chunks",) if sizes.chunks > 1 else ()))
    for key in (own.key_of(name) for name in names if own.is_given(name)):
        own.settings.left_out[key] = UNLIKE
    return replace(sizes, chunks=1)


def trainer_options(own: RoleSettings, logits: str | None = None) -> TrainerOptions:
    """Return how a role's trainer keeps its states: formats, and what of them is on the host when.

    Args:
        logits: The way in which it makes log-probabilities; None is the framework's usual one.
    """
    options = TrainerOptions(
        weights=cast(TrainingPrecision | None, own.value("model_dtype")),
        logits=logits,
        host_states=own.on("cpu_offload"),
        experts="one by one" if own.on("experts_one_by_one") else "grouped",
        popularity_spread=0.0 if own.on("experts_balanced") else None,
        graphs=_graphs(own),
    )
    if own.whole("ep") > 1:
        overlaps = own.on("overlaps_exchange")
        options = replace(options, dispatcher=_dispatcher(own), overlaps_exchange=overlaps)
    if own.role in ONLY_READ:
        return options
    weights, states = own.on("param_offload"), own.on("optimizer_offload")
    offloads: tuple[State, ...] | None = None
    if weights != states:
        offloads = ("weights", "gradients") if weights else ("optimizer",)
    fraction = _stepped_on_host(own)
    if fraction:
        offloads = offloads if weights or states else ("optimizer",)
    return replace(options, offloads=offloads, host_optimizer=fraction)


def recomputed_parts(own: RoleSettings) -> Recompute:
    """Return what a trainer computes again that repeats parts of its layers: experts too, where its modules name them.

    The core of attention alone where they name nothing else (Megatron-Core, transformer/transformer_config.py,
    recompute_modules). Other modules than it and experts are said not to be counted one by one. Trainers that name no
    modules repeat what is cheap to compute and big to keep.
    """
    if "modules" not in own.names:
        return "selective"
    modules = own.value("modules")
    words = re.split(r"[\s,]+", modules.strip("[] ")) if isinstance(modules, str) else modules
    named = [str(each) for each in (words if isinstance(words, list | tuple) else [words])]
    if any(each not in COUNTED_MODULES for each in named):
        own.settings.left_out[own.key_of("modules")] = OTHER_MODULES
    if EXPERTS_AGAIN in named:
        return "experts"
    return "attention" if CORE_OF_ATTENTION.issuperset(named) else "selective"


def _stepped_on_host(own: RoleSettings) -> float:
    """Return the share of a role's optimizer states that lie on the host and step there.

    Megatron-Core's switch moves none by itself: how much is a key of its own, 0 where nothing says it
    (`OptimizerConfig.optimizer_offload_fraction`, optimizer/optimizer_config.py).
    """
    return own.share("host_fraction", 1.0) if own.on("cpu_optimizer") else 0.0


def _dispatcher(own: RoleSettings) -> str | None:
    """Return how a role's tokens reach experts; None is the engine's usual way.

    Megatron's flexible dispatcher (`flex`) takes DeepEP where nothing names a backend (transformer_config.py), and the
    older switch of DeepEP wants that dispatcher; others look at no backend.
    """
    kind = FLEXIBLE if own.on("deepep") else own.value("dispatcher")
    if kind != FLEXIBLE:
        return None if kind in (None, DEFAULT_DISPATCHER) else str(kind)
    return str(own.value("flex_backend") or "deepep")


def _graphs(own: RoleSettings) -> tuple[Captured, ...]:
    """Return what a role's trainer captures in CUDA graphs, by Megatron's words.

    Without a scope graphs are of whole layers; what is not known of a scope has no part of its own here.
    """
    kind = str(own.value("graphs") or "none").lower()
    if kind == "full_iteration":
        return (WHOLE_STEP,)
    if kind not in LAYERS_OF_GRAPHS:
        return ()
    given = own.value("graph_scope")
    words = re.findall(r"[a-z_]+", str(given).lower()) if given else []
    found = [GRAPHED[word] for word in words if word in GRAPHED]
    return tuple(dict.fromkeys(found if words else WHOLE_LAYERS))


def models_of(
    settings: Settings, names: Mapping[Role, str]
) -> tuple[dict[Role, str], dict[Role, str]]:
    """Return the models by role, and the keys that name them.

    Args:
        names: By role, the setting that names its model.
    """
    models = {role: settings.path(name) for role, name in names.items()}
    return models, {role: settings.key_of(name) for role, name in names.items()}


def adapter_of(settings: Settings) -> Adapter | None:
    """Return the adapter whose weights are merged for generation; None where its rank is below 1."""
    rank = settings.whole("lora_rank")
    if rank < 1:
        return None
    return Adapter(rank=rank, alpha=settings.number("lora_alpha"), sync="merged")


def most_turns(settings: Settings) -> int | None:
    """Return the most turns of an episode; None where they have no limit.

    Where the user's turns have a limit too, the model answers once more (verl, tool_agent_loop.py: it is looked at after an
    answer, and counted with each observation).
    """
    most = settings.unmapped("turns")
    found = [most] if isinstance(most, int) and most > 0 else []
    users = settings.unmapped("user_turns") if "user_turns" in settings.sheet.settings else None
    found += [users + 1] if isinstance(users, int) and users > 0 else []
    return min(found, default=None)


def lacks_running(sheet: ConfigSheet) -> bool:
    """Tell whether the key for how many sequences run at once reaches no engine in a framework's version."""
    reads = sheet.settings.get("reads_running")
    return reads is not None and not reads.default


def usual_running(device: DeviceSheet, engine: str = VLLM, *, by_memory: bool = False) -> int:
    """Return how many sequences vLLM decodes at a time where nobody says it, by its GPU.

    vLLM, engine/arg_utils.py (and what tests/engine/test_arg_utils.py expects of it): 1,024 on GPUs of 70 GiB and more
    other than A100, else 256; its first engine (V0) has 256 on any GPU.

    Args:
        engine: The engine's sheet.
        by_memory: Whether A100 counts as others do: in 0.8.5 (pull requests 17073, of April 2025, and 17885, of May).
    """
    if engine.startswith(FIRST_ENGINE):
        return FEW_RUNNING
    is_large = device.memory_bytes >= LARGE_MEMORY_BYTES
    is_large &= by_memory or not device.name.startswith("a100")
    return MOST_RUNNING if is_large else FEW_RUNNING


def own_running(device: DeviceSheet, engine: str) -> int:
    """Return how many sequences an engine runs at once where a framework cannot tell it.

    SGLang's own number, which memory decides, is beyond what is counted here.
    """
    if not engine.startswith(VLLM):
        return MOST_RUNNING
    return usual_running(device, engine, by_memory=engine.startswith(BY_MEMORY))


def eager_engine(name: str, *, eager: bool) -> str:
    """Return the engine sheet of an engine, with or without CUDA graphs."""
    without = EAGER.format(name)
    return without if eager and without in engine_names() else name


def rollout_engine(settings: Settings) -> str:
    """Return the engine sheet that a configuration's words name, with or without CUDA graphs."""
    return eager_engine(settings.word("rollout_engine"), eager=settings.on("eager"))
