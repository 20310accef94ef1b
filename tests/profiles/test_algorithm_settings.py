"""Settings of algorithms in a job: refused by name where the algorithm has no use for them."""

from dataclasses import replace
from typing import Any

import pytest

from rlplan.errors import FileError
from rlplan.files.decoding import decode
from rlplan.job import DynamicSampling, Job
from rlplan.models import LearningRateSchedule
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.jobs.sampling import sampling_left_to
from rlplan.profiles.sheets import load_framework

WORK = {"prompts": 8, "prompt_tokens": 8, "response_tokens": 8}
ROLES = {
    "ppo": ("actor", "critic", "reference", "reward"),
    "dapo": ("actor", "reward"),
    "remax": ("actor", "reference", "reward"),
    "safe-rlhf": ("actor", "critic", "reference", "reward", "cost"),
}


def resolved(algorithm, folder, *, work=WORK, roles=None, **more):
    data = {
        "algorithm": algorithm,
        "models": dict.fromkeys(roles or ROLES[algorithm], "tiny"),
        "workload": work,
        "cluster": [{"gpu": "cpu", "gpus_per_node": 1}],
        **more,
    }
    return resolve_job(decode(Job, data, "job.yaml"), folder, file="job.yaml")


@pytest.mark.parametrize(
    ("algorithm", "more", "message"),
    [
        ("ppo", {"constraint": {}}, "constraint: ppo keeps no cost under a limit"),
        ("ppo", {"pretrain": {}}, "pretrain: ppo mixes no other texts"),
        ("ppo", {"dynamic_sampling": {}}, "dynamic_sampling: ppo does not sample groups again"),
        ("ppo", {"rewards": {"cost_function": "copy"}}, r"rewards\.cost_function: ppo keeps no"),
        (
            "ppo",
            {"hyperparameters": {"schedule": {"decay": "cosine"}}},
            r"hyperparameters\.schedule\.iterations: is missing",
        ),
        (
            "ppo",
            {"hyperparameters": {"schedule": {"iterations": 9}}},
            r"hyperparameters\.schedule\.iterations: a constant learning rate has none; found 9",
        ),
        (
            "ppo",
            {"hyperparameters": {"schedule": {"minimum_share": 0.5}}},
            r"hyperparameters\.schedule\.minimum_share: a constant learning rate has none",
        ),
        (
            "ppo",
            {
                "hyperparameters": {
                    "schedule": {"decay": "linear", "iterations": 9, "warmup_iterations": 9}
                }
            },
            r"hyperparameters\.schedule\.warmup_iterations: leaves no .*allowed: below 9",
        ),
        (
            "ppo",
            {"hyperparameters": {"schedule": {"warmup": 9}}},
            r"hyperparameters\.schedule\.warmup: .*did you mean 'warmup_iterations'",
        ),
        ("ppo", {"hyperparameters": {"betas": [0.9, 1.0]}}, r"hyperparameters\.betas\.1: "),
        (
            "ppo",
            {"roles": (*ROLES["ppo"], "cost")},
            r"models\.cost: ppo has no model of this role; allowed: actor, critic, reference, reward",
        ),
        (
            "ppo",
            {"adapters": {"reward": {"rank": 8}}},
            r"adapters\.reward: ppo trains no such model; allowed: actor, critic",
        ),
        (
            "ppo",
            {"adapters": {"critic": {"rank": 4096}}},
            r"adapters\.critic\.rank: is larger than the model is wide .* found 4096; allowed: 1 to",
        ),
        (
            "ppo",
            {"roles": ("actor", "critic", "reward")},
            r"models\.reference: is missing; ppo needs it, unless hyperparameters\.kl_coefficient is 0",
        ),
        (
            "safe-rlhf",
            {"roles": ROLES["ppo"]},
            "rewards: nothing gives costs; allowed: a cost model",
        ),
        (
            "safe-rlhf",
            {"constraint": {"multiplier": 9, "multiplier_max": 5}},
            r"constraint\.multiplier: is above constraint\.multiplier_max; found 9\.0; allowed: at most 5",
        ),
        (
            "safe-rlhf",
            {"constraint": {"cost_limitt": 1}},
            r"constraint\.cost_limitt: unknown key; .*did you mean 'cost_limit'",
        ),
        (
            "dapo",
            {"work": {**WORK, "samples_per_prompt": 2}, "hyperparameters": {"kl_in": "loss"}},
            r"hyperparameters\.kl_in: dapo has no reference model to stay near to",
        ),
        (
            "dapo",
            {"work": {**WORK, "samples_per_prompt": 2}, "overlong": {"buffer_tokens": 9}},
            r"overlong\.buffer_tokens: is longer than the longest response; found 9; allowed: at most 8",
        ),
        ("dapo", {}, r"workload\.samples_per_prompt: dapo compares the samples of one prompt"),
        (
            "remax",
            {"work": {**WORK, "samples_per_prompt": 2}},
            r"workload\.samples_per_prompt: remax compares one sample .* found 2; allowed: 1",
        ),
    ],
)
def test_a_setting_that_does_not_fit_is_named(tmp_path, algorithm, more, message):
    with pytest.raises(FileError, match=rf"job\.yaml: {message}"):
        resolved(algorithm, tmp_path, **more)


def test_settings_that_fit_are_kept(tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "rules.py").write_text("def price(prompt, response, row):\n    return 0.0\n")
    job = resolved(
        "safe-rlhf",
        tmp_path,
        constraint={"cost_limit": 0.5},
        pretrain={"file": "texts.jsonl"},
        rewards={"cost_function": "rules.py:price"},
    )
    assert job.constraint.cost_limit == 0.5
    assert job.pretrain.file == str((tmp_path / "texts.jsonl").resolve())
    assert job.rewards.cost_function == f"{(tmp_path / 'rules.py').resolve()}:price"


def test_a_schedule_and_settings_of_adamw_are_kept(tmp_path):
    schedule: dict[str, Any] = {
        "warmup_iterations": 10,
        "decay": "cosine",
        "iterations": 100,
        "minimum_share": 0.1,
    }
    given = {"schedule": schedule, "weight_decay": 0.1, "betas": [0.9, 0.95], "epsilon": 1e-6}
    settings = resolved("ppo", tmp_path, hyperparameters=given).hyperparameters
    assert settings.schedule == LearningRateSchedule(**schedule)
    assert (settings.weight_decay, settings.betas, settings.epsilon) == (0.1, (0.9, 0.95), 1e-6)


def test_prompts_may_lie_in_a_folder(tmp_path):
    (tmp_path / "set").mkdir()
    job = resolved("ppo", tmp_path, prompts_file="set")
    assert job.prompts_file == str((tmp_path / "set").resolve())


def test_a_job_says_nothing_of_settings_that_it_leaves_open(tmp_path):
    job = resolved("ppo", tmp_path)
    assert (job.constraint, job.dynamic_sampling, job.pretrain, job.overlong) == (None,) * 4


def test_frameworks_that_leave_groups_out_first_are_known_by_their_sheets(tmp_path):
    def sampling(**more):
        return resolved("dapo", tmp_path, work=work, **more).dynamic_sampling

    work = {**WORK, "samples_per_prompt": 2}

    first, both = DynamicSampling(filters_first=True), {"filters_first": True, "together": True}
    assert sampling(framework="verl") == replace(first, expected_rounds=1.5)
    early = ("verl-fsdp-0.5", "verl-megatron-0.7")  # by recipe/dapo; 0.9 begins prompts one by one
    for name in ("easyr1", "nemo-rl-megatron-0.4", "nemo-rl-dtensor", "skyrl", *early):
        assert sampling(framework=name) == replace(first, expected_rounds=2.0)  # whole batches
    for name in ("slime", "miles"):
        assert sampling(framework=name) == DynamicSampling(expected_rounds=1.5, **both)
    told = {"expected_rounds": 1.5, "max_rounds": 4}
    assert sampling(framework="skyrl", dynamic_sampling=told).expected_rounds == 1.5
    assert sampling(framework="skyrl", dynamic_sampling={"max_rounds": 1}).expected_rounds == 1
    assert sampling(dynamic_sampling={"max_rounds": 4}).expected_rounds == 1.5
    told = {"expected_rounds": 3, "filters_first": False}
    found = sampling(framework="verl", dynamic_sampling=told)
    assert found == DynamicSampling(expected_rounds=3, filters_first=False)
    assert sampling() is None
    with pytest.raises(FileError, match=r"dynamic_sampling\.filters_first: what each round"):
        sampling(dynamic_sampling={"filters_first": True})
    with pytest.raises(FileError, match=r"batches_at_once: each round generates a global batch"):
        sampling(dynamic_sampling={"batches_at_once": 3})
    with pytest.raises(FileError, match=r"dynamic_sampling: grpo does not sample groups again"):
        resolved(
            "grpo", tmp_path, roles=["actor", "reference", "reward"], work=work, dynamic_sampling={}
        )
    found = resolved(
        "grpo",
        tmp_path,
        roles=["actor", "reference", "reward"],
        work=work,
        framework="slime",
        dynamic_sampling={},
    )
    assert found.dynamic_sampling == DynamicSampling(expected_rounds=1.5, **both)
    with pytest.raises(FileError, match=r"dynamic_sampling\.together: each round waits"):
        sampling(dynamic_sampling={"together": True})
    whole: dict[str, Any] = {"expected_rounds": 4.0, "batches_at_once": 2.0}
    for name, more in (("slime", {}), ("verl", {"together": True})):
        with pytest.raises(
            FileError, match=r"batches_at_once: all that rounds sample is .* allowed: 1"
        ):
            sampling(framework=name, dynamic_sampling={**whole, **more})
    found = sampling(framework="slime", dynamic_sampling={**whole, "together": False})
    assert found.batches_at_once == 2


def test_batches_of_one_framework_are_none_of_another_that_generates_all_at_a_time(tmp_path):
    told: dict[str, Any] = {"expected_rounds": 4.0, "batches_at_once": 2.0}
    work = {**WORK, "samples_per_prompt": 2}
    job = resolved("dapo", tmp_path, work=work, framework="verl", dynamic_sampling=told)
    left = {name: sampling_left_to(load_framework(name), job) for name in ("slime", "easyr1")}
    assert left["slime"] == DynamicSampling(expected_rounds=4.0)
    assert left["easyr1"] == DynamicSampling(expected_rounds=4.0, batches_at_once=2.0)


def test_rounds_that_nobody_said_are_those_of_the_framework_that_runs_the_job(tmp_path):
    work = {**WORK, "samples_per_prompt": 2}
    job = resolved("dapo", tmp_path, work=work, framework="easyr1")
    assert job.dynamic_sampling.expected_rounds == 2.0
    assert sampling_left_to(load_framework("verl"), job).expected_rounds is None


def test_frozen_weights_stand_in_for_the_reference_that_they_are(tmp_path):
    roles = ("actor", "critic", "reward")
    adapters = {"actor": {"rank": 8}}
    assert set(resolved("ppo", tmp_path, roles=roles, adapters=adapters).models) == set(roles)
    other = dict.fromkeys(roles, "tiny") | {"reference": "qwen2.5-0.5b"}
    with pytest.raises(FileError, match=r"shares_reference: the reference is another model"):
        resolved("ppo", tmp_path, adapters=adapters, models=other)


@pytest.mark.parametrize("settings", [{"kl_in": "none"}, {"kl_coefficient": 0}])
def test_a_job_without_a_penalty_may_leave_the_reference_out(tmp_path, settings):
    roles = ("actor", "critic", "reward")
    job = resolved("ppo", tmp_path, roles=roles, hyperparameters=settings)
    assert set(job.models) == set(roles)
