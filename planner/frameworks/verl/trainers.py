"""What verl's trainer holds and how: its roles, their sizes, engines and options, and the keys that it does not read."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, cast

from rlplan.job import Role
from rlplan.models import TrainingPrecision
from rlplan.plan import Recompute
from rlplan.planner.configs.broken import actor_of
from rlplan.planner.configs.losses import algorithm_of
from rlplan.planner.configs.models import has_visual
from rlplan.planner.configs.reading.settings import RoleSettings, Settings
from rlplan.planner.configs.run import TRAIN_POOL
from rlplan.planner.configs.sizes import (
    ONLY_READ,
    even_stages,
    recomputed_parts,
    role_sizes,
    trainer_options,
)
from rlplan.planner.configs.verl_family import GRADIENTS
from rlplan.planner.frameworks.verl import teaching
from rlplan.planner.plans.trained import TrainerSizes
from rlplan.profiles.sheets import engine_names, load_framework
from rlplan.trainers import TrainerOptions

# Configurations of before `model_engine`, and the modules of asynchronous training.
MEGATRON_CONFIG: Final = "megatron"
# Sheets of Megatron's engines that rotate each packed sequence by itself.
ROPE_APART: Final = "{}-rope-apart"
CHUNKED: Final = "chunked"
# What Megatron's words `unfused` and `local` ask for.
OTHER_ATTENTION: Final = "attention that is not fused"
PPO, DISTILLATION = "ppo", "on-policy-distillation"


def is_first_fsdp(settings: Settings, trainer: str) -> bool:
    """Tell whether a trainer is FSDP 1, whose units hold either frozen weights or trained ones."""
    keys = settings.sheet.settings["strategy"].keys
    return trainer == "fsdp" and all(settings.given(key) != "fsdp2" for key in keys)


def trainer_of(settings: Settings) -> str:
    """Return the name of the trainer in the sheet."""
    named = settings.value("group") or settings.value("engine")
    strategy = settings.value("strategy")
    if named is None and MEGATRON_CONFIG in str(settings.value("config")):
        return MEGATRON_CONFIG
    if named in {None, "fsdp"} and strategy is not None:
        return str(strategy)
    return str(named or "fsdp")


def roles_of(settings: Settings) -> tuple[Role, ...]:
    """Return the roles whose models the trainer holds, the actor first."""
    referred = compares(settings) and settings.whole("lora_rank") < 1
    values = algorithm_named(settings) == "ppo" and settings.value("critic_on") is not False
    named: dict[Role, bool] = {"actor": True, "reference": referred, "critic": values}
    return tuple(role for role, there in named.items() if there)


def of_role(settings: Settings, trainer: str, role: Role) -> RoleSettings:
    """Return what is set of a role's model; of Megatron's layout, what counts for all roles of the process."""
    return settings.of(trainer, role, layout_of(settings, trainer))


def layout_of(settings: Settings, trainer: str) -> Role | None:
    """Return the role whose engine starts first, and lays out the process; None where each has its own layout."""
    sheet = settings.sheet.trainers[trainer]
    order, there = list(sheet.layout_of), roles_of(settings)
    if settings.value("trainer_mode") == "separate_async" and "reference" in order:
        order.remove("reference")  # a worker of its own there, which starts behind the actor's
        order.append("reference")
    for role in order:
        own = settings.of(trainer, role)
        follows = settings.sheet.role_follows.get(role) in there
        if role in there and (not follows or any(map(own.is_given, sheet.in_common))):
            return role
    return None


def compares(settings: Settings) -> bool:
    """Tell whether a policy is compared with its reference, by a loss or a reward."""
    return settings.on("kl_loss") or settings.on("kl_reward")


def algorithm_named(settings: Settings) -> str:
    """Return the algorithm: distillation where a teacher alone is learnt from, and no critic or reference is asked."""
    learns = settings.word("estimator") != PPO
    if teaching.alone(settings) and learns and not compares(settings):
        return DISTILLATION
    return algorithm_of(settings, compares=compares(settings))


def trained(settings: Settings, trainer: str, role: Role, gpus: int) -> TrainerSizes:
    """Return the sizes of a role that a trainer holds."""
    own = of_role(settings, trainer, role)
    sizes = replace(role_sizes(own, gpus, TRAIN_POOL), engine=_trainer_engine(own))
    if own.value("reshards") is False:
        sizes = replace(sizes, zero_stage=GRADIENTS)
    sizes = even_stages(own, sizes)
    if role == "reference":
        return sizes
    if role == "critic":
        sizes = _valued(own, sizes)
    if role == "actor":
        budget = settings.whole("infer_token_budget") * sizes.cp
        dynamic = settings.on("infer_dynamic")
        of_all = settings.optional_whole("infer_global_micro_batch") or 0
        micro_batch = settings.optional_whole("infer_micro_batch") or of_all // sizes.dp
        sizes = replace(
            sizes,
            infer_token_budget=budget if dynamic else None,
            infer_micro_batch=micro_batch or sizes.micro_batch,
        )
    if trainer in {"megatron", "mlite"}:
        granularity = own.value("granularity")
        full = "full" in granularity if isinstance(granularity, list | str) else False
        sharded = own.on("distributed")
        parts = recomputed_parts(own)
        recompute: Recompute = "full" if full else parts if granularity else "none"
        return replace(sizes, recompute=recompute, zero_stage=None if sharded else 0)
    checkpoints = settings.on("critic_checkpoints" if role == "critic" else "checkpoints")
    return replace(sizes, recompute="full" if checkpoints else "none")


def options_of(settings: Settings, trainer: str, role: Role) -> TrainerOptions:
    """Return how a role's trainer keeps its states and makes its logits."""
    way = None if role == "critic" else _logit_way(settings, trainer, role)
    options = trainer_options(settings.of(trainer, role), way)
    if role == "actor" and _freezes_tower(settings, trainer):
        options = replace(options, freezes_tower=True)
    if role in {"actor", "reference"} and not _repeats_prompts(settings, trainer, role):
        options = replace(options, shares_prompts=True)
    if role == "actor" and settings.whole("lora_rank") > 0 and is_first_fsdp(settings, trainer):
        options = replace(options, adapters_apart=True)
    if role == "actor" and settings.of(trainer, role).on("keeps_embedded"):
        options = replace(options, keeps_embedded=settings.whole("lora_rank") > 0)
    if role not in ONLY_READ and settings.of(trainer, role).on("defers_reduction"):
        waiting = "bf16" if is_first_fsdp(settings, trainer) else "fp32"
        options = replace(options, waiting_gradients=cast(TrainingPrecision, waiting))
    if role not in ONLY_READ and settings.of(trainer, role).on("unpins_weights"):
        options = replace(options, unpinned_weights=not is_first_fsdp(settings, trainer))
    chunk = settings.optional_whole("entropy_chunk")
    chunked = way is not None and way.endswith(CHUNKED)
    return replace(options, logit_chunk_tokens=chunk if chunked else None)


def _freezes_tower(settings: Settings, trainer: str) -> bool:
    """Tell whether the tower of an actor that reads images does not learn."""
    model = actor_of(settings)
    asked = settings.on("freezes_tower") and model is not None and has_visual(model)
    reads = settings.on("reads_frozen_tower") and _has_older_workers(settings)
    return asked and reads and trainer.startswith("fsdp")


def _has_older_workers(settings: Settings) -> bool:
    """Tell whether the workers of up to 0.7.1 train, in whose place a key could put the engines of 0.8."""
    return settings.given("trainer.use_legacy_worker_impl") != "disable"


def _repeats_prompts(settings: Settings, trainer: str, role: Role) -> str | None:
    """Return why a role's trainer computes a prompt for each of its samples; None where it does so once."""
    own = of_role(settings, trainer, role)
    if not settings.on("shares_prompts"):
        return "it is off"
    if not settings.on("reads_shared_prompts") or not _has_older_workers(settings):
        return "no trainer reads it"
    if not trainer.startswith("fsdp"):
        return "FSDP's trainer alone reads it"
    dynamic = settings.on("actor_dynamic") or own.on("dynamic")
    blocked = {
        "packs": settings.on("packs"),
        "actor_dynamic": dynamic,
        "fuses_head": settings.on("fuses_head"),
    }
    found = [settings.key_of(name) for name, is_on in blocked.items() if is_on]
    if own.whole("cp") > 1:
        found.append(own.key_of("cp"))
    return (
        f"{' and '.join(found)} {'keeps' if len(found) == 1 else 'keep'} it from that"
        if found
        else None
    )


def keys_without_effect(settings: Settings, trainer: str) -> Iterator[str]:
    """Yield a note for each key that is on, and that nothing reads as the configuration stands."""
    title = f"{settings.sheet.title} {settings.sheet.version}"
    model = actor_of(settings)
    reads_images = model is None or bool(model.vision_parameters)
    if settings.on("freezes_tower") and reads_images and not _freezes_tower(settings, trainer):
        key, reason = settings.key_of("freezes_tower"), "no trainer of that reads it"
        if settings.on("reads_frozen_tower") and model is not None and not has_visual(model):
            reason = f"it freezes what a model calls visual, and {model.name} has no such part"
        yield f"{key} has no effect in {title}: {reason}, and the tower learns"
    why = _repeats_prompts(settings, trainer, "actor")
    if settings.on("shares_prompts") and why is not None:
        key = settings.key_of("shares_prompts")
        yield f"{key} has no effect in {title}: {why}, and each sample's prompt is computed"
    own = settings.of(trainer, "reference")
    if "reference" in roles_of(settings) and own.on("reads_from_host") and _is_kept(own):
        key = own.key_of("param_offload")
        yield f"{key} has no effect in {title}: FSDP reads a reference's weights from the host's memory, whatever it says"


def _is_kept(own: RoleSettings) -> bool:
    """Tell whether a configuration says that weights of a role stay on their GPUs."""
    return own.is_given("param_offload") and not own.on("param_offload")


def _logit_way(settings: Settings, trainer: str, role: Role) -> str | None:
    """Return the way in which log-probabilities and entropies are made where it is not the usual one.

    Entropies of old log-probabilities are always made, those of an update where they count or are asked for
    (trainer/ppo/ray_trainer.py). FSDP's are fused by torch.compile where padding is removed, and whole where it is not
    (workers/engine/fsdp/transformer_impl.py, prepare_model_outputs); Megatron's are never fused.
    """
    if settings.on("fuses_head"):
        return "fused"
    if role == "reference":
        return None
    coefficient = settings.loss("entropy_coefficient")
    counts = bool(coefficient) or settings.on("entropy_counts")
    chunks = settings.on("chunks_entropy")
    if trainer in {"megatron", "mlite"}:
        usual = "entropy" if counts else "old-entropy"
        return f"{usual}-{CHUNKED}" if chunks else "entropy" if counts else None
    compiled = settings.on("compiles") and settings.on("packs")
    if chunks and settings.on("packs") and not compiled:
        if not counts:
            return "old-entropy-chunked"
        return "entropy-checkpointed" if settings.on("checkpoints_entropy") else "entropy-chunked"
    if counts:
        return "entropy" if compiled else "entropy-eager"
    return None if compiled else "old-entropy-eager"


def _trainer_engine(own: RoleSettings) -> str:
    """Return the engine sheet of a role's trainer, by its kernel of attention and whether it pads; empty where it is the usual one."""
    settings = own.settings
    packs = settings.on("critic_packs" if own.role == "critic" else "packs")
    padded = None if packs else settings.sheet.trainers[own.trainer].padded
    widest = "-to-rank" if padded and "pads_rank" in own.names and own.on("pads_rank") else ""
    attention = own.value("attention")
    if attention is None:
        if "attention" in own.names and own.is_given("attention"):
            settings.left_out[own.key_of("attention")] = OTHER_ATTENTION
        return f"{padded}{widest}" if padded else _rotating_apart(own, "")
    return f"{attention}-padded{widest}" if padded else _rotating_apart(own, str(attention))


def _rotating_apart(own: RoleSettings, engine: str) -> str:
    """Return the sheet of an engine that rotates each packed sequence by itself, where a version's Megatron does and is not told to fuse."""
    if not own.on("rotates_apart") or own.on("rope_fused"):
        return engine
    usual = load_framework(own.settings.sheet.trainers[own.trainer].framework).engines.train
    apart = ROPE_APART.format(engine or usual)
    return apart if apart in engine_names() else engine


def _valued(own: RoleSettings, sizes: TrainerSizes) -> TrainerSizes:
    """Return a critic's sizes with those of the pass that only computes values."""
    budget = own.optional_whole("infer_token_budget")
    micro_batch = own.optional_whole("infer_micro_batch")
    if sizes.token_budget is not None and budget is not None:
        return replace(sizes, infer_token_budget=budget * sizes.cp)
    return replace(sizes, infer_micro_batch=micro_batch or sizes.micro_batch)
