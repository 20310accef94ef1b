"""Readers of published training iterations, and the engines' constants that they check."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlplan.evals.settings.pretraining import Pretraining, gpt, iteration_seconds
from rlplan.evals.tables import megatron_training, mosaicml_training, torchtitan_training
from rlplan.evals.tables import vtrain_training as vtrain
from rlplan.profiles.catalog import load_engine
from rlplan.sheets import KernelRates
from rlplan.simulator.costs.passes import send_counts

VTRAIN = {
    "# GPUs": "8",
    "global batch": "32",
    "micro batch": "2",
    "hidden size": "2048",
    "attention heads": "16",
    "# layers": "24",
    "sequence length": "1024",
    "tensor parallelism": "1",
    "data parallelism": "8",
    "pipeline parallelism": "1",
    "iteration time (ms)": "303.756",
    "device": "",
}
MEGATRON = {
    "heads": "128",
    "hidden": "20480",
    "layers": "105",
    "tp": "8",
    "pp": "35",
    "dp": "9",
    "num_gpus": "2520",
    "global_batch": "2520",
    "micro_batch": "1",
    "seq_len": "2048",
    "vocab": "51200",
    "recompute": "full",
    "layers_per_virtual_stage": "1.0",
    "gpu": "A100-80GB",
    "iter_time_s_derived": "54.085",
}


def of(**changes: Any) -> Pretraining:
    usual = Pretraining(
        model=gpt(2048, 16, 24, 51200), engine="megatron-deepspeed-2022", device="a100-80gb-sxm",
        precision="fp16", gpus=8, network_bytes_per_second=1e11, dp=8, micro_batch=2, global_batch=32,
        sequence_tokens=1024, recompute="full",
    )  # fmt: skip
    return replace(usual, **changes)


def seconds(engine: str = "megatron-deepspeed-2022", rates: dict | None = None, **changes: object):
    sheet = load_engine(engine)
    sheet = replace(sheet, kernels=replace(sheet.kernels, **(rates or {})))
    return iteration_seconds(of(engine=engine, **changes), {engine: sheet}).seconds


def test_a_table_of_vtrain_is_known_by_its_columns_and_read_in_seconds():
    assert vtrain.READER.matches(frozenset(VTRAIN))
    assert not megatron_training.READER.matches(frozenset(VTRAIN))
    (row,) = vtrain.READER.rows([VTRAIN])
    assert row.measured_seconds == pytest.approx(0.303756)
    assert row.kind == "one node"
    assert abs(row.error_fraction) < 0.15


def test_megatrons_tables_say_their_software_by_the_columns_that_they_have():
    engines = [
        megatron_training.iteration_of(record).run.engine
        for record in (
            MEGATRON,
            {**MEGATRON, "sequence_parallel": "True", "recompute": "selective"},
            {**MEGATRON, "sequence_parallel": "False"},
            {key: value for key, value in MEGATRON.items() if key != "micro_batch"},
        )
    ]
    assert engines == [
        "megatron-2021", "megatron-2022", "megatron-2022-full", "megatron-deepspeed-2021",
    ]  # fmt: skip


def test_layers_of_a_virtual_stage_become_chunks_and_the_vocabulary_is_padded():
    run = megatron_training.iteration_of({**MEGATRON, "vocab": "50257"}).run
    assert run.chunks == 3
    assert run.model.vocab_size == 51200


def test_activations_in_host_memory_are_skipped_with_the_reason():
    record = dict.fromkeys((*mosaicml_training.SETTINGS, *mosaicml_training.SHAPE), "1")
    record |= {"act_cpu_offload": "True", mosaicml_training.SECONDS: "2.5"}
    (row,) = mosaicml_training.READER.rows([record])
    assert row.forecast is None
    assert row.skipped == "activations in host memory are not modelled"


def test_an_unknown_device_of_torchtitan_is_skipped_with_those_that_are_known():
    record = dict.fromkeys((*torchtitan_training.SETTINGS, "model", "scheme"), "1")
    record |= {"gpu": "B200", torchtitan_training.SECONDS: "2.5"}
    (row,) = torchtitan_training.READER.rows([record])
    assert row.skipped.startswith("devices known: A100-80GB")


def test_an_interleaved_schedule_of_torchtitan_has_two_stages_a_rank():
    record = dict.fromkeys(torchtitan_training.SETTINGS, "8")
    record |= {"model": "Llama3-8B", "act_ckpt": "full", "precision": "bf16", "gpu": "H100-80GB"}
    record |= {torchtitan_training.SECONDS: "2.5", "options": ""}
    plain, looped = (
        torchtitan_training.iteration_of({**record, "scheme": f"fsdp+tp+pp {schedule}"}).run
        for schedule in ("1F1B", "Interleaved 1F1B")
    )
    assert (plain.chunks, looped.chunks) == (1, 2)


def test_interleaving_divides_the_bubble_and_multiplies_the_sends():
    plain = seconds(pp=4, dp=2)
    assert seconds(pp=4, dp=2, chunks=3) < plain


def test_every_other_layer_recomputed_lies_halfway_between_none_and_all():
    engine = "fsdp2"
    none, alternate, full = (
        seconds(engine, recompute=mode) for mode in ("none", "alternate", "full")
    )
    assert alternate == pytest.approx((none + full) / 2)


@pytest.mark.parametrize(
    ("rate", "slower"),
    [
        ("gemm_rate", 0.5),
        ("elementwise_rate", 0.5),
        ("logits_rate", 0.2),
        ("optimizer_rate", 0.2),
        ("score_bytes", 40.0),
        ("layer_gap_seconds", 2e-3),
        ("accumulation_passes", 30.0),
    ],
)
def test_slower_kernels_make_a_longer_iteration(rate, slower):
    large: dict[str, Any] = {"model": gpt(4096, 32, 8, 51200), "micro_batch": 4}
    assert seconds(rates={rate: slower}, **large) > seconds(**large)


def test_small_eager_models_are_bound_by_the_host():
    sheet = load_engine("megatron-deepspeed-2022")
    tiny = gpt(512, 8, 24, 51200)
    slow = replace(sheet, layer_launch_seconds=2 * sheet.layer_launch_seconds)
    run = of(model=tiny, micro_batch=1)
    ratio = (
        iteration_seconds(run, {sheet.name: slow}).seconds
        / iteration_seconds(run, {sheet.name: sheet}).seconds
    )
    assert ratio > 1.5


def test_launches_that_hide_behind_exchanges_shorten_what_the_host_binds():
    sheet = load_engine("megatron-deepspeed-2022")
    run = of(model=gpt(1024, 16, 24, 51200), micro_batch=1, tp=4, dp=2)
    hidden, alone = (
        iteration_seconds(run, {sheet.name: replace(sheet, launches_hide=hide)}).seconds
        for hide in (True, False)
    )
    assert hidden < alone


def test_an_odd_vocabulary_slows_the_output_matrix_alone():
    odd: dict[str, Any] = {"model": gpt(2048, 16, 24, 50257)}
    even: dict[str, Any] = {"model": gpt(2048, 16, 24, 50258)}
    assert seconds(rates={"odd_rate": 0.25}, **odd) > 1.05 * seconds(rates={"odd_rate": 1.0}, **odd)
    assert seconds(rates={"odd_rate": 0.25}, **even) == seconds(rates={"odd_rate": 1.0}, **even)


@pytest.mark.parametrize(
    ("stages", "chunks", "ways", "each", "once"),
    [
        (1, 1, 2, 0, 0),
        (2, 1, 2, 1, 1),  # the first stage sends activations on, the last gradients back
        (4, 1, 2, 2, 4),  # 2 x 3 boundaries to fill and drain, 2 of them within a micro-batch
        (2, 3, 2, 6, 0),
        (4, 1, 1, 1, 2),
    ],
)
def test_stages_send_in_as_many_ways_as_they_have_neighbours(stages, chunks, ways, each, once):
    assert send_counts(np.array([stages]), np.array([chunks]), ways) == (each, once)


def test_a_given_rate_of_sends_takes_the_place_of_the_devices():
    run: dict[str, Any] = {"pp": 4, "dp": 2, "micro_batch": 4, "global_batch": 32}
    slow, slower = (seconds(rates={"send_bytes_per_second": rate}, **run) for rate in (2e10, 1e10))
    # Four micro-batches a rank are sent 2 x 4 + 4 times: 4 x 1,024 tokens of 2,048 values of 2 bytes.
    assert slower - slow == pytest.approx(12 * 4 * 1024 * 2048 * 2 * (1e-10 - 0.5e-10))


def test_split_sends_are_gathered_where_they_arrive():
    run: dict[str, Any] = {"tp": 4, "pp": 2, "dp": 1, "micro_batch": 4}
    rates = {"send_bytes_per_second": 1e9}
    whole = seconds(rates=rates, **run)
    sheet = load_engine("megatron-deepspeed-2022")
    split = replace(
        sheet, splits_sends=True, kernels=replace(sheet.kernels, send_bytes_per_second=1e9)
    )
    shares = iteration_seconds(of(**run), {sheet.name: split}).seconds
    sent = (8 + 1) * 4 * 1024 * 2048 * 2 / 1e9
    assert whole - sent < shares - sent / 4 < whole - sent + 0.01


def test_iterations_of_one_node_compute_nothing_again_and_have_a_vocabulary_that_ranks_divide():
    run = vtrain.iteration_of({**VTRAIN, "tensor parallelism": "4", "data parallelism": "2"}).run
    assert run.recompute == "none"
    assert run.model.vocab_size == 50256
    assert vtrain.iteration_of({**VTRAIN, "# GPUs": "64"}).run.recompute == "full"


def test_usual_kernels_change_nothing():
    assert KernelRates() == KernelRates(gemm_rate=1.0, score_bytes=0.0, layer_gap_seconds=0.0)
