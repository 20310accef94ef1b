"""Groups that slime and miles leave out by a filter: what is begun in their place, and what a step takes then; copies on the host."""

from dataclasses import replace

import pytest

from rlplan.job import DynamicSampling
from rlplan.parts import num_parameters
from rlplan.planner.answers.completion import complete
from rlplan.profiles.catalog import load_model
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.pool_memory import COPIED
from tests.planner.configs.test_megatron_flags import APART, SHARED, read


def test_a_filter_that_falls_back_samples_no_more_than_was_begun():
    flags = "--dynamic-sampling-filter-path a.check_reward_nonzero_std_with_fallback"
    found = read(f"{SHARED} {flags}")
    assert found.job.dynamic_sampling.expected_rounds == 1.0
    assert found.job.workload.over_provisioning == 1.0
    more = read(f"{SHARED} {flags} --over-sampling-batch-size 40")
    assert more.job.dynamic_sampling.expected_rounds == 1.25
    assert more.job.workload.over_provisioning == 1.0


@pytest.mark.parametrize(
    ("framework", "more"),
    [
        ("slime", "--rollout-function-path a.fully_async_rollout.generate"),
        ("miles", "--fully-async"),
    ],
)
def test_a_rollout_that_never_stops_filters_nothing(framework, more):
    flags = "--dynamic-sampling-filter-path a.b --over-sampling-batch-size 96"
    found = read(f"train_async.py {APART} {more} {flags}", framework)
    assert (found.job.algorithm, found.job.workload.over_provisioning) == ("grpo", 1.0)
    assert sum("has no effect on a rollout that never stops" in note for note in found.notes) == 2


def test_groups_that_are_sampled_again_beside_others_take_as_long_as_one_larger_batch():
    """Of 64 prompts begun 48 are waited for and 32 learnt from: as where 48 of 64 are learnt from."""
    flags = f"{SHARED} --dynamic-sampling-filter-path a.b"

    def generated(job):
        found = read(flags)
        plan = complete(found.draft, job(found.resolved), load_facts(found.resolved), "plan")
        forecast = simulate(plan, load_facts(plan.job))
        return forecast.stage_seconds["generation"], forecast.stage_seconds["transition"]

    def larger(job):
        work = replace(job.workload, prompts=48)
        return replace(job, workload=work, dynamic_sampling=DynamicSampling(expected_rounds=1.0))

    def in_rounds(job):
        return replace(job, dynamic_sampling=replace(job.dynamic_sampling, together=False))

    (beside, synced), one = generated(lambda job: job), generated(larger)
    assert (beside, synced) == pytest.approx(one)
    after = generated(in_rounds)
    assert after[1] == pytest.approx(1.5 * synced)


def test_weights_without_a_copy_on_the_host_are_not_counted_there():
    def copied(words):
        found = read(words)
        assert found.keys.unknown == ()
        facts = load_facts(found.resolved)
        forecast = simulate(complete(found.draft, found.resolved, facts, "plan"), facts)
        return max(each.host_terms.get(COPIED, 0) for each in forecast.memory)

    weights = 2 * num_parameters(load_model("qwen3-4b"))  # in bf16, on every rank
    assert copied(SHARED) == pytest.approx(weights, rel=0.01)
    assert copied(f"{SHARED} --disable-weights-backuper") == 0
