"""The reader of published training of mixtures of experts: recipes, dispatchers, domains, and how far off it is."""

import csv
from dataclasses import replace
from statistics import median

import pytest

from rlplan.evals.reading import HELD
from rlplan.evals.settings.pretraining import iteration_parts
from rlplan.evals.settings.training_recipes import options_of, recipe_of, recipes, recompute_of
from rlplan.evals.tables import expert_training
from rlplan.profiles.catalog import load_device, load_engine, load_model

TABLES = (
    "megatron_bridge_training",
    "megatron_bridge_overlap",
    "automodel_training",
    "megatron_moe_efa_training",
    "megatron_modelzoo_training",
    "megatron_moe_efa_b300_training",
)


def records(name):
    with (HELD / f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        return {each["id"]: each for each in csv.DictReader(lines)}


BRIDGE, OVERLAP, EFA = (records(name) for name in (*TABLES[:2], TABLES[3]))
AUTOMODEL = records("automodel_training")
ZOO, B300 = records("megatron_modelzoo_training"), records("megatron_moe_efa_b300_training")
OLD, NEW = (BRIDGE[f"mb26.0{month}_gb200_MXFP8_qwen3-30b-a3b_8"] for month in ("2.01", "6"))
H100 = BRIDGE["mb26.04.01_h100-80gb-sxm_FP8_qwen3-30b-a3b_16"]


def run(record):
    return expert_training.iteration_of(record).run


def errors(record):
    (row,) = expert_training.READER.rows([record])
    return abs(row.error_fraction)


def test_every_recipe_is_of_a_model_device_and_dispatcher_that_there_are():
    for each in recipes():
        options = options_of(each)
        assert options.popularity_spread == 0
        assert load_model(each["model"]).name == each["model"]
        assert load_device(each["gpu"]).name == each["gpu"]
        engine = load_engine("megatron-core-2026")
        assert recompute_of(each) in (*engine.recompute_modes, *engine.recompute_besides)


def test_a_release_has_its_own_recipe_and_the_row_s_sizes_choose_among_several():
    sizes = {"micro_batch": "1", "tp": "1", "pp": "2", "cp": "1", "vp": "12", "ep": "8"}
    of = ("qwen3-30b-a3b", "h100-80gb-sxm", "fp8")
    assert recipe_of("26.02", *of, sizes)["dispatcher"] == "deepep"
    assert (
        recipe_of("26.02", *of, sizes | {"pp": "1", "vp": "", "ep": "16"})["dispatcher"]
        == "hybridep"
    )
    assert recipe_of("25.11", *of, sizes) == recipe_of("26.02", *of, sizes)
    assert recipe_of("26.05", *of, sizes) == recipe_of("26.04", *of, sizes)
    assert recipe_of("", *of, sizes) is None


def test_a_model_without_a_recipe_in_its_release_has_that_of_the_next_one():
    sizes = {"micro_batch": "2", "tp": "1", "pp": "4", "cp": "1", "vp": "4", "ep": "64"}
    of = ("kimi-k2", "gb300", "mxfp8", sizes)
    assert recipe_of("26.06", *of) == recipe_of("26.08", *of) != recipe_of("", *of)
    assert recipe_of("26.06", *of)["dispatcher"] == "hybridep"
    assert recipe_of("automodel", *of) is None


def test_containers_of_2026_differ_by_graphs_overlap_and_fused_kernels():
    old, new = run(OLD), run(NEW)
    assert (old.engine, new.engine) == ("megatron-core-2026", "megatron-core-2026-fused")
    assert (old.options.graphs, new.options.graphs) == (("router",), ("iteration",))
    assert (old.options.overlaps_exchange, new.options.overlaps_exchange) == (False, True)


def test_dense_recipes_exchange_beside_products_and_send_beside_computing():
    dense, narrow = (run(BRIDGE["mb26.02.01_h100-80gb-sxm_FP8_llama-3-70b_64"]), run(OLD))
    assert (dense.options.overlaps_products, dense.options.overlaps_sends) == (True, True)
    assert (narrow.options.overlaps_products, narrow.options.overlaps_sends) == (False, True)
    plain = replace(
        dense, options=replace(dense.options, overlaps_products=False, overlaps_sends=False)
    )
    hidden, whole = (iteration_parts(each) for each in (dense, plain))
    exchanged, sent = "tensor-parallel collectives", "pipeline sends"
    assert hidden[exchanged].seconds == pytest.approx(whole[exchanged].seconds / 8, rel=0.02)
    assert 0 < hidden[sent].seconds < whole[sent].seconds / 5
    assert hidden["forward"] == whole["forward"]


def test_an_nvlink_domain_holds_the_most_nodes_that_divide_a_run():
    gb200 = load_device("gb200")
    assert [expert_training._linked(gb200, gpus, 4) for gpus in (8, 64, 256, 288)] == [
        8,
        64,
        64,
        72,
    ]
    assert expert_training._linked(load_device("h100-80gb-sxm"), 64, 8) == 8


def test_a_run_that_names_its_dispatcher_is_taken_by_its_word():
    plain = run(EFA["aws_qwen3-30b-a3b_ep16_mb4_off"])
    assert plain.network == "efa"
    assert plain.recompute == "full", "its script leaves it to the recipe"
    assert (plain.options.dispatcher, plain.options.overlaps_exchange) == ("all-to-all", False)
    beside = run(OVERLAP["mb_overlap_hybridep_on"])
    assert (beside.options.dispatcher, beside.options.overlaps_exchange) == ("hybridep", True)
    assert beside.options.graphs == ("router",)


def test_automodel_computes_again_and_shares_experts_out_as_its_recipes_say():
    qwen, oss = (run(AUTOMODEL[name]) for name in ("am_qwen3-30b-a3b_8", "am_gpt-oss-20b_8"))
    assert (qwen.recompute, oss.recompute) == ("full", "none")
    assert (qwen.ep, oss.ep, qwen.zero) == (8, 8, 3)


def test_what_is_not_known_is_left_out_with_a_reason():
    for change in ({"model": "qwen9"}, {"precision": "int3"}, {"gpu": "h900"}):
        (row,) = expert_training.READER.rows([H100 | change])
        assert row.skipped


def test_experts_that_constants_were_not_fitted_on_are_forecast_within_a_fifth():
    """Nemotron 3 Nano and AutoModel's runs, whose constants are of Qwen3-30B-A3B in Megatron-Bridge."""
    blind = [each for name, each in BRIDGE.items() if "nemotron" in name]
    assert [errors(each) < 0.1 for each in blind] == [True] * 3
    blind += [AUTOMODEL[name] for name in ("am_qwen3-30b-a3b_8", "am_gpt-oss-20b_8")]
    assert max(map(errors, blind)) < 0.15


def test_a_larger_model_on_nodes_of_h100_is_forecast_within_a_fifth_by_either_dispatcher():
    """Qwen3-235B-A22B, of which only the row with TP 4 is fitted on."""
    names = ("ep32_off", "ep32_on", "fsdp_ep8", "ep8_pp32")
    rows = [ZOO[f"zoo_qwen3-235b_{name}"] for name in names]
    assert [run(each).options.dispatcher for each in rows] == [*["deepep"] * 3, "all-to-all"]
    assert max(map(errors, rows)) < 0.2


def test_micro_batches_that_hosts_bound_are_forecast_by_what_other_hosts_take():
    """B300's hosts at AWS launch Qwen3-235B-A22B, once and with whole layers again; constants are of H100's hosts."""
    rows = [each for each in B300.values() if each["micro_batch"] == "1"]
    assert len(rows) == 4
    assert max(map(errors, rows)) < 0.17


def test_experts_that_they_were_fitted_on_are_within_a_seventh():
    fitted = [
        each
        for each in (*BRIDGE.values(), *OVERLAP.values())
        if "qwen3" in each["id"] or "overlap" in each["id"]
    ]
    assert max(map(errors, fitted)) < 1 / 7
    assert median(map(errors, fitted)) < 0.05


def test_experts_that_are_not_balanced_wait_for_the_fullest_rank():
    forced = run(H100)
    usual = replace(forced, options=replace(forced.options, popularity_spread=None))
    exchanged = [
        iteration_parts(each)["tensor-parallel collectives"].seconds for each in (forced, usual)
    ]
    assert 1.2 < exchanged[1] / exchanged[0] < 1.5
