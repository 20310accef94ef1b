"""Weights move alike whatever a job's lengths are, unless a framework's host works on the batch meanwhile; so do states and stages."""

from dataclasses import replace

import numpy as np
import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.job import NO_SPECS, DynamicSampling, Engines
from rlplan.models import Adapter
from rlplan.planner.exact.generations import WeightMoves, of_any_lengths
from rlplan.planner.exact.space import Space, forget
from rlplan.profiles.facts import load_facts
from rlplan.simulator.answers import answers_of
from rlplan.trainers import TrainerOptions
from rlplan.workload import Uniform, Workload
from tests.planner.test_shared_tables import JOB

LENGTHS = Workload(
    prompts=16, samples_per_prompt=4, prompt_tokens=512, response_tokens=Uniform(low=8, high=3000)
)
NODE = replace(JOB.cluster[0], nodes=2)
JOBS = {
    "megatron": JOB,
    "several nodes": replace(JOB, cluster=(NODE,)),
    "fsdp": replace(JOB, engines=Engines(train="fsdp2", generate="vllm")),
    "adapters": replace(JOB, adapters=FrozenDict(actor=Adapter())),
    "quantised": replace(JOB, rollout_precision="fp8"),
    "sampled again": replace(
        JOB, algorithm="dapo", dynamic_sampling=DynamicSampling(expected_rounds=1.7)
    ),
}


def all_moves(space, sites, options):
    """Yield what every transition on one pool takes and holds, and the seconds of syncs between two, in a space of layouts."""
    ways = WeightMoves(space)
    for site in sites:
        layouts, _ = space.generation_layouts(site)
        shardings = {each.sharding for each in options.role_options("actor", site)}
        for layout in layouts:
            for sharding in sorted(shardings - {None}):
                for each in ways.bringing(sharding, layout, site):
                    yield each.priced()
                yield ways.trained_bytes(sharding, site)
            yield ways.sync_seconds(layout, site, site)


@pytest.mark.parametrize("name", JOBS)
def test_transitions_take_and_hold_the_same_at_any_lengths(name):
    job = replace(JOBS[name], workload=LENGTHS)
    facts = load_facts(job)
    space = Space(job, facts, {}, "throughput", NO_SPECS)
    own, sites = space.options.space, [space.site(each) for each in space.shares]
    shared = of_any_lengths(own)
    assert shared.job.workload != own.job.workload
    found = list(all_moves(own, sites, space.options))
    assert len(found) > 20
    assert list(all_moves(shared, sites, space.options)) == found


@pytest.mark.parametrize("framework", ["verl", "openrlhf"])
def test_a_framework_whose_host_works_on_the_batch_keeps_its_lengths(framework):
    job = replace(JOB, framework=framework)
    space = Space(job, load_facts(job), {}, "throughput", NO_SPECS)
    assert of_any_lengths(space.options.space) is space.options.space


SLOWER = replace(NODE, inter_node_gbps=50.0)


def test_jobs_that_differ_in_their_lengths_share_what_moves_take():
    forget()  # after so many jobs, those of other tests among them, facts are asked anew
    facts = load_facts(JOB)
    jobs = (JOB, replace(JOB, workload=LENGTHS), replace(JOB, cluster=(SLOWER,)))
    # What no space rests on any more is forgotten, at a time that nobody knows.
    spaces = [Space(job, facts, {}, "throughput", NO_SPECS) for job in jobs]
    one, other, another = (space.generations.ways for space in spaces)
    assert one is other
    assert one is not another


SHORT = Workload(prompts=16, samples_per_prompt=4, prompt_tokens=32, response_tokens=50)
HOSTED = {
    "states on the host": replace(
        JOBS["fsdp"], trainers=FrozenDict(actor=TrainerOptions(host_states=True))
    ),
    "a framework's": replace(JOB, framework="verl"),
}


@pytest.mark.parametrize("name", [*JOBS, *HOSTED])
def test_what_layouts_share_at_any_lengths_is_the_same_at_two(name, monkeypatch):
    job, asked = replace((JOBS | HOSTED)[name], workload=LENGTHS), set()

    def checked(numbers, decides, values, placed_at):
        placed = placed_at(list(range(len(values))))
        if decides[3] != placed[0].job:
            asked.add(getattr(numbers, "estimate", numbers).__name__)
            for each in placed[:: max(1, len(placed) // 5)]:
                other = replace(each, job=replace(each.job, workload=SHORT))
                np.testing.assert_array_equal(numbers(each), numbers(other))
        return answers_of(numbers, decides, values, placed_at)

    monkeypatch.setattr("rlplan.simulator.placed.answers_of", checked)
    space = Space(job, load_facts(job), {}, "throughput", NO_SPECS)
    assert space.options.role_options("actor", space.site(space.shares[-1]))
    assert {"_stage_shards", "gradient_exchange", "_optimizer_step"} <= asked
