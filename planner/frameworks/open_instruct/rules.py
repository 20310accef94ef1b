"""What open-instruct finds only when a run starts: allenai/open-instruct@e6c3044aa, below `open_instruct/`."""

from collections.abc import Iterator
from typing import Final

from rlplan.planner.configs.broken import Broken, Rule, divides, ranks_divide_the_heads, unless
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.frameworks.open_instruct.reading import (
    DEEPSPEED,
    OLMO,
    drops_equal_groups,
    learners_of,
    trainer_of,
)
from rlplan.rules.layouts import FULLY_SHARDED

EXPERIMENT: Final = "grpo_utils.py"
LOADER: Final = "data_loader.py"
FAST: Final = "grpo_fast.py"


def packs_hold_a_sequence(settings: Settings) -> Iterator[Broken]:
    """Pack to at least the longest prompt and response."""
    longest = settings.whole("max_prompt") + settings.whole("max_response")
    problem = f"is below the {longest:,} tokens of the longest prompt and response"
    yield from unless(settings.whole("pack") >= longest, "pack", problem, f"at least {longest:,}")


def groups_differ_where_equal_ones_are_dropped(settings: Settings) -> Iterator[Broken]:
    """Sample a prompt twice at least where groups of equal rewards are dropped."""
    holds = settings.whole("samples") > 1 or not drops_equal_groups(settings)
    problem = "is one a group, and every group of equal rewards is dropped"
    yield from unless(holds, "samples", problem, "2 and more, or --no_filter_zero_std_samples")


def batches_are_prepared_ahead(settings: Settings) -> Iterator[Broken]:
    """Prepare a batch ahead at least, and two where groups are sampled again, which wants them dropped."""
    ahead, again = settings.whole("ahead"), settings.on("filters")
    yield from unless(ahead >= 1, "ahead", "is no step: it is never synchronous", "1 and more")
    yield from unless(ahead > 1 or not again, "ahead", "leaves none to sample again", "2 and more")
    holds = drops_equal_groups(settings) or not again
    yield from unless(
        holds, "filters", "samples again what is not dropped", "filter_zero_std_samples"
    )


def some_reward_is_applied(settings: Settings) -> Iterator[Broken]:
    """Reward something."""
    holds = any(settings.on(each) for each in ("verifies", "formats", "stops_well", "rubrics"))
    yield from unless(holds, "verifies", "is off, and no other reward is on", "true")


def penalties_have_a_reference(settings: Settings) -> Iterator[Broken]:
    """Load a reference where leaving it is punished."""
    holds = settings.on("has_reference") or settings.number("kl_weight") == 0
    yield from unless(
        holds, "kl_weight", "is above 0 without a reference", "0, or --load_ref_policy"
    )


def samplers_are_corrected_once(settings: Settings) -> Iterator[Broken]:
    """Correct for vLLM's probabilities, or take them."""
    capped = settings.is_given(
        "ratio_cap"
    )  # by an earlier version, which knows no other correction
    corrects = settings.number("ratio_cap") > 0 if capped else settings.on("corrects")
    beside = settings.key_of("ratio_cap" if capped else "corrects")
    holds = not (settings.on("sampled") and corrects)
    yield from unless(holds, "sampled", f"is on beside {beside}", "one of the two")


def sequences_are_cut_under_full_sharding(settings: Settings) -> Iterator[Broken]:
    """Cut sequences over learners only under ZeRO stage 3."""
    if trainer_of(settings) != DEEPSPEED:
        return
    own = settings.of(DEEPSPEED, "actor")
    holds = own.whole("cp") == 1 or own.optional_whole("zero") == FULLY_SHARDED
    yield from unless(holds, own.key_of("cp"), "wants deepspeed_stage 3", "1")


def learners_are_whole_groups(settings: Settings) -> Iterator[Broken]:
    """Share the learners out to whole groups that cut a sequence, which have equally many heads each."""
    own, learners = settings.of(trainer_of(settings), "actor"), learners_of(settings)
    ranks = own.whole("cp")
    problem = f"does not divide {learners} learners"
    yield from unless(divides(ranks, learners), own.key_of("cp"), problem, "a divisor")
    yield from ranks_divide_the_heads(own, "cp")


def shards_and_copies_fill_the_learners(settings: Settings) -> Iterator[Broken]:
    """Shard over learners, in copies, so that they are all used."""
    if trainer_of(settings) != OLMO:
        return
    learners = learners_of(settings)
    ranks, copies = settings.optional_whole("shard_degree"), settings.optional_whole("replicas")
    if ranks is not None and copies is not None:
        problem = f"x fsdp_num_replicas {copies} is not the {learners} learners"
        yield from unless(
            ranks * copies == learners, "shard_degree", problem, f"{learners} together"
        )
        return
    for name, size in (("shard_degree", ranks), ("replicas", copies)):
        holds = size is None or divides(size, learners)
        yield from unless(holds, name, f"does not divide {learners} learners", "a divisor")


def denominators_are_above_zero(settings: Settings) -> Iterator[Broken]:
    """Divide the loss by tokens, or a number above 0."""
    value = settings.value("norm")
    holds = value == "token" or (isinstance(value, int | float) and value > 0)
    yield from unless(holds, "norm", "is no number above 0", "token, or a number")


RULES: Final = (
    Rule(packs_hold_a_sequence, LOADER),
    Rule(groups_differ_where_equal_ones_are_dropped, LOADER),
    Rule(batches_are_prepared_ahead, LOADER),
    Rule(some_reward_is_applied, LOADER),
    Rule(penalties_have_a_reference, EXPERIMENT),
    Rule(samplers_are_corrected_once, EXPERIMENT),
    Rule(sequences_are_cut_under_full_sharding, EXPERIMENT),
    Rule(learners_are_whole_groups, FAST),
    Rule(shards_and_copies_fill_the_learners, EXPERIMENT),
    Rule(denominators_are_above_zero, EXPERIMENT),
)
