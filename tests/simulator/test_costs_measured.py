"""Measured whole passes: counted exactly as the executor makes them."""

from dataclasses import replace
from typing import Any

import pytest

from rlplan.algorithms import load_algorithm
from rlplan.estimate import Source
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup
from rlplan.plan import TaskPlan
from rlplan.probing import ModelPass
from rlplan.profiles.facts import load_facts
from rlplan.profiles.tables.table import model_pass_keys, new_profile, read_profile
from rlplan.simulator.costs.syncs import transition_cost
from rlplan.simulator.memory.task_memory import CONTEXT
from rlplan.simulator.placed import PlacedTask, Site
from rlplan.simulator.stages import task_cost, task_memory
from rlplan.transports import KNOWN_TRANSPORTS, Transport, serves_all
from rlplan.workload import Empirical, Uniform, Workload
from tests.simulator.placing import transition
from tests.simulator.plans import TINY

TASKS = {task.name: task for task in load_algorithm("ppo").tasks}
SITE = Site("cpu", 2, 2, 1e9)
CALL_SECONDS = 0.001
JOB = Job(
    algorithm="ppo",
    models=FrozenDict(dict.fromkeys(("actor", "critic", "reference", "reward"), TINY)),
    workload=Workload(prompts=16, prompt_tokens=8, response_tokens=8, updates=2, epochs=3),
    cluster=(NodeGroup(gpu="cpu", gpus_per_node=2, inter_node_gbps=200.0),),
    precision="fp32",
)


def pass_of(name, **fields):
    base: dict[str, Any] = {"model": TINY, "head": "lm", "precision": "fp32"}
    return ModelPass(name=name, **(base | fields))


MEASURED = {
    pass_of("infer", sequences=3, tokens=16): 0.030,
    pass_of("infer", sequences=2, tokens=16): 0.021,
    pass_of("train", sequences=3, tokens=16): 0.100,
    pass_of("train", sequences=1, tokens=16): 0.040,
    pass_of("optimizer"): 0.007,
    pass_of("gradient_reduction", dp=2): 0.005,
    pass_of("experience", dp=2, sequences=8, tokens=16): 0.003,
    pass_of("prefill", sequences=4, tokens=8): 0.020,
    pass_of("prefill", sequences=2, tokens=8): 0.011,
    pass_of("decode", sequences=4, tokens=8): 0.010,
    pass_of("decode", sequences=4, tokens=16): 0.012,
    pass_of("prefill_uneven", sequences=4, tokens=8): 0.030,
    pass_of("decode_uneven", sequences=4, tokens=8): 0.020,
    pass_of("decode_uneven", sequences=4, tokens=16): 0.024,
    pass_of("weight_sync"): 0.25,
}


@pytest.fixture
def facts(tmp_path):
    profile = new_profile("laptop", "cpu", {"fingerprint": "abc"}, {})
    for model_pass, seconds in MEASURED.items():
        profile.add("model_pass", model_pass_keys(model_pass), [seconds])
    for num_bytes in (0, 1_000_000):
        profile.add("call", {"kind": "actor_call", "num_bytes": num_bytes}, [CALL_SECONDS])
    profile.write(tmp_path / "profile")
    return load_facts(JOB, tmp_path / "profile")


def layout(engine="torch-tp-dp", **fields):
    return TaskPlan(pool="p0", engine=engine, **fields)


def parts_of(task, chosen, facts, job=JOB):
    cost = task_cost(PlacedTask(TASKS[task], chosen, SITE, job, facts))
    return {name: part.seconds for name, part in cost.parts}, cost.total


def test_an_inference_counts_its_micro_batches_and_the_smaller_last_one(facts):
    parts, total = parts_of("reference.compute_log_prob", layout(dp=2, micro_batch=3), facts)
    # 8 sequences on each rank: 3 + 3 + 2.
    assert parts == {
        "forward": pytest.approx(2 * 0.030 + 0.021),
        "call overhead": pytest.approx(CALL_SECONDS),
    }
    assert total.source <= Source.INTERPOLATED
    assert not total.outside_range


def test_a_micro_batch_of_an_uneven_job_counts_as_it_was_measured_with_the_jobs_own(tmp_path):
    profile = new_profile("laptop", "cpu", {"fingerprint": "abc"}, {})
    own = {
        pass_of("infer_usual", sequences=3, tokens=16): 0.041,
        pass_of("infer_usual", sequences=2, tokens=16): 0.033,
    }
    for model_pass, seconds in (MEASURED | own).items():
        profile.add("model_pass", model_pass_keys(model_pass), [seconds])
    profile.add("call", {"kind": "actor_call", "num_bytes": 0}, [CALL_SECONDS])
    profile.write(tmp_path / "profile")
    spread = replace(JOB.workload, response_tokens=Uniform(low=1, high=15))
    for workload, forward in ((spread, 2 * 0.041 + 0.033), (JOB.workload, 2 * 0.030 + 0.021)):
        job = replace(JOB, workload=workload)
        parts, _ = parts_of(
            "reference.compute_log_prob",
            layout(dp=2, micro_batch=3),
            load_facts(job, tmp_path / "profile"),
            job,
        )
        assert parts["forward"] == pytest.approx(forward)


@pytest.mark.parametrize(("micro_batch", "prompts_shared"), [(1, 0), (2, 1), (8, 7), (16, 14)])
def test_a_micro_batch_beyond_the_measured_ones_computes_a_shared_prompt_once(
    tmp_path, micro_batch, prompts_shared
):
    profile = new_profile("laptop", "cpu", {"fingerprint": "abc"}, {})
    measured = {pass_of("infer", sequences=n, tokens=16): 0.010 * n for n in (1, 2, 16)}
    measured[pass_of("infer_usual", sequences=1, tokens=16)] = 0.012
    for model_pass, seconds in measured.items():
        profile.add("model_pass", model_pass_keys(model_pass), [seconds])
    for num_bytes in (0, 1_000_000):
        profile.add("call", {"kind": "actor_call", "num_bytes": num_bytes}, [CALL_SECONDS])
    profile.write(tmp_path / "profile")
    work = replace(
        JOB.workload, prompts=2, samples_per_prompt=8, response_tokens=Uniform(low=1, high=15)
    )
    job = replace(JOB, algorithm="grpo", workload=work)
    parts, total = parts_of(
        "reference.compute_log_prob",
        layout(micro_batch=micro_batch),
        load_facts(job, tmp_path / "profile"),
        job,
    )
    tokens = micro_batch * 16 - prompts_shared * 7  # all of a prompt but its last token
    assert parts["forward"] == pytest.approx(16 / micro_batch * 0.012 * tokens / 16, rel=0.05)
    assert total.outside_range == (micro_batch > 1)


def test_an_update_counts_passes_reduction_and_optimizer_of_every_epoch(facts):
    parts, _ = parts_of("actor.update", layout(dp=2, micro_batch=3), facts)
    # 3 epochs of 2 updates; each has 4 sequences on each rank: 3 + 1.
    assert parts == {
        "experience": pytest.approx(0.003),
        "forward and backward": pytest.approx(6 * (0.100 + 0.040)),
        "gradient reduction": pytest.approx(6 * 0.005),
        "optimizer": pytest.approx(6 * 0.007),
        "call overhead": pytest.approx(CALL_SECONDS),
    }


def test_experience_that_was_not_measured_counts_as_the_engines_host_work(facts):
    parts, total = parts_of("actor.update", layout(dp=1, micro_batch=3), facts)
    assert parts["experience"] == facts.engine("torch-tp-dp").step_seconds
    assert total.source == Source.DATASHEET


def test_one_rank_reduces_no_gradients(facts):
    parts, _ = parts_of("actor.update", layout(micro_batch=1), facts)
    assert parts["forward and backward"] == pytest.approx(6 * 8 * 0.040)
    assert "gradient reduction" not in parts


def test_generation_counts_waves_of_static_batches(facts):
    parts, total = parts_of("actor.generate", layout("torch-static", dp=2, max_running=4), facts)
    # 8 sequences on each replica in two waves; 7 steps from 8 to 14 cached tokens, 11 on average.
    step = 0.010 + (0.012 - 0.010) * 3 / 8
    assert parts["prefill"] == pytest.approx(2 * 0.020)
    assert parts["decode"] == pytest.approx(2 * 7 * step)
    assert total.source <= Source.INTERPOLATED


def test_waves_of_unlike_prompts_take_what_padded_rows_take(facts):
    prompts = Empirical(values=(4, 8))
    uneven = replace(JOB, workload=replace(JOB.workload, prompt_tokens=prompts))
    where = layout("torch-static", dp=2, max_running=4)
    parts, total = parts_of("actor.generate", where, facts, uneven)
    step = 0.020 + (0.024 - 0.020) * 3 / 8
    assert parts["prefill"] == pytest.approx(2 * 0.030)
    assert parts["decode"] == pytest.approx(2 * 7 * step)
    assert total.source <= Source.INTERPOLATED


def test_a_head_that_was_not_measured_is_priced_by_its_operators(facts):
    parts, total = parts_of("critic.compute_values", layout(dp=2, micro_batch=3), facts)
    assert total.source == Source.DATASHEET
    assert parts["forward"] > 0


@pytest.mark.parametrize(
    "change", [{"zero": 1}, {"recompute": "full"}, {"offload": True}, {"tp": 2}]
)
def test_a_layout_that_was_not_measured_is_priced_by_its_operators(facts, change):
    parts, _ = parts_of("actor.update", layout(dp=1, micro_batch=3, **change), facts)
    assert "forward and backward" not in parts
    assert parts["backward"] > 0


def test_padding_follows_the_engine(facts):
    longer = Workload(
        prompts=16,
        prompt_tokens=8,
        response_tokens=Empirical(values=(4, 8)),
        updates=2,
        epochs=3,
    )
    parts, _ = parts_of(
        "actor.update", layout(dp=2, micro_batch=3), facts, replace(JOB, workload=longer)
    )
    # Packed end to end: 8 tokens of prompt and 6 of response on average.
    assert parts["forward and backward"] == pytest.approx(6 * 0.125, rel=1e-3)


GROUPS = replace(JOB, workload=replace(JOB.workload, prompts=4, samples_per_prompt=4))


def test_samples_of_one_prompt_count_as_the_sequences_whose_tokens_they_have(facts):
    parts, _ = parts_of("actor.update", layout(dp=2, micro_batch=4), facts, GROUPS)
    # 4 samples of 8 + 8 tokens with 7 of the prompt shared: 43 tokens, as 2.6875 sequences of 16 have.
    each = 0.070 * 0.3125 + 0.100 * 0.6875
    assert parts["forward and backward"] == pytest.approx(6 * each)


def test_a_wave_prefills_a_prompt_once_for_all_of_its_samples(facts):
    parts, _ = parts_of(
        "actor.generate", layout("torch-static", dp=2, max_running=8), facts, GROUPS
    )
    assert parts["prefill"] == pytest.approx(0.011)


def test_what_crosses_nodes_takes_the_links_time_where_passes_were_measured_on_one_node(
    facts, tmp_path
):
    task, chosen = TASKS["actor.update"], layout(dp=2, micro_batch=3)
    apart = Site("cpu", 2, 1, 1e9)
    profile = read_profile(tmp_path / "profile")
    link: dict[str, str | int] = {"kind": "all_reduce", "ranks": 2, "ranks_per_node": 1}
    for num_bytes in (1, 10**12):
        profile.add("collective", {**link, "num_bytes": num_bytes}, [0.25])

    def reduction(site):
        measured = load_facts(JOB, tmp_path / "profile")
        cost = task_cost(PlacedTask(task, chosen, site, JOB, measured))
        return dict(cost.parts)["gradient reduction"].seconds

    profile.write(tmp_path / "profile")
    assert reduction(apart) == reduction(SITE) == pytest.approx(6 * 0.005)  # of one machine
    profile.note_nodes(["10.0.0.1", "10.0.0.2"], {})
    profile.write(tmp_path / "profile")
    assert reduction(SITE) == pytest.approx(6 * 0.005)
    assert reduction(apart) == pytest.approx(6 * 0.25)


def test_memory_counts_what_a_worker_was_seen_to_hold_without_a_model(facts, tmp_path):
    task, chosen = TASKS["actor.update"], layout(dp=2, micro_batch=3)
    sheet = facts.device("cpu").sheet
    assert (
        task_memory(PlacedTask(task, chosen, SITE, JOB, facts)).transient[CONTEXT]
        == sheet.reserved_bytes
    )
    profile = read_profile(tmp_path / "profile")
    profile.note_context(123_456_789)
    profile.write(tmp_path / "profile")
    measured = load_facts(JOB, tmp_path / "profile")
    assert (
        task_memory(PlacedTask(task, chosen, SITE, JOB, measured)).transient[CONTEXT] == 123_456_789
    )


def sync(facts, train, generate, *, same_pool, transport="object-store"):
    moves = transition("two-copies", train, generate, SITE, JOB, facts, same_pool=same_pool)
    cost = transition_cost(replace(moves, transport=transport))
    return {name: part.seconds for name, part in cost.parts}


def test_weights_that_go_to_another_pool_take_their_measured_time(facts):
    train, generate = layout(dp=2), layout("torch-static", dp=2)
    assert sync(facts, train, generate, same_pool=False) == {"weight sync": 0.25}


def test_a_transport_that_no_pass_measures_takes_the_time_of_its_links(facts, monkeypatch):
    post = Transport(words="by post", probed=False, lacks=serves_all)
    monkeypatch.setitem(KNOWN_TRANSPORTS._loaded, "post", post)
    train, generate = layout(dp=2), layout("torch-static", dp=2)
    found = sync(facts, train, generate, same_pool=False, transport="post")
    assert found["weight broadcast"] > 0
    assert "weight sync" not in found


def test_equal_layouts_on_one_pool_share_their_weights(facts):
    train, generate = layout(dp=2), layout("torch-static", dp=2)
    assert sync(facts, train, generate, same_pool=True) == {}
