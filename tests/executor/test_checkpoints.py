"""Checkpoints: a run goes on from one as if it had never stopped, on any layout and after a kill."""

import os
import pickle
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlplan.errors import FileError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.control.checkpoints import (
    CheckpointFolder,
    CheckpointState,
    check_continues,
    find_checkpoint,
    restore,
    whole_checkpoint,
)
from rlplan.executor.control.controller import Controller
from rlplan.executor.control.export import export_actor, hugging_face_model
from rlplan.executor.control.start import prepare_groups
from rlplan.executor.data.workload import PromptBatches
from rlplan.executor.model.adapters import is_adapter
from rlplan.executor.model.building import HEAD, family_config
from rlplan.executor.weights.stored_shards import whole_weights
from rlplan.files.decoding import load_json
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_yaml
from rlplan.job import Constraint, Pretrain
from rlplan.models import Adapter
from tests.cases import draws, only
from tests.executor.plans import TINY, make_job, make_plan
from tests.executor.test_tokenizer import write_tokenizer

# With vocabularies that no size divides.
TIED = replace(TINY, family="qwen3", qk_norm=True, tied_embeddings=True, vocab_size=263)
EXPERTS = replace(TINY, family="mixtral", num_experts=4, experts_per_token=2, moe_ffn_size=16)
MODELS = {"untied": TINY, "tied": TIED, "experts": EXPERTS}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one process": (1, {}),
    "tp 2 x pp 2": (4, {"tp": 2, "pp": 2}),
    "tp 2 x dp 2, sharded states": (4, {"tp": 2, "zero": 1}),
    "dp 2, fully sharded": (2, {"zero": 3}),
    "pp 2 x dp 2, states on the host": (4, {"pp": 2, "offload": True}),
    "cp 2": (2, {"cp": 2, "zero": 1}),
}
EXPERT_LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "experts on two ranks": (2, {"ep": 2, "zero": 1, "offload": True}),
    "experts on two ranks, fully sharded": (4, {"ep": 2, "zero": 3}),
}


def layouts_of(model):
    """Return the layouts that a model may have."""
    return LAYOUTS | (EXPERT_LAYOUTS if model.num_experts else {})


SEED = 1


def plan_in(layout, model=TINY, algorithm="ppo"):
    devices, sizes = layouts_of(model)[layout]
    job = make_job(algorithm, model=model)
    return make_plan(job, {"p0": (devices, tuple(job.models))}, micro_batch=2, **sizes)


def checkpointed_run(worker_pool, plan, first, last, *, start=None, folder=None, keep=2):
    """Run iterations of a plan with the shared workers, then write a checkpoint; return it."""
    tasks, groups = check_runnable(plan), worker_pool.groups_of(plan)
    prompts = PromptBatches(plan.job, Path())
    prepare_groups(plan, tasks, prompts, SEED, groups)
    controller = Controller(plan, tasks, groups, prompts.columns)
    if start is not None:
        controller.generator_is_ready = restore(start, groups)
        controller.state = dict(start.state.algorithm_state)
    for iteration in range(first, last):
        controller.finish(controller.send(iteration))
    state = CheckpointState(
        iteration=last,
        next_prompt=last * plan.job.workload.prompts,
        seed=SEED,
        algorithm_state=FrozenDict(controller.state),
    )
    return CheckpointFolder(folder, keep).save(plan, groups, state)


def stored_weights(checkpoint, role="actor"):
    return {name: w.numpy() for name, w in whole_weights(checkpoint.folder / role).items()}


def assert_same(found, expected, tolerance=0.0):
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert np.allclose(found[name], weight, rtol=0, atol=tolerance), name


@pytest.mark.ray
def test_a_run_that_goes_on_in_its_layout_ends_bit_for_bit_as_the_undisturbed_one(
    worker_pool, tmp_path
):
    plan = plan_in("dp 2, fully sharded")
    whole = checkpointed_run(worker_pool, plan, 0, 3, folder=tmp_path / "whole")
    half = checkpointed_run(worker_pool, plan, 0, 2, folder=tmp_path / "halves")
    rest = checkpointed_run(worker_pool, plan, 2, 3, start=half, folder=tmp_path / "halves")
    assert_same(stored_weights(rest), stored_weights(whole))
    assert_same(stored_weights(rest, "critic"), stored_weights(whole, "critic"))
    assert not np.array_equal(
        stored_weights(half)["head.weight"], stored_weights(whole)["head.weight"]
    )


@pytest.mark.ray
@pytest.mark.parametrize("model", only([], MODELS))
def test_every_layout_goes_on_where_another_one_stopped(worker_pool, tmp_path, model):
    layouts = layouts_of(MODELS[model])
    undisturbed = checkpointed_run(
        worker_pool,
        plan_in("one process", MODELS[model]),
        0,
        len(layouts),
        folder=tmp_path / "alone",
    )
    last = None
    for iteration, layout in enumerate(layouts):
        plan = plan_in(layout, MODELS[model])
        last = checkpointed_run(
            worker_pool, plan, iteration, iteration + 1, start=last, folder=tmp_path / "chain"
        )
    for role in ("actor", "critic"):
        assert_same(stored_weights(last, role), stored_weights(undisturbed, role), 1e-4)


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_that_was_read_and_written_in_another_layout_is_unchanged(
    worker_pool, tmp_path, layout
):
    first = checkpointed_run(worker_pool, plan_in("one process", TIED), 0, 1, folder=tmp_path / "0")
    copy = checkpointed_run(
        worker_pool, plan_in(layout, TIED), 1, 1, start=first, folder=tmp_path / "1"
    )
    assert_same(stored_weights(copy), stored_weights(first))
    assert_same(stored_weights(copy, "critic"), stored_weights(first, "critic"))


ADAPTER_LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "fully sharded": (2, {"zero": 3}),
    "sharded gradients": (2, {"zero": 2}),
    "tp 2 x dp 2, fully sharded": (4, {"tp": 2, "zero": 3}),
}


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("layout", ADAPTER_LAYOUTS)
def test_adapters_go_on_in_a_layout_that_shards_them(worker_pool, tmp_path, layout):
    adapters = FrozenDict(dict.fromkeys(("actor", "critic"), Adapter(rank=2, sync="merged")))
    job = replace(make_job(), adapters=adapters)

    def plan_of(devices, sizes):
        # The actor without its adapters is the reference.
        roles = tuple(role for role in job.models if role != "reference")
        return make_plan(job, {"p0": (devices, roles)}, micro_batch=2, **sizes)

    alone, sharded = plan_of(1, {}), plan_of(*ADAPTER_LAYOUTS[layout])
    whole = checkpointed_run(worker_pool, alone, 0, 3, folder=tmp_path / "whole")
    last = None
    for iteration, plan in enumerate((alone, sharded, alone)):
        last = checkpointed_run(
            worker_pool, plan, iteration, iteration + 1, start=last, folder=tmp_path / "halves"
        )
    for role in adapters:
        found = stored_weights(last, role)
        assert {is_adapter(name) or name == HEAD for name in found} == {True}
        assert_same(found, stored_weights(whole, role), 1e-4)


@pytest.mark.full
@pytest.mark.ray
def test_the_algorithms_state_goes_on(worker_pool, tmp_path):
    roles = ("actor", "critic", "reference", "reward", "cost", "cost_critic")
    job = replace(make_job("safe-rlhf"), models=FrozenDict(dict.fromkeys(roles, TINY)))
    constraint = Constraint(cost_limit=0.1, multiplier_learning_rate=0.5)
    job = replace(job, pretrain=Pretrain(), constraint=constraint)
    plan = make_plan(job, {"p0": (1, tuple(job.models))})
    whole = checkpointed_run(worker_pool, plan, 0, 2, folder=tmp_path / "whole")
    half = checkpointed_run(worker_pool, plan, 0, 1, folder=tmp_path / "halves")
    rest = checkpointed_run(worker_pool, plan, 1, 2, start=half, folder=tmp_path / "halves")
    assert half.state.algorithm_state["lagrange_multiplier"] != 1.0
    assert rest.state == whole.state
    assert_same(stored_weights(rest), stored_weights(whole))
    assert_same(stored_weights(rest, "cost_critic"), stored_weights(whole, "cost_critic"))


@pytest.fixture(scope="module")
def kept(worker_pool, tmp_path_factory):
    """Write three checkpoints into a folder that keeps two, beside one that broke off."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    plan, last = plan_in("one process"), None
    (folder / ".iteration-000001.partial" / "actor").mkdir(parents=True)
    for iteration in range(3):
        last = checkpointed_run(
            worker_pool, plan, iteration, iteration + 1, start=last, folder=folder
        )
    return folder, plan, last


@pytest.mark.ray
def test_the_last_checkpoints_are_kept_and_what_broke_off_is_removed(kept):
    folder, _, last = kept
    assert sorted(path.name for path in folder.iterdir()) == [
        "iteration-000002",
        "iteration-000003",
    ]
    assert find_checkpoint(folder.parent) == last
    assert find_checkpoint(folder) == last
    assert find_checkpoint(folder / "iteration-000002").state.next_prompt == 16


@pytest.mark.ray
def test_another_job_or_seed_is_refused_by_name(kept):
    _, plan, last = kept
    check_continues(last, plan, SEED, 4)
    with pytest.raises(FileError, match="seed: is of another seed; found 2; allowed: 1"):
        check_continues(last, plan, 2, 4)
    with pytest.raises(FileError, match="is done; found 3; allowed: more than 3 iterations"):
        check_continues(last, plan, SEED, 3)
    other = replace(plan, job=make_job(model=TIED))
    with pytest.raises(FileError, match=r"job\.models: is of another job"):
        check_continues(last, other, SEED, 4)
    drawn = replace(plan.job, weights=None)  # as older releases, which drew all weights, wrote it
    check_continues(last, replace(plan, job=drawn), SEED, 4)
    read = replace(plan.job, weights=FrozenDict({"actor": "elsewhere"}))
    with pytest.raises(FileError, match=r"job\.weights\.actor: is .*elsewhere.*allowed: 'random'"):
        check_continues(last, replace(plan, job=read), SEED, 4)
    with pytest.raises(FileError, match=r"job\.workload\.prompts: is of another job; found 4"):
        check_continues(last, replace(plan, job=make_job(prompts=4)), SEED, 4)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    (tmp_path / "checkpoints" / ".iteration-000001.partial").mkdir(parents=True)
    with pytest.raises(FileError, match="holds no checkpoint"):
        find_checkpoint(tmp_path)


@pytest.mark.ray
def test_a_model_that_is_not_in_a_checkpoint_is_named(kept, tmp_path):
    shutil.copytree(kept[2].folder, tmp_path / "broken")
    shutil.rmtree(tmp_path / "broken" / "actor")
    with pytest.raises(FileError, match=r"actor/.*safetensors: is missing"):
        find_checkpoint(tmp_path / "broken")
    with pytest.raises(FileError, match="actor: holds no checkpoint of a model"):
        whole_weights(tmp_path / "broken" / "actor")


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.mark.ray
def test_a_bit_that_flipped_anywhere_is_noticed(kept, tmp_path):
    files = [path for path in kept[2].folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".yaml", ".safetensors"}
    numbers = random.Random(1)
    for number in range(draws(40, 400)):
        copy = shutil.copytree(kept[2].folder, tmp_path / str(number))
        chosen = numbers.choice(files).relative_to(kept[2].folder)
        flip(copy / chosen, numbers.randrange(2**30))
        with pytest.raises(FileError):
            find_checkpoint(copy)
        shutil.rmtree(copy)


@pytest.mark.ray
def test_the_checkpoint_before_a_broken_one_is_used_and_said(kept, tmp_path):
    folder = shutil.copytree(kept[0], tmp_path / "checkpoints")
    (shard,) = (folder / "iteration-000003" / "actor").iterdir()
    shard.write_bytes(shard.read_bytes()[:-8])
    found = find_checkpoint(tmp_path)
    assert found.state.iteration == 2
    assert "iteration-000003/actor" in found.passed_over
    assert "is not as it was written" in found.passed_over
    assert whole_checkpoint(replace(kept[2], folder=folder / "iteration-000003")) == found
    (folder / "iteration-000002" / "manifest.json").write_text("{")
    with pytest.raises(FileError, match="iteration-000003/actor"):
        find_checkpoint(tmp_path)


class Payload:
    """Make a folder where it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.ray
def test_a_prepared_checkpoint_executes_nothing(kept, tmp_path):
    folder = shutil.copytree(kept[2].folder, tmp_path / "prepared")
    pickled = pickle.dumps(Payload(tmp_path / "executed"))
    (folder / "actor" / ".metadata").write_bytes(pickled)
    with pytest.raises(FileError, match=r"actor/\.metadata: is not in the manifest"):
        find_checkpoint(folder)
    assert whole_weights(folder / "actor")
    for shard in (folder / "actor").glob("*.safetensors"):
        shard.write_bytes(pickled)
    with pytest.raises(FileError, match="holds no checkpoint of a model"):
        whole_weights(folder / "actor")
    assert not (tmp_path / "executed").exists()


@pytest.mark.ray
@pytest.mark.parametrize("model", only([], MODELS))
def test_transformers_loads_the_exported_actor_and_computes_the_same(worker_pool, tmp_path, model):
    from transformers import AutoModelForCausalLM

    plan = plan_in("tp 2 x pp 2", MODELS[model])
    checkpoint = checkpointed_run(worker_pool, plan, 0, 1, folder=tmp_path / "checkpoints")
    export_actor(checkpoint, tmp_path / "actor")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "actor", local_files_only=True)
    tokens = torch.arange(3, 12)[None]
    ours = hugging_face_model(
        family_config(MODELS[model]),
        whole_weights(checkpoint.folder / "actor"),
        tied=MODELS[model].tied_embeddings,
    ).eval()
    with torch.no_grad():
        assert torch.equal(loaded(tokens).logits, ours(tokens).logits)
    expected, found = whole_weights(checkpoint.folder / "actor"), loaded.state_dict()
    for name in ("layers.1.self_attn.o_proj.weight", "norm.weight", "embed_tokens.weight"):
        assert torch.equal(found[f"model.{name}"], expected[f"backbone.{name}"])


CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }} two{% endfor %}"
    "{% if add_generation_prompt %} one{% endif %}"
)


@pytest.mark.ray
def test_transformers_loads_the_tokenizer_of_the_exported_folder_with_its_chat_template(
    kept, tmp_path
):
    from transformers import AutoTokenizer

    _, plan, last = kept
    write_tokenizer(tmp_path / "words", eos_token="<eos>", chat_template=CHAT_TEMPLATE)
    shutil.copytree(last.folder, tmp_path / "checkpoint")
    plan = replace(plan, job=replace(plan.job, tokenizer="words"))
    write_yaml(tmp_path / "checkpoint" / "plan.yaml", plan)
    copied = replace(last, folder=tmp_path / "checkpoint")
    export_actor(copied, tmp_path / "actor", folder=tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path / "actor", local_files_only=True)
    assert loaded.encode("two one") == [3, 2]
    assert loaded.eos_token == "<eos>"
    for file in ("config.json", "generation_config.json"):
        said = load_json(tmp_path / "actor" / file)["eos_token_id"]
        assert said == loaded.eos_token_id != 2  # Llama's end is a word here
    chat = [{"role": "user", "content": "one"}]
    text = loaded.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "one two one"
