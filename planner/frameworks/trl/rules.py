"""What TRL asks for once its processes have started: trainer/grpo_config.py and grpo_trainer.py, by tag from 0.14 to 1.16."""

from collections.abc import Iterator
from typing import Final

from rlplan.planner.configs.broken import Broken, Rule, actor_of, divides, unless
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.frameworks.trl.batches import (
    OF_PROMPTS,
    USUAL_PROCESSES,
    device_batch,
    generated_of,
    mode_of,
    processes_of,
)
from rlplan.planner.frameworks.trl.distilling import distils
from rlplan.planner.frameworks.trl.reading import (
    adapter_of,
    compares,
    fuses_loss,
    is_rloo,
    longest_response,
)

CONFIG: Final = "trl/trainer/grpo_config.py"
TRAINER: Final = "trl/trainer/grpo_trainer.py"
GENERATION: Final = "trl/generation/vllm_generation.py"
TRUNCATING: Final = ("token_truncate", "sequence_truncate")
# Versions in which a sleeping engine wakes with the weights of the checkpoint's files, after those of training came.
FORGETTING: Final = ("0.28", "1.9")
# Up to it Liger's loss had no clip from two sides.
ONE_SIDED: Final = "1.3"


def _place(settings: Settings, version: str) -> int:
    """Return how much newer a configuration's version is than another; below 0 where it is older."""
    order = settings.sheet.versions.index
    return order(settings.sheet.version) - order(version)


def one_size_of_generation_is_given(settings: Settings) -> Iterator[Broken]:
    """Give either a batch of generation or its steps."""
    both = settings.is_given("generation_batch") and settings.is_given("generation_steps")
    problem = "is given beside steps_per_generation, which says the same"
    yield from unless(not both, "generation_batch", problem, "one of both")


def generation_batches_are_whole(settings: Settings) -> Iterator[Broken]:
    """Generate whole micro-batches of every process."""
    batch = settings.optional_whole("generation_batch")
    if batch is not None and not settings.is_given("generation_steps"):
        count = processes_of(settings).count
        at_a_time = device_batch(settings, count) * count
        problem = (
            f"does not divide by the {at_a_time} completions of a micro-batch of all processes"
        )
        allowed = f"a multiple of {at_a_time}"
        yield from unless(divides(at_a_time, batch), "generation_batch", problem, allowed)


def groups_fill_what_is_generated(settings: Settings) -> Iterator[Broken]:
    """Generate whole groups of completions of a prompt."""
    if settings.sheet.version in OF_PROMPTS:
        return
    processes, samples = processes_of(settings), settings.whole("samples")
    generated = generated_of(settings, processes.count)
    sizes = "per_device_train_batch_size x processes x steps of a generation"
    problem = f"does not divide the {generated:,} completions that are generated together ({sizes})"
    fitting = [each for each in range(2, min(generated, 128) + 1) if divides(each, generated)]
    allowed = ", ".join(map(str, fitting[:12])) or "a larger batch"
    yield from unless(divides(samples, generated), "samples", problem, allowed)


def groups_have_samples(settings: Settings) -> Iterator[Broken]:
    """Compare several completions of a prompt, where nothing else is learnt from."""
    holds = settings.whole("samples") > 1 or distils(settings)
    yield from unless(holds, "samples", "leaves nothing to compare", "2 or more")


def evaluation_has_whole_groups(settings: Settings) -> Iterator[Broken]:
    """Evaluate whole groups at a time."""
    if str(settings.value("evaluates")) in {"no", "False", "None"}:
        return
    name = "evaluation_samples" if settings.optional_whole("evaluation_samples") else "samples"
    at_a_time = settings.whole("evaluation_batch") * processes_of(settings).count
    samples = settings.whole(name)
    problem = f"x processes = {at_a_time} completions, which {samples} of a prompt do not divide"
    holds = divides(samples, at_a_time)
    yield from unless(holds, "evaluation_batch", problem, f"a multiple of {samples} in all")


def engines_divide_the_processes(settings: Settings) -> Iterator[Broken]:
    """Give colocated engines equally many processes each."""
    if mode_of(settings) != "colocate":
        return
    count, tp = processes_of(settings).count, settings.whole("rollout_tp")
    problem = f"does not divide the {count} processes"
    yield from unless(divides(tp, count), "rollout_tp", problem, f"divisors of {count}")


def an_engine_has_the_next_gpu(settings: Settings) -> Iterator[Broken]:
    """Leave vLLM a GPU of the first machine behind those of the processes, as versions up to 0.15 take it."""
    processes = processes_of(settings)
    each = processes.count // processes.nodes
    if mode_of(settings) == "device" and processes.said and each >= USUAL_PROCESSES:
        problem = f"start {each} processes on a machine, and vLLM takes GPU {each} of it"
        yield Broken(
            key="processes",
            problem=problem,
            allowed=f"{each - 1} on a machine of {each} GPUs",
            stops=False,
        )


def processes_have_gpus(settings: Settings) -> Iterator[Broken]:
    """Start no more processes on a machine than it shows GPUs."""
    processes, shown = processes_of(settings), settings.value("gpu_ids")
    text = str(shown).rpartition(":")[2] if shown is not None else ""
    if not text or not all(each.strip().isdecimal() for each in text.strip("[]").split(",")):
        return
    gpus, each = text.count(",") + 1, processes.count // processes.nodes
    problem = f"are {gpus} GPUs, and {each} processes are started on them"
    yield from unless(each <= gpus, "gpu_ids", problem, f"{each} GPUs, or {gpus} processes")


def a_reference_follows_only_where_there_is_one(settings: Settings) -> Iterator[Broken]:
    """Sync a reference only where there is one beside the actor."""
    if not settings.on("syncs_reference"):
        return
    problem, allowed = "is on, and beta=0 needs no reference", "off, or another beta"
    yield from unless(compares(settings), "syncs_reference", problem, allowed)
    problem, allowed = "is on, and an adapter's reference is the model itself", "off"
    whole = adapter_of(settings) is None
    yield from unless(whole or not compares(settings), "syncs_reference", problem, allowed)


def completions_are_logged_before_they_are_sent(settings: Settings) -> Iterator[Broken]:
    """Send completions to a repository only where they are logged."""
    holds = not settings.is_given("completions_repository") or settings.on("log_completions")
    problem = "is given, and log_completions is off"
    yield from unless(holds, "completions_repository", problem, "log_completions on")


def batches_are_not_sought(settings: Settings) -> Iterator[Broken]:
    """Keep the batch, of which groups have to be parts."""
    holds = not settings.on("finds_batch_size")
    problem = "is on, and would cut groups of completions"
    yield from unless(holds, "finds_batch_size", problem, "off, and a smaller batch")


def sequences_are_not_cut(settings: Settings) -> Iterator[Broken]:
    """Leave sequences whole: GRPO's inputs are made behind what would cut them."""
    holds = settings.whole("context_ranks") == 1
    problem = "cuts sequences over ranks, which these trainers do not"
    yield from unless(holds, "context_ranks", problem, "1")


def ligers_loss_has_what_is_asked(settings: Settings) -> Iterator[Broken]:
    """Ask Liger's loss for nothing that it has not."""
    if not fuses_loss(settings) or is_rloo(settings):
        return
    share, allowed = settings.number("entropy_share"), "1.0, or Liger's loss off"
    problem = "is below 1, and Liger's loss masks no tokens by entropy"
    yield from unless(share >= 1, "entropy_share", problem, allowed)
    problem, allowed = "is given, and Liger's loss masks no sequences", "none, or Liger's loss off"
    yield from unless(
        not settings.is_given("masks_off_policy"), "masks_off_policy", problem, allowed
    )
    problem, allowed = "is not 0, and Liger's loss has no entropy", "0, or Liger's loss off"
    yield from unless(not settings.number("entropy_bonus"), "entropy_bonus", problem, allowed)
    older = _place(settings, ONE_SIDED) <= 0
    problem, allowed = "is given, and Liger's loss clips from one side", "none, or a newer TRL"
    holds = not (older and settings.is_given("two_sided_clip"))
    yield from unless(holds, "two_sided_clip", problem, allowed)


def every_reward_has_a_weight(settings: Settings) -> Iterator[Broken]:
    """Weigh each reward function, where any is weighed."""
    weights = settings.value("reward_scales")
    functions = settings.given(settings.key_of("reward_functions"))
    if not isinstance(weights, list) or not isinstance(functions, list):
        return
    rewards = len(functions) + (1 if settings.is_given("reward_model") else 0)
    problem = f"are {len(weights)} weights for {rewards} reward functions"
    yield from unless(len(weights) == rewards, "reward_scales", problem, f"{rewards} weights")


def corrections_have_a_range(settings: Settings) -> Iterator[Broken]:
    """Correct vLLM's probabilities within bounds that are in order."""
    if not (settings.on("use_vllm") and settings.on("corrects_sampling")):
        return
    low, high = settings.value("clip_low"), settings.value("clip_high")
    if isinstance(low, int | float) and isinstance(high, int | float):
        problem = f"is not below the upper bound {high}"
        yield from unless(low < high, "clip_low", problem, f"below {high}")
    truncates = settings.value("correction") in TRUNCATING
    problem, allowed = "truncates, and no bound is given", "a bound, or a mode that masks"
    yield from unless(
        not truncates or low is not None or high is not None, "correction", problem, allowed
    )


def vespo_corrects_token_by_token(settings: Settings) -> Iterator[Broken]:
    """Correct vLLM's probabilities token by token in VESPO's loss."""
    vespo = settings.given(settings.key_of("estimator")) == "vespo"
    corrects = settings.on("use_vllm") and settings.on("corrects_sampling")
    holds = not (vespo and corrects) or str(settings.value("correction")).startswith("token_")
    problem = "corrects by sequence, and loss_type=vespo by token"
    yield from unless(holds, "correction", problem, "token_truncate or token_mask")


def engines_take_no_8_bits(settings: Settings) -> Iterator[Broken]:
    """Load no 8-bit weights where vLLM shares the process."""
    holds = not (settings.on("eight_bits") and mode_of(settings) == "colocate")
    problem = "is on, and vLLM quantises none on the way"
    yield from unless(holds, "eight_bits", problem, "off, or 4 bits")


def one_format_is_mixed(settings: Settings) -> Iterator[Broken]:
    """Mix either bf16 or fp16 with fp32: transformers, TrainingArguments."""
    given = settings.given(settings.key_of("bf16"))
    holds = not (given is True and settings.on("fp16"))
    yield from unless(holds, "fp16", "is on beside bf16", "one of both")


def sleeping_engines_get_the_weights(settings: Settings) -> Iterator[Broken]:
    """Wake engines with the weights of training: TRL issue 5312."""
    first, last = FORGETTING
    forgets = _place(settings, first) >= 0 >= _place(settings, last)
    sleeps = settings.on("sleeps") and mode_of(settings) == "colocate"
    problem = (
        f"is on, and in TRL {first} to {last} a waking engine reads the checkpoint's files behind the weights of "
        "training: it may generate with those that it began with (issue 5312)"
    )
    if sleeps and forgets:
        yield Broken(key="sleeps", problem=problem, allowed="off, or TRL 1.10", stops=False)


def sequences_fit_the_engine(settings: Settings) -> Iterator[Broken]:
    """Let the engine take the longest prompt with the longest response."""
    name = "server_model_len" if mode_of(settings) == "server" else "max_total"
    total = settings.optional_whole(name) if settings.on("use_vllm") else None
    if total is None:
        return
    prompt, response = settings.optional_whole("max_prompt") or 0, longest_response(settings) or 0
    problem = f"is below the {prompt + response:,} tokens of the longest prompt and response"
    if prompt + response > total:
        allowed = f"at least {prompt + response:,}"
        yield Broken(key=name, problem=problem, allowed=allowed, stops=response >= total)


def sequences_fit_the_model(settings: Settings) -> Iterator[Broken]:
    """Keep to the positions that the model knows."""
    model = actor_of(settings)
    if model is None:
        return
    prompt, response = settings.optional_whole("max_prompt"), longest_response(settings)
    if distils(settings):
        prompt, response = settings.optional_whole("longest_text"), settings.whole("student_tokens")
    longest = (prompt or 0) + (response or 0)
    problem = f"makes sequences of {longest:,} tokens, above the {model.max_positions:,} positions of {model.name}"
    holds = longest <= model.max_positions
    name = "longest_text" if distils(settings) else "max_response"
    yield from unless(holds, name, problem, f"at most {model.max_positions:,} with the prompt")


RULES: Final = (
    Rule(one_size_of_generation_is_given, CONFIG, "0.18"),
    Rule(generation_batches_are_whole, CONFIG, "0.18"),
    Rule(groups_fill_what_is_generated, CONFIG, "0.15"),
    Rule(groups_have_samples, CONFIG, "0.17"),
    Rule(evaluation_has_whole_groups, CONFIG, "0.15"),
    Rule(engines_divide_the_processes, GENERATION, "0.18"),
    Rule(an_engine_has_the_next_gpu, TRAINER),
    Rule(processes_have_gpus, "torch.cuda.set_device"),
    Rule(a_reference_follows_only_where_there_is_one, TRAINER, "0.28"),
    Rule(completions_are_logged_before_they_are_sent, CONFIG, "0.28"),
    Rule(batches_are_not_sought, CONFIG, "1.9"),
    Rule(sequences_are_not_cut, CONFIG, "1.4"),
    Rule(ligers_loss_has_what_is_asked, TRAINER, "0.18"),
    Rule(every_reward_has_a_weight, TRAINER, "0.15"),
    Rule(corrections_have_a_range, CONFIG, "1.6"),
    Rule(vespo_corrects_token_by_token, TRAINER, "1.0"),
    Rule(engines_take_no_8_bits, GENERATION, "0.26"),
    Rule(one_format_is_mixed, "transformers/training_args.py"),
    Rule(sleeping_engines_get_the_weights, GENERATION, "0.28"),
    Rule(sequences_fit_the_engine, "vllm/config"),
    Rule(sequences_fit_the_model, "vllm/config"),
)
