"""Which device the path of a table without a column of it tells."""

from pathlib import Path

import pytest

from rlplan.planner.measured.reading import _device_in


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("tables/h100_sxm/gemm.csv", "h100-80gb-sxm"),
        ("tables/steps-a100.csv", "a100-80gb-sxm"),
        ("tables/h20_steps.csv", "h20"),
        ("tables/h20_3e_steps.csv", "h20-3e"),
        ("tables/b300/decode.csv", "b300"),
        ("tables/rtx_5090/steps.csv", "rtx-5090"),
        ("tables/ascend/910b3_steps.csv", "ascend-910b3"),
        # A word without a number names no card, though sheets' names start with it.
        ("tables/rtx/steps.csv", ""),
    ],
)
def test_a_path_tells_the_device_that_it_names(path, name):
    assert _device_in(Path("/") / path) == name
