"""Files of models that transformers saved are read like those that their models are published with.

Its classes rename keys, write out what they take by default and leave out what is usual; checkpoints that trainers
save have such files.
"""

import dataclasses
import json
from pathlib import Path

import pytest

from rlplan.errors import FileError
from rlplan.profiles.jobs.config.reading import read_hf_config

transformers = pytest.importorskip("transformers")

CONFIGS = json.loads((Path(__file__).parent / "family_configs.json").read_text(encoding="utf-8"))
# Of these models the code comes with the weights.
WITHOUT_A_CLASS = {"bailing_moe", "kimi_k2", "kimi_k3", "mimo"}
WITH_A_CLASS = [
    name for name, config in CONFIGS.items() if config["model_type"] not in WITHOUT_A_CLASS
]


def saved(folder, config):
    """Return the file that the model's class saves of a published one."""
    whole = json.loads(json.dumps(config))
    transformers.CONFIG_MAPPING[config["model_type"]].from_dict(whole).save_pretrained(folder)
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def read(folder, config):
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return read_hf_config(folder)


@pytest.mark.parametrize("name", WITH_A_CLASS)
def test_a_saved_file_gives_the_architecture_of_the_published_one(tmp_path, name):
    published = read(tmp_path, CONFIGS[name])
    assert read(tmp_path, saved(tmp_path, CONFIGS[name])) == published


@pytest.mark.parametrize(
    "change",
    [
        {"5": {"head_dim": 512, "num_key_value_heads": 4}},
        {str(layer): {"head_dim": 512} for layer in range(60)},
        {str(layer): {"intermediate_size": 512} for layer in range(5, 60, 6)},
        {str(layer): {"head_dim": 512 if layer > 5 else 256} for layer in range(5, 60, 6)},
        ["head_dim"],
    ],
)
def test_sizes_of_single_layers_that_are_not_known_are_refused(tmp_path, change):
    config = saved(tmp_path, CONFIGS["google/gemma-4-31B-it"])
    config["text_config"]["per_layer_config"] = change
    with pytest.raises(FileError, match="layers sizes that are not known") as caught:
        read(tmp_path, config)
    assert caught.value.field == "per_layer_config"


def test_a_file_of_another_family_with_sizes_of_single_layers_is_refused(tmp_path):
    config = CONFIGS["Qwen/Qwen3-4B"] | {"per_layer_config": {"3": {"intermediate_size": 512}}}
    with pytest.raises(FileError) as caught:
        read(tmp_path, config)
    assert caught.value.field == "per_layer_config"


@pytest.mark.parametrize(
    ("whole", "text", "tied"),
    [(True, True, True), (False, True, False), (True, False, False), (None, True, True)],
)
def test_a_matrix_of_its_own_is_what_either_part_of_a_file_says(tmp_path, whole, text, tied):
    config = CONFIGS["Qwen/Qwen3-VL-4B-Instruct"]
    config = config | {"tie_word_embeddings": whole}
    config["text_config"] = config["text_config"] | {"tie_word_embeddings": text}
    assert read(tmp_path, config).tied_embeddings is tied


def test_a_model_without_experts_has_none_though_its_file_counts_some(tmp_path):
    config = CONFIGS["nvidia/Nemotron-H-8B-Base-8K"]
    told = config | {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 7688}
    assert read(tmp_path, told) == read(tmp_path, config)
    assert dataclasses.asdict(read(tmp_path, told))["num_experts"] == 0
