"""Rules of verl on batches, micro-batches, token budgets and lengths."""

from collections.abc import Iterator

from rlplan.planner.configs.broken import Broken, actor_of, divides, unless
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.frameworks.verl.rules.world import (
    is_async,
    longest_of,
    sizes_of,
    sizes_of_roles,
)


def mini_batches_divide(settings: Settings) -> Iterator[Broken]:
    """Give every data-parallel rank equally many samples of an update."""
    if is_async(settings):
        return  # its trainer takes samples from a queue
    mini = settings.whole("mini_prompts") * settings.whole("copies")
    for each in sizes_of_roles(settings):
        if each.role != "reference" and each.dp:
            problem = f"x rollout.n = {mini} samples do not divide over the {each.role}'s {each.dp} data-parallel ranks"
            holds = divides(each.dp, mini)
            yield from unless(holds, "mini_prompts", problem, f"a multiple of {each.dp}")


def micro_batches_divide(settings: Settings) -> Iterator[Broken]:
    """Cut a rank's samples of an update into whole micro-batches."""
    mini = settings.whole("mini_prompts") * settings.whole("copies")
    for each in sizes_of_roles(settings):
        size = each.optional_whole("micro_batch")
        if (
            each.on("dynamic")
            or each.role == "reference"
            or not size
            or not each.dp
            or mini % each.dp
        ):
            continue
        samples = mini // each.dp
        problem = f"does not divide the {samples} samples of an update on a rank"
        holds = divides(size, samples) or size >= samples
        yield from unless(holds, each.key_of("micro_batch"), problem, f"divisors of {samples}")


def micro_batches_are_given(settings: Settings) -> Iterator[Broken]:
    """Say a micro-batch's size where tokens do not decide it."""
    for each in sizes_of_roles(settings):
        if each.on("dynamic"):
            continue
        sizes = [each.value(name) for name in ("micro_batch", "global_micro_batch")]
        problem = "is missing, and use_dynamic_bsz is off"
        yield from unless(any(sizes), each.key_of("micro_batch"), problem, "a whole number")
    if not settings.on("infer_dynamic"):
        given = settings.optional_whole("infer_micro_batch")
        given = given or settings.optional_whole("infer_global_micro_batch")
        problem = "is missing, and log_prob_use_dynamic_bsz is off"
        yield from unless(given is not None, "infer_micro_batch", problem, "a whole number")


def micro_batches_are_given_once(settings: Settings) -> Iterator[Broken]:
    """Say a micro-batch's size for a GPU, or for all of them, not both."""
    for each in sizes_of_roles(settings):
        both = each.is_given("micro_batch") and each.is_given("global_micro_batch")
        key = each.key_of("global_micro_batch")
        yield from unless(not both, key, "is given beside the size for one GPU", "one of them")


def batches_hold_a_mini_batch(settings: Settings) -> Iterator[Broken]:
    """Update from no more prompts than a batch has."""
    prompts = settings.whole("prompts") * settings.whole("agents")
    mini = settings.whole("mini_prompts")
    problem = f"is above data.train_batch_size {prompts}"
    # Fully asynchronous trainers take 0 prompts, and start without the validator.
    holds = mini <= prompts or is_async(settings)
    yield from unless(holds, "mini_prompts", problem, f"at most {prompts}")


def batches_balance(settings: Settings) -> Iterator[Broken]:
    """Deal equally many samples of a batch to the data-parallel ranks."""
    prompts = settings.whole("prompts")
    samples = prompts * settings.whole("agents") * settings.whole("copies")
    if prompts < 1:
        return
    for each in sizes_of_roles(settings):
        problem = f"x rollout.n = {samples} samples do not divide over the {each.role}'s {each.dp} data-parallel ranks"
        holds = not each.dp or divides(each.dp, samples)
        yield from unless(holds, "prompts", problem, f"multiples of {each.dp}")


def budgets_hold_the_longest(settings: Settings) -> Iterator[Broken]:
    """Give a micro-batch room for the longest sequence."""
    longest = longest_of(settings)
    for each in sizes_of_roles(settings):
        if not each.on("dynamic"):
            continue
        holds = each.whole("token_budget", 0) * each.cp >= longest
        problem = f"x {each.cp} ranks holds no sequence of {longest:,} tokens (longest prompt and response)"
        allowed = f"at least {-(-longest // each.cp):,}"
        yield from unless(holds, each.key_of("token_budget"), problem, allowed)


def log_prob_budgets_hold_the_longest(settings: Settings) -> Iterator[Broken]:
    """Give a micro-batch of log-probabilities room for the longest sequence."""
    longest, cp = longest_of(settings), sizes_of(settings, "actor").cp
    holds = not settings.on("infer_dynamic") or settings.whole("infer_token_budget") * cp >= longest
    problem = f"x {cp} ranks holds no sequence of {longest:,} tokens (longest prompt and response)"
    yield from unless(holds, "infer_token_budget", problem, f"at least {-(-longest // cp):,}")


def actor_and_log_probs_batch_alike(settings: Settings) -> Iterator[Broken]:
    """Decide micro-batches of updates and of log-probabilities in the same way."""
    actor, infers = settings.on("actor_dynamic"), settings.on("infer_dynamic")
    problem = f"is not as actor.use_dynamic_bsz, which is {actor}"
    yield from unless(actor == infers, "infer_dynamic", problem, str(actor))


def sequences_fit_the_engine(settings: Settings) -> Iterator[Broken]:
    """Let the engine take the longest prompt with the longest response."""
    longest = longest_of(settings)
    most = settings.optional_whole("max_model_len")
    problem = f"is less than the longest prompt and response, {longest:,} tokens"
    holds = most is None or most >= longest
    yield from unless(holds, "max_model_len", problem, f"at least {longest:,}")


def sequences_fit_the_model(settings: Settings) -> Iterator[Broken]:
    """Keep to the positions that the model knows."""
    model = actor_of(settings)
    if model is None:
        return
    positions = settings.positions() or model.max_positions
    most = settings.optional_whole("max_model_len") or 0
    longest = max(longest_of(settings), most)
    key = "max_model_len" if most >= longest else "max_response"
    problem = f"makes sequences of {longest:,} tokens, and {model.name} has {positions:,} positions"
    yield from unless(longest <= positions, key, problem, f"at most {positions:,} together")


def interleaved_stages_take_whole_rounds(settings: Settings) -> Iterator[Broken]:
    """Fill interleaved pipelines with micro-batches by rounds of all stages."""
    for each in sizes_of_roles(settings):
        chunks, size = each.whole("chunks"), each.optional_whole("micro_batch")
        mini = settings.whole("mini_prompts") * settings.whole("copies")
        if chunks > 1 and each.pp < 2:  # noqa: PLR2004 -- stages of a pipeline
            problem = "interleaves a pipeline of one stage"
            yield from unless(False, each.key_of("chunks"), problem, "null")
        elif chunks > 1 and size and each.dp and not each.on("dynamic"):
            count = mini // each.dp // size
            problem = f"needs micro-batches in rounds of {each.pp}, and a rank has {count}"
            yield from unless(divides(each.pp, count), each.key_of("chunks"), problem, "null")
