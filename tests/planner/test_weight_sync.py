"""Frameworks' methods in a search: taken where the job or the user names them, and nowhere else."""

from dataclasses import replace

import pytest

from rlplan.job import WeightSync
from rlplan.planner.search import search
from rlplan.profiles.facts import load_facts
from rlplan.profiles.jobs.resolve import resolve_job
from rlplan.transfers import TRANSFERS
from tests.simulator.cost_jobs import job_of

NAMED = WeightSync(shared_pool="verl-naive", between_pools="verl-nccl")


def transitions_of(job):
    found = search(job, load_facts(job))
    return {each.plan.transition for each in found.plans}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    small = job_of("qwen2.5-0.5b", algorithm="grpo", samples_per_prompt=4, prompts=8)
    small = replace(small, cluster=(replace(small.cluster[0], gpus_per_node=2, nodes=1),))
    return resolve_job(small, tmp_path_factory.mktemp("job"))


def test_a_search_takes_the_methods_that_the_job_names_and_no_others(job):
    names = transitions_of(replace(job, weight_sync=NAMED))
    assert names == {"verl-naive", "verl-nccl"}


def test_a_search_tries_no_method_that_nobody_names(job):
    names = transitions_of(job)
    assert not any(TRANSFERS.load(name).method for name in names)
