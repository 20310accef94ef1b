"""Scans beside what kernels of the delta rule were measured to take, and laws of theirs."""

from dataclasses import replace

import pytest

from rlplan.models import Scan
from rlplan.profiles.facts import DeviceFacts
from rlplan.profiles.sheets import load_device
from rlplan.simulator.costs.scans import CHAIN_SECONDS, scan_seconds

H200 = DeviceFacts(load_device("h200"))
HEADS = Scan("scan", 1, 32768, 16, 128, 128, delta=True)
# Milliseconds of flash-linear-attention 0.5.1 on an H200, heads of 128, forward and backward (QwenLM/FlashQLA@6e5d2ea1,
# benchmark/benchmark_results_H200.txt): heads, sequences, tokens of each. The constants are of single sequences of 32,768 forward and of 32 heads backward.
FORWARD = {
    (16, 1, 8192): 0.316,
    (16, 1, 2048): 0.098,
    (32, 8, 1024): 0.501,
    (48, 1, 8192): 0.665,
    (8, 4, 8192): 0.467,
}
BACKWARD = {
    (16, 1, 32768): 3.701,
    (16, 8, 4096): 2.973,
    (16, 1, 8192): 0.957,
    (8, 8, 4096): 1.727,
    (32, 8, 1024): 1.5,
}


@pytest.mark.parametrize(
    ("shape", "milliseconds", "backward"),
    [(shape, told, False) for shape, told in FORWARD.items()] + [(shape, told, True) for shape, told in BACKWARD.items()],
)  # fmt: skip
def test_the_delta_rule_takes_what_was_measured(shape, milliseconds, backward):
    heads, sequences, tokens = shape
    scan = replace(HEADS, heads=heads, sequences=sequences, query_tokens=tokens)
    forecast = scan_seconds(H200, scan, "bf16", backward)
    assert forecast.seconds == pytest.approx(milliseconds / 1e3, rel=0.2)


def test_chunks_of_the_delta_rule_wait_for_each_other_and_others_do_not():
    one, more = HEADS, replace(HEADS, sequences=8, query_tokens=4096)
    waits = [scan_seconds(H200, each, "bf16", backward=False).seconds for each in (one, more)]
    assert waits[0] - waits[1] == pytest.approx((512 - 64) * CHAIN_SECONDS, rel=0.05)
    plain = [
        scan_seconds(H200, replace(each, delta=False), "bf16", backward=False).seconds
        for each in (one, more)
    ]
    assert plain[0] == pytest.approx(plain[1])
