"""What OpenRLHF asks for once its flags are parsed: openrlhf/cli/train_ppo_ray.py of 0.11.2."""

from collections.abc import Iterator
from typing import Final

from planner.configs.broken import Broken, Check, Rule, Subject, divides, unless
from planner.configs.reading.settings import Settings

GROUPED: Final = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
SOURCE: Final = "openrlhf/cli/train_ppo_ray.py"


def _gpus(settings: Settings, role: str) -> int:
    return settings.whole(f"{role}_nodes") * settings.whole(f"{role}_gpus_per_node")


def _engines(settings: Settings) -> int:
    return (settings.optional_whole("engines") or 0) * settings.whole("rollout_tp")


def _equal(subject: Subject, first: str, second: str, why: str) -> Iterator[Broken]:
    settings = subject.settings
    for name in ("nodes", "gpus_per_node"):
        left, right = settings.whole(f"{first}_{name}"), settings.whole(f"{second}_{name}")
        key = settings.key_of(f"{second}_{name}")
        yield from unless(left == right, key, f"is not the {first}'s {left}, and {why}", str(left))


def actor_and_reference_are_equal(subject: Subject) -> Iterator[Broken]:
    """Colocate actor and reference on equally many GPUs."""
    settings = subject.settings
    if settings.on("colocate_actor_ref") and settings.number("kl_weight") > 0:
        yield from _equal(subject, "actor", "reference", "--train.colocate_actor_ref is on")


def critic_and_reward_are_equal(subject: Subject) -> Iterator[Broken]:
    """Colocate critic and reward model on equally many GPUs."""
    settings = subject.settings
    if settings.on("colocate_critic_reward") and settings.is_given("reward_model"):
        yield from _equal(subject, "critic", "reward", "--train.colocate_critic_reward is on")


def engines_fill_the_shared_gpus(subject: Subject) -> Iterator[Broken]:
    """Give colocated engines all of the actor's GPUs."""
    settings = subject.settings
    if settings.on("colocate_all") and not settings.on("async"):
        gpus, engines = _gpus(settings, "actor"), _engines(settings)
        problem = f"x TP = {engines} GPUs, and colocated engines take the actor's {gpus}"
        allowed = f"{gpus // settings.whole('rollout_tp')}"
        yield from unless(gpus == engines, settings.key_of("engines"), problem, allowed)


def groups_have_samples(subject: Subject) -> Iterator[Broken]:
    """Draw several samples of a prompt where they are compared."""
    settings = subject.settings
    given = settings.flat.get(settings.key_of("estimator"))
    holds = given is None or given.value not in GROUPED or settings.whole("samples") > 1
    yield from unless(
        holds, settings.key_of("samples"), "compares no samples of a prompt", "2 or more"
    )


def filters_have_samples_and_rewards(subject: Subject) -> Iterator[Broken]:
    """Filter groups only where there are several samples, and rewards by a function."""
    settings = subject.settings
    if settings.on("filters"):
        several = settings.whole("samples") > 1
        yield from unless(
            several, settings.key_of("samples"), "leaves nothing to filter", "2 or more"
        )
        named = settings.is_given("reward_address") or settings.is_given("agent")
        key = settings.key_of("reward_address")
        yield from unless(
            named, key, "is missing beside dynamic filtering", "an address or a function's file"
        )


def async_engines_stay_awake(subject: Subject) -> Iterator[Broken]:
    """Let engines sleep only where training waits for them."""
    settings = subject.settings
    sleeps = settings.on("rollout_sleeps") and settings.on("colocate_all")
    holds = not (settings.on("async") and sleeps)
    yield from unless(
        holds, settings.key_of("rollout_sleeps"), "is on in asynchronous training", "off"
    )


def partial_rollout_is_async(subject: Subject) -> Iterator[Broken]:
    """Interrupt responses only in asynchronous training."""
    settings = subject.settings
    holds = not settings.on("partial_rollout") or settings.on("async")
    yield from unless(
        holds, settings.key_of("partial_rollout"), "needs --train.async_enable", "off"
    )


def more_prompts_are_begun_async(subject: Subject) -> Iterator[Broken]:
    """Begin more prompts than are learnt from only in asynchronous training."""
    settings = subject.settings
    begun, prompts = settings.optional_whole("begun_prompts") or 0, settings.whole("prompts")
    holds = begun <= prompts or settings.on("async")
    key = settings.key_of("begun_prompts")
    yield from unless(holds, key, f"is above --rollout.batch_size {prompts}", f"at most {prompts}")


def every_actor_has_a_micro_batch(subject: Subject) -> Iterator[Broken]:
    """Make at least one micro-batch of experience on every copy of the actor."""
    settings = subject.settings
    size = settings.whole_size("deepspeed", "actor", "infer_micro_batch", 1) or 1
    batches = settings.whole("prompts") * settings.whole("samples") // size
    cp, tp = (settings.whole_size("deepspeed", "actor", name, 1) or 1 for name in ("cp", "tp"))
    ranks = _gpus(settings, "actor") // cp // tp
    key = settings.key_of_size("deepspeed", "actor", "infer_micro_batch")
    problem = f"leaves {batches} micro-batches to {ranks} copies of the actor"
    yield from unless(batches >= ranks, key, problem, "smaller micro-batches")


def model_ranks_divide_the_gpus(subject: Subject) -> Iterator[Broken]:
    """Share the actor's GPUs out to whole rings and tensor-parallel groups."""
    settings = subject.settings
    cp, tp = (settings.whole_size("deepspeed", "actor", name, 1) or 1 for name in ("cp", "tp"))
    gpus = _gpus(settings, "actor")
    key = settings.key_of_size("deepspeed", "actor", "cp" if cp > 1 else "tp")
    problem = f"ring x TP = {cp * tp} does not divide the actor's {gpus} GPUs"
    yield from unless(divides(cp * tp, gpus), key, problem, f"divisors of {gpus}")


def updates_have_enough_samples(subject: Subject) -> Iterator[Broken]:
    """Give every copy of the actor samples of an update."""
    settings = subject.settings
    cp, tp = (settings.whole_size("deepspeed", "actor", name, 1) or 1 for name in ("cp", "tp"))
    ranks = max(1, _gpus(settings, "actor") // cp // tp)
    update = settings.whole("update_sequences")
    key = settings.key_of("update_sequences")
    yield from unless(
        divides(ranks, update),
        key,
        f"does not divide over {ranks} copies of the actor",
        f"multiples of {ranks}",
    )


def packing_has_engines(subject: Subject) -> Iterator[Broken]:
    """Pack samples only where vLLM generates."""
    settings = subject.settings
    holds = not settings.on("packs") or _engines(settings) > 0
    yield from unless(
        holds, settings.key_of("engines"), "is 0, and samples are packed", "at least 1"
    )


def sequences_fit_the_model(subject: Subject) -> Iterator[Broken]:
    """Keep to the positions that the model knows."""
    settings, model = subject.settings, subject.actor
    if model is not None:
        most = settings.whole("max_total")
        problem = f"is above the {model.max_positions:,} positions of {model.name}"
        holds = most <= model.max_positions
        yield from unless(
            holds, settings.key_of("max_total"), problem, f"at most {model.max_positions:,}"
        )


def _rule(check: Check) -> Rule:
    return Rule(name=check.__name__.replace("_", "-"), source=SOURCE, check=check)


RULES: Final = tuple(
    map(
        _rule,
        (
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
        ),
    )
)
