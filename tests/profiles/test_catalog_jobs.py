"""Jobs: read, resolved until they stand alone, and refused with file and field when wrong."""

import copy
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.files.decoding import decode
from rlplan.files.writing import plain
from rlplan.job import Engines, Job
from rlplan.profiles.catalog import load_job, load_model, resolve_job
from rlplan.workload import Empirical, Lognormal

EXAMPLES = Path(__file__).parents[2] / "examples"

PPO = {
    "algorithm": "ppo",
    "models": dict.fromkeys(("actor", "critic", "reference", "reward"), "tiny"),
    "workload": {"prompts": 64, "prompt_tokens": 32, "response_tokens": 16, "updates": 4},
    "cluster": [{"gpu": "cpu", "gpus_per_node": 2}],
}


def changed(path, value):
    """Return the job with one field changed; `DELETE` takes it away."""
    data = copy.deepcopy(PPO)
    *parents, last = path.split(".")
    holder = data
    for key in parents:
        holder = holder[int(key)] if isinstance(holder, list) else holder.setdefault(key, {})
    if value == "DELETE":
        del holder[last]
    else:
        holder[last] = value
    return data


def written(folder, data):
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def test_the_ppo_example_is_hybridflow_s_small_cluster():
    job = load_job(EXAMPLES / "ppo-7b-16xa100.yaml")
    llama = load_model("llama-2-7b")
    assert job.models == dict.fromkeys(("actor", "critic", "reference", "reward"), llama)
    assert (job.workload.prompts, job.workload.updates, job.workload.epochs) == (1024, 8, 1)
    assert (job.workload.prompt_tokens, job.workload.response_tokens) == (1024, 1024)
    assert [(group.gpu, group.gpus) for group in job.cluster] == [("a100-80gb-sxm", 16)]
    assert job.precision == "bf16"
    assert job.engines == Engines(train="megatron-core", generate="vllm")


def test_the_grpo_example_has_uneven_responses_and_a_rule():
    job = load_job(EXAMPLES / "grpo-qwen2.5-7b-8xh100.yaml")
    assert isinstance(job.workload.response_tokens, Lognormal)
    assert "reward" not in job.models
    assert job.rewards.function == "exact_match"


def test_an_engine_that_does_not_sleep_stays_awake_once_its_names_are_found(tmp_path):
    data = changed("engines", {"sleeps": False})
    assert load_job(written(tmp_path, data)).engines == Engines(
        train="torch-tp-dp", generate="torch-static", sleeps=False
    )


def taught(algorithm, **changes):
    """Return a job that learns from a teacher alone, nothing else giving rewards."""
    models = dict.fromkeys(("actor", "reference", "teacher"), "tiny")
    group = 1 if algorithm == "remax" else 2
    data = changed("workload.samples_per_prompt", group)
    return {**data, "algorithm": algorithm, "models": models, **changes}


def test_a_greedy_baseline_needs_rewards_that_no_teacher_gives(tmp_path):
    assert load_job(written(tmp_path, taught("grpo"))).models.keys() == {
        "actor",
        "reference",
        "teacher",
    }
    with pytest.raises(FileError, match="rewards: remax subtracts the reward of a greedy response"):
        load_job(written(tmp_path, taught("remax")))
    ruled = taught("remax", rewards={"function": "exact_match"})
    assert load_job(written(tmp_path, ruled)).algorithm == "remax"


def test_a_teacher_that_weighs_nothing_is_kept_where_rewards_are_learnt_from(tmp_path):
    nothing = {"hyperparameters": {"teacher_coefficient": 0.0}}
    assert (
        load_job(written(tmp_path, taught("grpo", **nothing))).hyperparameters.teacher_coefficient
        == 0
    )
    alone = taught("on-policy-distillation", models={"actor": "tiny", "teacher": "tiny"}, **nothing)
    with pytest.raises(FileError, match=r"teacher_coefficient: weighs .*; allowed: above 0"):
        load_job(written(tmp_path, alone))


def test_a_cpu_job_gets_fp32_and_the_project_s_own_engines(tmp_path):
    job = load_job(written(tmp_path, PPO))
    assert job.precision == "fp32"
    assert job.engines == Engines(train="torch-tp-dp", generate="torch-static")


def test_what_a_job_fixes_stays(tmp_path):
    data = changed("engines", {"train": "fsdp2"}) | {"precision": "fp32"}
    assert load_job(written(tmp_path, data)).engines == Engines(
        train="fsdp2", generate="torch-static"
    )


def test_aliases_and_capital_letters_become_the_sheet_s_name(tmp_path):
    data = changed("cluster", [{"gpu": "A800-80GB-SXM", "gpus_per_node": 8}])
    assert load_job(written(tmp_path, data)).cluster[0].gpu == "a800-80gb"


CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 260,
    "max_position_embeddings": 512,
}


def test_a_folder_beside_the_job_goes_before_a_sheet_of_its_name(tmp_path):
    (tmp_path / "tiny").mkdir()
    assert load_model("tiny").vocab_size != 300
    file = written(tmp_path, changed("models.critic", "tiny"))
    assert load_job(file).architecture("critic") == load_model("tiny")
    text = json.dumps(CONFIG | {"vocab_size": 300})
    (tmp_path / "tiny" / "config.json").write_text(text, encoding="utf-8")
    assert load_job(file).architecture("critic").vocab_size == 300


def test_a_model_may_be_a_hugging_face_config_beside_the_job(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    for value in ("mine", "mine/config.json", str(tmp_path / "mine")):
        job = load_job(written(tmp_path, changed("models.critic", value)))
        assert (job.architecture("critic").name, job.architecture("critic").num_kv_heads) == (
            "mine",
            4,
        )


def test_a_model_may_be_written_out(tmp_path):
    data = changed("models.critic", plain(load_model("tiny")) | {"name": "mine"})
    assert load_job(written(tmp_path, data)).architecture("critic").name == "mine"


def test_a_trace_beside_the_job_becomes_its_lengths(tmp_path):
    (tmp_path / "observed.csv").write_text("tokens\n5\n9\n", encoding="utf-8")
    data = changed("workload.response_tokens", {"trace": "observed.csv", "column": "tokens"})
    data["workload"]["response_tokens"]["distribution"] = "trace"
    job = load_job(written(tmp_path, data))
    assert job.workload.response_tokens == Empirical(values=(5, 9))


def test_files_beside_the_job_are_found_from_any_folder(tmp_path):
    (tmp_path / "prompts.jsonl").write_text("{}", encoding="utf-8")
    (tmp_path / "mine.py").write_text("", encoding="utf-8")
    data = changed("rewards", {"function": "mine.py:score"}) | {"prompts_file": "prompts.jsonl"}
    job = load_job(written(tmp_path, data))
    assert job.prompts_file == str(tmp_path / "prompts.jsonl")
    assert job.rewards.function == f"{tmp_path / 'mine.py'}:score"


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*-*x*00.yaml")))
def test_a_resolved_job_resolves_to_itself_and_survives_a_file(name):
    job = load_job(EXAMPLES / name)
    assert resolve_job(job, Path("elsewhere")) == job
    assert decode(Job, plain(job), "again") == job


@given(st.integers(1, 96), st.integers(1, 96))
def test_a_batch_divides_into_its_updates_or_is_refused(prompts, updates):
    data = changed("workload.prompts", prompts)
    data["workload"]["updates"] = updates
    job = decode(Job, data, "job")
    if prompts % updates == 0:
        assert resolve_job(job, Path()).workload.updates == updates
    else:
        with pytest.raises(FileError, match="do not divide"):
            resolve_job(job, Path())


WRONG = [
    ("algorithm", "pop", "algorithm", "did you mean 'ppo'"),
    ("models.actor", "lama-2-7b", "models.actor", "did you mean 'llama-2-7b'"),
    ("models.actor", "meta-llama/Lama-2-7b", "models.actor", "did you mean 'llama-2-7b'"),
    ("models.critic", "DELETE", "models.critic", "is missing; ppo needs it"),
    ("models.cost", "tiny", "models.cost", "ppo has no model of this role"),
    ("models.rule", "tiny", "models.rule", "name the function under rewards.function"),
    ("models.reward", "DELETE", "rewards", "nothing gives rewards"),
    ("workload.updates", 5, "workload.updates", "found 5; allowed: 4 or 8"),
    ("workload.updates", 100, "workload.updates", "found 100; allowed: 64"),
    ("workload.updates", 0, "workload.updates", "greater than or equal to 1"),
    ("workload.prompts", -64, "workload.prompts", "found -64"),
    ("workload.prompt_tokens", 600, "workload.response_tokens", "616 tokens together"),
    (
        "workload.prompt_tokens",
        {"distribution": "uniform", "low": 9, "high": 8},
        "workload.prompt_tokens.low",
        "is above high",
    ),
    (
        "workload.prompt_tokens",
        {"distribution": "empirical", "values": []},
        "workload.prompt_tokens.values",
        "is empty",
    ),
    (
        "workload.prompt_tokens",
        {"distribution": "trace", "trace": "absent.csv", "column": "tokens"},
        "workload.prompt_tokens.trace",
        "no such file; found 'absent.csv'",
    ),
    ("cluster", [], "cluster", "is empty"),
    ("cluster.0.gpu", "h100-80gb-smx", "cluster.0.gpu", "did you mean 'h100-80gb-sxm'"),
    ("precision", "bf16", "precision", "sheet of cpu has no rate"),
    ("precision", "fp8", "precision", "fp8"),
    ("engines.train", "megatron-cor", "engines.train", "did you mean 'megatron-core'"),
    ("engines.train", "vllm", "engines.train", "unknown engine that can train; found 'vllm'"),
    ("prompts_file", "absent.jsonl", "prompts_file", "no such file"),
    ("rewards.function", "mine.py", "rewards.function", "path/to/file.py:name"),
    ("rewards.function", "absent.py:score", "rewards.function", "no such file"),
    ("version", 2, "version", "cannot read a job of this version; found 2; allowed: 1"),
    ("workload.promts", 4, "workload.promts", "did you mean 'prompts'"),
]


@pytest.mark.parametrize(("path", "value", "field", "words"), WRONG)
def test_a_wrong_job_is_refused_by_file_and_field(tmp_path, path, value, field, words):
    file = written(tmp_path, changed(path, value))
    with pytest.raises(FileError, match=words) as caught:
        load_job(file)
    assert (caught.value.file, caught.value.field) == (str(file), field)
    assert caught.value.exit_code == 2


def test_a_written_out_model_whose_heads_do_not_fit_is_refused(tmp_path):
    model = plain(load_model("tiny")) | {"num_kv_heads": 3}
    with pytest.raises(FileError, match=r"models\.critic\.num_kv_heads: does not divide the 4"):
        load_job(written(tmp_path, changed("models.critic", model)))


def test_grpo_needs_more_than_one_sample_of_a_prompt(tmp_path):
    data = changed("models", {"actor": "tiny", "reference": "tiny", "reward": "tiny"})
    with pytest.raises(FileError, match=r"workload\.samples_per_prompt: grpo compares"):
        load_job(written(tmp_path, data | {"algorithm": "grpo"}))


def test_an_unknown_model_of_a_job_is_answered_in_one_line_with_the_three_nearest(tmp_path):
    with pytest.raises(FileError) as caught:
        load_job(written(tmp_path, changed("models.actor", "Qwen/Qwen3-9B")))
    (line,) = str(caught.value).splitlines()
    assert "; found 'Qwen/Qwen3-9B'; allowed: a known name or id, or the path of a folder" in line
    assert line.endswith("; did you mean 'qwen3.5-9b', 'qwen3-8b' or 'qwen3-4b'?")


@pytest.mark.parametrize("value", ["TINY", "/models/Qwen3_8B", "Qwen2_5-7B-Instruct"])
def test_a_model_is_found_by_the_name_of_its_folder(tmp_path, value):
    job = load_job(written(tmp_path, changed("models.critic", value)))
    expected = {"TINY": "tiny", "/models/Qwen3_8B": "qwen3-8b"}.get(value, "qwen2.5-7b")
    assert job.architecture("critic") == load_model(expected)


def test_a_job_inside_a_plan_is_named_by_its_path_in_the_plan():
    job = decode(Job, changed("models.actor", "nobody"), "plan.yaml")
    with pytest.raises(FileError, match=r"plan\.yaml: job\.models\.actor"):
        resolve_job(job, Path(), file="plan.yaml", prefix="job.")


@pytest.mark.parametrize("text", ["", "- 1\n", "just words\n"])
def test_a_file_that_holds_no_mapping_holds_no_job(tmp_path, text):
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match="holds no job"):
        load_job(path)


def test_a_missing_job_is_answered_with_the_nearest_file(tmp_path):
    written(tmp_path, PPO)
    with pytest.raises(FileError, match=r"no such file; did you mean 'job\.yaml'"):
        load_job(tmp_path / "jobs.yaml")


@pytest.mark.parametrize(
    ("said", "field", "words"),
    [
        ({}, "kv_offload", "says no size"),
        ({"replica_bytes": 1e9, "cache_ratio": 2.0}, "kv_offload", "says two sizes"),
        ({"replica_bytes": 1e300}, "kv_offload.replica_bytes", "more than any host has"),
        ({"cache_ratio": 1e300}, "kv_offload.cache_ratio", "more than any host has"),
        ({"cache_ratio": 2.0}, "kv_offload", "keeps nothing"),
    ],
)
def test_host_memory_for_a_cache_has_one_size_that_a_host_may_have(said, field, words, tmp_path):
    with pytest.raises(FileError, match=words) as caught:
        resolve_job(decode(Job, changed("kv_offload", said), "job.yaml"), tmp_path)
    assert caught.value.field == field
