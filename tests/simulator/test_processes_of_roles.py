"""GPUs on which each role is a process: contexts, groups of ranks and blocks of its own."""

from dataclasses import replace

import pytest

from rlplan.simulator.memory.task_memory import COMMUNICATORS, CONTEXT
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.stages import task_memory
from rlplan.simulator.timeline.pool_memory import APART, memory_fraction_left, memory_moments
from tests.simulator.cost_jobs import facts_of, job_of
from tests.simulator.test_memory import colocated, layout

ROLES = ("actor", "critic", "reference", "reward")


def placed_in(framework, **changes):
    job = replace(job_of(nodes=1), framework=framework)
    plan = colocated(job, **changes)
    return PlacedPlan(plan, facts_of(job))


def tasks_of(placed):
    pool = placed.plan.pools[0]
    return [each for each in placed.tasks_on(pool) if each.task.kind != "generate"]


def taken(task):
    terms = task_memory(task).transient
    return sum(size for name, size in terms.items() if name not in {CONTEXT, COMMUNICATORS})


def test_one_process_for_all_roles_has_one_context_and_its_groups_once():
    placed = placed_in("verl-megatron")
    moment = memory_moments(placed, placed.plan.pools[0])["actor.update"]
    assert APART not in moment
    assert moment[COMMUNICATORS] == max(
        task_memory(each).transient[COMMUNICATORS] for each in tasks_of(placed)
    )


def test_a_process_a_role_has_a_context_and_groups_of_its_own():
    placed = placed_in("skyrl-megatron")
    moment = memory_moments(placed, placed.plan.pools[0])["actor.update"]
    (task,) = (each for each in tasks_of(placed) if each.task.name == "actor.update")
    assert moment[APART] == 3 * task.device.context_bytes
    held = {}
    for each in tasks_of(placed):
        if each.task.name != "actor.generate":
            own = task_memory(each).transient[COMMUNICATORS]
            held[each.task.role] = max(held.get(each.task.role, 0), own)
    assert len(held) == 4
    assert held["reference"] < held["actor"]  # no norm of gradients to agree on
    assert moment[COMMUNICATORS] == sum(held.values())


def test_contexts_of_all_processes_lie_beside_an_engine_and_its_new_weights():
    one, several = (
        memory_moments(placed, placed.plan.pools[0])
        for placed in (placed_in("verl-megatron"), placed_in("skyrl-megatron"))
    )
    context = tasks_of(placed_in("verl-megatron"))[0].device.context_bytes
    for name in ("actor.generate", "transition"):
        assert several[name][APART] == 3 * context
        assert APART not in one[name]


@pytest.mark.parametrize("framework", ["verl-megatron", "skyrl-megatron", "areal"])
def test_a_share_that_leaves_room_for_all_else_leaves_it_for_every_process(framework):
    placed = placed_in(framework)
    pool = placed.plan.pools[0]
    generate = replace(
        placed.generate.layout, memory_fraction=memory_fraction_left(placed, placed.generate)
    )
    plan = placed.plan.with_layout("actor.generate", generate)
    moment = memory_moments(PlacedPlan(plan, placed.facts), pool)["actor.generate"]
    left = placed.generate.device.sheet.memory_bytes - sum(moment.values())
    assert 0 <= left < 0.011 * placed.generate.device.sheet.memory_bytes


def test_blocks_that_no_process_gives_back_lie_beside_an_engine_that_wakes():
    placed = placed_in("areal")
    context = tasks_of(placed)[0].device.context_bytes
    kept = {
        role: max(taken(each) for each in tasks_of(placed) if each.task.role == role)
        for role in ROLES
    }
    moments = memory_moments(placed, placed.plan.pools[0])
    assert moments["actor.generate"][APART] == 3 * context + sum(kept.values())
    # The actor's process sends weights from its own.
    assert moments["transition"][APART] == 3 * context + sum(kept.values()) - kept["actor"]


@pytest.mark.parametrize("role", ROLES)
def test_processes_that_keep_their_blocks_have_those_of_their_fullest_task(role):
    placed = placed_in("areal")
    moments = memory_moments(placed, placed.plan.pools[0])
    tasks = tasks_of(placed)
    kept = {other: max(taken(each) for each in tasks if each.task.role == other) for other in ROLES}
    beside = sum(size for other, size in kept.items() if other != role)
    for each in tasks:
        if each.task.role == role:
            assert moments[each.task.name][APART] == beside + 3 * each.device.context_bytes


def test_states_that_leave_the_gpu_give_their_blocks_back():
    away = {"reference.compute_log_prob": layout(tp=8, offload=True)}
    stays, leaves = (
        memory_moments(placed, placed.plan.pools[0])["critic.update"][APART]
        for placed in (placed_in("areal"), placed_in("areal", **away))
    )
    (reference,) = (each for each in tasks_of(placed_in("areal")) if each.task.role == "reference")
    assert stays - leaves == taken(reference)


def test_a_reference_that_areal_wraps_has_buffers_for_gradients():
    placed = placed_in("areal")
    moment = memory_moments(placed, placed.plan.pools[0])["actor.update"]
    assert moment["reference gradients"] == 2 * moment["reference weights"]
    other = placed_in("skyrl-megatron")
    assert "reference gradients" not in memory_moments(other, other.plan.pools[0])["actor.update"]


def test_buffers_for_gradients_leave_the_gpu_with_a_references_weights():
    placed = placed_in("areal", **{"reference.compute_log_prob": layout(tp=8, offload=True)})
    moments = memory_moments(placed, placed.plan.pools[0])
    scores = moments["reference.compute_log_prob"]
    assert scores["reference gradients"] == 2 * scores["reference weights"]
    assert not {"reference gradients", "reference weights"} & set(moments["actor.update"])
