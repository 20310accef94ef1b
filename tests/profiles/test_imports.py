"""Others' tables become profiles that say where every point comes from."""

import csv
from typing import Any

import pandas as pd
import pytest

from rlplan.errors import FileError, UnknownNameError
from rlplan.estimate import Source as Origin
from rlplan.profiles.catalog import load_device
from rlplan.profiles.facts import DeviceFacts
from rlplan.profiles.imports import FORMATS, Source, import_profile
from rlplan.profiles.tables.table import read_profile

A100 = "a100-80gb-sxm"


def write_table(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        table = csv.DictWriter(stream, fieldnames=list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


def timed(name, median, mean=None, std=0.0):
    return {
        f"time_stats.{name}.median": median,
        f"time_stats.{name}.mean": mean or median,
        f"time_stats.{name}.std": std,
    }


def layer_row():
    shape = {
        "n_head": 32, "n_kv_head": 8, "n_embd": 4096, "n_expanded_embd": 14336,
        "vocab_size": 32000, "use_gated_mlp": True, "num_tokens": 64,
        "num_tensor_parallel_workers": 2,
    }  # fmt: skip
    times = {
        "attn_pre_proj": 0.04, "attn_post_proj": 0.03, "mlp_up_proj": 0.2, "mlp_down_proj": 0.1,
        "input_layernorm": 0.004, "post_attention_layernorm": 0.006, "emb": 0.005,
    }  # fmt: skip
    for name, median in times.items():
        shape |= timed(name, median)
    return shape


def reduce_row(per_node):
    keys = {
        "num_workers": 4,
        "devices_per_node": per_node,
        "size": 2048,
        "collective": "all_reduce",
    }
    return {**keys, **timed("all_reduce", 0.02, 0.025, 0.01)}


def test_a_format_is_a_file_of_the_folder():
    assert FORMATS.names() == ("aiconfigurator", "csv", "vidur")
    with pytest.raises(UnknownNameError, match="did you mean 'vidur'"):
        import_profile("vidr", Source(path=None, device=A100))


def test_vidur_shapes_are_those_of_one_gpu(tmp_path):
    write_table(tmp_path / "mlp.csv", layer_row())
    profile, found = import_profile("vidur", Source(path=tmp_path, device=A100))
    gemm = {key[1:]: point.seconds_median for key, point in profile.points("gemm").items()}
    assert gemm == {
        (64, 2048, 4096): pytest.approx(3e-5),
        (64, 4096, 3072): pytest.approx(4e-5),  # 16 query heads and twice 4 KV heads of 128
        (64, 4096, 14336): pytest.approx(2e-4),
        (64, 7168, 4096): pytest.approx(1e-4),
    }
    # Both norms are of one shape: their median counts.
    (norm,) = profile.points("norm").values()
    assert (norm.seconds_median, norm.repeats) == (pytest.approx(5e-6), 2)
    assert found.left_out.total() == 3


def test_vidur_collectives_across_nodes_are_left_out(tmp_path):
    path = write_table(tmp_path / "all_reduce.csv", reduce_row(4), reduce_row(2))
    profile, found = import_profile("vidur", Source(path=path, device=A100))
    ((key, point),) = profile.points("collective").items()
    assert key == ("all_reduce", 4, 4, 2048)
    assert point.seconds_median == pytest.approx(2e-5)
    assert point.seconds_mean == pytest.approx(2.5e-5)
    assert point.seconds_p90 == pytest.approx(2e-5 + 1.2816e-5)
    assert found.left_out.total() == 1


def test_an_imported_profile_says_where_its_points_come_from_and_answers_look_ups(tmp_path):
    write_table(tmp_path / "a100" / "mlp.csv", layer_row())
    profile, _ = import_profile("vidur", Source(path=tmp_path, device=A100))
    profile.write(tmp_path / "out")
    again = read_profile(tmp_path / "out")
    assert again.complete
    assert "a100/mlp.csv -> gemm (4 rows)" in again.header.source
    answer = DeviceFacts(load_device(A100), again).gemm(64, 4096, 3072, "fp16")
    assert (answer.seconds, answer.source) == (pytest.approx(4e-5), Origin.MEASURED)


def test_aiconfigurator_counts_elements_and_takes_the_newest_version(tmp_path):
    data = tmp_path / "systems" / "data" / "a100_sxm"
    gemm = {"gemm_dtype": "bfloat16", "m": 8, "n": 32, "k": 16}
    write_table(data / "gemm" / "vllm" / "0.9.0" / "gemm_perf.txt", {**gemm, "latency": 9.0})
    write_table(
        data / "gemm" / "vllm" / "0.14.0" / "gemm_perf.txt",
        {**gemm, "latency": 2.0},
        {**gemm, "gemm_dtype": "int8_wo", "latency": 1.0},
    )
    nccl = {"op_name": "all_reduce", "nccl_dtype": "half", "num_gpus": 8}
    write_table(
        data / "comm" / "nccl" / "2.27.3" / "nccl_perf.txt",
        {**nccl, "message_size": 512, "latency": 0.01},
    )
    profile, found = import_profile("aiconfigurator", Source(path=tmp_path, device=A100))
    assert {key: point.seconds_median for key, point in profile.points("gemm").items()} == {
        ("bf16", 8, 16, 32): pytest.approx(2e-3)
    }
    assert list(profile.points("collective")) == [("all_reduce", 8, 8, 1024)]
    assert profile.header.software["gemm_perf"] == "vllm/0.14.0"
    assert any("int8_wo" in reason for reason in found.left_out)


def test_aiconfigurator_reads_parquet_and_both_attentions(tmp_path):
    shape: dict[str, Any] = {
        "batch_size": 4,
        "num_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    shape |= {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}
    for name, isl, step in (("context", 256, 0), ("generation", 1, 1024)):
        path = tmp_path / "attention" / "vllm" / "1" / f"{name}_attention_perf.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame([{**shape, "isl": isl, "step": step, "latency": 0.5}]).to_parquet(path)
    profile, _ = import_profile("aiconfigurator", Source(path=tmp_path, device=A100))
    assert list(profile.points("attention")) == [
        ("forward", "bf16", 4, 1, 1024, 32, 8, 128),
        ("forward", "bf16", 4, 256, 0, 32, 8, 128),
    ]


MAP = """
table: gemm
columns: {m: tokens, k: inner, n: outer, seconds: milliseconds}
constants: {precision: bf16}
seconds_per_unit: 0.001
source: measured on the bench
"""


def test_any_table_is_imported_by_a_column_map(tmp_path):
    row = {"tokens": 4, "inner": 8, "outer": 16, "milliseconds": 3.0}
    path = write_table(tmp_path / "mine.csv", row)
    column_map = tmp_path / "map.yaml"
    column_map.write_text(MAP)
    source = Source(path=path, device=A100, column_map=column_map)
    profile, _ = import_profile("csv", source)
    ((key, point),) = profile.points("gemm").items()
    assert (key, point.seconds_median) == (("bf16", 4, 8, 16), pytest.approx(3e-3))
    assert profile.header.source.startswith("measured on the bench")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("table: gemm", "table: gem"), "table: unknown table.*gemm"),
        (("k: inner, ", ""), "columns.k: is missing"),
        (("m: tokens", "m: token"), "token.*did you mean 'tokens'"),
        (("{precision: bf16}", "{precision: bf16, rows: 3}"), "columns.rows: is no key of gemm"),
    ],
)
def test_a_wrong_column_map_names_its_field(tmp_path, change, message):
    path = write_table(
        tmp_path / "mine.csv", {"tokens": 4, "inner": 8, "outer": 16, "milliseconds": 3.0}
    )
    column_map = tmp_path / "map.yaml"
    column_map.write_text(MAP.replace(*change))
    with pytest.raises(FileError, match=message):
        import_profile("csv", Source(path=path, device=A100, column_map=column_map))


def test_what_is_no_table_of_the_format_is_refused(tmp_path):
    with pytest.raises(FileError, match="no such file or folder"):
        import_profile("vidur", Source(path=tmp_path / "none", device=A100))
    with pytest.raises(FileError, match="has no CSV tables"):
        import_profile("vidur", Source(path=tmp_path, device=A100))
    path = write_table(tmp_path / "other.csv", {"a": 1})
    with pytest.raises(FileError, match="is no table of vidur"):
        import_profile("vidur", Source(path=path, device=A100))
    with pytest.raises(FileError, match="needs a column map"):
        import_profile("csv", Source(path=path, device=A100))
    with pytest.raises(FileError, match="has no tables for a100-80gb-sxm"):
        import_profile("aiconfigurator", Source(path=tmp_path, device=A100))
    broken = write_table(tmp_path / "broken.csv", {**reduce_row(4), "size": "many"})
    with pytest.raises(FileError, match="has a row that cannot be read: ValueError"):
        import_profile("vidur", Source(path=broken, device=A100))
