"""prime-rl: FSDP2 trains packed samples, vLLM generates on GPUs of its own and is never waited for."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from rlplan.job import USUAL_WEIGHT_SYNC, Engines, Hyperparameters, WeightSync
from rlplan.models import Adapter, Precision
from rlplan.plan import ENDLESS_MODE, Recompute, TaskPlan
from rlplan.planner.configs.broken import actor_of
from rlplan.planner.configs.engine_keys import engine_weights
from rlplan.planner.configs.losses import given_losses, gradient_norm, kl_place
from rlplan.planner.configs.models import published_precision
from rlplan.planner.configs.reading.settings import RoleSettings, Settings, fits_any, is_on
from rlplan.planner.configs.run import ROLLOUT_POOL, TRAIN_POOL, Run, RunPool, Work
from rlplan.planner.configs.sizes import MOST_RUNNING, SERVICE, divided, models_of, rollout_engine
from rlplan.planner.configs.verl_family import GRADIENTS
from rlplan.planner.plans.trained import TrainerSizes
from rlplan.trainers import TrainerOptions

TRAINER: Final = "fsdp"
# The version of what was before its tags.
FIRST: Final = "0.1"
# Sections of the environments that are trained on, up to 0.5 without `train`.
ENVIRONMENT: Final = re.compile(r"orchestrator\.(?:train\.)?(?:source\.)?env\.\d+")
# What compares the samples of a prompt, and what has the same passes where there is one.
GROUPED, ALONE = "grpo", "reinforce-plus-plus"
SEVERAL, DISAGGREGATED, MULTI = "several", "disaggregated", "multi_node"
ADAM: Final = "adamw"
# A head that makes logits of all tokens at once, and the way in which its log-probabilities are then made.
WITHOUT_CHUNKS, WHOLE_LOGITS = "disabled", "whole-compiled"
AUTO_CHUNKS: Final = "auto"
# What RL training has taken by default: entries of the vocabulary up to 0.4, tokens since (configs/trainer.py).
USUAL_CHUNKS: Final = (1024, 2048, 8192)
OTHER_CHUNKS: Final = (
    "how many logits are made at a time, of which the trainer's sheet has a usual number"
)
# What scores samples by another model, or by the trained one with more before them (configs/algorithm.py).
TAUGHT: Final = {
    "opd": f"log-probabilities that a teacher on servers of its own tells; {SERVICE}",
    "opsd": "a pass of the engine over each response, behind a demonstration",
}
OLDER: Final = {"self_distill": "opsd"}
# Takes samples from another model, which it hosts nowhere.
WRITTEN: Final = "sft"
# Drop samples before they are counted of a batch (configs/orchestrator.py of 0.6 and 0.7).
BEFORE_BATCHES: Final = "orchestrator.pre_batch_filters.*.enforce"
# Drop them behind it, in the place of the usual ones, one of which drops what has no advantage.
BEHIND_BATCHES: Final = "orchestrator.post_batch_filters"
WITHOUT_ADVANTAGE: Final = "zero_advantage"
OF_SOURCES: Final = "orchestrator.train.*.algo.type"
AUTO: Final = "auto"
# Experts are shared out to as many ranks at most where nobody says it (configs/trainer.py, ModelConfig.ep).
MOST_EXPERT_RANKS: Final = 8
FILE_SYSTEM, NIXL = "filesystem", "nixl"
FILES_NOTE: Final = "weights that go over a file system are forecast as broadcast by NCCL"
EQUAL_NOTE: Final = "all samples of a batch are trained on: {title} {version} leaves those of groups of equal rewards out, and how many these are no key says"
ALONE_NOTE: Final = "prompts have one sample each, which is compared with no other: passes are those of reinforce-plus-plus"
GPUS_NOTE: Final = (
    "no file says how many GPUs train and generate: one each, as `rl` has them; say --deployment.num_train_gpus and "
    "--deployment.num_infer_gpus"
)
TRAIN_GPUS_NOTE: Final = (
    "no file says how many GPUs train: one, as `rl` has it; say --deployment.num_train_gpus"
)
ENGINES_NOTE: Final = (
    "no file has a section of engines, which are started apart then, nor says how many GPUs they have: one; say "
    "--inference.parallel.dp, or --deployment.num_infer_gpus"
)
SERVER: Final = "inference."
SAMPLES_NOTE: Final = "no file is of the orchestrator: {batch} samples a step, {samples} of each prompt, as it has them by default"
OF_TRAINERS: Final = ("deployment.*", "trainer_gpu_ids", "trainer_gpus")
OF_ENGINES: Final = ("inference_gpu_ids", "inference_gpus", "inference.*parallel*")
PACK_NOTE: Final = "no file says trainer.model.seq_len: samples are packed up to the {most:,} tokens that they may have"
# What Prime Intellect's own machines train (`prime train`): no GPUs, and no parts.
HOSTED: Final = ("rollouts_per_example", "group_size", "batch_size")
HOSTED_ENVIRONMENT: Final = "env.*"
HOSTED_WORDS: Final = (
    "is a run on Prime Intellect's own machines, of whose GPUs and layouts no key says anything"
)
OVERLAY_WORDS: Final = (
    "is laid over another file: it says nothing of what trains, of samples or of engines"
)
# Sections that `rl` shares out to its parts, or that say where these run (configs/rl.py).
SHARED: Final = (
    "model*", "deployment*", "slurm*", "wandb*", "monitors*", "ckpt*", "weight_broadcast*", "experimental*", "log*", "env_vars*",
    "tokenizer*", "seq_len", "max_*", "output_dir", "clean*", "bench", "resume*", "run*", "prime_monitor*", "file_monitor*",
)  # fmt: skip


def run_of(settings: Settings) -> Run:
    """Return what a configuration trains, and how.

    Raises:
        FileError: It trains otherwise, or by a number of tokens.
    """
    _check_kind(settings)
    models, keys = models_of(settings, {"actor": "model"})
    train, rollout = train_gpus(settings), rollout_gpus(settings)
    if rollout < 1:
        what = "leaves no GPU to generation, as where another model's samples are learnt from"
        raise settings.refused("rollout_gpus", what, "at least 1")
    pools = (
        RunPool(name=TRAIN_POOL, gpus=train, roles=("actor",)),
        RunPool(name=ROLLOUT_POOL, gpus=rollout, roles=("actor",)),
    )
    _doubt(settings)
    return Run(
        framework=settings.sheet.trainers[TRAINER].framework,
        trainer=TRAINER,
        engines=Engines(train=settings.word("train_engine"), generate=rollout_engine(settings)),
        algorithm=_algorithm(settings),
        models=models,
        model_keys=keys,
        work=_work(settings),
        groups=(_nodes(settings, train + rollout),),
        pools=pools,
        assumed_pools=tuple(_assumed_pools(settings)),
        generate=_generation(settings, rollout),
        usual_running=settings.optional_whole("running") is None,
        trainers={"actor": _sizes(settings, train)},
        options={"actor": _options(settings)},
        loss=_loss(settings),
        rollout_precision=_rollout_precision(settings),
        weight_sync=_weight_sync(settings),
        adapter=_adapter(settings),
        notes=tuple(_notes(settings)),
        guesses=tuple(_guesses(settings)),
        **_modes(settings),
    )


def of_actor(settings: Settings) -> RoleSettings:
    """Return what is set of the trainer's model."""
    return settings.of(TRAINER, "actor")


def train_gpus(settings: Settings) -> int:
    """Return the GPUs that train."""
    if settings.word("kind") == SEVERAL:
        return settings.whole("train_nodes") * settings.whole("gpus_per_node")
    listed = settings.value("train_ids")
    return len(listed) if isinstance(listed, list) else settings.whole("train_gpus")


def rollout_gpus(settings: Settings) -> int:
    """Return the GPUs that generate: of as many nodes as each copy of the engine takes, where there are several."""
    if settings.word("kind") == SEVERAL:
        own = settings.optional_whole("rollout_nodes")
        nodes = _nodes_of_engines(settings) if own is None else own
        copies = settings.whole("rollout_replicas")
        return nodes * copies * settings.whole("gpus_per_node")
    listed = settings.value("rollout_ids")
    if isinstance(listed, list):
        return len(listed)
    asked = settings.whole("rollout_tp") * settings.whole("rollout_dp")
    return settings.whole("rollout_gpus") if settings.is_given("rollout_gpus") else asked


def has_adapter(settings: Settings) -> bool:
    """Tell whether an adapter is trained: its section is there."""
    return section_is_on(settings, "adapter", usual=False)


def section_is_on(settings: Settings, name: str, *, usual: bool | None = None) -> bool:
    """Tell whether a section that may be left out is there; without a key of it what is usual.

    Args:
        usual: None takes the setting's default.
    """
    keys = settings.sheet.settings[name].keys
    if any(any(settings.has(f"{key}.*")) for key in keys):
        return True
    key = next((key for key in keys if key in settings.flat), None)
    if key is not None:
        settings.used.add(key)
        given = settings.flat[key].value
        return given is not None and given is not False
    return is_on(settings.sheet.settings[name].default) if usual is None else usual


def _check_kind(settings: Settings) -> None:
    """Refuse what trains without RL.

    Raises:
        FileError: It does.
    """
    allowed = "a configuration of `rl`: [orchestrator], [trainer], [inference]"
    made_up = next(settings.has("trainer.data.fake*"), None)
    if made_up is not None and not any(settings.has("orchestrator.*")):
        raise settings.refused_key(made_up, "trains on data that are made up", allowed)
    parts = tuple(settings.sheet.parts)
    if not any(key.startswith(parts) for key in settings.flat):
        _refuse_without_parts(settings, allowed)
    served = settings.flat and all(key.startswith(SERVER) for key in settings.flat)
    if served:
        found = next(settings.has("*"))
        what = "is of the engines alone, of which no part trains"
        raise settings.refused_key(
            found, what, "the trainer's and the orchestrator's files beside it"
        )
    kind = settings.unmapped("algorithm")
    if kind == WRITTEN:
        what = "learns what another model writes on servers of its own, whose time no key says"
        raise settings.refused(
            "algorithm", what, "opd, or another algorithm whose samples are the policy's own"
        )
    if settings.is_given("token_batch"):
        what = "counts a step's tokens, and how many samples these are nothing says"
        raise settings.refused("token_batch", what, "orchestrator.batch_size in its place")


def _refuse_without_parts(settings: Settings, allowed: str) -> None:
    """Refuse a file that names no part of `rl`, by what it is.

    Raises:
        FileError: Always.
    """
    found = next(settings.has("data.*"), None) or next(settings.has("*"), "orchestrator")
    hosted = next((name for name in HOSTED if name in settings.flat), None)
    if hosted is not None and any(settings.has(HOSTED_ENVIRONMENT)):
        raise settings.refused_key(hosted, HOSTED_WORDS, allowed)
    if settings.flat and all(fits_any(key, SHARED) for key in settings.flat):
        files = f"{allowed}; or both: rlplan import prime-rl BASE.toml {settings.file}"
        raise settings.refused_key(found, OVERLAY_WORDS, files)
    what = "is of no part that trains with RL (texts, evaluation or a server alone)"
    raise settings.refused_key(found, what, allowed)


def _nodes_of_engines(settings: Settings) -> int:
    """Return the nodes of a copy of the engine where only its own section says them (configs/inference.py)."""
    kind = settings.word("inference_kind")
    if kind == DISAGGREGATED:
        prefill = settings.whole("prefill_nodes") * settings.whole("prefill_replicas")
        return prefill + settings.whole("decode_nodes") * settings.whole("decode_replicas")
    return settings.whole("inference_nodes") if kind == MULTI else 1


def _nodes(settings: Settings, gpus: int) -> tuple[int, int]:
    per_node = settings.whole("gpus_per_node")
    if settings.word("kind") == SEVERAL:
        return per_node, gpus // per_node
    return gpus, 1


def _sizes(settings: Settings, gpus: int) -> TrainerSizes:
    own = of_actor(settings)
    tp, cp = own.whole("tp"), own.whole("cp")
    key = own.key_of("tp" if tp > 1 else "cp")
    dp = divided(settings, key, gpus, tp * cp)
    group = _group_gpus(settings, gpus)
    pack = pack_tokens(settings)
    return TrainerSizes(
        pool=TRAIN_POOL,
        tp=tp,
        dp=dp,
        cp=cp,
        ep=expert_ranks(settings, group),
        shard_ranks=group // tp if group < gpus else None,
        micro_batch=1,
        token_budget=pack,
        infer_token_budget=pack,
        zero_stage=GRADIENTS if own.value("reshards") is False else None,
        recompute=_recompute(settings),
        offload=own.on("optimizer_offload") and not _steps_on_host(settings),
    )


def packs_itself(settings: Settings) -> bool:
    """Tell whether the orchestrator packs rows by a size of its own, as before 0.2 (orchestrator/batch.py, prepare_batch)."""
    return settings.sheet.version == FIRST


def pack_tokens(settings: Settings) -> int:
    """Return the tokens that samples are packed up to: where no file says them, as many as a sample may have."""
    if packs_itself(settings) and not settings.is_given("pack"):
        return settings.whole("packed_rows") * settings.whole("max_total")
    pack = settings.whole("pack")
    return pack if settings.is_given("pack") else max(pack, settings.whole("max_total"))


def _group_gpus(settings: Settings, gpus: int) -> int:
    """Return the GPUs of a group that shards states among itself.

    Raises:
        FileError: Groups do not divide the GPUs.
    """
    nodes = settings.optional_whole("nodes_of_group")
    if nodes is not None:
        return nodes * settings.whole("gpus_per_node")
    own = of_actor(settings)
    return divided(settings, own.key_of("replicas"), gpus, own.whole("replicas"))


def expert_ranks(settings: Settings, group: int) -> int:
    """Return the ranks that experts are shared out to, of a group that shards; 1 for a dense model."""
    own, model = of_actor(settings), actor_of(settings)
    given = own.value("ep")
    if given == AUTO:
        return min(group, MOST_EXPERT_RANKS) if model is not None and model.num_experts else 1
    ranks = own.whole("ep")
    return ranks if model is None or model.num_experts else 1


def _recompute(settings: Settings) -> Recompute:
    """Return what backward passes compute again; inputs of layers wait in the host's memory unless that is off."""
    if not section_is_on(settings, "checkpoints"):
        return "none"
    if settings.word("recompute_mode") == "selective":
        return "selective"
    return "full-offload" if section_is_on(settings, "recompute_offload") else "full"


def _steps_on_host(settings: Settings) -> bool:
    return section_is_on(settings, "full_offload")


def _say_other_chunks(settings: Settings) -> None:
    """Say where logits are made of other numbers at a time than the trainer's sheet has.

    Raises:
        FileError: They are made of none.
    """
    chunk = settings.value("head_chunk")
    if chunk is None or chunk in {WITHOUT_CHUNKS, AUTO_CHUNKS, *USUAL_CHUNKS}:
        return
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise settings.refused("head_chunk", "is no number of tokens", "1 or more, disabled, auto")
    settings.leave_out("head_chunk", OTHER_CHUNKS)


def _options(settings: Settings) -> TrainerOptions:
    own = of_actor(settings)
    options = TrainerOptions(weights=own.value("model_dtype"))  # type: ignore[arg-type]
    if settings.value("head_chunk") == WITHOUT_CHUNKS:
        # trainer/models/layers/lm_head.py, VanillaOutputLinear; trainer/rl/train.py divides, and makes both of whole logits.
        options = replace(options, logits=WHOLE_LOGITS)
    _say_other_chunks(settings)
    if own.on("cpu_offload"):
        return replace(options, host_states=True)
    if _steps_on_host(settings):
        return replace(options, host_optimizer=1.0)
    return replace(options, offloads=("optimizer",)) if own.on("optimizer_offload") else options


def _work(settings: Settings) -> Work:
    """Return the work of a step, whose batch counts samples; how many turns an episode has its environments know.

    Raises:
        FileError: A batch is not of whole groups.
    """
    batch, samples = settings.whole("batch"), settings.whole("samples")
    if samples < 1 or batch < 1 or batch % samples:
        problem = f"is not of whole groups of {samples} samples"
        raise settings.refused("batch", problem, f"a multiple of {samples}")
    total, limit = settings.whole("max_total"), settings.optional_whole("max_model_len")
    settings.leave_out(
        "max_response", "what a turn may write: all turns of an episode are limited by seq_len"
    )
    return Work(
        prompts=batch // samples,
        samples=samples,
        max_total=total if limit is None else min(total, limit),
        turns=_most_turns(settings),
        turn_response=settings.optional_whole("max_response"),
    )


def _most_turns(settings: Settings) -> int | None:
    """Return the most turns of an episode where every environment is given it (verifiers, MultiTurnEnv); else None."""
    found = (ENVIRONMENT.match(key) for key in settings.has("orchestrator.*"))
    names = {each[0] for each in found if each is not None}
    given = [settings.given(f"{name}.args.max_turns") for name in names]
    most = [each for each in given if isinstance(each, int) and each > 0]
    return max(most) if most and len(most) == len(names) else None


def _doubt(settings: Settings) -> None:
    """Say which settings change the amount of work, or may take time, in ways that no job has."""
    _doubt_samples(settings)
    if settings.word("optimizer") != ADAM:
        settings.leave_out("optimizer", "states and steps of another optimizer than AdamW")
    if settings.whole("recompute_every") != 1 and settings.word("recompute_mode") == "full":
        settings.leave_out("recompute_every", "layers whose inputs are kept whole")
    if settings.word("inference_kind") == DISAGGREGATED:
        settings.leave_out(
            "inference_kind", "engines that only read prompts, beside those that write"
        )
        for name in ("prefill_nodes", "decode_nodes", "prefill_replicas", "decode_replicas"):
            settings.leave_out(name, "engines that only read prompts, beside those that write")
    if not section_is_on(settings, "compiles"):
        settings.leave_out("compiles", "layers that are not compiled")


def _doubt_samples(settings: Settings) -> None:
    """Say which settings change how many samples there are, or who scores them."""
    kinds = {settings.key_of("algorithm"): settings.unmapped("algorithm")}
    for key, kind in (
        kinds | {key: settings.given(key) for key in settings.has(OF_SOURCES)}
    ).items():
        what = TAUGHT.get(OLDER.get(str(kind), str(kind)))
        if what is not None and key in settings.flat:
            settings.doubts[key] = what
    for key in settings.has(BEFORE_BATCHES):
        if is_on(settings.given(key)):
            settings.doubts[key] = "samples that are dropped, which others take the place of"
    if settings.on("filters"):
        settings.doubt(
            "filters", "groups of equal rewards that are dropped, which others take the place of"
        )


def _notes(settings: Settings) -> Iterator[str]:
    if _algorithm(settings) == ALONE:
        yield ALONE_NOTE
    if settings.word("broadcast") == FILE_SYSTEM or has_adapter(settings):
        yield FILES_NOTE


def _assumed_pools(settings: Settings) -> Iterator[str]:
    """Yield the pools whose GPUs no file says, as where trainer and engines are started apart."""
    trains, serves = (
        any(next(settings.has(each), None) for each in keys) for keys in (OF_TRAINERS, OF_ENGINES)
    )
    if not trains:
        yield TRAIN_POOL
    # `rl` starts engines where a file has a section of them alone (rl.py).
    has_section = any(next(settings.has(each), None) for each in ("inference*", "deployment.*"))
    if not serves and not (trains and has_section):
        yield ROLLOUT_POOL


def _guesses(settings: Settings) -> Iterator[str]:
    assumed = tuple(_assumed_pools(settings))
    if assumed == (ROLLOUT_POOL,):
        yield ENGINES_NOTE
    elif assumed:
        yield GPUS_NOTE if ROLLOUT_POOL in assumed else TRAIN_GPUS_NOTE
    if not any(settings.has("orchestrator.*")):
        yield SAMPLES_NOTE.format(batch=settings.whole("batch"), samples=settings.whole("samples"))
    if _algorithm(settings) == GROUPED and _drops_equal(settings):
        sheet = settings.sheet
        yield EQUAL_NOTE.format(title=sheet.title, version=sheet.version)
    most = settings.whole("max_total")
    if (
        not packs_itself(settings)
        and not settings.is_given("pack")
        and settings.whole("pack") < most
    ):
        yield PACK_NOTE.format(most=most)


def _drops_equal(settings: Settings) -> bool:
    """Tell whether samples of groups of equal rewards are left out of training: by a switch, or before 0.8.1 by a filter of a list."""
    kinds = [*settings.has(f"{BEHIND_BATCHES}.*.type")]
    if not kinds and BEHIND_BATCHES not in settings.flat:
        return settings.on("drops_equal")
    enforced = (
        settings.given(f"{key.removesuffix('type')}enforce")
        for key in kinds
        if settings.given(key) == WITHOUT_ADVANTAGE
    )
    return any(each is None or is_on(each) for each in enforced)


def _generation(settings: Settings, gpus: int) -> TaskPlan:
    tp = settings.whole("rollout_tp")
    dp = divided(settings, settings.key_of("rollout_tp"), gpus, tp)
    ep = 1
    if settings.on("spreads_experts"):
        copies = settings.whole("rollout_dp") if settings.is_given("rollout_dp") else dp
        if settings.word("inference_kind") == DISAGGREGATED:  # those that write are apart
            copies = settings.whole("decode_nodes") * settings.whole("gpus_per_node") // tp
        ep = tp * (copies if copies and dp % copies == 0 else dp)
    layout = TaskPlan(
        pool=ROLLOUT_POOL,
        engine=rollout_engine(settings),
        tp=tp,
        dp=dp,
        ep=ep,
        expert_tp=1 if ep > 1 else None,
        memory_fraction=settings.number("memory_fraction"),
    )
    running = settings.optional_whole("running")
    return replace(layout, max_running=MOST_RUNNING if running is None else running)


def _loss(settings: Settings) -> Hyperparameters:
    usual = Hyperparameters()
    return Hyperparameters(
        **given_losses(settings, _algorithm(settings)),
        max_gradient_norm=gradient_norm(of_actor(settings)),
        learning_rate=max(0.0, settings.number("learning_rate")) or usual.learning_rate,
        temperature=settings.number("temperature") or usual.temperature,
        **kl_place("none", 0.0),
    )


def _algorithm(settings: Settings) -> str:
    return GROUPED if settings.whole("samples") > 1 else ALONE


def _rollout_precision(settings: Settings) -> Precision | None:
    """Return the format of the engine's weights: as a key says, or as the checkpoint is published that it serves."""
    cast = engine_weights(settings)
    actor, served = actor_of(settings), settings.value("served_model")
    if cast is not None or actor is None or served is None:
        return cast
    return published_precision(str(served), actor.name)


def _weight_sync(settings: Settings) -> WeightSync:
    if settings.word("broadcast") == NIXL and not has_adapter(settings):
        return WeightSync(between_pools="prime-rl-nixl")
    if settings.word("broadcast") == FILE_SYSTEM:
        settings.leave_out("broadcast", "weights that go over a file system")
    return USUAL_WEIGHT_SYNC


def _adapter(settings: Settings) -> Adapter | None:
    """Return the adapter, which the engine gets as it is (configs/rl.py, auto_setup_lora)."""
    if not has_adapter(settings):
        return None
    rank, alpha = settings.whole("lora_rank"), settings.number("lora_alpha")
    return Adapter(rank=rank, alpha=alpha, sync="adapter")


def staleness_of(settings: Settings) -> int:
    """Return how many updates old the weights of a sample may be.

    Up to 0.5 inference is so many steps ahead of training at most (`max_async_level`); since then samples older than
    `max_off_policy_steps` are dropped.
    """
    level = settings.optional_whole("async_level")
    return settings.whole("off_policy_steps") if level is None else level


def _modes(settings: Settings) -> Mapping[str, Any]:
    """Return the mode: without an end, unless nothing may be older than the weights that train."""
    age = staleness_of(settings)
    if age < 1:
        return {}
    return {"mode": ENDLESS_MODE, "staleness": float(age), "in_flight": "keep"}
