"""More begun than is learnt from: which responses are learnt from, what is dropped, and what follows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import begun_work
from rlplan.errors import CapabilityError, FileError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.control.checkpoints import (
    Checkpoint,
    CheckpointState,
    check_continues,
    find_checkpoint,
)
from rlplan.executor.control.controller import Controller
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.control.run import Saving
from rlplan.executor.control.start import prepare_groups
from rlplan.executor.control.summary import iteration_metrics
from rlplan.executor.data.batches import RESPONSE
from rlplan.executor.data.workload import PromptBatches, job_of_batches
from rlplan.executor.execute import execute
from rlplan.executor.parallel.positions import generation_positions
from rlplan.executor.rollout.completions import Completions
from rlplan.files.frozen import FrozenDict
from rlplan.profiles.facts import load_facts
from rlplan.results.stored import PLAN_FILE, write_plan
from rlplan.simulator.generation.generating import begun
from rlplan.simulator.generation.over_provisioning import enough_of
from rlplan.simulator.placed import PlacedPlan
from rlplan.workload import Empirical, Environment, Lognormal, Workload
from tests.executor.harness import collected
from tests.executor.plans import ALL_ROLES, make_job, make_plan
from tests.simulator.test_streaming_plans import apart

LENGTHS = Lognormal(mean=10.0, std=8.0, max=40)
GRPO = ("actor", "reference")
APART = {"p0": (1, GRPO), "generator": (1, ("actor",))}


def job_of(algorithm="grpo", *, over=1.5, samples_over=1.0, **work):
    groups = load_algorithm(algorithm).groups
    job = make_job(
        algorithm, samples_per_prompt=2 if groups else 1, response_tokens=LENGTHS, **work
    )
    work = replace(job.workload, over_provisioning=over, over_sampling=samples_over)
    return replace(job, workload=work)


def first_rows(work, ends, *, groups):
    """Return the rows that are learnt from, by definition: units in the order in which enough of them has ended.

    Args:
        ends: When each row ends.
    """
    all_begun = begun_work(work)
    size, needed = (all_begun.samples_per_prompt, work.samples_per_prompt) if groups else (1, 1)
    units = [
        sorted(range(start, start + size), key=lambda row: (ends[row], row))[:needed]
        for start in range(0, all_begun.sequences, size)
    ]
    units.sort(key=lambda rows: (ends[rows[-1]], rows[-1]))
    return sorted(row for rows in units[: work.sequences // needed] for row in rows)


def numbers(rows):
    return [row for start, stop in rows for row in range(start, stop)]


@given(data=st.data(), groups=st.booleans())
def test_what_ends_first_is_learnt_from_however_it_is_cut_in_segments(data, groups):
    draw = data.draw
    work = Workload(
        prompts=draw(st.integers(1, 6)),
        samples_per_prompt=draw(st.integers(1, 4)),
        prompt_tokens=4,
        response_tokens=4,
        over_provisioning=draw(st.floats(1, 2.5)),
        over_sampling=draw(st.floats(1, 2.5)),
    )
    count = begun_work(work).sequences
    ends = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    expected = first_rows(work, ends, groups=groups)
    completions, cuts = Completions(work, groups=groups), draw(st.sets(st.integers(1, 9)))
    begin = number = 0
    for step in range(10):
        if step in cuts:
            begin, number = step, number + 1
        ended = [row for row in range(count) if ends[row] == step]
        assert not completions.are_enough
        completions.note(number, ((step - begin, row) for row in ended))
        if completions.are_enough:
            assert step == max(ends[row] for row in expected)
            break
    assert numbers(completions.chosen) == expected


@pytest.mark.parametrize("samples", [1, 2])
def test_the_forecast_learns_from_the_lengths_that_the_run_learns_from(samples):
    """Where samples count by themselves; which prompt has which lengths is chance."""
    plan = apart("sync", over=1.25, samples=samples, staleness=0.0)
    values = tuple(range(10, 10 + begun_work(plan.job.workload).sequences))
    work = replace(plan.job.workload, response_tokens=Empirical(values=values))
    plan = replace(plan, job=replace(plan.job, algorithm="ppo", workload=work))
    generates = PlacedPlan(plan, load_facts(plan.job)).tasks["actor.generate"]
    assert begun(generates).workload == job_of_batches(plan).workload
    completions = Completions(work, groups=False)
    for row, tokens in enumerate(values):
        if not completions.are_enough:
            completions.note(0, [(tokens, row)])
    learnt = [values[row] for row in numbers(completions.chosen)]
    assert sorted(enough_of(generates, None).responses) == learnt


def started(worker_pool, plan):
    """Return the controller of a plan on shared workers, and its tasks."""
    tasks, groups = check_runnable(plan), worker_pool.groups_of(plan)
    prompts = PromptBatches(job_of_batches(plan), Path())
    prepare_groups(plan, tasks, prompts, 1, groups)
    return Controller(plan, tasks, groups, prompts.columns), tasks


def carried_out(worker_pool, plan, iterations):
    """Return of each iteration the record, its metrics, and tokens and parts of what was learnt from."""
    controller, tasks = started(worker_pool, plan)
    found = []
    for iteration in range(iterations):
        running = controller.send(iteration, is_last=iteration == iterations - 1)
        record = controller.finish(running)
        columns = (collected(running, "sequences", name) for name in ("tokens", "parts"))
        found.append((record, iteration_metrics(plan, tasks, record), *columns))
    return found, controller.position(iterations)


def steps_of(plan, lengths):
    """Return after which step of its replica each response ends, in waves one after another."""
    replicas, layout = generation_positions(plan).dp_size, plan.tasks["actor.generate"]
    block = begun_work(plan.job.workload).samples_per_prompt
    blocks = np.array_split(np.arange(len(lengths) // block), replicas)
    ends = np.zeros(len(lengths), dtype=int)
    for own in blocks:
        rows = np.arange(own[0] * block, (own[-1] + 1) * block)
        start = 0
        for at in range(0, len(rows), layout.max_running):
            wave = rows[at : at + layout.max_running]
            ends[wave] = start + lengths[wave]
            start += lengths[wave].max()
    return ends


PPO_APART = {"p0": (1, ALL_ROLES), "generator": (2, ("actor",))}
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "samples of a prompt too, in one wave": (job_of(samples_over=1.5), {"p0": (1, GRPO)}, {}),
    "two replicas in waves, each sample by itself": (
        job_of("ppo"),
        PPO_APART,
        {"max_running": 4, "transition": "two-copies"},
    ),
    "two replicas beside training in another layout": (
        job_of(over=1.25, samples_over=2.0, updates=2),
        {"p0": (2, GRPO)},
        {"tp": 2, "tp_gen": 1, "max_running": 6},
    ),
    "a replica of two ranks": (job_of(), {"p0": (2, GRPO)}, {"tp": 2, "max_running": 5}),
}


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("case", CASES)
def test_an_iteration_learns_from_what_ends_first_of_all_that_a_whole_run_generates(
    worker_pool, case
):
    job, pools, sizes = CASES[case]
    plan = make_plan(job, pools, **sizes)
    whole = make_plan(job_of_batches(plan), pools, **sizes)
    ((_, _, tokens, parts),), _ = carried_out(worker_pool, whole, 1)
    found, position = carried_out(worker_pool, plan, 2)
    work = job.workload
    lengths = (parts == RESPONSE).sum(axis=1)
    rows = first_rows(work, steps_of(plan, lengths), groups=load_algorithm(job.algorithm).groups)
    assert np.array_equal(found[0][2], tokens[rows])
    for record, metrics, *_, learnt in found:
        assert (learnt == RESPONSE).any(axis=1).sum() == work.sequences
        assert metrics["response_tokens"] == (learnt == RESPONSE).sum() / work.sequences
        assert metrics["dropped_samples"] == begun_work(work).sequences - work.sequences
        assert np.isfinite(metrics["policy_loss"])
        spans = [span.name for span in record.spans]
        assert len(spans) == len(set(spans))
    assert found[0][1]["response_tokens"] < lengths.mean()
    assert position == (2 * begun_work(work).prompts, ())


@pytest.mark.ray
def test_a_batch_one_step_off_ends_early_beside_the_update_before(worker_pool):
    job = job_of(samples_over=1.5)
    plan = make_plan(job, APART, transition="two-copies")
    plan = replace(plan, mode="one-step-off", staleness=1)
    found, _ = carried_out(worker_pool, plan, 3)
    # The first weights make two batches.
    for number in (0, 1):
        sync = replace(plan, mode="sync", staleness=0)
        expected = worker_pool.run(sync, numbers=(number,)).tokens[0]
        assert np.array_equal(found[number][2], expected)
    kl = [metrics["kl"] for _, metrics, *_ in found]
    assert kl[:2] == pytest.approx([0, 0], abs=1e-5)
    assert [record.dropped for record, *_ in found] == [12 * 3 - 16] * 3


@pytest.mark.full
@pytest.mark.ray
def test_a_run_goes_on_behind_what_was_dropped_as_if_it_had_never_stopped(shared_workers, tmp_path):
    plan = make_plan(job_of(), {"p0": (1, GRPO)})
    execute(plan, tmp_path / "whole", iterations=3, seed=1, warmup=0)
    halves = tmp_path / "halves"
    execute(plan, halves, iterations=1, seed=1, warmup=0, saving=Saving(every=1))
    assert find_checkpoint(halves).state.next_prompt == 12
    saving = Saving(every=1, resume=halves)
    run = execute(plan, halves, iterations=3, seed=1, warmup=0, saving=saving)
    for row, expected in zip(read_metrics(halves), read_metrics(tmp_path / "whole"), strict=True):
        for name in ("policy_loss", "kl", "mean_reward", "response_tokens", "dropped_samples"):
            assert row[name] == pytest.approx(expected[name], abs=1e-6), name
    assert run.response_tokens is not None


@pytest.mark.parametrize(
    ("before", "now", "is_refused"),
    [(1.5, 1.5, False), (1.5, 1.25, True), (1.0, 1.5, True), (1.0, 1.0, False)],
)
def test_a_checkpoint_goes_on_with_as_many_prompts_in_an_iteration(
    tmp_path, before, now, is_refused
):
    plan = make_plan(job_of(over=before), {"p0": (1, GRPO)})
    write_plan(tmp_path / PLAN_FILE, plan)
    state = CheckpointState(
        iteration=3,
        next_prompt=3 * begun_work(plan.job.workload).prompts,
        seed=1,
        algorithm_state=FrozenDict[str, float]({}),
    )
    checkpoint = Checkpoint(folder=tmp_path, state=state)
    following = make_plan(job_of(over=now), {"p0": (1, GRPO)})
    if not is_refused:
        check_continues(checkpoint, following, 1, 4)
        return
    with pytest.raises(FileError, match=r"over_provisioning: has used up .* prompts in 3"):
        check_continues(checkpoint, following, 1, 4)


def refused():
    plan = make_plan(job_of(), APART, transition="two-copies")
    samples = make_plan(job_of(over=1.0, samples_over=1.5), APART, transition="two-copies")
    generate = replace(plan.tasks["actor.generate"], engine="vllm")
    episodes = replace(
        plan.job.workload,
        environments=(Environment(name="guess", turns=2, step_seconds=0.0, source="guess"),),
    )
    return {
        "an engine of whole calls": (
            replace(plan, tasks=plan.tasks.with_item("actor.generate", generate)),
            "vllm samples whole responses here, engine torch-static goes on: 1",
        ),
        "samples that responses handed on one by one wait for": (
            replace(samples, mode="streaming"),
            "in mode streaming it waits for all samples",
        ),
        "episodes": (
            replace(plan, job=replace(plan.job, workload=episodes)),
            "of episodes it waits for all: 1",
        ),
        "groups that are sampled again": (
            make_plan(job_of("dapo"), {"p0": (1, ("actor",))}),
            "dapo samples groups again",
        ),
        "greedy baselines": (
            make_plan(job_of("remax"), {"p0": (1, GRPO)}),
            "remax generates greedy baselines",
        ),
        "stages of a pipeline": (
            make_plan(job_of(), {"p0": (2, GRPO)}, pp=2),
            "pp above 1",
        ),
    }


@pytest.mark.parametrize("case", refused())
def test_what_cannot_drop_responses_is_refused_by_name(case):
    plan, words = refused()[case]
    with pytest.raises(
        CapabilityError, match=f"more responses begun than are learnt from.*{words}"
    ):
        check_runnable(plan)


@pytest.mark.parametrize(
    ("next_prompt", "left", "is_refused"),
    # Of 2 iterations of 8 prompts: all of the first 16; the same with more begun; 3 and 7 left behind for 16 and 17.
    [(16, (), False), (18, (16, 17), False), (18, (3, 7), True), (19, (3, 7, 18), True)],
)
def test_whole_batches_do_not_go_on_where_samples_were_learnt_from_in_another_order(
    tmp_path, next_prompt, left, is_refused
):
    plan = make_plan(job_of(over=1.0), {"p0": (1, GRPO)})
    assert begun_work(plan.job.workload).prompts == 8
    write_plan(tmp_path / PLAN_FILE, replace(plan, mode="streaming"))
    state = CheckpointState(
        iteration=2,
        next_prompt=next_prompt,
        left_prompts=left,
        seed=1,
        algorithm_state=FrozenDict[str, float]({}),
    )
    checkpoint = Checkpoint(folder=tmp_path, state=state)
    check_continues(checkpoint, replace(plan, mode="streaming"), 1, 4)
    if not is_refused:
        check_continues(checkpoint, plan, 1, 4)
        return
    with pytest.raises(
        FileError, match=r"plan\.mode: has not learnt from 2 of the first 16 prompts"
    ):
        check_continues(checkpoint, plan, 1, 4)
