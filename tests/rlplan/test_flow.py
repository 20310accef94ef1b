"""What modes are: how far generation is ahead, in what pieces samples go on, and whether it ever stops."""

import re

import pytest

from rlplan.plan import (
    BATCH_AHEAD_MODE,
    BY_SAMPLE_MODE,
    ENDLESS_MODE,
    FLOWS,
    USUAL_MODE,
    WHOLE_BATCH_MODES,
    batch_mode,
)
from tests.house.tree import ROOT, room_modules

# A mode's name in quotes.
NAMED = re.compile(rf"""["'`]({"|".join(map(re.escape, FLOWS))})["'`]""")


@pytest.mark.parametrize(
    ("mode", "overlaps", "by_sample", "is_endless", "is_batch_ahead"),
    [
        ("sync", False, False, False, False),
        ("streaming", True, True, False, False),
        ("one-step-off", True, False, False, True),
        ("async", True, True, True, False),
    ],
)
def test_a_mode_is_what_it_says(mode, overlaps, by_sample, is_endless, is_batch_ahead):
    flow = FLOWS[mode]
    assert (flow.overlaps, flow.by_sample) == (overlaps, by_sample)
    assert (flow.is_endless, flow.is_batch_ahead) == (is_endless, is_batch_ahead)


def test_modes_differ_and_whole_batches_are_named_by_how_far_they_are_ahead():
    assert len(set(FLOWS.values())) == len(FLOWS)
    assert WHOLE_BATCH_MODES == ("sync", "one-step-off")
    assert [batch_mode(ahead) for ahead in (0, 1)] == list(WHOLE_BATCH_MODES)
    assert batch_mode(0) == USUAL_MODE
    assert (BATCH_AHEAD_MODE, BY_SAMPLE_MODE, ENDLESS_MODE) == (
        "one-step-off",
        "streaming",
        "async",
    )


def test_weights_are_as_old_as_the_mode_has_it_or_an_update_where_the_plan_would_say():
    assert {mode: flow.usual_staleness for mode, flow in FLOWS.items()} == {
        "sync": 0,
        "streaming": 0,
        "one-step-off": 1,
        "async": 1,
    }


@pytest.mark.parametrize("room", ["simulator", "executor"])
def test_who_reads_a_plan_asks_for_its_flow_and_names_no_mode_in_code_or_words(room):
    named = {
        f"{path}: {found.group()}"
        for path in room_modules()
        if path.parts[0] == room
        for found in NAMED.finditer((ROOT / path).read_text(encoding="utf-8"))
    }
    assert not named
