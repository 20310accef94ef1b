"""Hugging Face configs: the published files become the same architectures as our sheets."""

import dataclasses
import json
from pathlib import Path

import pytest

from rlplan.errors import FileError
from rlplan.parts import num_parameters
from rlplan.profiles.catalog import load_model, read_hf_config
from rlplan.profiles.sheets import sheet_names

LLAMA_2_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "max_position_embeddings": 4096,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vocab_size": 32000,
}
QWEN2_5_05B = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
QWEN3_8B = {
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "vocab_size": 151936,
}
MIXTRAL_8X7B = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "vocab_size": 151936,
}


def written(folder, config):
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA_2_70B, "llama-2-70b"),
        (QWEN2_5_05B, "qwen2.5-0.5b"),
        (QWEN3_8B, "qwen3-8b"),
        (QWEN3_30B_A3B, "qwen3-30b-a3b"),
        (MIXTRAL_8X7B, "mixtral-8x7b"),
    ],
)
def test_a_published_config_gives_the_architecture_of_the_sheet(tmp_path, config, name):
    path = written(tmp_path, config)
    sheet = load_model(name)
    read = read_hf_config(path)
    assert read.name == tmp_path.name
    assert dataclasses.replace(read, name=name, source=sheet.source) == sheet
    assert read_hf_config(tmp_path) == read


def test_mistral_has_llama_s_parameters(tmp_path):
    config = LLAMA_2_70B | {
        "model_type": "mistral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "sliding_window": 4096,
    }
    assert num_parameters(read_hf_config(written(tmp_path, config))) == 7_241_732_096


def test_experts_are_found_under_their_newer_name(tmp_path):
    config = {key: value for key, value in QWEN3_30B_A3B.items() if key != "num_experts"}
    read = read_hf_config(written(tmp_path, config | {"num_local_experts": 128}))
    assert num_parameters(read) == 30_532_122_624


def test_without_key_value_heads_every_head_has_its_own(tmp_path):
    config = {key: value for key, value in LLAMA_2_70B.items() if key != "num_key_value_heads"}
    assert read_hf_config(written(tmp_path, config)).num_kv_heads == 64


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"model_type": "lama"}, "model_type", "did you mean 'llama'"),
        ({"model_type": "gpt2"}, "model_type", "not known"),
        ({"model_type": None}, "model_type", "is missing"),
        ({"hidden_size": None}, "hidden_size", "is missing"),
        ({"vocab_size": "many"}, "vocab_size", "whole number; found 'many'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "at least 1; found 0"),
        ({"num_attention_heads": 0}, "num_attention_heads", "at least 1; found 0"),
        ({"num_key_value_heads": 7}, "num_key_value_heads", "does not divide the 64 query heads"),
        ({"rms_norm_eps": -1}, "rms_norm_eps", "above 0"),
        ({"mlp_bias": True}, "mlp_bias", "not understood"),
        ({"num_memory_heads": 4}, "num_memory_heads", "may change the sizes"),
        ({"layer_types": ["full_attention"]}, "layer_types", "names 1 layers"),
        ({"layer_types": ["sparse"] * 80}, "layer_types", "names 'sparse'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config", "quantised"),
    ],
)
def test_a_wrong_config_is_refused_by_file_and_key(tmp_path, change, field, words):
    path = written(tmp_path, LLAMA_2_70B | change)
    with pytest.raises(FileError, match=words) as caught:
        read_hf_config(path)
    assert (caught.value.file, caught.value.field) == (str(path), field)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_experts": None}, "num_experts"),
        ({"num_experts": 0}, "num_experts"),
        ({"num_experts_per_tok": 129}, "num_experts_per_tok"),
        ({"moe_intermediate_size": 0}, "moe_intermediate_size"),
        ({"mlp_only_layers": "all"}, "mlp_only_layers"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
    ],
)
def test_impossible_experts_are_refused(tmp_path, change, field):
    with pytest.raises(FileError) as caught:
        read_hf_config(written(tmp_path, QWEN3_30B_A3B | change))
    assert caught.value.field == field


def test_a_missing_config_is_a_user_error(tmp_path):
    with pytest.raises(FileError, match=r"config\.json: no such file"):
        read_hf_config(tmp_path)


def test_a_broken_config_is_a_user_error(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(FileError, match="is not JSON"):
        read_hf_config(path)


# What the config.json of one or two published models of each family says of their architecture.
CONFIGS = json.loads((Path(__file__).parent / "family_configs.json").read_text(encoding="utf-8"))


# Text models that are published behind a tower alone, and run without it once they are written apart.
BEHIND_A_TOWER = {"ministral3"}


def test_every_family_has_a_published_config_in_this_test():
    published = {config["model_type"] for config in CONFIGS.values()}
    assert published | BEHIND_A_TOWER == set(sheet_names("families"))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_of_each_family_gives_its_sheet(tmp_path, name):
    read = read_hf_config(written(tmp_path, CONFIGS[name]))
    sheet = load_model(name)
    assert dataclasses.replace(read, name=sheet.name, source=sheet.source) == sheet


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-Omni-7B", "Qwen/Qwen3-Omni-30B-A3B-Instruct"])
def test_of_a_model_that_also_speaks_its_thinker_is_read(tmp_path, name):
    whole = {
        "model_type": "an_omni_model",
        "talker_config": {"hidden_size": 896},
        "thinker_config": CONFIGS[name],
    }
    alone = read_hf_config(written(tmp_path, CONFIGS[name]))
    assert read_hf_config(written(tmp_path, whole)) == alone


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("key", ["num_hash_heads", "n_memory_layers", "ffn_latent_rank"])
def test_a_size_that_nobody_knows_is_refused_in_every_family(tmp_path, name, key):
    config = dict(CONFIGS[name])
    if "text_config" in config:
        config["text_config"] = config["text_config"] | {key: 3}
    with pytest.raises(FileError, match="not understood") as caught:
        read_hf_config(written(tmp_path, config | {key: 3}))
    assert caught.value.field == key


@pytest.mark.parametrize(
    ("name", "change", "field"),
    [
        ("deepseek-ai/DeepSeek-V3", {"kv_lora_rank": None}, "kv_lora_rank"),
        (
            "nvidia/Nemotron-H-8B-Base-8K",
            {"hybrid_override_pattern": "M?"},
            "hybrid_override_pattern",
        ),
        (
            "nvidia/Nemotron-H-8B-Base-8K",
            {"hybrid_override_pattern": "M-*"},
            "hybrid_override_pattern",
        ),
        ("nvidia/Nemotron-H-8B-Base-8K", {"ssm_state_size": None}, "ssm_state_size"),
        ("openai/gpt-oss-20b", {"sliding_window": None}, "sliding_window"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"linear_num_key_heads": "8"}, "linear_num_key_heads"),
    ],
)
def test_what_a_part_needs_is_asked_for_by_its_key(tmp_path, name, change, field):
    with pytest.raises(FileError) as caught:
        read_hf_config(written(tmp_path, CONFIGS[name] | change))
    assert caught.value.field == field


def test_dense_layers_between_expert_layers_are_read(tmp_path):
    read = read_hf_config(written(tmp_path, QWEN3_30B_A3B | {"mlp_only_layers": [0, 1]}))
    assert [(run.count, run.kinds) for run in read.layer_runs] == [
        (2, ("full dense",)),
        (46, ("full",)),
    ]
    every = read_hf_config(written(tmp_path, QWEN3_30B_A3B | {"decoder_sparse_step": 2}))
    assert [(run.count, run.kinds) for run in every.layer_runs] == [(24, ("full dense", "full"))]


def test_dense_layers_that_a_file_names_one_by_one_are_read(tmp_path):
    """As transformers 5 writes them, beside the key that says how many are the first."""
    config = CONFIGS["zai-org/GLM-5.1"]
    networks = ["dense"] * 3 + ["sparse"] * 75
    told = config | {"mlp_layer_types": networks, "layer_types": ["indexed_attention"] * 78}
    hub = read_hf_config(written(tmp_path, config))
    assert read_hf_config(written(tmp_path, told)) == hub
    fewer = config | {"mlp_layer_types": ["dense", *["sparse"] * 77]}
    assert read_hf_config(written(tmp_path, fewer)).layer_runs[0].kinds == ("full dense",)
    assert [run.count for run in read_hf_config(written(tmp_path, fewer)).layer_runs] == [1, 77]


def test_a_query_s_size_is_the_sum_of_both_its_parts(tmp_path):
    config = CONFIGS["zai-org/GLM-5.1"]
    whole = read_hf_config(written(tmp_path, config | {"qk_head_dim": 256}))
    assert whole == read_hf_config(written(tmp_path, config))
    assert whole.head_dim == 256


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"qk_head_dim": 192}, "qk_head_dim", "is not the sum"),
        ({"mlp_layer_types": ["dense"]}, "mlp_layer_types", "dense or sparse for each of 78"),
        ({"mlp_layer_types": ["wide"] * 78}, "mlp_layer_types", "dense or sparse for each"),
        ({"indexer_types": ["shared", "full"] * 39}, "indexer_types", "whose index layers take"),
        ({"indexer_types": ["full", "half"] * 39}, "indexer_types", "whose index layers take"),
        ({"indexer_types": ["full", "shared"]}, "indexer_types", "names 2 layers"),
        ({"index_topk_pattern": "FSX" * 26}, "indexer_types", "whose index layers take"),
    ],
)
def test_layers_of_glm_that_are_not_known_are_refused(tmp_path, change, field, words):
    with pytest.raises(FileError, match=words) as caught:
        read_hf_config(written(tmp_path, CONFIGS["zai-org/GLM-5.1"] | change))
    assert caught.value.field == field


def test_ling_2_5_is_told_from_ling_3_by_what_bounds_its_gates(tmp_path):
    config = CONFIGS["inclusionAI/Ling-3.0-Flash"]
    names = {"linear_num_heads": None, "linear_head_dim": None, "linear_conv_kernel_dim": None}
    published = config | names | {"head_dim": 128}
    assert read_hf_config(written(tmp_path, published)) == read_hf_config(written(tmp_path, config))
    older = published | {"kda_safe_gate": None, "kda_lower_bound": None}
    with pytest.raises(FileError, match="Lightning attention") as caught:
        read_hf_config(written(tmp_path, older))
    assert caught.value.field == "kda_safe_gate"


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"indexer_types": None},
        {
            "indexer_types": None,
            "index_topk_freq": 1,
            "index_topk_pattern": "FFF" + "SSSF" * 18 + "SSS",
        },
    ],
)
def test_whose_index_a_layer_takes_is_said_one_by_one_by_letters_or_every_so_many(tmp_path, change):
    config = CONFIGS["zai-org/GLM-5.2"]
    read = read_hf_config(written(tmp_path, config | change))
    assert read == read_hf_config(written(tmp_path, config))
    assert [run.count for run in read.layer_runs] == [3, 18, 1]


def test_a_tower_that_does_not_say_its_family_is_the_whole_model_s(tmp_path):
    """As in the first files of Qwen2.5-VL, whose text model's keys stand outside."""
    config = CONFIGS["Qwen/Qwen2.5-VL-3B-Instruct"]
    vision = {key: each for key, each in config["vision_config"].items() if key != "model_type"}
    read = read_hf_config(written(tmp_path, config | {"vision_config": vision}))
    assert read.vision_parameters == load_model("qwen2.5-vl-3b").vision_parameters


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("google/gemma-2-9b-it", {"sliding_window_size": 4096}),  # as in gemma-2-27b's
        ("MiniMaxAI/MiniMax-M2.5", {"mlp_intermediate_size": 8192}),  # as in MiniMax-M2's
        ("zai-org/GLM-5.1", {"indexer_types": ["full"] * 78}),
    ],
)
def test_keys_of_published_files_that_change_nothing_are_understood(tmp_path, name, change):
    hub = read_hf_config(written(tmp_path, CONFIGS[name]))
    assert read_hf_config(written(tmp_path, CONFIGS[name] | change)) == hub


def test_expert_layers_between_dense_ones_are_read(tmp_path):
    ernie = CONFIGS["baidu/ERNIE-4.5-21B-A3B-PT"]
    change = {"moe_layer_start_index": 3, "moe_layer_end_index": 25}
    read = read_hf_config(written(tmp_path, ernie | change))
    assert [(run.count, run.kinds) for run in read.layer_runs] == [
        (3, ("full dense",)),
        (23, ("full",)),
        (2, ("full dense",)),
    ]
    every = read_hf_config(written(tmp_path, ernie | {"moe_layer_interval": 2}))
    assert [(run.count, run.kinds) for run in every.layer_runs] == [(14, ("full dense", "full"))]


def test_a_router_has_biases_where_the_file_says_so(tmp_path):
    ling = CONFIGS["inclusionAI/Ling-1T"]
    without = read_hf_config(written(tmp_path, ling | {"moe_router_enable_expert_bias": False}))
    biases = num_parameters(load_model("ling-1t")) - num_parameters(without)
    assert biases == 76 * 256


def test_a_text_model_behind_a_tower_is_read_as_its_own_family(tmp_path):
    small = CONFIGS["mistralai/Mistral-Small-3.1-24B-Instruct-2503"]
    text = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34}
    newer = {"model_type": "ministral3", "max_position_embeddings": 262144, "rope_theta": 1e6}
    read = read_hf_config(
        written(tmp_path, small | {"text_config": small["text_config"] | text | newer})
    )
    sheet = load_model("ministral-3-8b")
    assert dataclasses.replace(read, name=sheet.name, source=sheet.source) == sheet
    apart = read_hf_config(written(tmp_path, small["text_config"] | text | newer))
    assert (apart.family, apart.vision_parameters) == ("ministral3", None)
    assert apart.hidden_size == sheet.hidden_size


def test_a_large_tower_with_norms_of_queries_is_counted_to_the_unit(tmp_path):
    intern = CONFIGS["OpenGVLab/InternVL3-1B-hf"]
    tower = {"hidden_size": 3200, "intermediate_size": 12800, "num_hidden_layers": 45}
    norms = {"attention_bias": False, "use_qk_norm": True, "norm_type": "rms_norm"}
    text = {
        "model_type": "qwen3",
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "num_hidden_layers": 64,
        "head_dim": 128,
        "vocab_size": 151936,
    }
    change = {
        "vision_config": intern["vision_config"] | tower | norms,
        "text_config": intern["text_config"] | text,
    }
    read = read_hf_config(written(tmp_path, intern | change))
    assert (read.family, num_parameters(read)) == ("qwen3", 38_390_405_504)


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"text_config": {"model_type": "internlm3"}}, "model_type", "allowed: text_config of"),
        ({"text_config": {"model_type": ["qwen2"]}}, "model_type", "no text model that is known"),
        ({"text_config": None}, "text_config", "is missing; allowed: the text model's own keys"),
        ({"vision_config": {"image_size": [448, 336]}}, "vision_config.image_size", "the same"),
        ({"vision_config": {"patch_size": []}}, "vision_config.patch_size", "the same"),
        ({"vision_config": {"hidden_size": None}}, "vision_config.hidden_size", "is missing"),
    ],
)
def test_a_wrong_tower_is_refused_by_its_key(tmp_path, change, field, words):
    intern = CONFIGS["OpenGVLab/InternVL3-1B-hf"]
    ((key, value),) = change.items()
    changed = value if value is None else intern[key] | value
    with pytest.raises(FileError, match=words) as caught:
        read_hf_config(written(tmp_path, intern | {key: changed}))
    assert caught.value.field == field
