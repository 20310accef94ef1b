"""All-reduces between nodes: published ones, and laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.catalog import load_device

DEVICES = ("a100-80gb-sxm", "h100-80gb-sxm", "gb200")


# In-place times of nccl-tests' all_reduce_perf on nodes of 8 H100 with 8 x 400 Gbit/s (nccl-tests issue 309).
@pytest.mark.parametrize(
    ("nodes", "num_bytes", "seconds"),
    [
        (2, 8388608, 131.4e-6),
        (4, 1048576, 82.2e-6),
        (4, 8388608, 202.4e-6),
        (4, 67108864, 574.4e-6),
        (8, 4194304, 203.8e-6),
        (8, 33554432, 508.2e-6),
    ],
)
def test_an_all_reduce_between_nodes_waits_for_the_first_chunks(nodes, num_bytes, seconds):
    roofline = Roofline(load_device("h100-80gb-sxm"))
    found = roofline.collective(
        "all_reduce", num_bytes, 8 * nodes, ranks_per_node=8, inter_node_bytes_per_second=50e9
    )
    assert found.seconds == pytest.approx(seconds, rel=0.2)


@given(
    st.sampled_from(DEVICES),
    st.integers(2, 64),
    st.floats(1, 1e10),
    st.floats(1, 8),
)
def test_more_bytes_or_more_nodes_take_an_all_reduce_longer(device, nodes, num_bytes, times):
    roofline = Roofline(load_device(device))

    def reduced(nodes: int, num_bytes: float) -> float:
        ranks = 8 * nodes
        return roofline.collective(
            "all_reduce", num_bytes, ranks, ranks_per_node=8, inter_node_bytes_per_second=25e9
        ).seconds

    least = reduced(nodes, num_bytes)
    assert least <= reduced(nodes, num_bytes * times)
    assert least <= reduced(2 * nodes, num_bytes)
    # Twice the bytes in one take no longer than in two.
    assert reduced(nodes, 2 * num_bytes) <= 2 * least
