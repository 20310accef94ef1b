"""`rlplan accuracy` on a published table of training with experts, end to end."""

import csv
import json

from rlplan.evals.reading import HELD


def test_a_table_of_experts_training_is_forecast_row_by_row(rlplan, tmp_path):
    rows = tmp_path / "rows.csv"
    table = HELD / "megatron_bridge_overlap.csv"
    found = rlplan("accuracy", table, "--json", "--rows", rows)
    assert found.code == 0, found.err
    (summary,) = json.loads(found.out)["tables"]
    assert (summary["table"], summary["rows"], summary["skipped"]) == (table.stem, 2, 0)
    with rows.open(newline="") as stream:
        assert len(list(csv.DictReader(stream))) == 2


def test_experts_over_aws_s_network_are_forecast_within_a_quarter(rlplan, tmp_path):
    rows = tmp_path / "rows.csv"
    found = rlplan("accuracy", HELD / "megatron_moe_efa_training.csv", "--rows", rows)
    assert found.code == 0, found.err
    with rows.open(newline="") as stream:
        errors = [float(row["error_fraction"]) for row in csv.DictReader(stream)]
    assert len(errors) == 2
    assert all(-0.25 < error < 0 for error in errors), "hosts that launch slowly are not forecast"


def test_servers_that_run_what_their_states_have_room_for_are_forecast_within_a_fifth(
    rlplan, tmp_path
):
    rows = tmp_path / "rows.csv"
    found = rlplan("accuracy", HELD / "servers_2026.csv", "--rows", rows)
    assert found.code == 0, found.err
    with rows.open(newline="") as stream:
        errors = [float(row["error_fraction"]) for row in csv.DictReader(stream)]
    assert len(errors) == 6
    assert all(abs(error) < 0.2 for error in errors)


def test_a_published_run_whose_weights_are_larger_than_its_gpus_is_named(rlplan, tmp_path):
    with (HELD / "experts_serving_2026.csv").open(newline="") as stream:
        record = next(csv.DictReader(stream)) | {"model": "qwen3-next-80b-a3b"}
    table, rows = tmp_path / "runs.csv", tmp_path / "rows.csv"
    with table.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, record)
        writer.writeheader()
        writer.writerow(record)
    assert rlplan("accuracy", table, "--rows", rows).code == 0
    with rows.open(newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert row["skipped"] == "weights leave no room for a cache on the GPUs that are published"
