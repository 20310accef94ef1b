"""Configurations of earlier versions, and of what others made from a framework."""

from dataclasses import replace

import pytest

from rlplan.errors import FileError
from rlplan.planner.configs.importing import ImportOptions, imported
from tests.planner.configs.test_importing import OPENRLHF, OPTIONS, VERL

OLDER = (
    "-m openrlhf.cli.train_ppo_ray --pretrain meta-llama/Llama-3.1-8B --actor_num_gpus_per_node 4 "
    "--ref_num_gpus_per_node 2 --critic_num_gpus_per_node 4 --vllm_num_engines 3 --vllm_tensor_parallel_size 2 "
    "--remote_rm_url http://localhost:5000 --zero_stage 3 --packing_samples --train_batch_size 128 --bf16 "
    "--rollout_batch_size 256 --max_len 2048 --gradient_checkpointing --ckpt_path x --n_samples_per_prompt 2"
).split()


def test_flags_of_an_older_openrlhf_mean_what_todays_do():
    now = imported("openrlhf", [*OPENRLHF, "--rollout.n_samples_per_prompt", "2"], OPTIONS)
    older = imported("openrlhf", OLDER, replace(OPTIONS, version="0.11.2"))
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


@pytest.mark.parametrize(
    ("more", "mode", "gpus", "work"),
    [
        ("", "sync", [8], (16, 4)),
        ("rllm.rollout.n=2 rllm.data.train_batch_size=32", "sync", [8], (32, 2)),
        ("rllm.async_training.enable=true", "async", [8, 4], (24, 4)),
    ],
)
def test_rllm_gives_verl_its_own_keys(tmp_path, more, mode, gpus, work):
    """Its configuration has verl's keys of engines apart too, where they share (rllm/trainer/verl/utils.py, verl_launcher.py)."""
    script = tmp_path / "run.sh"
    script.write_text(
        "python -u train.py rllm.algorithm.adv_estimator=grpo rllm.data.train_batch_size=16 \\\n"
        " rllm.algorithm.kl_beta=0.01 rollout.nnodes=1 rollout.n_gpus_per_node=4 \\\n"
        " async_training.partial_rollout=False rllm.async_training.enable=false \\\n"
        " rllm.async_training.mini_batch_size=24 rllm.rollout.n=4 actor_rollout_ref.rollout.n=8 \\\n"
        " actor_rollout_ref.model.path=Qwen/Qwen3-4B actor_rollout_ref.actor.ppo_mini_batch_size=16 \\\n"
        " actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.use_dynamic_bsz=True \\\n"
        f" trainer.n_gpus_per_node=8 {more}\n"
    )
    options = ImportOptions(gpu="h100", mean_response=300, environment={})
    found = imported("verl", [str(script)], options)
    plan = found.draft
    assert (plan.mode, [pool.gpus for pool in plan.pools]) == (mode, gpus)
    assert (found.job.workload.prompts, found.job.workload.samples_per_prompt) == work
    assert "reference" in found.job.models
