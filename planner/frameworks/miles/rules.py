"""What miles finds only when it starts, beside what Megatron's flags and a rollout's have to keep to."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rlplan.planner.configs.broken import Broken, Rule, unless
from rlplan.planner.configs.megatron import rules
from rlplan.planner.configs.megatron.reading import is_async
from rlplan.planner.configs.reading.settings import Settings

SOURCE: Final = "miles/utils/arguments.py: miles_validate_args"
BY_FILES: Final = ("update-weight-disk-dir", "update-weight-local-checkpoint-dir")


def other_transports_are_between_pools(settings: Settings) -> Iterator[Broken]:
    """Send weights by RDMA or files only between pools, and no adapters so."""
    way = settings.given(settings.key_of("sync_transport"))
    if way not in {"p2p", "disk-delta"}:
        return
    apart = not settings.on("colocate")
    yield from unless(
        apart, "sync_transport", "is for pools apart, and colocate is on", "broadcast"
    )
    whole = settings.whole("lora_rank") < 1
    yield from unless(whole, "sync_transport", "sends no adapters", "broadcast")
    for key in BY_FILES if way == "disk-delta" else ():
        problem = "is missing beside update-weight-transfer-mode disk-delta"
        yield from unless(settings.given(key) is not None, key, problem, "a folder")


def endless_rollouts_are_async(settings: Settings) -> Iterator[Broken]:
    """Let generation never stop only in train_async.py, with a whole group under way."""
    holds = not settings.on("fully_async") or is_async(settings)
    yield from unless(holds, "fully_async", "is on in train.py", "train_async.py")
    most, samples = settings.optional_whole("async_samples"), settings.whole("samples")
    holds = most is None or most >= samples
    problem = f"is below the {samples} samples of a prompt"
    yield from unless(holds, "async_samples", problem, f"at least {samples}")


def adapters_say_where_they_are(settings: Settings) -> Iterator[Broken]:
    """Say which layers have adapters."""
    key = "target-modules"
    holds = settings.whole("lora_rank") < 1 or settings.given(key) is not None
    yield from unless(holds, key, "is missing beside lora-rank", "all-linear")


def padded_samples_are_counted(settings: Settings) -> Iterator[Broken]:
    """Count the samples of a micro-batch where they are padded."""
    own = settings.of("megatron", "actor")
    holds = settings.given("qkv-format") != "bshd" or not own.on("dynamic")
    problem = "is on beside qkv-format bshd"
    yield from unless(holds, own.key_of("dynamic"), problem, "off, with --micro-batch-size")


def critics_train_with_megatron(settings: Settings) -> Iterator[Broken]:
    """Train a critic with Megatron, with no penalty in rewards, and ahead only of what generated."""
    if settings.word("estimator") != "ppo":
        return
    holds = rules.is_megatron(settings)
    yield from unless(holds, "backend", "trains no critic", "megatron")
    holds = settings.number("kl_reward_weight") == 0
    yield from unless(holds, "kl_reward_weight", "is not 0 beside a critic", "0, or --use-kl-loss")
    corrected = (
        settings.on("rollout_log_probs")
        or bool(settings.given("use-tis"))
        or settings.on("keeps_old_actor")
    )
    problem = "is off, and so are use-tis and keep-old-actor, in asynchronous PPO"
    holds = corrected or not is_async(settings)
    yield from unless(holds, "rollout_log_probs", problem, "--use-rollout-logprobs")


def fsdp_has_no_other_ranks(settings: Settings) -> Iterator[Broken]:
    """Share a model out by data alone where FSDP trains."""
    own = settings.of("fsdp", "actor")
    holds = rules.is_megatron(settings) or own.whole("cp") == 1
    yield from unless(holds, own.key_of("cp"), "is above 1 where FSDP trains", "1")


RULES: Final = (
    *(replace(rule, source=rule.source.replace("slime/", "miles/")) for rule in rules.RULES),
    Rule(other_transports_are_between_pools, SOURCE),
    Rule(endless_rollouts_are_async, "miles/train.py"),
    Rule(adapters_say_where_they_are, SOURCE),
    Rule(padded_samples_are_counted, SOURCE),
    Rule(critics_train_with_megatron, SOURCE),
    Rule(fsdp_has_no_other_ranks, "miles/backends/fsdp_utils/arguments.py"),
)
