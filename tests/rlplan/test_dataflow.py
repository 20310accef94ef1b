from dataclasses import replace

import pytest

from rlplan.algorithms import algorithm_names, load_algorithm
from rlplan.dataflow import (
    BYTES_PER_SAMPLE,
    BYTES_PER_TOKEN,
    DATASET_KEYS,
    begun_of,
    parents_of,
    tasks_of,
    unused_roles,
)
from rlplan.errors import UnknownNameError
from rlplan.files.decoding import decode
from rlplan.job import DynamicSampling, Hyperparameters, Job

WORK = {"prompts": 8, "prompt_tokens": 8, "response_tokens": 8}


def job(algorithm, roles, rewards=None):
    data = {
        "algorithm": algorithm,
        "models": dict.fromkeys(roles, "tiny"),
        "workload": WORK,
        "cluster": [],
    }
    return decode(Job, {**data, **({"rewards": rewards} if rewards else {})}, "job.yaml")


@pytest.mark.parametrize("name", algorithm_names())
def test_every_input_is_made_by_an_earlier_task_and_has_a_size(name):
    algorithm = load_algorithm(name)
    made = {*DATASET_KEYS}
    for task in algorithm.tasks:
        assert set(task.inputs) <= made, task.name
        made |= set(task.outputs)
    assert made <= {*BYTES_PER_TOKEN, *BYTES_PER_SAMPLE}
    assert algorithm.name == name


def test_ppo_with_a_reward_model_has_six_tasks():
    names = [
        task.name
        for task in tasks_of(
            load_algorithm("ppo"), job("ppo", ["actor", "critic", "reference", "reward"])
        )
    ]
    assert names == [
        "actor.generate",
        "critic.compute_values",
        "reference.compute_log_prob",
        "reward.compute_reward",
        "actor.update",
        "critic.update",
    ]


@pytest.mark.parametrize(("filters_first", "scored"), [(None, 1.5), (False, 1.5), (True, 1.0)])
def test_where_groups_are_left_out_first_only_what_judges_them_sees_every_round(
    filters_first, scored
):
    data = job("dapo", ["actor", "reward"], {"function": "digits"})
    data = replace(
        data,
        old_log_prob="trainer",
        dynamic_sampling=DynamicSampling(filters_first=filters_first),
    )
    batches = {task.name: task.batches for task in tasks_of(load_algorithm("dapo"), data)}
    assert batches == {
        "actor.generate": 1.5,
        "actor.compute_log_prob": scored,
        "reward.compute_reward": 1.5,
        "rule.compute_reward": 1.5,
        "actor.update": 1.0,
    }


def test_groups_that_are_sampled_beside_others_make_one_generation_larger():
    data = job("dapo", ["actor", "reward"], {"function": "digits"})
    sampling = DynamicSampling(expected_rounds=2.0, filters_first=True, together=True)
    data = replace(data, dynamic_sampling=sampling)
    batches = {task.name: task.batches for task in tasks_of(load_algorithm("dapo"), data)}
    assert batches["actor.generate"] == 1.0
    assert batches["reward.compute_reward"] == batches["rule.compute_reward"] == 2.0
    assert begun_of(data).prompts == 2 * data.workload.prompts


def test_a_rule_takes_the_place_of_an_absent_reward_model():
    tasks = tasks_of(
        load_algorithm("grpo"), job("grpo", ["actor", "reference"], {"function": "digits"})
    )
    assert [task.name for task in tasks] == [
        "actor.generate",
        "reference.compute_log_prob",
        "rule.compute_reward",
        "actor.update",
    ]
    assert tasks[-1].inputs == ("sequences", "log_probs", "reference_log_probs", "rule_scores")


def test_an_update_waits_for_everything_that_it_reads():
    tasks = tasks_of(load_algorithm("ppo"), job("ppo", ["actor", "critic", "reference", "reward"]))
    parents = [parent.name for parent in parents_of(tasks[-1], tasks)]
    assert parents == [
        "actor.generate",
        "critic.compute_values",
        "reference.compute_log_prob",
        "reward.compute_reward",
    ]


def test_an_unknown_algorithm_brings_the_nearest_known_one():
    with pytest.raises(UnknownNameError, match="did you mean 'ppo'"):
        load_algorithm("ppoo")


@pytest.mark.parametrize("settings", [{"kl_in": "none"}, {"kl_coefficient": 0.0}])
@pytest.mark.parametrize("name", algorithm_names())
def test_a_reference_that_nothing_is_compared_with_has_no_task(name, settings):
    algorithm = load_algorithm(name)
    roles = [*algorithm.required_roles, "reward"]
    without = [role for role in roles if role != "reference"]
    silent = decode(Hyperparameters, settings, "job.yaml")
    given, absent = (replace(job(name, each), hyperparameters=silent) for each in (roles, without))
    assert tasks_of(algorithm, given) == tasks_of(algorithm, absent)
    assert algorithm.roles_needed(given) == tuple(without[:-1])
    assert unused_roles(algorithm, given) == set(roles) - set(without)
    assert not unused_roles(algorithm, job(name, roles))
