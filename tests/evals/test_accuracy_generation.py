"""Tables of generation throughput: what their readers take from a row, and how well they forecast."""

import csv
from dataclasses import replace
from statistics import median

import pytest

from rlplan.evals.reading import HELD
from rlplan.evals.settings.serving import gathered_bytes, limits, serve
from rlplan.evals.tables.expert_serving import READER as SERVERS
from rlplan.evals.tables.expert_serving import REQUEST_SECONDS
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
    assert max(responses) <= 2048 - 230  # what a usual prompt leaves of a conversation
    assert sum(responses) / 100 == pytest.approx(218, rel=0.2)
    alone = expert_service_of(GLM | {"dataset": "2000/100", "concurrency": ""})
    assert (alone.share, alone.max_running) == (((230,) * 100, (218,) * 100), 1024)


@pytest.mark.parametrize(
    ("name", "version", "sheet"),
    [
        ("vllm", "0.11.0", "vllm-0.11-server"),
        ("vllm", "0.13.0", "vllm-0.11-server"),
        ("vllm", "0.17.1", "vllm-0.15-server"),
        ("sglang", "0.5.5", "sglang-0.5"),
        ("sglang", "0.5.9", "sglang-0.5.6"),
        ("sglang", "0.5.14", "sglang-0.5.10"),
    ],
)
def test_a_server_s_version_says_whether_steps_are_prepared_ahead(name, version, sheet):
    record = GLM | {"engine": name, "version": version}
    (row,) = SERVERS.rows([record])
    assert row.forecast == serve(expert_service_of(record), load_engine(sheet))


@pytest.mark.parametrize(
    ("column", "value"),
    [("model", "glm-99"), ("engine", "engine-99"), ("gpu", "gpu-99"), ("precision", "int3")],
)
def test_a_server_of_what_is_not_known_is_skipped(column, value):
    (row,) = SERVERS.rows([GLM | {column: value}])
    assert value in row.skipped
    (known,) = SERVERS.rows([GLM])
    assert known.measured_seconds == 103.11


def test_a_server_reads_all_requests_that_it_is_sent_at_once_before_it_computes():
    whole = GLM | {"dataset": "2000/100", "concurrency": ""}
    (row,), (later,) = (
        SERVERS.rows([whole | {"version": version}]) for version in ("0.11.0", "0.12.0")
    )
    # 100 requests, each 11.2 and 1.7 ms; sheets are the same.
    assert row.forecast.seconds - later.forecast.seconds == pytest.approx(100 * 0.0095)
    assert expert_service_of(GLM).starting_seconds == pytest.approx(4 * 0.0112)
    assert row.forecast.spread_seconds > later.forecast.spread_seconds


def test_the_seconds_of_a_request_are_the_median_of_short_runs():
    found: dict[str, list[float]] = {}
    for record in csv.DictReader((HELD / "servers.csv").open()):
        if record["dataset"] != "128/4":
            continue
        mean, last = float(record["mean_ttft_s"]), float(record["p99_ttft_s"]) / 0.99
        each = (2 * mean - last) / int(record["requests"])
        found.setdefault(f"{record['engine']} {record['version'][:4]}".rstrip("."), []).append(each)
    assert median(found["vllm 0.11"]) == pytest.approx(REQUEST_SECONDS["vllm 0.11"], rel=0.01)
    sglang = found["sglang 0.5"]
    assert median(sglang) == pytest.approx(REQUEST_SECONDS["sglang"], rel=0.01)


def test_even_lengths_go_up_to_twice_their_mean():
    service = expert_service_of(GLM | {"dataset": "uniform"})
    prompts, responses = service.share
    assert (max(prompts), max(responses)) <= (2 * 230, 2 * 218)
    assert min(responses) < 218 / 4
    assert sum(responses) / 100 == pytest.approx(218, rel=0.2)


def test_what_one_request_at_a_time_took_is_fitted_on_and_conversations_are_not():
    even = GLM | {"dataset": "uniform"}
    rows = [*SERVERS.rows([even | {"concurrency": "1"}, GLM, GLM | {"dataset": "128/4"}])]
    assert [row.fitted for row in rows] == [True, False, True]


def test_windows_and_states_take_cache_from_a_server_s_requests():
    engine = load_engine("tensorrt-llm-1")
    long = service_of(SCOUT | {"isl": "20000", "osl": "2000"})
    windows = limits(replace(long, whole_windows=False), engine)
    whole = limits(long, engine)
    # Three layers in four keep 8,192 of 22,000 tokens: 36 of 48 layers' worth beside those that keep all.
    assert windows.state_blocks * windows.block_tokens == pytest.approx(3 * 8192, rel=0.01)
    assert whole.state_blocks == 0
    held = windows.kv_blocks // (22_000 // 32 + windows.state_blocks)
    assert held / (whole.kv_blocks // (22_000 // 32)) == pytest.approx(
        4 / (1 + 3 * 8192 / 22_000), rel=0.05
    )


def test_ranks_that_gather_tokens_keep_room_for_all_of_them():
    engine = load_engine("tensorrt-llm-1")
    both = service_of(SCOUT | {"isl": "2048", "osl": "128"})
    alone = replace(both, copies=1, ep=1, tp=4)
    assert gathered_bytes(alone, 4096) == 0
    # 4 x 4,096 tokens, one expert each: two of 5,120 and three of 8,192 values of two bytes.
    assert gathered_bytes(both, 4096) == 4 * 4096 * (2 * 5120 + 3 * 8192) * 2
    assert limits(both, engine).kv_blocks > 0
