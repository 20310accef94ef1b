"""Configurations of earlier versions, and of what others made from a framework."""

import pytest

from rlplan.errors import FileError
from rlplan.planner.configs.importing import imported
from tests.planner.configs.test_importing import OPENRLHF, OPTIONS, VERL

OLDER = (
    "-m openrlhf.cli.train_ppo_ray --pretrain meta-llama/Llama-3.1-8B --actor_num_gpus_per_node 4 "
    "--ref_num_gpus_per_node 2 --critic_num_gpus_per_node 4 --vllm_num_engines 3 --vllm_tensor_parallel_size 2 "
    "--remote_rm_url http://localhost:5000 --zero_stage 3 --packing_samples --train_batch_size 128 --bf16 "
    "--rollout_batch_size 256 --max_len 2048 --gradient_checkpointing --ckpt_path x --n_samples_per_prompt 2"
).split()


def test_flags_of_an_older_openrlhf_mean_what_todays_do():
    now = imported("openrlhf", [*OPENRLHF, "--rollout.n_samples_per_prompt", "2"], OPTIONS)
    older = imported("openrlhf", OLDER, OPTIONS)
    assert older.job == now.job
    assert older.draft == now.draft
    assert not older.keys.unknown
    (note,) = (note for note in older.notes if "older" in note)
    assert note.startswith(
        "written for an older OpenRLHF, forecast as 0.11.2 runs it: pretrain is now actor.model_name_or_path, and "
    )
    assert not [note for note in now.notes if "older" in note]


def test_before_0_10_openrlhf_limits_prompts_and_responses_apart():
    lengths = ["--prompt_max_len", "1000", "--generate_max_len", "3000"]
    work = imported("openrlhf", [*OLDER, *lengths], OPTIONS).resolved.workload
    assert work.longest_sequence_tokens == 4000
    assert work.response_tokens.max == 3000
    half = imported("openrlhf", [*OLDER, *lengths[:2]], OPTIONS).resolved.workload
    assert half.response_tokens.max == 1024


def test_a_key_is_refused_by_the_name_that_it_has_in_the_command_line():
    words = [word.replace("meta-llama/Llama-3.1-8B", "nobody/knows-1b") for word in OLDER]
    with pytest.raises(FileError, match="the command line: pretrain: no sheet is of the model"):
        imported("openrlhf", words, OPTIONS)


def test_keys_of_asynchronous_training_tell_it_whatever_starts_it():
    keys = ["async_training.staleness_threshold=0.5", "rollout.nnodes=1", "trainer.nnodes=1"]
    named = [word for word in VERL if "trainer.nnodes" not in word]
    found = imported(
        "verl",
        ["-m", "recipe.reward_queue.main", *named[2:], *keys, "rollout.n_gpus_per_node=8"],
        OPTIONS,
    )
    assert found.draft.mode == "async"
    assert found.draft.staleness == 0.5 * 4 + 3


@pytest.mark.parametrize(
    ("start", "why"),
    [
        ("verl.trainer.main_generation", "only generates; rlplan reads verl's training with RL"),
        ("verl.trainer.main", "has EasyR1's configuration"),
        ("recipe.async_flow.grpo_main", "async_resources"),
    ],
)
def test_what_is_not_verls_training_is_refused_by_name(start, why):
    with pytest.raises(FileError, match=why):
        imported("verl", ["-m", start, *VERL[2:]], OPTIONS)
