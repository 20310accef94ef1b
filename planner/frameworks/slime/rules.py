"""What slime finds only when it starts, beside what Megatron's flags and a rollout's have to keep to."""

from collections.abc import Iterator
from typing import Final

from rlplan.planner.configs.broken import Broken, Rule, unless
from rlplan.planner.configs.megatron import rules
from rlplan.planner.configs.reading.settings import Settings

# Keys of May to June 2026 (0.2.4 and later): changed bytes went by NCCL too, and asked for no folder of a node.
OF_SPRING: Final = ("update-weight-delta-dir", "update-weight-encoding")


def files_carry_what_they_can(settings: Settings) -> Iterator[Broken]:
    """Send weights by files only where all is told that it takes; changed bytes alone only so, and between pools."""
    transport, mode = settings.value("sync_transport"), settings.value("sync_mode")
    earlier = any(settings.given(key) is not None for key in OF_SPRING)
    key = OF_SPRING[0] if earlier else "update-weight-disk-dir"
    told = settings.given(key) is not None
    if transport == "disk":
        problem = "is missing beside update-weight-transport disk"
        yield from unless(told, key, problem, "a folder that all nodes see")
    if mode != "delta":
        return
    problem = "is not disk beside update-weight-mode delta"
    by_files = transport == "disk" or earlier
    yield from unless(by_files, "sync_transport", problem, "disk")
    apart = not settings.on("colocate")
    yield from unless(apart, "sync_mode", "is delta beside colocate", "full")
    key = "update-weight-local-checkpoint-dir"
    problem = "is missing beside update-weight-mode delta"
    local = settings.given(key) is not None or earlier
    yield from unless(local, key, problem, "a folder of each node")


def released_trainers_are_saved(settings: Settings) -> Iterator[Broken]:
    """End trainers while others generate only where what they hold is on a disk."""
    if not settings.on("releases_train"):
        return
    alone = settings.word("estimator") != "ppo" and not settings.on("keeps_old_actor")
    yield from unless(alone, "releases_train", "is on beside a critic or an older actor", "off")
    saved = settings.given("save") is not None
    yield from unless(saved, "save", "is missing beside release-train", "a folder")
    by_disk = settings.value("sync_transport") == "disk" and settings.value("sync_mode") == "full"
    problem = "is not disk, with update-weight-mode full, beside release-train"
    yield from unless(by_disk, "sync_transport", problem, "disk")


RULES: Final = (
    *rules.RULES,
    Rule(files_carry_what_they_can, rules.ARGUMENTS),
    Rule(released_trainers_are_saved, rules.ARGUMENTS),
)
