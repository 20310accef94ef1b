"""Replicas that read prompts alone, as frameworks' configurations say it."""

from dataclasses import replace

import pytest

from rlplan.job import PrefillApart
from rlplan.planner.configs.environments import GivenEnvironments
from rlplan.planner.configs.importing import imported
from tests.planner.configs.test_beside_the_steps import OPTIONS, SLIME, VERL
from tests.planner.configs.test_keys_of_skyrl import BASES

R = "actor_rollout_ref.rollout"
APART = f"{R}.disaggregation.enabled=True {R}.tensor_model_parallel_size=1"
ENGINES = "generator.inference_engine"


def job_of(framework, words):
    return imported(framework, words, OPTIONS).job


@pytest.mark.parametrize(
    ("framework", "text", "replicas"),
    [
        # Servers of two GPUs each, of the eight that train and generate in turn.
        ("slime", f"{SLIME} --actor-num-gpus-per-node 8 --prefill-num-servers 1", 1),
        ("miles", f"{SLIME} --actor-num-gpus-per-node 8 --prefill-num-servers 3", 3),
        # Groups of one that reads and three that write, of a GPU each, on 16.
        ("verl", f"{VERL} {APART} {R}.disaggregation.decode_replicas=3 trainer.nnodes=2 trainer.n_gpus_per_node=8", 4),
    ],
)  # fmt: skip
def test_replicas_that_read_prompts_are_counted(framework, text, replicas):
    assert job_of(framework, text.split()).prefill == PrefillApart(replicas=replicas)


def test_skyrl_counts_engines():
    words = [*BASES["apart"], f"{ENGINES}.enable_pd=true", f"{ENGINES}.num_prefill=1"]
    found = imported("skyrl", words, OPTIONS)
    assert found.job.prefill == PrefillApart(replicas=1)


@pytest.mark.parametrize(
    ("framework", "text"),
    [
        ("slime", f"{SLIME} --actor-num-gpus-per-node 8"),
        ("slime", f"{SLIME} --actor-num-gpus-per-node 8 --prefill-num-servers 0"),
        ("verl", f"{VERL} {R}.disaggregation.decode_replicas=3"),
    ],
)
def test_where_none_reads_alone_nothing_is_said(framework, text):
    found = imported(framework, text.split(), OPTIONS)
    assert found.job.prefill is None
    assert not any("only read prompts" in what for what in found.keys.not_modelled.values())


@pytest.mark.parametrize(
    ("framework", "text"),
    [
        ("slime", f"{SLIME} --actor-num-gpus-per-node 8 --prefill-num-servers 4"),
        ("verl", f"{VERL} {APART} {R}.disaggregation.decode_tensor_model_parallel_size=2"),
    ],
)
def test_what_is_not_forecast_is_named(framework, text):
    found = imported(framework, text.split(), OPTIONS)
    assert found.job.prefill is None
    assert any("only read prompts" in what for what in found.keys.not_modelled.values())


def test_it_goes_with_environments():
    tools = GivenEnvironments(turns=3.0, observation_tokens=20.0, tool_seconds=1.0)
    text = f"{SLIME} --actor-num-gpus-per-node 8 --prefill-num-servers 1"
    found = imported("slime", text.split(), replace(OPTIONS, environments=tools))
    assert found.job.prefill == PrefillApart(replicas=1)
    assert found.job.environments


def test_a_cache_in_host_memory_is_forecast_where_all_replicas_read_their_own():
    tools = GivenEnvironments(turns=3.0, observation_tokens=20.0, tool_seconds=1.0)
    offloads = "--sglang-enable-hierarchical-cache --sglang-hicache-size 50"
    text = f"{SLIME} --actor-num-gpus-per-node 8 --prefill-num-servers 1 {offloads}"
    found = imported("slime", text.split(), replace(OPTIONS, environments=tools))
    assert found.job.kv_offload is not None
    assert found.job.prefill is None
    assert "no cache in host memory" in found.keys.not_modelled["prefill-num-servers"]
