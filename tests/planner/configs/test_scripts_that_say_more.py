"""Searches for scripts that say of a job what no export can: it stays theirs, and what is found is written into them."""

from dataclasses import replace

import pytest

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.proposing.searching import plans_of
from rlplan.planner.configs.writing.exporting import exported
from rlplan.planner.configs.writing.patching import patched
from rlplan.planner.requests.pinned import NOTHING_PINNED
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.profiles.facts import load_facts

FLAGS = """--actor-num-nodes 1 --actor-num-gpus-per-node 2 --colocate --rollout-batch-size 32 --n-samples-per-prompt 8
    --rollout-max-response-len 2048 --global-batch-size 256 --use-dynamic-batch-size --max-tokens-per-gpu 9216
    --num-rollout 10 --attention-dropout 0.0 --hidden-dropout 0.0"""
SCRIPTS = {
    # A version whose step has a pass for old log-probabilities, where today's has none.
    "slime": f"python3 slime/train.py {FLAGS} --hf-checkpoint Qwen/Qwen3-0.6B",
    # Layers of the framework's own, which a file of it names.
    "miles": f"python3 miles/train.py {FLAGS} --hf-checkpoint Qwen/Qwen3.5-0.8B --spec m get_qwen3_5_spec",
    # A version that adds entropies to the loss.
    "easyr1": """python3 -m verl.trainer.main worker.actor.model.model_path=Qwen/Qwen2.5-0.5B-Instruct
    trainer.n_gpus_per_node=2 data.rollout_batch_size=32 worker.rollout.n=8 worker.actor.global_batch_size=32
    worker.actor.entropy_coeff=0.001 worker.actor.offload.param_offload=true worker.rollout.tensor_parallel_size=1""",
}  # fmt: skip
VERSIONS = {"slime": "0.2", "miles": None, "easyr1": "0.2"}


def read(framework, path, words, version=None):
    script = path / "run.sh"
    script.write_text(" ".join(words.split()) + "\n")
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=500, environment={}, version=version)
    found = imported(framework, [str(script)], options)
    own = complete(found.draft, found.resolved, load_facts(found.resolved), "plan")
    return script, found, own


@pytest.mark.parametrize(
    "framework",
    ["slime", *(pytest.param(each, marks=pytest.mark.full) for each in ("miles", "easyr1"))],
)
def test_what_a_script_alone_says_of_its_job_hinders_no_search(framework, tmp_path):
    _, found, own = read(framework, tmp_path, SCRIPTS[framework], VERSIONS[framework])
    best = plans_of(found.resolved, load_facts, as_it_stands=own).plans[0].plan
    assert best.job.old_log_prob == own.job.old_log_prob == "trainer"
    assert exported(best, framework, into="").decided
    with pytest.raises(FileError, match="cannot"):
        exported(best, framework)


@pytest.mark.full
def test_batches_in_which_groups_are_sampled_again_stay_a_script_s(tmp_path):
    """Of 16 prompts each at most six are generated: three times the 32 that a step learns from, which is no six batches."""
    words = SCRIPTS["easyr1"].replace(
        "worker.actor.entropy_coeff=0.001", "algorithm.disable_kl=true"
    )
    words += """ algorithm.online_filtering=true data.mini_rollout_batch_size=16 trainer.max_try_make_batch=6
        worker.actor.dynamic_batching=true"""
    script, found, own = read("easyr1", tmp_path, words)
    assert found.resolved.dynamic_sampling.max_rounds == 3
    best = plans_of(found.resolved, load_facts, as_it_stands=own).plans[0].plan
    new = patched(script, "easyr1", best, exported(best, "easyr1", into="").decided)
    assert "max_try_make_batch=6" in new.text


ENDLESS = """python3 slime/train_async.py --actor-num-nodes 1 --actor-num-gpus-per-node 1 --rollout-num-gpus 1 --num-gpus-per-node 2
    --hf-checkpoint Qwen/Qwen3-0.6B --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 2048
    --global-batch-size 256 --use-dynamic-batch-size --max-tokens-per-gpu 9216 --num-rollout 10 --attention-dropout 0.0
    --hidden-dropout 0.0 --rollout-function-path slime.rollout.fully_async_rollout.generate_rollout_fully_async"""


def test_a_rollout_with_more_under_way_than_is_told_apart_is_written_as_it_stands(tmp_path):
    """An engine runs 512 at a time, and as many groups of 8 wait: 18 steps of 256, of which an import takes 8."""
    script, _, own = read("slime", tmp_path, ENDLESS)
    assert (own.staleness, own.tasks["actor.generate"].max_running) == (8.0, 512)
    written = exported(own, "slime", into="")
    assert written.decided["sglang-server-concurrency"] == 512
    assert patched(script, "slime", own, written.decided).changes == ()
    with pytest.raises(FileError, match="is no age of samples where 512 are under way"):
        exported(replace(own, made_by="a search"), "slime", into="")


@pytest.mark.full
def test_engines_run_as_few_at_a_time_as_the_age_of_samples_allows(tmp_path):
    """Two steps ahead are 512 samples: 56 that run on one engine, and as many groups of 8 behind them, are 504."""
    _, found, _own = read(
        "slime", tmp_path, ENDLESS.replace("fully_async_rollout", "sglang_rollout")
    )
    asked = replace(NOTHING_PINNED, asked=AskedSchedules(modes=("async",), staleness=3.0))
    best = plans_of(found.resolved, load_facts, pinned=asked).plans[0].plan
    assert (best.mode, best.staleness) == ("async", 3.0)
    assert best.tasks["actor.generate"].max_running == 56
    assert exported(best, "slime").decided["sglang-server-concurrency"] == 56


@pytest.mark.full
def test_a_script_whose_pool_is_shared_gets_pools_apart(tmp_path):
    """A switch is left out, and what it stood for is said: nothing else tells how many GPUs generate then."""
    words = SCRIPTS["slime"].replace("--num-rollout 10", "--num-rollout 10 --num-gpus-per-node 2")
    script, found, _ = read("slime", tmp_path, words)
    apart = replace(NOTHING_PINNED, asked=AskedSchedules(modes=("one-step-off",)))
    best = plans_of(found.resolved, load_facts, target="slime", pinned=apart).plans[0].plan
    best = replace(best, mode="sync", staleness=0.0)
    assert len([pool for pool in best.pools if not pool.is_host]) == 2
    new = patched(script, "slime", best, exported(best, "slime").decided)
    said = {each.key: (each.before, each.after) for each in new.changes}
    assert said["colocate"] == (True, None)
    assert said["rollout-num-gpus"] == (None, 1)
    assert said["actor-num-gpus-per-node"] == (2, 1)
    assert "--colocate" not in new.text
    assert "num-rollout" not in said


@pytest.mark.parametrize("length", ["--num-rollout 10", "--num-epoch 2", ""])
def test_a_patch_does_not_say_how_long_a_run_goes_on(tmp_path, length):
    """A whole script has a number, which the framework asks for; the user's own is as long as it says, or does not start."""
    words = SCRIPTS["slime"].replace("--num-rollout 10", length)
    script, found, _ = read("slime", tmp_path, words)
    plan = complete(found.draft, found.resolved, load_facts(found.resolved), "there")
    wanted = exported(plan, "slime").decided
    assert wanted["num-rollout"] == 1000
    new = patched(script, "slime", plan, wanted)
    assert not {"num-rollout", "num-epoch"} & {each.key for each in new.changes}


FULLY = """
python3 -m verl.experimental.fully_async_policy.fully_async_main --config-path=config --config-name=fully_async_ppo_trainer.yaml \\
    data.train_batch_size=0 data.gen_batch_size=1 data.max_prompt_length=1024 data.max_response_length=4096 \\
    algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_max_token_len_per_gpu=20480 \\
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 actor_rollout_ref.hybrid_engine=False \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 rollout.nnodes=1 rollout.n_gpus_per_node=8 \\
    rollout.total_rollout_steps=51200 trainer.nnodes=1 trainer.n_gpus_per_node=8 async_training.staleness_threshold=1 \\
    async_training.trigger_parameter_sync_step=4 async_training.require_batches=1 async_training.partial_rollout=True
"""


def test_a_fully_asynchronous_script_of_whole_staleness_stays_one(tmp_path):
    """Its schedule is one that verl's trainer of version 1 says too, by keys that this script's start does not read."""
    script = tmp_path / "run.sh"
    script.write_text(FULLY)
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=1000, environment={})
    own = imported("verl", [str(script)], options)
    assert (own.draft.staleness, own.draft.sync_every) == (7.0, 4)
    tasks = own.draft.tasks
    smaller = replace(tasks["actor.generate"], tp=1, dp=8)
    draft = replace(own.draft, tasks=FrozenDict({**tasks, "actor.generate": smaller}))
    plan = complete(draft, own.resolved, load_facts(own.resolved), "plan")
    values = exported(plan, "verl", into=own.settings.start)
    assert values.start.endswith("fully_async_main")
    new = patched(script, "verl", plan, values.decided, start=values.start)
    assert [(each.key, each.after) for each in new.changes] == [
        ("actor_rollout_ref.rollout.tensor_model_parallel_size", 1)
    ]
    assert exported(plan, "verl").start.endswith("main_ppo")
