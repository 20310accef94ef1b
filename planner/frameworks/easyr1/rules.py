"""What EasyR1 finds only when its trainer or workers start, or a step runs: hiyouga/EasyR1@b44b311b, below `verl/`."""

from collections.abc import Iterator
from typing import Final

from rlplan.planner.configs.broken import (
    Broken,
    Rule,
    actor_of,
    divides,
    keys_are_known,
    unless,
)
from rlplan.planner.configs.reading.settings import RoleSettings, Settings
from rlplan.planner.frameworks.easyr1.reading import (
    OPTIMIZERS,
    compares,
    gpus_of,
    longest_of,
    of_role,
    roles_of,
)

TRAINER: Final = "trainer/ray_trainer.py"
WORKERS: Final = "workers/fsdp_workers.py"
ROLLOUT: Final = "workers/rollout/vllm_rollout_spmd.py"
LOSSES: Final = "trainer/core_algos.py"
PROTOCOL: Final = "protocol.py"
CONFIG: Final = "trainer/main.py"
GROUPED: Final = ("grpo", "grpo_passk", "rloo")
LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
LOGGERS: Final = ("console", "file", "mlflow", "swanlab", "tensorboard", "wandb")
SCHEDULES: Final = ("constant", "cosine")
KL_TYPES: Final = ("fixed", "adaptive")
PENALTIES: Final = ("kl", "abs", "mse", "low_var_kl")
# Families whose attention it replaces where padding is removed; others are refused there (models/monkey_patch.py).
PATCHED: Final = (
    "llama", "gemma", "gemma2", "mistral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_5_vl",
    "qwen3_vl", "qwen3_vl_moe",
)  # fmt: skip


def _trained(settings: Settings) -> Iterator[RoleSettings]:
    """Yield what is set of each role that learns."""
    yield from (of_role(settings, role) for role in roles_of(settings) if role != "reference")


def _mini_prompts(settings: Settings, own: RoleSettings) -> tuple[str, int]:
    """Return the setting of a role's prompts of an update, and its value."""
    name = "critic_mini_prompts" if own.role == "critic" else "mini_prompts"
    return name, settings.whole(name)


def _ranks(settings: Settings, own: RoleSettings) -> int:
    """Return a role's data-parallel ranks; 0 where its sequence ranks do not divide the GPUs."""
    cp, gpus = own.whole("cp"), gpus_of(settings)
    return gpus // cp if divides(cp, gpus) else 0


def _samples_of_update(settings: Settings, own: RoleSettings) -> int:
    """Return the samples of an update on a rank, rounded down as EasyR1 does."""
    _, prompts = _mini_prompts(settings, own)
    return prompts * settings.whole("samples") // max(1, _ranks(settings, own))


def updates_divide_the_step(settings: Settings) -> Iterator[Broken]:
    """Cut a step's prompts into whole updates."""
    prompts = settings.whole("prompts")
    for own in _trained(settings):
        name, mini = _mini_prompts(settings, own)
        problem = f"does not divide data.rollout_batch_size {prompts}"
        yield from unless(divides(mini, prompts), name, problem, f"divisors of {prompts}")


def passes_divide_the_step(settings: Settings) -> Iterator[Broken]:
    """Cut a step's samples into whole micro-batches of passes without an update."""
    samples = settings.whole("prompts") * settings.whole("samples")
    for own in _trained(settings):
        size = own.whole("infer_micro_batch")
        problem = (
            f"does not divide the {samples:,} samples of a step (rollout_batch_size x rollout.n)"
        )
        holds = divides(size, samples)
        yield from unless(holds, own.key_of("infer_micro_batch"), problem, "a divisor of them")


def groups_have_samples(settings: Settings) -> Iterator[Broken]:
    """Draw several samples of a prompt where they are compared."""
    given = settings.given(settings.key_of("estimator")) or "grpo"
    holds = given not in GROUPED or settings.whole("samples") > 1
    yield from unless(
        holds, "samples", f"compares no samples of a prompt, as {given} does", "2 or more"
    )


def updates_reach_every_rank(settings: Settings) -> Iterator[Broken]:
    """Give every data-parallel rank samples of each update, in whole micro-batches."""
    for own in _trained(settings):
        name, prompts = _mini_prompts(settings, own)
        ranks, samples = _ranks(settings, own), _samples_of_update(settings, own)
        if not ranks:
            continue
        problem = f"x rollout.n = {prompts * settings.whole('samples')} samples leave some of the {own.role}'s {ranks} ranks none"
        yield from unless(samples > 0, name, problem, f"samples for {ranks} ranks")
        size = own.whole("micro_batch")
        problem = f"does not divide the {samples} samples of an update on a rank"
        holds = samples == 0 or divides(size, samples)
        yield from unless(holds, own.key_of("micro_batch"), problem, f"divisors of {samples}")


def updates_divide_over_ranks(settings: Settings) -> Iterator[Broken]:
    """Give every data-parallel rank equally many samples, in whole updates."""
    samples = settings.whole("prompts") * settings.whole("samples")
    for own in _trained(settings):
        ranks, size = _ranks(settings, own), _samples_of_update(settings, own)
        if not ranks or not size or samples % gpus_of(settings):
            continue
        local = samples // ranks
        name, _ = _mini_prompts(settings, own)
        problem = f"is {size} samples on each of {ranks} ranks, which do not divide their {local}"
        yield from unless(
            divides(size, local), name, problem, f"a multiple that {ranks} ranks share"
        )


def batches_divide_over_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Hand every GPU equally many prompts of a batch that is generated, and samples of a step."""
    gpus, generated = gpus_of(settings), settings.optional_whole("gen_prompts")
    name = "prompts" if generated is None else "gen_prompts"
    size = settings.whole("prompts") if generated is None else generated
    problem = f"does not divide over {gpus} GPUs"
    yield from unless(size >= 1 and size % gpus == 0, name, problem, f"multiples of {gpus}")
    samples = settings.whole("prompts") * settings.whole("samples")
    problem = f"x rollout.n = {samples:,} samples do not divide over {gpus} GPUs"
    holds = generated is None or samples % gpus == 0
    yield from unless(holds, "prompts", problem, f"multiples of {gpus} samples")


def passes_divide_over_ranks(settings: Settings) -> Iterator[Broken]:
    """Cut a rank's samples into whole micro-batches where their tokens do not decide it."""
    samples, gpus = settings.whole("prompts") * settings.whole("samples"), gpus_of(settings)
    for own in _trained(settings):
        ranks = _ranks(settings, own)
        if own.on("dynamic") or not ranks or samples % gpus:
            continue
        local = samples // ranks
        problem = f"does not divide the {local} samples of a rank, and dynamic_batching is off"
        holds = divides(own.whole("infer_micro_batch"), local)
        yield from unless(holds, own.key_of("infer_micro_batch"), problem, f"divisors of {local}")


def host_states_want_one_micro_batch(settings: Settings) -> Iterator[Broken]:
    """Keep FSDP's states on the host only where an update is one micro-batch."""
    for own in _trained(settings):
        samples = _samples_of_update(settings, own)
        holds = not own.on("cpu_offload") or own.whole("micro_batch") == samples
        problem = f"is on, and an update of {samples} samples on a rank has several micro-batches"
        yield from unless(
            holds, own.key_of("cpu_offload"), problem, "false, or offload.offload_params"
        )


def replicas_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Share the GPUs out to whole copies of the engine."""
    tp, gpus = settings.whole("rollout_tp"), gpus_of(settings)
    problem = f"does not divide the {gpus} GPUs"
    yield from unless(divides(tp, gpus), "rollout_tp", problem, f"divisors of {gpus}")


def ranks_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Share the GPUs out to whole groups of sequence ranks, and of shards where these are fewer."""
    gpus = gpus_of(settings)
    problem, allowed = f"does not divide the {gpus} GPUs", f"divisors of {gpus}"
    for own in _trained(settings):
        yield from unless(divides(own.whole("cp"), gpus), own.key_of("cp"), problem, allowed)
        shards = own.whole("shard_ranks", -1)
        holds = not 0 < shards < gpus or divides(shards, gpus)
        yield from unless(holds, own.key_of("shard_ranks"), problem, f"{allowed}, or -1")


def sequence_ranks_divide_the_heads(settings: Settings) -> Iterator[Broken]:
    """Give every sequence rank equally many heads."""
    model, own = actor_of(settings), of_role(settings, "actor")
    if model is None:
        return
    kinds = [(model.num_heads, "heads")]
    if (
        not model.vision_parameters
    ):  # of those, transformers before 4.54 handed on repeated KV heads
        kinds.append((model.num_kv_heads, "KV heads"))
    for heads, kind in kinds:
        problem = f"does not divide the {heads} {kind} of {model.name}"
        yield from unless(
            divides(own.whole("cp"), heads), own.key_of("cp"), problem, f"divisors of {heads}"
        )


def sequence_ranks_want_packing(settings: Settings) -> Iterator[Broken]:
    """Cut sequences over ranks only where padding is removed: else every rank passes over all of them."""
    own = of_role(settings, "actor")
    if own.whole("cp") > 1 and not settings.on("packs"):
        problem = "is off, so that no sequence is cut over ranks"
        yield Broken(key="packs", problem=problem, allowed="true", stops=False)


def sequence_ranks_want_text(settings: Settings) -> Iterator[Broken]:
    """Cut only sequences of text over ranks: EasyR1's README names images as a known bug."""
    model, own = actor_of(settings), of_role(settings, "actor")
    if model is not None and model.vision_parameters and own.whole("cp") > 1:
        problem = f"cuts sequences with images of {model.name}, which EasyR1 does not support"
        yield Broken(key=own.key_of("cp"), problem=problem, allowed="1", stops=False)


def packed_models_are_patched(settings: Settings) -> Iterator[Broken]:
    """Remove padding only of families whose attention EasyR1 replaces."""
    model = actor_of(settings)
    if model is not None and settings.on("packs"):
        problem = f"is on, which EasyR1 does not support for {model.name} ({model.family})"
        yield from unless(model.family in PATCHED, "packs", problem, "false")


def engine_steps_hold_the_longest(settings: Settings) -> Iterator[Broken]:
    """Let one step of the engine take the longest prompt with the longest response.

    Copies of earlier versions are found to have a larger default than EasyR1's: where the key is not given, it is said.
    """
    longest, given = longest_of(settings), settings.is_given("engine_tokens")
    if settings.whole("engine_tokens") >= longest:
        return
    problem = f"is below the longest prompt and response, {longest:,} tokens"
    if not given:
        problem = f"is {settings.whole('engine_tokens'):,} where it is not given, which {problem}"
    stops = given or settings.sheet.version == settings.sheet.versions[-1]
    yield Broken(key="engine_tokens", problem=problem, allowed=f"at least {longest:,}", stops=stops)


def sequences_fit_the_engine(settings: Settings) -> Iterator[Broken]:
    """Let the engine take the longest prompt."""
    most, prompt = settings.optional_whole("max_model_len"), settings.whole("max_prompt")
    problem = f"holds no prompt of {prompt:,} tokens (data.max_prompt_length) and a response"
    yield from unless(most is None or most > prompt, "max_model_len", problem, f"above {prompt:,}")


def sequences_fit_the_model(settings: Settings) -> Iterator[Broken]:
    """Keep to the positions that the model knows."""
    model = actor_of(settings)
    if model is None:
        return
    positions = settings.positions() or model.max_positions
    longest = settings.optional_whole("max_model_len") or longest_of(settings)
    problem = f"makes sequences of {longest:,} tokens, and {model.name} has {positions:,} positions"
    yield from unless(
        longest <= positions, "max_response", problem, f"at most {positions:,} together"
    )


def critics_have_a_model(settings: Settings) -> Iterator[Broken]:
    """Name the critic's model."""
    needed = settings.word("estimator") == "ppo"
    holds = not needed or settings.is_given("critic_model")
    yield from unless(holds, "critic_model", "is missing, and gae needs a critic", "a model's path")


def actors_have_a_model(settings: Settings) -> Iterator[Broken]:
    """Name the model that is trained."""
    yield from unless(settings.is_given("model"), "model", "is missing", "a model's path or id")


def optimizers_are_known(settings: Settings) -> Iterator[Broken]:
    """Step by an optimizer, and along a schedule, that there is."""
    for own in _trained(settings):
        key, prefix = own.key_of("optimizer"), settings.sheet.roles[own.role]
        holds = own.value("optimizer") in OPTIMIZERS
        yield from unless(holds, key, "is no optimizer of it", ", ".join(map(str, OPTIMIZERS)))
        key = f"{prefix}.optim.lr_scheduler_type"
        holds = settings.given(key) in {None, *SCHEDULES}
        yield from unless(holds, key, "is no schedule of it", ", ".join(SCHEDULES))


def penalties_are_known(settings: Settings) -> Iterator[Broken]:
    """Weigh what leaves the reference in a way that there is."""
    if not compares(settings):
        return
    key = "algorithm.kl_penalty"
    problem = "is not implemented" if settings.given(key) == "full" else "is not known"
    holds = settings.given(key) in {None, *PENALTIES}
    yield from unless(holds, key, problem, ", ".join(PENALTIES))
    key = "algorithm.kl_type"
    holds = settings.given(key) in {None, *KL_TYPES}
    yield from unless(holds, key, "is not known", ", ".join(KL_TYPES))
    horizon = settings.given("algorithm.kl_horizon")
    holds = settings.given(key) != "adaptive" or not isinstance(horizon, int | float) or horizon > 0
    yield from unless(holds, "algorithm.kl_horizon", "is not above 0", "above 0")


def losses_are_averaged(settings: Settings) -> Iterator[Broken]:
    """Average losses in a way that there is."""
    for role in ("actor", "critic"):
        key = f"worker.{role}.loss_avg_mode"
        holds = role not in roles_of(settings) or settings.given(key) in {None, "token", "seq"}
        yield from unless(holds, key, "is not known", "token, seq")


def loggers_are_known(settings: Settings) -> Iterator[Broken]:
    """Log to what there is."""
    given = settings.given("trainer.logger")
    named = given if isinstance(given, list) else [] if given is None else [given]
    unknown = [each for each in named if each not in LOGGERS]
    problem = f"is no logger of it: {', '.join(map(str, unknown))}"
    yield from unless(not unknown, "trainer.logger", problem, ", ".join(LOGGERS))


def adapters_have_a_rank_of_the_engine(settings: Settings) -> Iterator[Broken]:
    """Train adapters of a rank for which vLLM has room: it is told this rank as the largest."""
    rank = settings.whole("lora_rank")
    holds = rank < 1 or rank in LORA_RANKS
    allowed = ", ".join(map(str, LORA_RANKS))
    yield from unless(holds, "lora_rank", "is no largest rank that vLLM takes", allowed)


def engines_are_vllm(settings: Settings) -> Iterator[Broken]:
    """Generate in the workers that train."""
    holds = settings.on("hybrid")
    yield from unless(holds, "hybrid", "is off, and nothing else is implemented", "true")


def checkpoints_are_of_a_step(settings: Settings) -> Iterator[Broken]:
    """Go on from a folder that is named after its step."""
    key = "trainer.load_checkpoint_path"
    given = settings.given(key)
    last = str(given or "").strip("/").rpartition("/")[2]
    holds = given is None or "global_step_" in last or any(sign in last for sign in "$`")
    yield from unless(holds, key, "ends in no global_step_N", "a folder global_step_N")


RULES: Final = (
    Rule(updates_divide_the_step, TRAINER),
    Rule(passes_divide_the_step, TRAINER),
    Rule(groups_have_samples, TRAINER),
    Rule(updates_reach_every_rank, WORKERS),
    Rule(updates_divide_over_ranks, PROTOCOL),
    Rule(batches_divide_over_the_gpus, PROTOCOL),
    Rule(passes_divide_over_ranks, PROTOCOL),
    Rule(host_states_want_one_micro_batch, WORKERS),
    Rule(replicas_divide_the_gpus, WORKERS),
    Rule(ranks_divide_the_gpus, WORKERS),
    Rule(sequence_ranks_divide_the_heads, "utils/ulysses.py"),
    Rule(sequence_ranks_want_packing, "workers/actor/dp_actor.py"),
    Rule(sequence_ranks_want_text, "README.md, known bugs"),
    Rule(packed_models_are_patched, "models/monkey_patch.py"),
    Rule(engine_steps_hold_the_longest, ROLLOUT),
    Rule(sequences_fit_the_engine, "vLLM, at the first prompt"),
    Rule(sequences_fit_the_model, "vLLM, at the start of the engine"),
    Rule(critics_have_a_model, WORKERS),
    Rule(actors_have_a_model, WORKERS),
    Rule(optimizers_are_known, WORKERS),
    Rule(penalties_are_known, LOSSES),
    Rule(losses_are_averaged, LOSSES),
    Rule(loggers_are_known, "utils/logger/logger.py"),
    Rule(adapters_have_a_rank_of_the_engine, WORKERS),
    Rule(engines_are_vllm, TRAINER),
    Rule(checkpoints_are_of_a_step, TRAINER),
    Rule(keys_are_known, CONFIG),
)
