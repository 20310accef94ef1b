"""Decode attention over a paged cache: tiles, splits, blocks that meet, and measured times."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.models import Attention
from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.catalog import load_device

A100 = Roofline(load_device("a100-80gb-sxm"))
H100 = Roofline(load_device("h100-80gb-sxm"))
TABLE_TOKENS = 4096


def microseconds(batch, cached, *, line=A100, kv_heads=4, table=TABLE_TOKENS):
    shape = Attention("attention", batch, 1, cached, q_heads=32, kv_heads=kv_heads, head_dim=128)
    return 1e6 * line.attention(shape, "fp16", paged=True, table_tokens=table).seconds


@pytest.mark.parametrize(
    ("batch", "cached", "measured"),
    [
        # Measured on A100 (microsoft/vidur, MIT), 4 KV heads, a block table for 4,096 tokens.
        (1, 256, 17), (1, 3584, 17), (4, 2048, 27), (8, 512, 24), (12, 1024, 38), (22, 256, 15),
        (24, 512, 23), (40, 2048, 114), (54, 2560, 172), (64, 1024, 122), (64, 3584, 365),
    ],
)  # fmt: skip
def test_a_decode_step_takes_what_was_measured(batch, cached, measured):
    assert microseconds(batch, cached) == pytest.approx(measured, rel=0.15)


def test_keys_are_walked_tile_by_tile():
    # 22 sequences of 4 heads have a multiprocessor each: 3 us for every 128 keys.
    assert microseconds(22, 129) == pytest.approx(microseconds(22, 250), rel=0.01)
    for tiles in (1, 2, 3):
        step = microseconds(22, 128 * tiles) - microseconds(22, 128 * tiles - 1)
        assert step == pytest.approx(3.1, abs=0.4)


def test_split_keys_take_no_longer_when_there_are_more_of_them():
    # One sequence's 4 heads are split among 108 multiprocessors, two tiles each.
    assert microseconds(1, 3584) == pytest.approx(microseconds(1, 512), rel=0.05)
    assert microseconds(22, 3584) > 4 * microseconds(22, 512)


def test_a_table_with_room_to_spare_leaves_each_part_more_keys():
    # Six parts of a table of 32 tiles take six tiles each, whatever is in them.
    assert microseconds(4, 2048, table=4096) > 1.3 * microseconds(4, 2048, table=2048)


def test_blocks_that_share_a_multiprocessor_hold_each_other_up():
    # 27 sequences fill 108 multiprocessors, 28 make some of them take two blocks.
    assert microseconds(28, 384) > 1.15 * microseconds(27, 384)
    # 16 sequences are split in three: block 0 of one head meets block 0 of another (108 = 3 x 36);
    # 10 sequences in five: no two with keys meet (108 = 5 x 21 + 3).
    assert microseconds(16, 384) > 1.1 * microseconds(10, 384)


def test_keys_in_the_cache_are_faster_than_keys_in_memory():
    in_cache = microseconds(54, 128) - microseconds(54, 127)
    in_memory = (microseconds(54, 2047) - microseconds(54, 1023)) / 8
    assert in_memory > 1.3 * in_cache


def test_a_device_with_a_faster_memory_is_faster():
    assert microseconds(64, 2048, line=H100) < 0.75 * microseconds(64, 2048)


def test_kernels_of_the_architecture_before_reach_a_smaller_share_of_the_peak():
    # FlashAttention-2 has 0.35 of an H100's peak and 0.6 of an A100's.
    shares = []
    for line in (A100, H100):
        shape = Attention("attention", 8, 2048, 2048, q_heads=32, kv_heads=8, head_dim=128)
        prompt = line.attention(shape, "fp16", paged=True)
        shares.append(1 / (prompt.seconds * line.peak("fp16")))
    assert shares[1] / shares[0] == pytest.approx(0.58, abs=0.06)
    assert prompt.spread_seconds >= 0.2 * prompt.seconds


@settings(max_examples=100, derandomize=True)
@given(
    st.integers(1, 300),
    st.integers(0, 4000),
    st.integers(0, 4000),
    st.sampled_from((1, 2, 4, 8, 32)),
)
def test_more_keys_under_one_table_are_never_faster(batch, cached, more, kv_heads):
    more_keys_are_never_faster(batch, cached, more, kv_heads)


@pytest.mark.xfail(strict=True, reason="1,152 keys are forecast 1.6 % faster than 1,024")
def test_a_thousand_keys_of_nineteen_sequences_are_no_slower_than_more():
    more_keys_are_never_faster(batch=19, cached=1024, more=128, kv_heads=4)


def more_keys_are_never_faster(batch, cached, more, kv_heads):
    table = cached + more + 1
    small, large = (
        microseconds(batch, each, kv_heads=kv_heads, table=table)
        for each in (cached, cached + more)
    )
    assert large >= small * (1 - 1e-9)
