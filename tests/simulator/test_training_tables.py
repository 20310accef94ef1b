"""Readers of published training iterations, and the engines' constants that they check."""

from dataclasses import replace

import pytest

from profiles.catalog import load_engine
from rlplan.hardware import KernelRates
from simulator.accuracy import megatron_training, mosaicml_training, torchtitan_training
from simulator.accuracy import vtrain_training as vtrain
from simulator.accuracy.pretraining import Pretraining, gpt, iteration_seconds

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


def of(**changes: object) -> Pretraining:
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
    large = {"model": gpt(4096, 32, 8, 51200), "micro_batch": 4}
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


def test_ranks_wait_for_one_another_at_collectives_of_layers_only_with_tensor_parallelism():
    waiting = {"collective_skew_seconds": 1e-3}
    assert seconds(rates=waiting) == seconds()
    assert seconds(rates=waiting, tp=2, dp=4) > seconds(tp=2, dp=4)


def test_usual_kernels_change_nothing():
    assert KernelRates() == KernelRates(gemm_rate=1.0, score_bytes=0.0, layer_gap_seconds=0.0)
