import dataclasses

import pytest
import yaml
from hypothesis import given

from rlplan.errors import FileError
from rlplan.files import decoding
from rlplan.files.decoding import (
    adapter,
    decode,
    is_own_file,
    load_yaml,
    read_json,
    read_yaml,
)
from rlplan.files.writing import to_json, to_yaml, write_json, write_text
from rlplan.job import Job
from rlplan.plan import Plan, PlanDraft
from tests.strategies import jobs, plans

GOOD = {
    "algorithm": "ppo",
    "models": dict.fromkeys(("actor", "critic", "reference", "reward"), "llama-2-7b"),
    "workload": {"prompts": 1024, "prompt_tokens": 1024, "response_tokens": 1024, "updates": 8},
    "cluster": [{"gpu": "a100-80gb-sxm", "gpus_per_node": 8, "nodes": 2}],
}


def changed(path, value):
    data = yaml.safe_load(yaml.safe_dump(GOOD))
    at = data
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    return data


@pytest.mark.full
@given(plans())
def test_a_plan_written_and_read_again_is_the_same_plan(plan):
    assert decode(Plan, yaml.safe_load(to_yaml(plan)), "plan.yaml") == plan


@given(jobs())
def test_a_job_written_and_read_again_is_the_same_job(job):
    assert decode(Job, yaml.safe_load(to_yaml(job)), "job.yaml") == job


@given(plans())
def test_a_plan_has_the_same_hash_as_its_copy(plan):
    assert hash(plan) == hash(dataclasses.replace(plan))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["algoritm"], 1, "job.yaml: algoritm: unknown key; allowed: adapters, algorithm, "),
        (["workload", "promts"], 3, "workload.promts: unknown key"),
        (
            ["workload", "prompts"],
            -1,
            "workload.prompts: input should be greater than or equal to 1; found -1",
        ),
        (["workload", "prompts"], "many", "workload.prompts: input should be a valid integer"),
        (
            ["workload", "response_tokens"],
            0,
            "workload.response_tokens: input should be greater than or equal to 1",
        ),
        (["models", "actr"], "tiny", "did you mean 'actor'?"),
        (["cluster", 0, "gpus"], 4, "cluster.0.gpus: unknown key; allowed: cpu_cores, gpu, "),
        (["version"], 7, "version: is not allowed; found 7; allowed: 1"),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_what_is_allowed(path, value, message):
    with pytest.raises(FileError) as error:
        decode(Job, changed(path, value), "job.yaml")
    assert message in str(error.value)
    assert error.value.exit_code == 2


def test_an_unknown_key_brings_the_nearest_known_one():
    with pytest.raises(FileError, match="did you mean 'prompts'"):
        decode(Job, changed(["workload", "promts"], 3), "job.yaml")


def test_a_wrong_distribution_speaks_of_the_distribution_that_was_meant():
    lengths = {"distribution": "lognormal", "mean": -3, "std": 1, "max": 4}
    with pytest.raises(
        FileError, match=r"workload\.response_tokens\.mean: input should be greater than 0"
    ):
        decode(Job, changed(["workload", "response_tokens"], lengths), "job.yaml")


def test_a_missing_field_is_named():
    data = {key: value for key, value in GOOD.items() if key != "algorithm"}
    with pytest.raises(FileError, match=r"job\.yaml: algorithm: is missing"):
        decode(Job, data, "job.yaml")


def test_broken_yaml_is_reported_with_its_line(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("algorithm: ppo\nmodels: {actor: [\n")
    with pytest.raises(FileError, match=r"is not YAML at line 3"):
        load_yaml(path)


MERGED = """
base: &base {x: 1}
outer:
  own: &own
    <<: *base
    x: 2
other:
  <<: *own
  y: 3
"""


@pytest.mark.parametrize("is_quick", [True, False])
def test_what_a_mapping_merges_comes_not_twice_wherever_others_merge_that_mapping(
    tmp_path, monkeypatch, is_quick
):
    """Mappings further out are constructed first, and put what an inner one merges beside its own keys."""
    monkeypatch.setattr(yaml, "__with_libyaml__", is_quick)
    monkeypatch.setattr(decoding, "_loader", decoding._loader.__wrapped__)
    path = tmp_path / "job.yaml"
    path.write_text(MERGED)
    assert load_yaml(path)["other"] == {"x": 2, "y": 3}
    path.write_text(f"{MERGED}  y: 4\n")
    with pytest.raises(FileError, match=r"line 10, column 3: the key 'y' comes twice"):
        load_yaml(path)
    assert load_yaml(path, repeats=True)["other"] == {"x": 2, "y": 4}


def test_a_missing_file_brings_the_nearest_name_in_its_folder(tmp_path):
    (tmp_path / "job.yaml").write_text("")
    with pytest.raises(FileError, match=r"no such file; did you mean 'job\.yaml'"):
        read_yaml(Job, tmp_path / "jop.yaml")


def test_broken_json_is_reported(tmp_path):
    path = tmp_path / "forecast.json"
    path.write_text("{")
    with pytest.raises(FileError, match="is not JSON"):
        read_json(dict, path)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "plan.json"
    write_text(path, "old")
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(path, {"seconds": float("nan")})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_fields_that_are_none_are_left_out_of_files():
    assert '"intra_node"' not in to_json(decode(Job, GOOD, "job.yaml"))


@pytest.mark.parametrize("kind", [Job, PlanDraft])
def test_the_schema_forbids_unknown_keys_at_every_level(kind):
    schema = adapter(kind).json_schema()
    objects = [schema, *schema["$defs"].values()]
    assert all(
        item.get("additionalProperties") is False for item in objects if "properties" in item
    )


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        (to_yaml(GOOD), True),
        (to_json(GOOD), True),
        ("job: job.yaml\n", True),
        (to_yaml(GOOD).replace("algorithm: ppo", "algorithm: [ppo"), True),
        ("#!/bin/bash\npython3 -m verl.trainer.main_ppo\n", False),
        ("set -x\npython3 -m verl.trainer.main_ppo data.train_batch_size=256\n", False),
        ("python3 -m verl.trainer.main_ppo\n", False),
    ],
)
def test_a_file_whose_name_has_no_ending_is_a_job_or_a_plan_where_it_has_a_key_of_them(
    tmp_path, text, is_own
):
    file = tmp_path / "run"
    write_text(file, text)
    assert is_own_file(file) is is_own


@pytest.mark.parametrize(
    ("text", "is_own"),
    [
        (to_yaml(GOOD), True),
        ("job: job.yaml\n", True),
        ("job: {}\npools: []\nmode: async\n", True),
        ("job: {name: mine}\nactor_rollout_ref: {}\ndata: {}\n", False),
    ],
)
def test_a_yaml_file_is_a_job_or_a_plan_by_its_keys(tmp_path, text, is_own):
    (tmp_path / "run.yaml").write_text(text)
    assert is_own_file(tmp_path / "run.yaml") is is_own


def test_a_merged_mapping_that_merges_another_is_read_wherever_its_anchor_stands(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(
        "root: &root {x: 1, y: 2}\nouter:\n  inner: &base {<<: *root, x: 3}\nlast: {<<: *base, z: 4}\n"
    )
    assert load_yaml(path)["last"] == {"x": 3, "y": 2, "z": 4}


def test_a_key_that_comes_twice_is_refused_inside_of_lists_too(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("cluster:\n- {gpu: a, gpu: b}\n")
    with pytest.raises(FileError, match="line 2, column 12: the key 'gpu' comes twice"):
        load_yaml(path)
    assert load_yaml(path, repeats=True) == {"cluster": [{"gpu": "b"}]}
