"""Tables of generation throughput: what their readers take from a row, and how well they forecast."""

import pytest

from rlplan.evals.settings.serving import serve
from rlplan.evals.tables.expert_serving import READER as SERVERS
from rlplan.evals.tables.expert_serving import service_of as expert_service_of
from rlplan.evals.tables.lmdeploy_generation_a100 import READER as TURBOMIND
from rlplan.evals.tables.trtllm_generation import READER as TENSORRT
from rlplan.evals.tables.trtllm_generation import service_of
from rlplan.profiles.catalog import load_engine

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


SCOUT = {
    "model": "llama-4-scout",
    "gpu": "h200",
    "precision": "fp8",
    "tp": "4",
    "isl": "128",
    "osl": "2048",
    "num_requests": "3000",
    "output_tok_s": "34316",
    "engine": "TensorRT-LLM 1.0 trtllm-bench, PyTorch backend, attention DP and EP for MoE",
}
GLM = {
    "engine": "vllm",
    "version": "0.11.0",
    "model": "glm-4.6",
    "gpu": "h200",
    "gpus": "8",
    "precision": "fp8",
    "tp": "8",
    "ep": "1",
    "dataset": "sharegpt",
    "requests": "100",
    "concurrency": "4",
    "input_tokens": "22992",
    "output_tokens": "21794",
    "duration_s": "103.11",
    "memory_fraction": "0.9",
    "max_running": "1024",
    "max_batched_tokens": "8192",
}


def test_ranks_with_attention_of_their_own_share_out_requests_and_experts():
    service = service_of(SCOUT)
    assert (service.tp, service.copies, service.ep) == (1, 4, 4)
    assert [len(lengths) for lengths in service.share] == [750, 750]
    (row,) = TENSORRT.rows([SCOUT])
    assert (row.fitted, row.skipped) == (False, None)


def test_a_server_s_requests_run_so_many_at_a_time():
    service = expert_service_of(GLM)
    assert (service.max_running, service.cache_value_bytes) == (4, 2)
    prompts, responses = service.share
    assert max(prompts) <= 1024
    assert sum(responses) / 100 == pytest.approx(218, rel=0.2)
    alone = expert_service_of(GLM | {"dataset": "2000/100", "concurrency": ""})
    assert (alone.share, alone.max_running) == (((230,) * 100, (218,) * 100), 1024)


@pytest.mark.parametrize(
    ("name", "version", "sheet"),
    [
        ("vllm", "0.11.0", "vllm-0.11-server"),
        ("vllm", "0.13.0", "vllm-0.11-server"),
        ("vllm", "0.17.1", "vllm-0.15"),
        ("sglang", "0.5.14", "sglang-0.5"),
    ],
)
def test_a_server_s_version_says_whether_steps_are_prepared_ahead(name, version, sheet):
    (row,) = SERVERS.rows([GLM | {"engine": name, "version": version}])
    assert row.forecast == serve(expert_service_of(GLM), load_engine(sheet))


@pytest.mark.parametrize(
    ("column", "value"),
    [("model", "glm-99"), ("engine", "engine-99"), ("gpu", "gpu-99"), ("precision", "mxfp4")],
)
def test_a_server_of_what_is_not_known_is_skipped(column, value):
    (row,) = SERVERS.rows([GLM | {column: value}])
    assert value in row.skipped
    (known,) = SERVERS.rows([GLM])
    assert known.measured_seconds == 103.11
