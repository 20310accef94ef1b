"""Tables of generation throughput: what their readers take from a row, and how well they forecast."""

import pytest

from rlplan.evals.tables.lmdeploy_generation_a100 import READER as TURBOMIND
from rlplan.evals.tables.trtllm_generation import READER as TENSORRT
from rlplan.evals.tables.trtllm_generation import service_of

LLAMA = {
    "model": "LLaMA v3.1 70B",
    "gpu": "H100-SXM-80GB",
    "precision": "fp8",
    "tp": "2",
    "isl": "500",
    "osl": "2000",
    "num_requests": "3000",
    "output_tok_s": "4972.57",
}
INTERN = {
    "gpu": "A100-80GB",
    "dtype": "fp16",
    "model": "internlm-20b",
    "batch": "16",
    "tp": "2",
    "prompt_tokens": "128",
    "completion_tokens": "128",
    "throughput(token/s)": "794.13",
}


def test_throughput_becomes_the_seconds_of_all_requests():
    (row,) = TENSORRT.rows([LLAMA])
    assert row.measured_seconds == pytest.approx(3000 * 2000 / 4972.57)
    (row,) = TURBOMIND.rows([INTERN])
    assert row.measured_seconds == pytest.approx(10 * 16 * 128 / 794.13)


def test_the_engine_is_sized_by_the_rule_of_its_benchmark():
    # 0.95 x (2 x 79.6 GiB - 70.6 GB) over 163,840 bytes a token and 2,500 tokens is 232 requests.
    service = service_of(LLAMA)
    assert (service.max_running, service.max_batched_tokens) == (256, 2048)


@pytest.mark.parametrize(("reader", "record"), [(TENSORRT, LLAMA), (TURBOMIND, INTERN)])
def test_a_published_row_is_forecast_within_ten_percent(reader, record):
    (row,) = reader.rows([record])
    assert row.error_fraction == pytest.approx(0, abs=0.1)
    assert row.inside_interval is not None


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("gpu", "TPU", "no sheet of GPU TPU"),
        ("model", "GPT-9", "no sheet of model GPT-9"),
        ("precision", "nf4", "precision nf4 is not modelled"),
    ],
)
def test_what_is_not_known_is_skipped_with_the_reason(column, value, reason):
    (row,) = TENSORRT.rows([LLAMA | {column: value}])
    assert row.skipped == reason
    assert row.forecast is None


def test_unknown_precision_of_turbomind_is_skipped():
    (row,) = TURBOMIND.rows([INTERN | {"dtype": "w4"}])
    assert row.skipped == "precision w4 is not modelled"
