"""Sheets: every figure has a source and a size that can be true; names lead to one file."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import rlplan.profiles.sheets
from rlplan import parts
from rlplan.errors import UnknownNameError
from rlplan.files.decoding import load_yaml
from rlplan.models import layer_kinds
from rlplan.parts import num_parameters
from rlplan.parts.experts import expert_parameters
from rlplan.profiles.catalog import (
    device_names,
    engine_names,
    load_device,
    load_engine,
    load_model,
    model_names,
    usual_engines,
)
from rlplan.profiles.jobs.checks import architecture_fault
from rlplan.profiles.sheets import (
    canonical_name,
    hugging_face_ids,
    nearest_models,
)
from rlplan.sheets import EngineSheet
from rlplan.units import GIB, MIB
from tests.profiles.published import CARDS, FAMILY_PARAMETERS

# Exact counts: number of parameters that the weights' files of each model on Hugging Face hold.
PUBLISHED_PARAMETERS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "codellama-34b": 33_743_970_304,
    "llama-3.1-8b": 8_030_261_248,
    "openmath-nemotron-1.5b": 1_543_714_304,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "internlm-20b": 20_088_714_240,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
}

# What identifies a sheet rather than measures something.
NOT_FIGURES = {"name", "title", "aliases", "kind", "role", "architecture", "intra_node", "sources"}


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_parameters_are_the_published_ones_to_the_unit(name):
    assert num_parameters(load_model(name)) == PUBLISHED_PARAMETERS[name]


def test_every_model_but_the_tiny_one_has_a_published_count_in_a_test():
    assert set(model_names()) == {*PUBLISHED_PARAMETERS, *FAMILY_PARAMETERS, "tiny"}


def test_a_mixture_of_experts_computes_with_3_3_billion_of_its_parameters():
    model = load_model("qwen3-30b-a3b")
    chosen = model.experts_per_token / model.num_experts
    idle = model.num_layers * expert_parameters(model, tp=1, ep=1) * (1 - chosen)
    assert (num_parameters(model) - idle) / 1e9 == pytest.approx(3.3, abs=0.06)


def test_the_tiny_model_speaks_bytes_and_splits_in_two():
    tiny = load_model("tiny")
    assert tiny.vocab_size == 256 + len({"pad", "begin", "end", "spare"})
    assert (tiny.num_heads % 2, tiny.num_kv_heads % 2, tiny.ffn_size % 2) == (0, 0, 0)
    assert num_parameters(tiny) < 200_000


@pytest.mark.parametrize("name", device_names())
def test_every_figure_of_a_device_has_a_source(name):
    sheet = load_device(name)
    figures = {field.name for field in dataclasses.fields(sheet)} - NOT_FIGURES
    assert set(sheet.sources) == {name for name in figures if getattr(sheet, name) is not None}
    assert all(len(source) > 10 for source in sheet.sources.values())


@pytest.mark.parametrize("name", device_names())
def test_a_device_is_plausible(name):
    sheet = load_device(name)
    assert 1e10 <= sheet.peak_flops_per_second["fp32"] <= 1e15
    assert max(sheet.peak_flops_per_second.values()) <= 2e16
    assert sheet.default_precision in sheet.peak_flops_per_second
    assert GIB <= sheet.memory_bytes <= 300 * GIB
    assert sheet.reserved_bytes < 0.15 * sheet.memory_bytes
    assert 1e9 <= sheet.intra_node_bytes_per_second < sheet.memory_bytes_per_second <= 1e13
    assert 1e9 <= sheet.host_bytes_per_second < sheet.memory_bytes_per_second
    assert 1e-7 <= sheet.intra_node_latency_seconds < sheet.inter_node_latency_seconds <= 1e-3
    assert 1e-6 <= sheet.launch_seconds <= 1e-4
    assert 0 < sheet.idle_watts < sheet.power_watts <= 2000
    assert 0 < sheet.usd_per_hour <= 20
    assert 1 <= sheet.gpus_per_node <= 16
    assert 10 <= sheet.inter_node_gbps <= 800 * sheet.gpus_per_node
    assert 1 <= sheet.cpu_cores <= 512
    assert GIB <= sheet.host_memory_bytes <= 4096 * GIB
    assert (sheet.nvlink_domain_gpus or sheet.gpus_per_node) % sheet.gpus_per_node == 0


@pytest.mark.parametrize("name", [each for each in device_names() if each != "cpu"])
def test_a_gpu_has_tensor_cores_and_links_of_its_kind(name):
    sheet = load_device(name)
    assert sheet.peak_flops_per_second["bf16"] >= 1.99 * sheet.peak_flops_per_second["fp32"]
    assert sheet.intra_node in ("nvlink", "xgmi", "hccs", "ub", "pcie")
    assert (sheet.intra_node_bytes_per_second > 1e11) == (sheet.intra_node != "pcie")


def test_datasheet_figures_of_one_device_are_read_in_si():
    sheet = load_device("a100-80gb-sxm")
    assert sheet.peak_flops_per_second == {"bf16": 312e12, "fp16": 312e12, "fp32": 19.5e12}
    assert sheet.memory_bytes == 80 * GIB
    assert sheet.memory_bytes_per_second == 2.039e12
    assert sheet.intra_node_bytes_per_second == 300e9
    assert load_device("a800-80gb").intra_node_bytes_per_second == 200e9
    assert load_device("h100-80gb-sxm").intra_node_bytes_per_second == 450e9


ALWAYS_SAID = {"max_batched_tokens", "memory_fraction", "kv_block_tokens", "batching"}
ALWAYS_SAID |= {"zero_stages", "recompute_modes", "overlap_fraction"}


@pytest.mark.parametrize("name", engine_names())
def test_every_constant_of_an_engine_has_a_source(name):
    sheet = load_engine(name)
    wanted = {"max_pp", "max_cp", "max_ep", "sequence_parallel", "fused_attention"}
    wanted |= {"step_seconds", "launches_hidden"}
    if sheet.role == "train":
        wanted |= {"zero_stages", "recompute_modes", "overlap_fraction"}
    else:
        wanted |= {"batching", "kv_block_tokens", "max_batched_tokens", "memory_fraction"}
    usual = EngineSheet(name=sheet.name, role=sheet.role, sources=sheet.sources)
    names = [
        field.name for field in dataclasses.fields(EngineSheet) if field.name not in ALWAYS_SAID
    ]
    wanted |= {name for name in names if getattr(sheet, name) != getattr(usual, name)}
    # A variant may do as is usual where what it is a variant of packs, waits or moves states to the host.
    as_usual = {"padding", "waits_each_micro_batch", "offloads"}
    assert wanted <= set(sheet.sources) <= wanted | as_usual


@pytest.mark.parametrize("name", engine_names())
def test_an_engine_is_plausible(name):
    sheet = load_engine(name)
    assert sheet.batching == "none" or sheet.role == "generate"
    assert sheet.zero_stages
    assert sheet.recompute_modes
    assert 0 <= sheet.step_seconds <= 0.05
    assert 0 <= sheet.overlap_fraction < 1
    assert 0.5 <= sheet.memory_fraction <= 1
    assert sheet.memory.usual_way in {None, *sheet.memory.logit_ways}


@pytest.fixture(scope="module")
def families():
    return {load_model(name).family for name in model_names()}


@pytest.fixture(scope="module")
def architectures():
    return {load_device(name).architecture for name in device_names()}


@pytest.mark.parametrize("name", engine_names())
def test_costs_of_steps_are_of_parts_families_and_devices_that_there_are(
    name, families, architectures
):
    """A slip in one of these names would take a cost away, and nothing would say so."""
    costs = load_engine(name).steps
    by_device = (
        *(costs.all_reduces, costs.fused_all_reduces, costs.cast_seconds, costs.latent),
        *(costs.narrow_expert_times, costs.beside_seconds, costs.prompt_attention, costs.sparse),
        costs.experts,
    )
    assert {each for costs_of in by_device for each in costs_of} <= architectures
    assert {*costs.triton_experts_of, *costs.fuses_all_reduces_of} <= families
    assert set(costs.tuned_experts) <= set(device_names())
    mixers: list[Mapping[str, float]] = [
        *(costs.prompt_mixer_seconds, costs.mixer_launch_seconds, costs.prompt_captured_tokens),
        *costs.beside_seconds.values(),
    ]
    assert {each for seconds in mixers for each in seconds} <= set(parts.PARTS.names())
    assert costs.prompt_launch_seconds or not costs.prompt_mixer_seconds


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_the_usual_engines_of_a_kind_exist_and_have_their_role(kind):
    usual = usual_engines(kind)
    assert load_engine(usual.train).role == "train"
    assert load_engine(usual.generate).role == "generate"


def test_an_alias_leads_to_the_sheet_that_tells_it():
    sheets = [load_device(name) for name in device_names()]
    told = {alias: sheet.name for sheet in sheets for alias in sheet.aliases}
    assert len(told) == sum(len(sheet.aliases) for sheet in sheets)
    assert not set(told) & set(device_names())
    assert {alias: canonical_name("devices", alias) for alias in told} == told


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("H100", "h100-80gb-sxm"), ("A100", "a100-80gb-sxm"), ("b200", "b200"), ("GB200", "gb200"),
        ("h800", "h800"), ("A800", "a800-80gb"), ("H20", "h20"), ("h200", "h200"), ("MI300X", "mi300x"),
        ("mi325x", "mi325x"), ("L20", "l20"), ("l40s", "l40s"), ("rtx-4090", "rtx-4090"),
        ("RTX4090", "rtx-4090"), ("rtx-a6000", "rtx-a6000"), ("B300", "b300"), ("gb300", "gb300"),
        ("GB300-NVL72", "gb300"), ("H20-3e", "h20-3e"), ("h20-141gb", "h20-3e"), ("MI350X", "mi350x"),
        ("mi355x", "mi355x"), ("5090", "rtx-5090"), ("RTX5090", "rtx-5090"), ("l4", "l4"),
        ("RTX-PRO-6000", "rtx-pro-6000"), ("910b", "ascend-910b2"), ("Ascend910B", "ascend-910b2"),
        ("910B3", "ascend-910b3"), ("ascend910b4", "ascend-910b4"), ("910c", "ascend-910c"),
    ],
)  # fmt: skip
def test_short_names_and_capital_letters_are_understood(typed, name):
    assert load_device(typed).name == name


def test_capital_letters_do_not_matter():
    assert load_model("Llama-2-7B") == load_model("llama-2-7b")


def test_new_devices_have_their_datasheets_figures():
    b200, gb200 = load_device("b200"), load_device("gb200")
    assert (b200.peak_flops_per_second["bf16"], b200.peak_flops_per_second["fp8"]) == (
        2.25e15,
        4.5e15,
    )
    assert (b200.inter_node_gbps, b200.intra_node_bytes_per_second) == (8 * 400, 900e9)
    assert (gb200.gpus_per_node, gb200.nvlink_domain_gpus, gb200.cpu_cores) == (4, 72, 2 * 72)
    mi300x, mi325x = load_device("mi300x"), load_device("mi325x")
    assert mi300x.peak_flops_per_second == mi325x.peak_flops_per_second
    assert (mi300x.memory_bytes_per_second, mi325x.memory_bytes_per_second) == (5.3e12, 6.0e12)
    assert load_device("h800").intra_node_bytes_per_second == 200e9
    assert load_device("rtx-4090").peak_flops_per_second["bf16"] == 165.2e12
    assert load_device("a100").inter_node_gbps == 8 * 200
    assert load_device("h100").inter_node_gbps == 8 * 400
    b300, gb300 = load_device("b300"), load_device("gb300")
    assert (b300.peak_flops_per_second["bf16"], b300.inter_node_gbps) == (2.25e15, 8 * 800)
    assert (gb300.peak_flops_per_second["bf16"], gb300.nvlink_domain_gpus) == (2.5e15, 72)
    h20, h20_3e = load_device("h20"), load_device("h20-3e")
    assert h20.peak_flops_per_second == h20_3e.peak_flops_per_second
    assert (h20_3e.memory_bytes, h20_3e.memory_bytes_per_second) == (143771 * MIB, 4.8e12)
    mi350x, mi355x = load_device("mi350x"), load_device("mi355x")
    assert mi350x.peak_flops_per_second["bf16"] == pytest.approx(2.3e15, rel=0.01)
    assert mi355x.peak_flops_per_second["bf16"] == pytest.approx(2.5e15, rel=0.01)
    assert (mi350x.power_watts, mi355x.power_watts) == (1000, 1400)
    assert mi350x.memory_bytes == mi355x.memory_bytes == 309_220_868_096
    rtx_5090 = load_device("rtx-5090")
    assert rtx_5090.peak_flops_per_second["bf16"] == 209.5e12
    assert rtx_5090.memory_bytes_per_second == 1.792e12
    assert load_device("l4").peak_flops_per_second["bf16"] == 121e12
    assert load_device("910b2").peak_flops_per_second["bf16"] == 353.9e12
    assert load_device("910b4").memory_bytes == 32 * GIB
    assert (load_device("910c").gpus_per_node, load_device("910c").nvlink_domain_gpus) == (16, 768)


@pytest.mark.parametrize(
    ("load", "name", "nearest"),
    [
        (load_model, "lama-2-7b", "llama-2-7b"),
        (load_device, "a100-80g-sxm", "a100-80gb-sxm"),
        (load_engine, "vlm", "vllm"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest_one(load, name, nearest):
    with pytest.raises(UnknownNameError, match=f"did you mean '{nearest}'"):
        load(name)


def test_loading_one_sheet_opens_that_file_only(monkeypatch):
    opened = []
    monkeypatch.setattr(
        rlplan.profiles.sheets,
        "load_yaml",
        lambda path: opened.append(path.name) or load_yaml(path),
    )
    load_model.cache_clear()
    load_model("qwen2.5-3b")
    load_model("qwen2.5-3b")
    assert opened == ["qwen2.5-3b.yaml"]


@pytest.mark.parametrize("name", FAMILY_PARAMETERS)
def test_parameters_are_those_of_the_family_s_own_class(name):
    """To the unit, but for small parts of vision towers, which are counted to a twentieth of a per cent."""
    model = load_model(name)
    off = 5e-4 * (model.vision_parameters or 0)
    assert abs(num_parameters(model) - FAMILY_PARAMETERS[name]) <= off


@pytest.mark.parametrize("name", CARDS)
def test_all_and_active_parameters_are_those_of_the_model_s_card(name):
    whole, active, tolerance, _ = CARDS[name]
    model = load_model(name)
    held = layer_kinds(model).total(parts.expert_parameters)
    idle = held * (1 - model.experts_per_token / model.num_experts)
    assert num_parameters(model) / 1e9 == pytest.approx(whole, rel=5e-3)
    found = (num_parameters(model) - idle - (model.vision_parameters or 0)) / 1e9
    # Cards count the embedding among a token's parameters, or not, or neither it nor the head.
    ends = model.embedding_parameters / 1e9
    assert any(found - count * ends == pytest.approx(active, rel=tolerance) for count in (0, 1, 2))


@pytest.mark.parametrize("name", model_names())
def test_a_sheet_has_no_impossible_sizes_and_a_known_family(name):
    assert architecture_fault(load_model(name)) is None


@pytest.mark.parametrize(
    ("hugging_face", "name"),
    [
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
        ("qwen/qwen2.5-7b-instruct", "qwen2.5-7b"),
        ("Qwen2.5-Math-7B", "qwen2.5-math-7b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("unsloth/DeepSeek-V3-0324-BF16", "deepseek-v3"),
        ("moonshotai/Kimi-K2-Instruct", "kimi-k2"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b-2507"),
        ("openai/gpt-oss-120B", "gpt-oss-120b"),
        ("zai-org/GLM-4.5-Air", "glm-4.5-air"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "nemotron-3-super-120b-a12b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama-3.1-70b"),
    ],
)
def test_a_hugging_face_id_leads_to_its_sheet(hugging_face, name):
    assert load_model(hugging_face) == load_model(name)


def test_an_id_stands_in_one_sheet_where_it_is_looked_for():
    listed = {}
    for name in model_names():
        for each in hugging_face_ids(name):
            assert canonical_name("models", each) == name
            assert each not in listed, f"{each} is listed by {name} and {listed[each]}"
            listed[each] = name


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("Qwen2_5-7B-Instruct", "qwen2.5-7b"),
        ("/mnt/cache/qwen25-vl-7b", "qwen2.5-vl-7b"),
        ("Qwen25_0.5B_Instruct", "qwen2.5-0.5b"),
        ("llama-31-8b", "llama-3.1-8b"),
        ("/models/Qwen3_8B", "qwen3-8b"),
        ("/models/Qwen3_8-27B/", "qwen3.8-27b"),
        ("~/hf/Qwen3_30B_A3B_Instruct_2507", "qwen3-30b-a3b-2507"),
        ("InternVL3_5-8B", "internvl3.5-8b"),
        ("InternVL3.5-8B", "internvl3.5-8b"),
        ("GLM_4_5_Air", "glm-4.5-air"),
        ("mirror/Llama-3_1-8B-Instruct", "llama-3.1-8b"),
        ("unsloth/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
    ],
)
def test_a_folder_means_the_model_that_it_is_called_after_whichever_signs_it_has(folder, name):
    assert canonical_name("models", folder) == name


@pytest.mark.parametrize("name", model_names())
def test_every_id_is_found_with_one_sign_between_its_words(name):
    for each in hugging_face_ids(name):
        bare = re.sub(r"[.-]", "_", each.rpartition("/")[2])
        assert canonical_name("models", f"/models/{bare}") == name


@pytest.mark.parametrize(
    "other", ["acme/tiny", "Qwen/Qwen9-8B", "zai-org/GLM-5.9", "gemma-4-E3B-it", "Kimi-K9", "/", ""]
)
def test_another_model_of_a_like_name_is_none_that_is_known(other):
    assert canonical_name("models", other) not in model_names()


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        ("Qwen/Qwen2.5-8B-Instruct", "qwen2.5-7b"),
        ("/models/qwen3_9b", "qwen3-8b"),
        ("zai-org/GLM-5.9", "glm-5.1"),
        ("tinny", "tiny"),
    ],
)
def test_an_unknown_model_is_answered_with_at_most_three_near_ones(unknown, nearest):
    near = nearest_models(unknown)
    assert nearest in near
    assert len(near) == len(set(near)) <= 3
    with pytest.raises(UnknownNameError) as caught:
        load_model(unknown)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"unknown model {unknown!r}; did you mean {near[0]!r}")
    assert line.endswith("; a job names a model without a sheet by the path of its config.json")
    assert len(line) < 250


# Models of recipes and measurements in the data that tests are given, and of which no sheet is known.
NO_SHEET = {"AngelSlim/Qwen3-1.7B_eagle3"}
NAMED = re.compile(
    r"\b(?:Qwen|meta-llama|deepseek-ai|moonshotai|google|nvidia|openai|microsoft|unsloth)/[\w.-]+"
)
TABLES = Path(__file__).parents[2].parent / "shared" / "data" / "truth" / "rl"


@pytest.mark.skipif(not TABLES.exists(), reason="the measured tables are not at hand")
@pytest.mark.parametrize(
    "table", ["nemorl_recipes_head", "trainer_memory", "rl_steps", "weight_sync"]
)
def test_every_model_of_a_measured_table_resolves(table):
    text = (TABLES / f"{table}.csv").read_text(encoding="utf-8")
    unknown = {
        name for name in NAMED.findall(text) if canonical_name("models", name) not in model_names()
    }
    assert not unknown - NO_SHEET


@pytest.mark.parametrize("name", [each for each in engine_names() if each.endswith("-eager")])
def test_an_engine_without_graphs_takes_the_same_share(name):
    """A card's memory is shared out alike with and without graphs: what goes off a share is no matter of kernels."""
    assert load_engine(name).share == load_engine(name.removesuffix("-eager")).share
