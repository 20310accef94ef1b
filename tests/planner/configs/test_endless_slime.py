"""Rollouts of slime and miles that never stop: exported, and imported again as they were."""

from dataclasses import replace

import pytest

from rlplan.errors import FileError
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.importing import ImportOptions, imported, settings_of
from rlplan.planner.configs.writing.exporting import exported
from rlplan.profiles.facts import load_facts

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=1000, environment={})
FLAGS = """train_async.py --actor-num-nodes 1 --actor-num-gpus-per-node 4 --rollout-num-gpus 4 --num-gpus-per-node 8
    --hf-checkpoint Qwen/Qwen3-4B --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 4096
    --global-batch-size 256 --tensor-model-parallel-size 2 --use-dynamic-batch-size --max-tokens-per-gpu 9216
    --sglang-max-running-requests 24"""
ROLLOUT = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"
ENDLESS = {
    # 49 samples run at each of four engines, and 196 groups of eight may wait: 1,764, of 256 a step.
    "slime": (f"--rollout-function-path {ROLLOUT} --sglang-server-concurrency 49", 8.0, "recompute"),
    "miles": ("--fully-async --max-weight-staleness 2 --pause-generation-mode in_place", 2.0, "keep"),
}  # fmt: skip


def read(framework, words=FLAGS):
    more, _, _ = ENDLESS[framework]
    return imported(framework, f"{framework}/{words} {more}".split(), OPTIONS)


def plan_of(framework):
    found = read(framework)
    return complete(found.draft, found.resolved, load_facts(found.resolved), "plan")


@pytest.mark.parametrize("framework", ENDLESS)
def test_a_rollout_without_an_end_is_written_as_itself(framework, tmp_path):
    before = read(framework)
    _, staleness, in_flight = ENDLESS[framework]
    assert (before.draft.mode, before.draft.staleness) == ("async", staleness)
    path = tmp_path / "run.sh"
    path.write_text(exported(plan_of(framework), framework).text)
    found = imported(framework, [str(path)], OPTIONS)
    assert found.keys.unknown == ()
    assert found.draft.tasks == before.draft.tasks
    assert (found.draft.mode, found.draft.staleness) == ("async", staleness)
    assert found.draft.in_flight == in_flight
    settings = settings_of(framework, [str(path)], OPTIONS)
    assert not [broken for rule in rules_of(framework) for broken in rule.broken(settings)]


@pytest.mark.parametrize(
    ("framework", "changed", "problem"),
    [
        ("slime", {"in_flight": "keep"}, "keeps caches of older weights"),
        ("slime", {"staleness": 2.0}, "is no age of samples where 24 are under way"),
        ("slime", {"staleness": 9.0}, "is no age of samples where 24 are under way"),
        ("slime", {"mode": "streaming"}, "hands responses on one by one"),
        ("miles", {"in_flight": "drain"}, "waits for responses under way"),
        ("miles", {"staleness": 1.5}, "syncs weights after each step"),
    ],
)
def test_what_they_cannot_do_is_refused_by_name(framework, changed, problem):
    with pytest.raises(FileError, match=problem):
        exported(replace(plan_of(framework), **changed), framework)


def test_samples_of_miles_wait_in_a_buffer_as_long_as_they_may():
    """By rollout/fully_async_rollout.py: a step's samples are under way, and the buffer has the rest of their age."""
    written = exported(replace(plan_of("miles"), staleness=6.0), "miles")
    assert written.values["max-weight-staleness"] == 6
    assert written.values["async-data-buffer-capacity-factor"] == 5.0


@pytest.mark.parametrize(
    ("framework", "words", "running"),
    [
        # 32 prompts of 8 samples, over four engines: the example's worker begins a step's batch, and miles' does.
        ("slime", "--rollout-function-path fully_async_rollout.generate_rollout_fully_async", 24),
        ("miles", "--fully-async", 24),
        (
            "slime",
            "--rollout-function-path fully_async_rollout.generate --rollout-batch-size 8",
            16,
        ),
        ("miles", "--fully-async --async-max-concurrent-samples 40", 10),
        ("slime", f"--rollout-function-path {ROLLOUT}", 24),
    ],
)
def test_no_more_samples_are_under_way_than_a_rollout_without_an_end_begins(
    framework, words, running
):
    words = f"{framework}/{FLAGS} {words}".replace(" --global-batch-size 256", "")
    draft = imported(framework, words.split(), OPTIONS).draft
    assert draft.tasks["actor.generate"].max_running == running


def test_the_example_of_a_rollout_without_an_end_lets_groups_wait_without_regard_to_its_engines():
    words = f"slime/{FLAGS} --rollout-function-path fully_async_rollout.generate --rollout-batch-size 512"
    words = words.replace("--global-batch-size 256", "--global-batch-size 4096")
    # a batch under way, and 1,000 groups of the 512 of a step that wait: 1 + 1 + 1.95
    assert imported("slime", words.split(), OPTIONS).draft.staleness == 4


@pytest.mark.parametrize(
    ("rollout", "staleness", "in_flight"),
    [
        # What --fully-async stands for (miles/utils/arguments.py, resolve_rollout_function_paths).
        ("miles.rollout.fully_async_rollout.FullyAsyncRolloutFn", 3.0, "keep"),
        # The example before it: 256 samples run, and 1,000 groups may wait, so more than the 8 steps that are counted.
        ("fully_async_rollout.generate_rollout_fully_async", 8.0, "keep"),
    ],
)
def test_a_rollout_of_miles_that_never_stops_is_one_without_the_switch_too(
    rollout, staleness, in_flight
):
    words = f"miles/{FLAGS} --rollout-function-path {rollout} --pause-generation-mode in_place"
    draft = imported("miles", words.split(), OPTIONS).draft
    assert (draft.mode, draft.staleness, draft.in_flight) == ("async", staleness, in_flight)
    assert draft.tasks["actor.generate"].max_running == 24
    shared = words.replace("train_async.py", "train.py")
    assert imported("miles", shared.split(), OPTIONS).draft.mode == "sync"
    # update_weight_from_distributed/mixin.py: any other mode flushes the cache
    usual = words.replace(" --pause-generation-mode in_place", "")
    assert imported("miles", usual.split(), OPTIONS).draft.in_flight == "recompute"


def test_validation_of_miles_on_engines_of_its_own_has_gpus_and_holds_nothing_up():
    validates = "--eval-prompt-data aime /aime.jsonl --eval-interval 5"
    shared = imported("miles", f"miles/{FLAGS} {validates}".split(), OPTIONS)
    assert shared.job.evaluation is not None
    words = f"miles/{FLAGS} {validates} --eval-num-gpus 1".replace(
        "--rollout-num-gpus 4", "--rollout-num-gpus 3"
    )
    apart = imported("miles", words.split(), OPTIONS)
    assert [(group.gpus_per_node, group.nodes) for group in apart.job.cluster] == [(8, 1)]
    assert [pool.gpus for pool in apart.draft.pools] == [4, 3]
    assert apart.job.evaluation is None
    assert any("engines on GPUs of their own (1)" in note for note in apart.notes)
    assert complete(apart.draft, apart.resolved, load_facts(apart.resolved), "plan").pools


def test_engines_for_validation_beside_colocated_ones_are_doubtful():
    words = f"miles/{FLAGS} --colocate --eval-num-gpus 2".replace("train_async.py", "train.py")
    found = imported("miles", words.split(), OPTIONS)
    assert any(each.startswith("eval-num-gpus") for each in found.doubts())
