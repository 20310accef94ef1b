"""Text models behind a tower of images: the whole model's numbers, the tower as it was, and what does not run."""

import importlib
import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlplan.errors import FileError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.control.run import Saving
from rlplan.executor.control.weights import with_weights
from rlplan.executor.execute import execute
from rlplan.executor.parallel.meshes import make_mesh
from rlplan.executor.parallel.positions import task_positions
from rlplan.executor.rollout.engines.torch_static import TorchStaticEngine
from rlplan.executor.rollout.sampling import GenerateSettings
from rlplan.executor.weights.shard import build_shard
from rlplan.files.frozen import FrozenDict
from rlplan.job import Hyperparameters
from rlplan.models import Adapter
from rlplan.plan import TaskPlan
from rlplan.profiles.jobs.config.reading import read_hf_config
from tests.executor.test_pretrained import MINISTRAL3, PROMPT, SIZES, STEPS, batch, log_probs_in
from tests.executor.test_weights_of_runs import job_of, plan_of

TOWER = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 32,
}
TOWER |= {"image_size": 28, "patch_size": 14}
WIDE = SIZES | {"vocab_size": 263}
# By family: sizes of its text model, of its tower, and of the whole.
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "gemma3": (
        WIDE | {"sliding_window": 4, "query_pre_attn_scalar": 8},
        TOWER,
        {"mm_tokens_per_image": 4, "tie_word_embeddings": True},
    ),
    "mistral3": (
        WIDE | {"model_type": "ministral3", "rope_parameters": MINISTRAL3},
        TOWER | {"model_type": "pixtral", "head_dim": 8},
        {"tie_word_embeddings": False},
    ),
}
# What published folders, written before version 5 of `transformers`, call their parts.
EARLIER = {
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
}


def class_of(family):
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    return getattr(module, f"{family.capitalize()}ForConditionalGeneration")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a folder by family, as `transformers` writes it or wrote it."""

    @cache
    def write(family, earlier):
        folder, (text, tower, differs) = tmp_path_factory.mktemp("model"), MODELS[family]
        made_of = importlib.import_module(f"transformers.models.{family}.configuration_{family}")
        config = getattr(made_of, f"{family.capitalize()}Config")(
            text_config=text, vision_config=tower, **differs
        )
        torch.manual_seed(3)
        class_of(family)(config).save_pretrained(folder)
        held = load_file(folder / "model.safetensors")
        back = {old: new for new, old in EARLIER.items()}
        names = EARLIER if earlier else back
        renamed = {
            next(
                (new + name[len(old) :] for old, new in names.items() if name.startswith(old)), name
            ): each
            for name, each in held.items()
        }
        save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
        if earlier:  # nor do they say whether the head is the embedding
            said = json.loads((folder / "config.json").read_text())
            for part in (said, said["text_config"]):
                part.pop("tie_word_embeddings", None)
            (folder / "config.json").write_text(json.dumps(said))
        return folder

    return write


def logits_of(family, folder, tokens):
    model = class_of(family).from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        return model(input_ids=tokens[None]).logits[0].float()


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("earlier", [False, True])
def test_log_probabilities_and_greedy_tokens_are_those_of_the_whole_model(family, earlier, folders):
    folder = folders(family, earlier)
    tokens, parts = batch()
    _, found = log_probs_in(0, 1, {}, folder)
    for row in range(len(tokens)):
        here = parts[row] != 0
        mine = tokens[row][here]
        expected = logits_of(family, folder, mine).log_softmax(-1)[:-1].gather(1, mine[1:, None])
        there = torch.tensor(found)[row, here.nonzero()[1:, 0]]
        torch.testing.assert_close(there, expected[:, 0], rtol=0, atol=5e-6)
    mesh = make_mesh(task_positions(TaskPlan(pool="p0"), 1), 0, torch.device("cpu"))
    shard = build_shard(
        read_hf_config(folder), "lm", mesh, role="actor", seed=1, precision="fp32", folder=folder
    )
    settings = GenerateSettings(
        temperature=1.0, end_ids=(), max_running=4, greedy=True, seed=0, iteration=0
    )
    prompts, there = tokens[:2, :PROMPT], parts[:2, :PROMPT] != 0
    made = TorchStaticEngine(shard).generate(
        prompts, there, torch.full((2,), STEPS), torch.arange(2), STEPS, settings
    )
    said = prompts[0][there[0]]
    for _ in range(STEPS):
        said = torch.cat([said, logits_of(family, folder, said)[-1:].argmax(-1)])
    assert made.tokens[0, PROMPT:].tolist() == said[-STEPS:].tolist()


@pytest.mark.ray
@pytest.mark.parametrize("family", MODELS)
def test_a_run_exports_the_whole_model_with_the_tower_as_it_was(
    family, folders, tmp_path, shared_workers
):
    folder, out = folders(family, True), tmp_path / "out"
    job = job_of(folder, hyperparameters=Hyperparameters(learning_rate=1e-3))
    execute(
        plan_of(job), tmp_path / "run", iterations=1, seed=1, warmup=0, saving=Saving(export=out)
    )
    started, ended = (load_file(each / "model.safetensors") for each in (folder, out))
    assert ended.keys() == started.keys()
    for name, values in started.items():
        same = torch.equal(ended[name], values)
        assert same == (not name.startswith("language_model.")), name
    config = json.loads((out / "config.json").read_text())
    assert (config["model_type"], config["dtype"]) == (family, "float32")
    tokens = batch()[0][0]
    moved = (logits_of(family, out, tokens) - logits_of(family, folder, tokens)).abs().max()
    assert 0 < moved < 1


def refused(plan):
    with pytest.raises(FileError) as refusal:
        with_weights(plan, check_runnable(plan))
    return str(refusal.value)


def test_adapters_quantised_weights_and_other_text_models_behind_a_tower_are_refused(
    folders, tmp_path
):
    folder = folders("mistral3", True)
    job = job_of(folder)
    assert with_weights(plan_of(job), check_runnable(plan_of(job)))
    adapted = replace(job, adapters=FrozenDict({"actor": Adapter(rank=2)}))
    assert "job.adapters.actor: is of a model behind a tower" in refused(plan_of(adapted))
    config = json.loads((folder / "config.json").read_text())
    file, there = tmp_path / "config.json", FrozenDict(dict.fromkeys(job.models, str(tmp_path)))
    file.write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    assert "quantised checkpoint" in refused(plan_of(replace(job, weights=there)))
    file.write_text(
        json.dumps(config | {"text_config": {**config["text_config"], "model_type": "qwen2"}})
    )
    words = refused(plan_of(replace(job, weights=there)))
    assert "text_config.model_type: is of no family that runs here; found 'qwen2'" in words
