"""Rules of verl on batches, micro-batches, token budgets and lengths."""

from collections.abc import Iterator

from planner.configs.broken import Broken, Subject, divides, unless
from planner.configs.rules.of_verl.world import (
    is_async,
    longest_of,
    sizes_of,
    sizes_of_roles,
)


def mini_batches_divide(subject: Subject) -> Iterator[Broken]:
    """Give every data-parallel rank equally many samples of an update."""
    settings = subject.settings
    if is_async(subject):
        return  # its trainer takes samples from a queue
    mini = settings.whole("mini_prompts") * settings.whole("samples")
    for each in sizes_of_roles(subject):
        if each.role != "reference" and each.dp:
            problem = f"x rollout.n = {mini} samples do not divide over the {each.role}'s {each.dp} data-parallel ranks"
            yield from unless(
                divides(each.dp, mini),
                settings.key_of("mini_prompts"),
                problem,
                f"a multiple of {each.dp}",
            )


def micro_batches_divide(subject: Subject) -> Iterator[Broken]:
    """Cut a rank's samples of an update into whole micro-batches."""
    settings = subject.settings
    mini = settings.whole("mini_prompts") * settings.whole("samples")
    for each in sizes_of_roles(subject):
        size = settings.whole_size(each.trainer, each.role, "micro_batch")
        dynamic = settings.size_is_on(each.trainer, each.role, "dynamic")
        if dynamic or each.role == "reference" or not size or not each.dp or mini % each.dp:
            continue
        samples = mini // each.dp
        problem = f"does not divide the {samples} samples of an update on a rank"
        holds = divides(size, samples) or size >= samples
        key = each.key(settings, "micro_batch")
        yield from unless(holds, key, problem, f"divisors of {samples}")


def micro_batches_are_given(subject: Subject) -> Iterator[Broken]:
    """Say a micro-batch's size where tokens do not decide it."""
    settings = subject.settings
    for each in sizes_of_roles(subject):
        if settings.size_is_on(each.trainer, each.role, "dynamic"):
            continue
        names = ("micro_batch", "global_micro_batch")
        sizes = [settings.size(each.trainer, each.role, name) for name in names]
        problem = "is missing, and use_dynamic_bsz is off"
        yield from unless(any(sizes), each.key(settings, "micro_batch"), problem, "a whole number")
    if not settings.on("infer_dynamic"):
        given = settings.optional_whole("infer_micro_batch") or settings.optional_whole(
            "infer_global_micro_batch"
        )
        problem = "is missing, and log_prob_use_dynamic_bsz is off"
        key = settings.key_of("infer_micro_batch")
        yield from unless(given is not None, key, problem, "a whole number")


def micro_batches_are_given_once(subject: Subject) -> Iterator[Broken]:
    """Say a micro-batch's size for a GPU, or for all of them, not both."""
    settings = subject.settings
    for each in sizes_of_roles(subject):
        names = ("micro_batch", "global_micro_batch")
        both = all(settings.size_is_given(each.trainer, each.role, name) for name in names)
        key = each.key(settings, "global_micro_batch")
        yield from unless(not both, key, "is given beside the size for one GPU", "one of them")


def batches_hold_a_mini_batch(subject: Subject) -> Iterator[Broken]:
    """Update from no more prompts than a batch has."""
    settings = subject.settings
    prompts, mini = settings.whole("prompts"), settings.whole("mini_prompts")
    problem = f"is above data.train_batch_size {prompts}"
    # Fully asynchronous trainers take 0 prompts, and start without the validator.
    holds = mini <= prompts or is_async(subject)
    yield from unless(holds, settings.key_of("mini_prompts"), problem, f"at most {prompts}")


def batches_balance(subject: Subject) -> Iterator[Broken]:
    """Deal equally many samples of a batch to the data-parallel ranks."""
    settings = subject.settings
    prompts = settings.whole("prompts")
    samples = prompts * settings.whole("samples")
    if prompts < 1:
        return
    for each in sizes_of_roles(subject):
        problem = f"x rollout.n = {samples} samples do not divide over the {each.role}'s {each.dp} data-parallel ranks"
        holds = not each.dp or divides(each.dp, samples)
        yield from unless(holds, settings.key_of("prompts"), problem, f"multiples of {each.dp}")


def budgets_hold_the_longest(subject: Subject) -> Iterator[Broken]:
    """Give a micro-batch room for the longest sequence."""
    settings, longest = subject.settings, longest_of(subject.settings)
    for each in sizes_of_roles(subject):
        if not settings.size_is_on(each.trainer, each.role, "dynamic"):
            continue
        budget = settings.whole_size(each.trainer, each.role, "token_budget", 0) or 0
        problem = f"x {each.cp} ranks holds no sequence of {longest:,} tokens (longest prompt and response)"
        needed = -(-longest // each.cp)
        yield from unless(
            budget * each.cp >= longest,
            each.key(settings, "token_budget"),
            problem,
            f"at least {needed:,}",
        )


def log_prob_budgets_hold_the_longest(subject: Subject) -> Iterator[Broken]:
    """Give a micro-batch of log-probabilities room for the longest sequence."""
    settings, longest = subject.settings, longest_of(subject.settings)
    cp = sizes_of(settings, "actor").cp
    holds = not settings.on("infer_dynamic") or settings.whole("infer_token_budget") * cp >= longest
    problem = f"x {cp} ranks holds no sequence of {longest:,} tokens (longest prompt and response)"
    yield from unless(
        holds, settings.key_of("infer_token_budget"), problem, f"at least {-(-longest // cp):,}"
    )


def actor_and_log_probs_batch_alike(subject: Subject) -> Iterator[Broken]:
    """Decide micro-batches of updates and of log-probabilities in the same way."""
    settings = subject.settings
    actor, infers = settings.on("actor_dynamic"), settings.on("infer_dynamic")
    key = settings.key_of("infer_dynamic")
    problem = f"is not as actor.use_dynamic_bsz, which is {actor}"
    yield from unless(actor == infers, key, problem, str(actor))


def sequences_fit_the_engine(subject: Subject) -> Iterator[Broken]:
    """Let the engine take the longest prompt with the longest response."""
    settings, longest = subject.settings, longest_of(subject.settings)
    most = settings.optional_whole("max_model_len")
    problem = f"is less than the longest prompt and response, {longest:,} tokens"
    holds = most is None or most >= longest
    yield from unless(holds, settings.key_of("max_model_len"), problem, f"at least {longest:,}")


def sequences_fit_the_model(subject: Subject) -> Iterator[Broken]:
    """Keep to the positions that the model knows."""
    settings, model = subject.settings, subject.actor
    if model is None:
        return
    positions = settings.positions() or model.max_positions
    most = settings.optional_whole("max_model_len") or 0
    longest = max(longest_of(settings), most)
    key = settings.key_of("max_model_len" if most >= longest else "max_response")
    problem = f"makes sequences of {longest:,} tokens, and {model.name} has {positions:,} positions"
    yield from unless(longest <= positions, key, problem, f"at most {positions:,} together")


def interleaved_stages_take_whole_rounds(subject: Subject) -> Iterator[Broken]:
    """Fill interleaved pipelines with micro-batches by rounds of all stages."""
    settings = subject.settings
    for each in sizes_of_roles(subject):
        chunks = settings.whole_size(each.trainer, each.role, "chunks") or 1
        size = settings.whole_size(each.trainer, each.role, "micro_batch")
        mini = settings.whole("mini_prompts") * settings.whole("samples")
        dynamic = settings.size_is_on(each.trainer, each.role, "dynamic")
        if chunks > 1 and each.pp < 2:  # noqa: PLR2004 -- stages of a pipeline
            yield Broken(
                key=each.key(settings, "chunks"),
                problem="interleaves a pipeline of one stage",
                allowed="null",
            )
        elif chunks > 1 and size and each.dp and not dynamic:
            count = mini // each.dp // size
            problem = f"needs micro-batches in rounds of {each.pp}, and a rank has {count}"
            yield from unless(
                divides(each.pp, count), each.key(settings, "chunks"), problem, "null"
            )
