"""What a teacher tells of, and what serves it: bytes and seconds of its likeliest tokens, of a served one, of services."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import FileError, InfeasibleError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Rewards, Role, Service, Teacher
from rlplan.plan import ResourcePool, TaskPlan
from rlplan.planner.search import search
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.simulator.costs.taskcost import data_bytes
from rlplan.simulator.costs.teaching import compared_bytes, picked_bytes
from rlplan.simulator.generation.judging import taught_workload
from rlplan.simulator.memory.task_memory import KV_CACHE, LOGITS, fullest_micro_batch
from rlplan.simulator.memory.transition_memory import has_room_to_serve
from rlplan.simulator.placed import PlacedPlan, PlacedTasks, columns_of
from rlplan.simulator.simulate import simulate
from rlplan.simulator.stages import task_cost
from rlplan.simulator.stages.infer import PROMPT_LOG_PROBS, layout_seconds
from rlplan.simulator.timeline.pool_memory import memory_moments
from tests.simulator.plans import TINY, priced_plan

TASK, UPDATE = "teacher.compute_log_prob", "actor.update"
WIDE = replace(TINY, vocab_size=32_000)
SERVED = Teacher(engine="vllm")


def taught(teacher=None, *, tp=1, **changes):
    """Return a plan of on-policy distillation, its student on p0 and its teacher on p1, 2 GPUs each."""
    plan = priced_plan()
    job = replace(
        plan.job, algorithm="on-policy-distillation", models=FrozenDict(actor=WIDE, teacher=WIDE),
        workload=replace(plan.job.workload, prompts=32), teacher=teacher, **changes,
    )  # fmt: skip
    owners: dict[str, Role] = {"p0": "actor", "p1": "teacher"}
    pools = tuple(
        ResourcePool(name=name, device="a100-80gb-sxm", gpus=2, roles=(role,))
        for name, role in owners.items()
    )
    layouts = {
        "actor.generate": TaskPlan(pool="p0", dp=2, engine="vllm"),
        TASK: TaskPlan(pool="p1", dp=2 // tp, tp=tp, engine="megatron-core"),
        UPDATE: TaskPlan(pool="p0", dp=2, engine="megatron-core"),
    }
    order = FrozenDict(p0=("actor.generate", UPDATE), p1=(TASK,))
    if changes.get("rewards"):
        pools += (ResourcePool(name="host", device="host", gpus=4, roles=("rule",)),)
        layouts["rule.compute_reward"] = TaskPlan(pool="host", dp=4)
        order = order.with_item("host", ("rule.compute_reward",))
    return replace(plan, job=job, pools=pools, tasks=FrozenDict(layouts), order=order)


@pytest.fixture(scope="module")
def facts():
    return load_facts(priced_plan().job)


def cost(plan, facts, name=TASK):
    return next(each for each in simulate(plan, facts).costs if each.name == name)


def test_likeliest_tokens_have_twelve_bytes_each_on_their_way():
    """32 sequences of 32 tokens: a float32 and an int64 for each of 64, where a sampled token has a float32."""
    work = taught().job.workload
    assert data_bytes(["teacher_log_probs"], work, 64) == 32 * 32 * 4
    assert data_bytes(["teacher_top_log_probs"], work, 64) == 32 * 32 * 64 * 12


def test_they_take_the_place_of_the_sampled_tokens_log_probabilities():
    job = taught(Teacher(top_tokens=8)).job
    tasks = {task.name: task for task in tasks_of(load_algorithm(job.algorithm), job)}
    assert tasks[TASK].outputs == ("teacher_top_log_probs",)
    assert tasks[UPDATE].inputs == ("sequences", "log_probs", "teacher_top_log_probs")


def test_picking_reads_each_logit_once_a_digit_and_once_more():
    """1,000 tokens of Qwen3's 151,936: four digits of eight bits, one gather, 4 bytes each; 64 picked of 12 bytes."""
    assert picked_bytes(1000, 151_936, 64) == 1000 * (151_936 * 20 + 64 * 12) == 3_039_488_000
    # 64 reads of 32 bytes, the teacher's 12, four tensors in fp32; read and added to backwards.
    assert compared_bytes(1000, 64) == (64_000 * (32 + 12 + 16), 64_000 * (64 + 16))


@given(few=st.integers(1, 1000), more=st.integers(1, 1000), width=st.integers(2000, 200_000))
def test_more_tokens_never_take_less(few, more, width):
    assert picked_bytes(10, width, few) <= picked_bytes(10, width, few + more)
    assert compared_bytes(10, few) < compared_bytes(10, few + more)


def test_a_teacher_of_many_takes_longer_and_so_does_what_learns_of_them(facts):
    none, few, many = (taught(top and Teacher(top_tokens=top)) for top in (None, 64, 4096))
    for name in (TASK, UPDATE):
        seconds = [cost(plan, facts, name).seconds for plan in (none, few, many)]
        assert seconds == sorted(set(seconds)), name


def test_ranks_that_share_a_vocabulary_gather_what_each_picked(facts):
    alone, shared = (
        cost(taught(top and Teacher(top_tokens=top), tp=2), facts).parts for top in (None, 64)
    )
    exchange = next(part for part in shared if "collective" in part or "tensor" in part)
    assert shared[exchange] > alone[exchange]


def test_the_loss_of_likeliest_tokens_holds_them_beside_the_logits(facts):
    held = [
        memory_moments(PlacedPlan(plan, facts), plan.pools[0])[UPDATE][LOGITS]
        for plan in (taught(), taught(Teacher(top_tokens=64)))
    ]
    tokens = fullest_micro_batch(PlacedPlan(taught(), facts).tasks[UPDATE])[1]
    assert held[1] - held[0] == tokens * 64 * (12 + 4 * 4)


def test_a_served_teacher_reads_every_response_as_a_prompt(facts):
    parts = cost(taught(SERVED), facts).parts
    assert parts["prefill"] > 0
    assert parts[PROMPT_LOG_PROBS] > 0
    moments = memory_moments(PlacedPlan(taught(SERVED), facts), taught(SERVED).pools[1])
    assert moments[TASK][KV_CACHE] > 0
    top = cost(taught(replace(SERVED, top_tokens=64)), facts).parts
    assert top[PROMPT_LOG_PROBS] > parts[PROMPT_LOG_PROBS]
    assert top["prefill"] == parts["prefill"]


def test_the_busiest_replica_of_several_teachers_ends_last(facts):
    """Of 32 responses two replicas answer 16 each; with 1.5 times the mean the busiest answers 24, as if there were 48."""
    job = taught(SERVED).job
    assert taught_workload(job.workload).prompts == 32
    assert taught_workload(job.workload, 1.5).prompts == 48
    even, uneven, more = (
        cost(taught(replace(SERVED, imbalance=each)), facts).parts for each in (1.0, 1.5, 2.0)
    )
    assert even["prefill"] < uneven["prefill"] < more["prefill"]
    assert uneven[PROMPT_LOG_PROBS] == pytest.approx(1.5 * even[PROMPT_LOG_PROBS])


def test_a_served_teacher_wants_its_weights_and_one_sequence_within_its_share(facts, tmp_path):
    """A millionth of the card is less than its weights; the usual share has room."""
    small = taught(replace(SERVED, memory_fraction=1e-6))
    forecast = simulate(small, facts)
    assert not forecast.feasible
    assert "lacks" in forecast.infeasible_reasons[0]
    for plan, has_room in ((small, False), (taught(SERVED), True)):
        tasks = PlacedPlan(plan, facts).tasks
        tables = [PlacedTasks.of(tasks[name]) for name in (TASK, UPDATE)]
        assert [has_room_to_serve(table).tolist() for table in tables] == [[has_room], [True]]
    with pytest.raises(InfeasibleError):
        search(resolve_job(small.job, tmp_path), facts, seconds=5)


def test_tables_of_layouts_say_of_served_teachers_what_single_ones_do(facts):
    placed = PlacedPlan(taught(SERVED), facts).tasks[TASK]
    layouts = [replace(placed.layout, tp=tp, dp=dp) for tp, dp in ((1, 2), (2, 1), (1, 1))]
    table = PlacedTasks(columns_of(placed.layout.engine, layouts), placed)
    alone = [task_cost(placed.laid_out(layout)).total.seconds for layout in layouts]
    assert layout_seconds(table).tolist() == pytest.approx(alone)


def test_a_service_answers_as_many_calls_at_a_time_as_it_takes(facts):
    """32 calls of 2 s: four rounds at 8 at a time, one at 32, whatever the host's four cores."""
    for concurrency, rounds in ((8, 4), (32, 1), (5, 7)):
        service = Service(seconds_per_call=2.0, concurrency=concurrency, usd_per_call=0.01)
        plan = taught(rewards=Rewards(service=service, streamed=False))
        found = cost(plan, facts, "rule.compute_reward").parts["reward function"]
        assert found == pytest.approx(2.0 * rounds)
        said = simulate(plan, facts).assumptions
        wanted = f"32 calls of the reward service a step, {concurrency} at a time: 0.3200 USD"
        assert any(wanted in each for each in said), said


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"teacher": Teacher(top_tokens=32_001)}, "teacher.top_tokens"),
        ({"teacher": Teacher(engine="vlm")}, "teacher.engine"),
        ({"teacher": Teacher(engine="megatron-core")}, "teacher.engine"),
        ({"teacher": Teacher(memory_fraction=0.3)}, "teacher.engine"),
        ({"teacher": Teacher(imbalance=1.5)}, "teacher.engine"),
        ({"teacher": Teacher(top_tokens=8, max_running=8)}, "teacher.engine"),
        (
            {
                "models": FrozenDict(actor=WIDE),
                "algorithm": "reinforce-plus-plus",
                "teacher": SERVED,
            },
            "teacher",
        ),
    ],
)
def test_what_a_teacher_cannot_tell_is_refused(changes, field, tmp_path):
    losses = replace(taught().job.hyperparameters, kl_coefficient=0.0)
    job = replace(taught().job, rewards=Rewards(function="exact_match"), hyperparameters=losses)
    with pytest.raises(FileError) as caught:
        resolve_job(replace(job, **changes), tmp_path)
    assert caught.value.field == field


def test_what_serves_it_decides_how_it_may_be_cut(facts):
    """Four ranks share two KV heads where vLLM gives each a copy; this trainer's engine copies none."""
    plan = taught(SERVED, tp=2)
    pools = (plan.pools[0], replace(plan.pools[1], gpus=4))
    wide = replace(plan.tasks[TASK], tp=4, dp=1, engine="fsdp2-hf")
    cluster = (replace(plan.job.cluster[0], gpus_per_node=8),)
    job = replace(plan.job, cluster=cluster)
    cut = replace(plan, job=job, pools=pools, tasks=plan.tasks.with_item(TASK, wide))
    assert simulate(cut, facts).feasible
    passes = replace(cut, job=replace(job, teacher=None))
    with pytest.raises(FileError, match="copies none"):
        simulate(passes, facts)
