"""What a host takes to plan attention for rows of lengths that its process has not had."""

import numpy as np
import pytest

from rlplan.profiles.sheets import load_engine
from rlplan.simulator.costs.taskcost import planned_seconds


@pytest.mark.parametrize(
    ("engine", "seconds"),
    [
        ("megatron-core-2025-padded", [64.0, 256.0]),  # a second, forwards and backwards
        ("megatron-core-2025-padded-to-rank", [2.0, 2.0]),
        ("megatron-core-2025-padded-to-limits", [0.0, 0.0]),
        ("megatron-core-2025-flash-padded", [0.0, 0.0]),
        ("megatron-core-2025", [0.0, 0.0]),
    ],
)
def test_each_new_length_is_planned_once_in_each_direction(engine, seconds):
    micro_batches = np.array([32, 128])
    found = planned_seconds(load_engine(engine), micro_batches, directions=2)
    assert found.tolist() == seconds
    assert planned_seconds(load_engine(engine), micro_batches, directions=1).tolist() == [
        each / 2 for each in seconds
    ]
