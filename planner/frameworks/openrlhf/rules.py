"""What OpenRLHF asks for once its flags are parsed: openrlhf/cli/train_ppo_ray.py of 0.11.2."""

from collections.abc import Iterator
from typing import Final

from rlplan.planner.configs.broken import Broken, Rule, actor_of, divides, unless
from rlplan.planner.configs.reading.settings import Settings

GROUPED: Final = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
SOURCE: Final = "openrlhf/cli/train_ppo_ray.py"


def _gpus(settings: Settings, role: str) -> int:
    return settings.whole(f"{role}_nodes") * settings.whole(f"{role}_gpus_per_node")


def _engines(settings: Settings) -> int:
    return (settings.optional_whole("engines") or 0) * settings.whole("rollout_tp")


def _copies(settings: Settings) -> int:
    """Return the data-parallel ranks of the actor."""
    own = settings.of("deepspeed", "actor")
    return _gpus(settings, "actor") // own.whole("cp") // own.whole("tp")


def _equal(settings: Settings, first: str, second: str, why: str) -> Iterator[Broken]:
    for name in ("nodes", "gpus_per_node"):
        left, right = settings.whole(f"{first}_{name}"), settings.whole(f"{second}_{name}")
        problem = f"is not the {first}'s {left}, and {why}"
        yield from unless(left == right, f"{second}_{name}", problem, str(left))


def actor_and_reference_are_equal(settings: Settings) -> Iterator[Broken]:
    """Colocate actor and reference on equally many GPUs."""
    if settings.on("colocate_actor_ref") and settings.number("kl_weight") > 0:
        yield from _equal(settings, "actor", "reference", "--train.colocate_actor_ref is on")


def critic_and_reward_are_equal(settings: Settings) -> Iterator[Broken]:
    """Colocate critic and reward model on equally many GPUs."""
    if settings.on("colocate_critic_reward") and settings.is_given("reward_model"):
        yield from _equal(settings, "critic", "reward", "--train.colocate_critic_reward is on")


def engines_fill_the_shared_gpus(settings: Settings) -> Iterator[Broken]:
    """Give colocated engines all of the actor's GPUs."""
    if settings.on("colocate_all") and not settings.on("async"):
        gpus, engines = _gpus(settings, "actor"), _engines(settings)
        problem = f"x TP = {engines} GPUs, and colocated engines take the actor's {gpus}"
        allowed = f"{gpus // settings.whole('rollout_tp')}"
        yield from unless(gpus == engines, "engines", problem, allowed)


def groups_have_samples(settings: Settings) -> Iterator[Broken]:
    """Draw several samples of a prompt where they are compared."""
    given = settings.given(settings.key_of("estimator"))
    holds = given not in GROUPED or settings.whole("samples") > 1
    yield from unless(holds, "samples", "compares no samples of a prompt", "2 or more")


def filters_have_samples_and_rewards(settings: Settings) -> Iterator[Broken]:
    """Filter groups only where there are several samples, and rewards by a function."""
    if settings.on("filters"):
        several = settings.whole("samples") > 1
        yield from unless(several, "samples", "leaves nothing to filter", "2 or more")
        named = settings.is_given("reward_address") or settings.is_given("agent")
        problem, allowed = "is missing beside dynamic filtering", "an address or a function's file"
        yield from unless(named, "reward_address", problem, allowed)


def async_engines_stay_awake(settings: Settings) -> Iterator[Broken]:
    """Let engines sleep only where training waits for them."""
    sleeps = settings.on("rollout_sleeps") and settings.on("colocate_all")
    holds = not (settings.on("async") and sleeps)
    yield from unless(holds, "rollout_sleeps", "is on in asynchronous training", "off")


def partial_rollout_is_async(settings: Settings) -> Iterator[Broken]:
    """Interrupt responses only in asynchronous training."""
    holds = not settings.on("partial_rollout") or settings.on("async")
    yield from unless(holds, "partial_rollout", "needs --train.async_enable", "off")


def more_prompts_are_begun_async(settings: Settings) -> Iterator[Broken]:
    """Begin more prompts than are learnt from only in asynchronous training."""
    begun, prompts = settings.optional_whole("begun_prompts") or 0, settings.whole("prompts")
    holds = begun <= prompts or settings.on("async")
    problem = f"is above --rollout.batch_size {prompts}"
    yield from unless(holds, "begun_prompts", problem, f"at most {prompts}")


def every_actor_has_a_micro_batch(settings: Settings) -> Iterator[Broken]:
    """Make at least one micro-batch of experience on every copy of the actor."""
    own = settings.of("deepspeed", "actor")
    batches = (
        settings.whole("prompts") * settings.whole("samples") // own.whole("infer_micro_batch")
    )
    ranks, key = _copies(settings), own.key_of("infer_micro_batch")
    problem = f"leaves {batches} micro-batches to {ranks} copies of the actor"
    yield from unless(batches >= ranks, key, problem, "smaller micro-batches")


def model_ranks_divide_the_gpus(settings: Settings) -> Iterator[Broken]:
    """Share the actor's GPUs out to whole rings and tensor-parallel groups."""
    own, gpus = settings.of("deepspeed", "actor"), _gpus(settings, "actor")
    size, key = own.whole("cp") * own.whole("tp"), own.key_of("cp" if own.whole("cp") > 1 else "tp")
    problem = f"ring x TP = {size} does not divide the actor's {gpus} GPUs"
    yield from unless(divides(size, gpus), key, problem, f"divisors of {gpus}")


def updates_have_enough_samples(settings: Settings) -> Iterator[Broken]:
    """Give every copy of the actor samples of an update."""
    ranks = max(1, _copies(settings))
    holds = divides(ranks, settings.whole("update_sequences"))
    problem = f"does not divide over {ranks} copies of the actor"
    yield from unless(holds, "update_sequences", problem, f"multiples of {ranks}")


def packing_has_engines(settings: Settings) -> Iterator[Broken]:
    """Pack samples only where vLLM generates."""
    holds = not settings.on("packs") or _engines(settings) > 0
    yield from unless(holds, "engines", "is 0, and samples are packed", "at least 1")


def sequences_fit_the_model(settings: Settings) -> Iterator[Broken]:
    """Keep to the positions that the model knows."""
    model = actor_of(settings)
    if model is not None:
        positions = model.max_positions
        problem = f"is above the {positions:,} positions of {model.name}"
        holds = settings.whole("max_total") <= positions
        yield from unless(holds, "max_total", problem, f"at most {positions:,}")


RULES: Final = tuple(
    Rule(check, SOURCE)
    for check in (
        actor_and_reference_are_equal,
        critic_and_reward_are_equal,
        engines_fill_the_shared_gpus,
        groups_have_samples,
        filters_have_samples_and_rewards,
        async_engines_stay_awake,
        partial_rollout_is_async,
        more_prompts_are_begun_async,
        every_actor_has_a_micro_batch,
        model_ranks_divide_the_gpus,
        updates_have_enough_samples,
        packing_has_engines,
        sequences_fit_the_model,
    )
)
