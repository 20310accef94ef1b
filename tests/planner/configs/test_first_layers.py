"""Models that are tried with their first layers alone, whose specification flags do not write out."""

import pytest

from rlplan.models import layer_kinds
from rlplan.parts import num_parameters
from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.importing import ImportOptions, imported, settings_of
from rlplan.planner.configs.megatron.model import first_layers
from rlplan.profiles.catalog import load_model

OPTIONS = ImportOptions(gpu="mi300x", mean_response=90, environment={})
FLAGS = """miles/train.py --spec miles_plugins.models.glm5.glm5 get_glm5_spec --num-layers {layers} --hidden-size 6144
    --num-attention-heads 64 --vocab-size 154880 --untie-embeddings-and-output-weights --num-experts 256 --moe-router-topk 8
    --moe-ffn-hidden-size 2048 --ffn-hidden-size 12288 --hf-checkpoint /models/{name} --colocate --rollout-batch-size 8
    --n-samples-per-prompt 8 --rollout-max-response-len 100 --global-batch-size 64 --actor-num-gpus-per-node 4
    --tensor-model-parallel-size 4 --sequence-parallel --expert-model-parallel-size 4 --expert-tensor-parallel-size 1 --num-rollout 10 --rollout-num-gpus-per-engine 4 --attention-dropout 0
    --hidden-dropout 0"""


def words_of(name, layers):
    return FLAGS.format(name=name, layers=layers).split()


def complaints_of(words):
    settings = settings_of("miles", words, OPTIONS)
    return [broken for rule in rules_of("miles") for broken in rule.broken(settings)]


def test_a_model_of_few_layers_has_so_many_of_its_sheet():
    words = words_of("GLM-5.2_5layer", 5)
    found = imported("miles", words, OPTIONS)
    model, whole = found.resolved.architecture("actor"), load_model("glm-5.2")
    assert model.num_layers == 5
    assert layer_kinds(model).order == layer_kinds(whole).order[:5]
    assert any("the first 5 layers of glm-5.2" in note for note in found.notes)
    assert not complaints_of(words)


def test_a_checkpoint_of_the_model_s_own_name_is_the_whole_one():
    words = words_of("GLM-5.2", 5)
    assert imported("miles", words, OPTIONS).resolved.architecture("actor").num_layers == 78
    assert [each.key for each in complaints_of(words)] == ["num-layers"]


@pytest.mark.parametrize("name", ["glm-5.2", "deepseek-v3", "qwen3.5-35b-a3b", "gpt-oss-20b"])
def test_layers_add_up(name):
    whole = load_model(name)
    sizes = [num_parameters(first_layers(whole, layers)) for layers in range(1, whole.num_layers)]
    assert sizes == sorted(set(sizes))
    assert first_layers(whole, whole.num_layers + 9).num_layers == whole.num_layers
    assert num_parameters(first_layers(whole, whole.num_layers)) == num_parameters(whole)
