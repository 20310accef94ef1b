"""Operator tables: read by their columns, forecast by kernels, skipped with a reason."""

import csv

from rlplan.evals.reading import read_table


def write_table(path, row):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        table = csv.DictWriter(stream, fieldnames=list(row))
        table.writeheader()
        table.writerow(row)
    return path


LAYER = {
    "n_head": 64, "n_kv_head": 8, "n_embd": 8192, "n_expanded_embd": 22016, "vocab_size": 32768,
    "use_gated_mlp": True, "num_tokens": 512, "num_tensor_parallel_workers": 4,
}  # fmt: skip
# Measured on A100 (microsoft/vidur, MIT): milliseconds of CodeLlama-34B at TP 4, which is held out.
LAYER_TIMES = {
    "emb": 0.05, "input_layernorm": 0.018, "attn_pre_proj": 0.106, "attn_rope": 0.007,
    "attn_post_proj": 0.099, "post_attention_layernorm": 0.018, "mlp_up_proj": 0.395,
    "mlp_act": 0.017, "mlp_down_proj": 0.265, "add": 0.012,
}  # fmt: skip
REDUCE = {
    "time_stats.all_reduce.median": 0.603, "num_workers": 4, "size": 67108864,
    "collective": "all_reduce", "devices_per_node": 4,
}  # fmt: skip
DECODE = {
    "time_stats.attn_decode.median": 0.22, "time_stats.attn_prefill.median": "", "n_embd": 8192,
    "n_q_head": 64, "n_kv_head": 8, "num_tensor_parallel_workers": 2, "batch_size": 64,
    "prefill_chunk_size": 0, "kv_cache_size": 2048, "is_prefill": False,
}  # fmt: skip


def layer(times):
    return {**LAYER, **{f"time_stats.{name}.median": time for name, time in times.items()}}


def test_the_operators_of_a_tp_left_out_are_forecast_within_a_quarter(tmp_path):
    rows = read_table(write_table(tmp_path / "a100" / "x.csv", layer(LAYER_TIMES)))
    assert [row.kind for row in rows] != []
    assert {row.kind for row in rows} == set(LAYER_TIMES)
    assert not any(row.fitted for row in rows)
    assert max(abs(row.error_fraction) for row in rows) < 0.25


def test_rows_count_as_fitted_on_only_where_the_fit_had_them(tmp_path):
    record = {**layer(LAYER_TIMES), "num_tensor_parallel_workers": 8}
    assert all(row.fitted for row in read_table(write_table(tmp_path / "a100" / "x.csv", record)))
    other = {**record, "n_expanded_embd": 28672}
    for folder, each in (("h100", record), ("a100", other)):
        rows = read_table(write_table(tmp_path / folder / "y.csv", each))
        assert not any(row.fitted for row in rows)


def test_an_operator_that_was_not_measured_is_skipped(tmp_path):
    rows = read_table(write_table(tmp_path / "a100" / "x.csv", layer({**LAYER_TIMES, "add": ""})))
    (skipped,) = [row for row in rows if row.skipped]
    assert skipped.kind == "add"
    assert "not measured" in skipped.skipped


def test_a_model_without_an_operator_has_a_table_without_its_column(tmp_path):
    times = {name: time for name, time in LAYER_TIMES.items() if name != "post_attention_layernorm"}
    rows = read_table(write_table(tmp_path / "a100" / "x.csv", layer(times)))
    (skipped,) = [row for row in rows if row.skipped]
    assert skipped.kind == "post_attention_layernorm"


def test_a_table_of_a_card_that_was_not_measured_is_forecast_as_such(tmp_path):
    rows = read_table(write_table(tmp_path / "a40" / "x.csv", layer(LAYER_TIMES)))
    assert not any(row.fitted or row.skipped for row in rows)


def test_a_table_without_a_device_is_skipped_until_the_user_names_one(tmp_path):
    path = write_table(tmp_path / "x.csv", REDUCE)
    (row,) = read_table(path)
    assert "give it with --device" in row.skipped
    (row,) = read_table(path, device="a100-80gb-sxm")
    assert abs(row.error_fraction) < 0.1


def test_collectives_across_nodes_of_an_unknown_network_are_skipped(tmp_path):
    (row,) = read_table(write_table(tmp_path / "a100" / "x.csv", {**REDUCE, "devices_per_node": 2}))
    assert "network between its nodes" in row.skipped


def test_attention_over_a_paged_cache_is_forecast(tmp_path):
    (row,) = read_table(write_table(tmp_path / "a100" / "x.csv", DECODE))
    assert row.kind == "decode"
    assert abs(row.error_fraction) < 0.2
