"""Runs that start from folders of weights: what they start as, what they export, and what is refused before."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import unused_roles
from rlplan.errors import CapabilityError, FileError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.control.checkpoints import find_checkpoint, model_of
from rlplan.executor.control.export import check_exports
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.control.run import Saving
from rlplan.executor.control.weights import end_ids_of, with_weights
from rlplan.executor.execute import execute
from rlplan.executor.weights.pretrained import INDEX, WHOLE, weight_paths
from rlplan.executor.weights.stored_shards import whole_weights
from rlplan.files.frozen import FrozenDict
from rlplan.job import Hyperparameters
from rlplan.models import Adapter
from rlplan.profiles.jobs.resolve import resolve_job
from tests.cases import only
from tests.executor.plans import make_job, make_plan
from tests.executor.test_pretrained import MODELS, made
from tests.executor.test_tokenizer import write_tokenizer

SAMPLED = {"eos_token_id": [2, 7], "temperature": 0.7, "do_sample": True}
POLICY = ("actor", "reference")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a small model's weights."""
    found = tmp_path_factory.mktemp("weights")
    made("llama", MODELS["llama 3"][1] | {"vocab_size": 263}).save_pretrained(found)
    (found / "generation_config.json").write_text(json.dumps(SAMPLED))
    return found


def job_of(folder, algorithm="grpo", **changes):
    """Return a resolved job whose models start from a folder."""
    work = {"samples_per_prompt": 2} if algorithm == "grpo" else {}
    job = make_job(algorithm, **work)
    models = FrozenDict(dict.fromkeys(job.models, str(folder)))
    return resolve_job(replace(job, models=models, weights=None, **changes), Path())


def plan_of(job, gpus=1, **sizes):
    """Return a plan of all models in one pool."""
    unused = unused_roles(load_algorithm(job.algorithm), job)
    roles = tuple(role for role in job.models if role not in unused)
    return make_plan(job, {"p0": (gpus, roles)}, **sizes)


def weights_in(folder):
    """Return the tensors of a folder by name."""
    files = [load_file(path) for path in sorted(folder.glob("*.safetensors"))]
    return {name: values for held in files for name, values in held.items()}


@pytest.mark.ray
@pytest.mark.parametrize(
    "sizes",
    only([{"gpus": 2, "zero": 3}], [{"gpus": 1}, {"gpus": 2, "tp": 2}, {"gpus": 2, "zero": 3}]),
)
def test_a_run_trains_the_weights_of_its_folder_and_exports_them(
    folder, sizes, tmp_path, shared_workers
):
    still = Hyperparameters(learning_rate=1e-30, critic_learning_rate=1e-30)
    plan = plan_of(job_of(folder, hyperparameters=still), **sizes)
    run = execute(
        plan,
        tmp_path / "run",
        iterations=1,
        seed=1,
        warmup=0,
        saving=Saving(export=tmp_path / "out"),
    )
    assert run.plan.job.weights == FrozenDict(dict.fromkeys(POLICY, str(folder)))
    started, ended = weights_in(folder), weights_in(tmp_path / "out")
    assert ended.keys() == started.keys()
    for name, values in started.items():  # such steps change no number but zeros
        torch.testing.assert_close(ended[name], values, rtol=0, atol=1e-28, msg=name)
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text()) == SAMPLED
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rope_parameters"]["rope_type"] == "llama3"


@pytest.mark.ray
def test_a_run_learns_from_its_folder(folder, tmp_path, shared_workers):
    plan = plan_of(job_of(folder))
    execute(
        plan,
        tmp_path / "run",
        iterations=2,
        seed=1,
        warmup=0,
        saving=Saving(export=tmp_path / "out"),
    )
    started, ended = weights_in(folder), weights_in(tmp_path / "out")
    moved = {name: (ended[name] - values).abs().max().item() for name, values in started.items()}
    assert all(0 < distance < 0.02 for distance in moved.values()), moved


def test_a_reference_starts_as_the_actor(folder):
    job = job_of(folder)
    alone = replace(job, weights=FrozenDict({"actor": str(folder)}))
    assert alone.weights_of("reference") == str(folder)
    assert alone.weights_of("critic") is None


def refused(plan, **options):
    """Return what is said of a plan before anything is started."""
    with pytest.raises((FileError, CapabilityError)) as refusal:
        with_weights(plan, check_runnable(plan), **options)
    return str(refusal.value)


def test_models_without_weights_are_refused(folder):
    plan = plan_of(replace(job_of(folder), weights=None))
    said = refused(plan)
    assert "job.models.actor" in said
    assert "weights: random" in said


def test_a_folder_with_a_configuration_alone_is_refused(folder, tmp_path):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    assert "has no weights" in refused(plan_of(job_of(tmp_path)))


def broken(folder, tmp_path, change):
    """Return a copy of a folder whose tensors were changed."""
    held = weights_in(folder)
    change(held)
    save_file(held, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    return tmp_path


def test_a_tensor_that_is_missing_is_named(folder, tmp_path):
    name = "model.layers.2.mlp.up_proj.weight"
    copy = broken(folder, tmp_path, lambda held: held.pop(name))
    assert name in refused(plan_of(job_of(copy)))


def test_a_tensor_of_another_shape_is_named(folder, tmp_path):
    name = "model.layers.1.self_attn.k_proj.weight"
    copy = broken(folder, tmp_path, lambda held: held.update({name: torch.zeros(8, 32)}))
    said = refused(plan_of(job_of(copy)))
    assert name in said
    assert "[8, 32]" in said


def test_a_file_that_is_cut_is_refused(folder, tmp_path):
    copy = broken(folder, tmp_path, lambda _: None)
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    assert "broken" in refused(plan_of(job_of(copy)))


def with_index(copy, files):
    """Write a folder's index as if its tensors lay in some files."""
    names = {f"tensor {number}": file for number, file in enumerate(files)}
    (copy / INDEX).write_text(json.dumps({"weight_map": names}))


def test_a_file_that_the_index_names_and_that_is_missing_is_named(folder, tmp_path):
    copy = broken(folder, tmp_path, lambda _: None)
    job = job_of(copy)
    (copy / WHOLE).rename(copy / "model-1.safetensors")
    with_index(copy, ["model-1.safetensors", "model-2.safetensors"])
    assert "model-2.safetensors: is missing" in refused(plan_of(job))
    (copy / INDEX).write_text("{}")
    assert "weight_map: is no index of weights" in refused(plan_of(job))


def test_a_file_that_the_index_does_not_name_is_not_read(folder, tmp_path):
    copy = broken(folder, tmp_path, lambda _: None)
    (copy / WHOLE).rename(copy / "model-1.safetensors")
    with_index(copy, ["model-1.safetensors"])
    (copy / "old.safetensors").write_bytes(b"of another model")
    assert weight_paths(copy) == [copy / "model-1.safetensors"]
    (copy / WHOLE).write_bytes(b"one file goes before the index, as transformers has it")
    assert weight_paths(copy) == [copy / WHOLE]


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8])
def test_weights_that_need_scales_are_refused(folder, tmp_path, kind):
    name = "model.layers.1.mlp.up_proj.weight"
    copy = broken(folder, tmp_path, lambda held: held.update({name: held[name].to(kind)}))
    said = refused(plan_of(job_of(copy)))
    assert name in said
    assert "quantised" in said


def test_a_quantised_checkpoint_is_refused_by_its_configuration(folder, tmp_path):
    copy = broken(folder, tmp_path, lambda _: None)
    config = json.loads((copy / "config.json").read_text())
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (copy / "config.json").write_text(json.dumps(config | {"quantization_config": quantised}))
    assert "quantization_config: is of a quantised" in refused(plan_of(job_of(copy)))


def test_a_model_that_attends_later_tokens_is_refused(tmp_path):
    family, settings = MODELS["gemma3"]
    made(family, settings | {"vocab_size": 263}).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"use_bidirectional_attention": True})
    )
    assert "use_bidirectional_attention: is of a model" in refused(plan_of(job_of(tmp_path)))


def test_angles_that_hang_on_the_longest_sequence_of_a_batch_are_refused_where_sequences_may_be_long(
    tmp_path,
):
    family, settings = MODELS["phi3"]
    rope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
    }  # fmt: skip
    more = {"vocab_size": 263, "rope_parameters": rope, "original_max_position_embeddings": 11}
    made(family, settings | more).save_pretrained(tmp_path)
    plan = plan_of(job_of(tmp_path))
    with_weights(plan, check_runnable(plan))  # 6 and 5 tokens
    work = replace(plan.job.workload, response_tokens=6)
    said = refused(replace(plan, job=replace(plan.job, workload=work)))
    assert "rope_scaling: has other angles in sequences above 11 tokens" in said
    assert "not 12 (job.workload)" in said


def test_angles_of_an_unknown_kind_are_refused(folder, tmp_path):
    copy = broken(folder, tmp_path, lambda _: None)
    config = json.loads((copy / "config.json").read_text())
    del config["rope_parameters"]
    (copy / "config.json").write_text(json.dumps(config | {"rope_scaling": {"type": "mrope"}}))
    assert "rope_scaling: is of no kind that runs here; found 'mrope'" in refused(
        plan_of(job_of(copy))
    )


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [
        ({"eos_token_id": [1, 106]}, {"eos_token_id": 5}, (258, 1, 106)),
        ({"eos_token_id": 258}, {}, (258,)),
        ({}, {"eos_token_id": 5}, (258,)),
        (None, {"eos_token_id": 5}, (258, 5)),
        (None, {"eos_token_id": None}, (258,)),
    ],
)
def test_a_response_ends_at_the_tokenizers_token_and_at_those_of_the_folder(
    folder, tmp_path, generation, config, ends
):
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    job = replace(job_of(folder), weights=FrozenDict({"actor": str(tmp_path)}), tokenizer="a")
    assert end_ids_of(job, 258) == ends
    assert end_ids_of(replace(job, tokenizer="bytes"), 258) == (258,)  # its ids are others
    assert end_ids_of(replace(job, weights="random"), 258) == (258,)
    endless = replace(job, workload=replace(job.workload, ignore_eos=True))
    assert end_ids_of(endless, 258) == ()


@pytest.mark.ray
def test_responses_of_a_run_end_where_its_folder_says(folder, tmp_path, shared_workers):
    """Each token of the vocabulary ends one."""
    weights = broken(folder, tmp_path, lambda _: None)
    generation = {"eos_token_id": list(range(263))}
    (weights / "generation_config.json").write_text(json.dumps(generation))
    write_tokenizer(tmp_path / "words", eos_token="<eos>")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "one two"}\n')
    job = replace(job_of(weights), tokenizer=str(tmp_path / "words"), prompts_file="prompts.jsonl")
    execute(plan_of(job), tmp_path / "run", iterations=1, seed=1, warmup=0, folder=tmp_path)
    (row,) = read_metrics(tmp_path / "run")
    assert (row["response_tokens"], row["longest_response"]) == (1.0, 1.0)


def test_ends_that_are_no_ids_are_refused(folder, tmp_path):
    copy = broken(folder, tmp_path, lambda _: None)
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": ["</s>"]}))
    assert "generation_config.json: eos_token_id: is no id" in refused(plan_of(job_of(copy)))


def test_a_head_that_is_not_the_embedding_though_it_is_to_be_is_refused(folder, tmp_path):
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    copy = broken(folder, tmp_path, lambda held: held.update({head: held[embedding].clone()}))
    plan = plan_of(job_of(copy))
    with_weights(plan, check_runnable(plan))  # the same twice
    broken(folder, tmp_path, lambda held: held.update({head: held[embedding] + 1}))
    assert "tie_word_embeddings" in refused(plan)


@pytest.mark.parametrize("model", ["mixtral", "qwen3_moe", "qwen2_moe"])
def test_a_folder_of_a_model_with_experts_is_taken_and_one_that_lacks_an_experts_matrix_is_not(
    tmp_path, model
):
    family, settings = MODELS[model]
    made(family, settings | {"vocab_size": 263}).save_pretrained(tmp_path)
    plan = plan_of(job_of(tmp_path))
    weights = with_weights(plan, check_runnable(plan)).job.weights
    assert isinstance(weights, FrozenDict)
    assert weights["actor"] == str(tmp_path)
    held = weights_in(tmp_path)
    name = next(each for each in held if "experts.2" in each)
    del held[name]
    save_file(held, tmp_path / WHOLE)
    assert "experts.2." in refused(plan)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({"--export": "weights"}, "--export: is where the weights of actor are read from"),
        ({"--export-best": "weights"}, "--export-best: is where the weights of actor"),
        ({"--export": "out", "--export-best": "out"}, "--export-best: is that of --export"),
        ({"--export": "s3://b/x", "--export-best": "s3://b/x/"}, "is that of --export"),
    ],
)
def test_actors_are_not_written_over_weights_that_a_resumed_run_reads(folder, places, words):
    job = job_of(folder)
    there = {"weights": folder / ".." / folder.name, "out": folder / "out"}
    with pytest.raises(FileError, match=words):
        check_exports({key: there.get(each, each) for key, each in places.items()}, job)
    check_exports({"--export": folder / "out", "--export-best": None}, job)


def test_an_id_that_is_not_in_the_cache_is_refused_with_the_way_to_get_it(
    folder, monkeypatch, tmp_path
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    job = replace(job_of(folder), weights=FrozenDict({"actor": "nobody/no-model"}))
    said = refused(plan_of(job))
    assert "nobody/no-model" in said
    assert "--download" in said


def test_another_family_is_refused_by_name(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    copy = broken(folder, tmp_path, lambda _: None)
    job = job_of(folder)
    (copy / "config.json").write_text(json.dumps(config | {"model_type": "gpt2"}))
    plan = plan_of(replace(job, weights=FrozenDict({"actor": str(copy)})))
    said = refused(plan)
    assert "gpt2" in said
    assert "qwen3" in said


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize(
    "sizes",
    [
        {"gpus": 1},
        {"gpus": 2, "tp": 2, "tp_gen": 1},
        {"gpus": 2, "zero": 2},
        {"gpus": 2, "zero": 3},
    ],
)
def test_a_run_of_adapters_is_exported_as_peft_reads_it(folder, sizes, tmp_path, shared_workers):
    adapter = Adapter(rank=4, alpha=8.0, sync="merged")
    plan = plan_of(job_of(folder, adapters=FrozenDict({"actor": adapter})), **sizes)
    saving = Saving(every=1, export=tmp_path / "out")
    execute(plan, tmp_path / "run", iterations=2, seed=1, warmup=0, saving=saving)
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.arange(3, 20)[None]
    with torch.no_grad():
        before = base(tokens).logits.clone()
        adapted = PeftModel.from_pretrained(base, tmp_path / "out").eval()
        found = adapted(tokens).logits
    assert (found - before).abs().max() > 1e-3
    held = weights_in(tmp_path / "out")
    layer = "base_model.model.model.layers.1.self_attn.o_proj"
    first, second = held[f"{layer}.lora_A.weight"], held[f"{layer}.lora_B.weight"]
    merged = dict(adapted.merge_and_unload().named_parameters())[
        "model.layers.1.self_attn.o_proj.weight"
    ]
    started = weights_in(folder)["model.layers.1.self_attn.o_proj.weight"]
    torch.testing.assert_close(merged, started + 2.0 * second @ first, atol=1e-6, rtol=0)


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize(
    "sizes",
    [{"gpus": 1}, {"gpus": 2, "tp": 2, "tp_gen": 1}],
)
def test_adapters_beside_joined_matrices_are_exported_as_one_beside_each(
    sizes, tmp_path, shared_workers
):
    """What is told apart in training is one matrix in `transformers`: the same function, of more ranks."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = tmp_path / "base"
    family, settings = MODELS["phi3"]
    made(family, settings | {"vocab_size": 263}).save_pretrained(base)
    adapter = Adapter(rank=4, alpha=8.0, sync="merged")
    plan = plan_of(job_of(base, adapters=FrozenDict({"actor": adapter})), **sizes)
    saving = Saving(every=1, export=tmp_path / "out")
    execute(plan, tmp_path / "run", iterations=2, seed=1, warmup=0, saving=saving)
    about = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert about["rank_pattern"] == {"qkv_proj": 12, "gate_up_proj": 8}
    assert about["alpha_pattern"] == {"qkv_proj": 24.0, "gate_up_proj": 16.0}
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    adapted = PeftModel.from_pretrained(model, tmp_path / "out").eval().merge_and_unload()
    merged, started = dict(adapted.named_parameters()), weights_in(base)
    with model_of(find_checkpoint(tmp_path / "run"), "actor") as stored:
        held = whole_weights(stored)
    start = 0
    for part in ("q_proj", "k_proj", "v_proj"):
        layer = f"backbone.layers.1.self_attn.qkv_proj.{part}"
        moved = 2.0 * held[f"{layer}.lora_B.weight"] @ held[f"{layer}.lora_A.weight"]
        rows = slice(start, start + len(moved))
        start = rows.stop
        name = "model.layers.1.self_attn.qkv_proj.weight"
        torch.testing.assert_close(
            merged[name][rows], started[name][rows] + moved, atol=1e-6, rtol=0
        )
        assert moved.abs().max() > 0


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize(
    "model", ["glm4_moe", "qwen2_moe", "glm4", "olmo3", "ministral3", "seed_oss", "ernie4_5"]
)
def test_models_learn_alike_in_every_layout(model, tmp_path, shared_workers):
    """Routers' biases that no gradient trains are exported as they were."""
    start = tmp_path / "start"
    made(model, MODELS[model][1] | {"vocab_size": 263}).save_pretrained(start)
    layouts: list[dict[str, Any]] = [
        {"gpus": 1},
        {"gpus": 2, "tp": 2},
        {"gpus": 2, "tp": 2, "engine": "torch-3d-sp"},
        {"gpus": 2, "zero": 3},
        {"gpus": 2, "pp": 2},
        *([{"gpus": 2, "ep": 2}] if "moe" in model else []),
    ]
    ended = []
    for number, sizes in enumerate(layouts):
        out = tmp_path / f"out{number}"
        saving = Saving(export=out)
        plan = plan_of(job_of(start), **sizes)
        execute(plan, tmp_path / f"run{number}", iterations=1, seed=1, warmup=0, saving=saving)
        ended.append(weights_in(out))
    started = weights_in(start)
    for name, values in ended[0].items():
        assert torch.equal(values, started[name]) == ("e_score_correction_bias" in name), name
        if name.endswith(
            "k_proj.bias"
        ):  # one for all keys, where they are not turned: no gradient, and AdamW's step is noise
            continue
        for number, other in enumerate(ended[1:], 1):
            off = (other[name] - values).abs().max().item()
            assert off < 1e-4, (name, layouts[number], off)
