"""What a check says of memory where a rule is broken, where it runs out first, and by which key a limit is refused."""

import pytest

from rlplan.errors import FileError
from rlplan.planner.answers.explain import first_shortage
from rlplan.planner.configs.checking import check_config, check_plan, relaxed
from rlplan.planner.configs.importing import imported
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.timeline.pool_memory import memory_moments
from tests.planner.brute_force import facts_with
from tests.planner.configs.test_importing import NEMO, OPENRLHF, VERL
from tests.planner.configs.test_improving import PADS, SLEEPING, micro_batches
from tests.planner.configs.test_rules import (
    ASYNC,
    ASYNC_START,
    BREAKS_VERL,
    FIXED,
    MEGATRON,
    OPTIONS,
    A,
    R,
)

# What breaks a rule of batches or lengths, and what the memory is that of.
BATCHES = {
    "mini-batches-divide": "32 updates in place of 37",
    "interleaved-stages-take-whole-rounds": "stages that are not interleaved",
    "sequences-fit-the-model": "positions for its longest sequences",
}


@pytest.mark.parametrize("rule", BATCHES)
def test_memory_is_known_where_only_batches_or_lengths_break_a_rule(rule):
    checked = check_config("verl", [*VERL, *BREAKS_VERL[rule]], OPTIONS)
    assert not checked.will_run
    assert checked.verdict in {"fits", "may not fit", "does not fit"}
    assert {each.rule for each in checked.findings if each.stops} >= {rule}
    assert not any(each.rule == "import" for each in checked.findings)
    relaxes = any("memory and step are those of" in remark for remark in checked.remarks)
    assert relaxes or any("updates" in doubt for doubt in checked.imported.doubts())


def test_batches_that_do_not_divide_change_nothing_of_what_a_micro_batch_holds():
    sound = check_config("verl", [*VERL, *FIXED], OPTIONS)
    odd = check_config("verl", [*VERL, *FIXED, f"{A}.ppo_mini_batch_size=7"], OPTIONS)
    ours, theirs = (
        memory_moments(PlacedPlan(each.plan, each.facts), each.plan.pool("train"))["actor.update"]
        for each in (sound, odd)
    )
    assert dict(ours) == dict(theirs)
    assert any("ppo_mini_batch_size=7" in each for each in odd.document()["doubtful"])
    assert odd.better == ()


def test_batches_that_ranks_cannot_share_alike_are_taken_as_they_are():
    checked = check_config("verl", [*VERL, *BREAKS_VERL["batches-balance"]], OPTIONS)
    assert not checked.will_run
    assert checked.verdict == "fits"
    assert {each.rule for each in checked.findings if each.stops} == {"batches-balance"}
    assert (checked.plan.job.workload.prompts, checked.plan.job.workload.sequences) == (255, 765)
    assert checked.remarks == ()
    assert checked.better == ()


def test_a_micro_batch_that_does_not_divide_leaves_memory_known():
    checked = check_config("verl", [*VERL, *FIXED, f"{A}.ppo_micro_batch_size_per_gpu=3"], OPTIONS)
    assert not checked.will_run
    assert checked.verdict == "fits"


@pytest.mark.parametrize(
    "rule", ["replicas-divide-the-gpus", "model-ranks-divide-the-gpus", "shards-divide-the-gpus"]
)
def test_memory_is_not_known_where_ranks_do_not_cover_the_gpus(rule):
    checked = check_config("verl", [*VERL, *BREAKS_VERL[rule]], OPTIONS)
    assert checked.verdict == "not known"
    assert checked.plan is None


def test_what_has_no_layout_is_not_relaxed():
    found = imported("verl", VERL, OPTIONS)
    again = relaxed(found.settings, found.run, OPTIONS)
    assert again.plan.job.workload == found.resolved.workload


def test_the_first_moment_in_time_that_is_too_full_is_named_beside_the_fullest():
    whole = (*micro_batches(64, 64, 1), f"{A}.ppo_mini_batch_size=128")
    checked = check_config("verl", [*VERL, *whole], SLEEPING)
    moments = memory_moments(PlacedPlan(checked.plan, checked.facts), checked.plan.pool("train"))
    sizes = {name: sum(terms.values()) for name, terms in moments.items()}
    capacity = checked.forecast.memory[0].capacity_bytes
    assert sizes["actor.compute_log_prob"] > capacity
    assert sizes["actor.update"] > capacity
    assert checked.first.during == "actor.compute_log_prob"
    assert checked.first.needed_bytes == sizes["actor.compute_log_prob"]
    assert checked.document()["runs_out_first"]["during"] == "actor.compute_log_prob"


def test_nothing_runs_out_where_all_fits():
    checked = check_config("verl", VERL, OPTIONS)
    assert checked.first is None
    assert first_shortage(checked.plan, checked.facts) is None
    assert checked.document()["runs_out_first"] is None


@pytest.fixture
def nemo(tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text(NEMO)
    return str(path)


@pytest.mark.parametrize(
    ("framework", "more", "key"),
    [
        ("verl", ("data.max_response_length=64000",), "data.max_response_length"),
        ("verl", ("data.max_response_length=0",), "data.max_response_length"),
        ("verl", ("data.max_prompt_length=0",), "data.max_prompt_length"),
        ("openrlhf", ("--data.max_len", "400000"), "data.max_len"),
        ("openrlhf", ("--prompt_max_len", "9", "--generate_max_len", "900000"), "generate_max_len"),
        (
            "nemo-rl",
            ("policy.max_total_sequence_length=99999",),
            "policy.max_total_sequence_length",
        ),
        (
            "nemo-rl",
            ("policy.max_total_sequence_length=99999", "policy.generation.max_new_tokens=90000"),
            "policy.generation.max_new_tokens",
        ),
        ("verl", (f"{A}.ppo_mini_batch_size=0",), "ppo_mini_batch_size"),
        ("verl", ("data.train_batch_size=0",), "data.train_batch_size"),
    ],
)
def test_what_is_refused_is_named_by_the_key_that_gives_it(framework, more, key, nemo):
    words = {"verl": VERL, "openrlhf": OPENRLHF, "nemo-rl": [nemo]}[framework]
    with pytest.raises(FileError) as refused:
        imported(framework, [*words, *more], OPTIONS)
    assert refused.value.field.endswith(key)
    assert "workload" not in str(refused.value)


def test_a_device_that_is_not_known_is_named_as_the_option_that_gives_it():
    with pytest.raises(FileError) as refused:
        imported("verl", VERL, OPTIONS.__class__(gpu="h1000", mean_response=300))
    assert str(refused.value).startswith("--gpu: ")


def test_weights_that_are_never_synced_are_refused():
    with pytest.raises(FileError, match="trigger_parameter_sync_step: never syncs"):
        imported(
            "verl",
            [*ASYNC_START, *ASYNC, "async_training.trigger_parameter_sync_step=0"],
            OPTIONS,
        )


def test_only_nemo_rls_files_hold_all_keys():
    whole = {
        name: load_config_sheet(name).files_are_whole for name in ("verl", "nemo-rl", "openrlhf")
    }
    assert whole == {"verl": False, "nemo-rl": True, "openrlhf": False}


def test_a_broken_layout_of_megatron_stays_unknown():
    words = [*VERL, MEGATRON, f"{A}.megatron.tensor_model_parallel_size=5"]
    assert check_config("verl", words, OPTIONS).verdict == "not known"


@pytest.mark.full
@pytest.mark.parametrize(("share", "verdict"), [(0.6, "fits"), (0.85, "may not fit")])
def test_an_engine_and_trainers_on_one_gpu_need_what_searches_leave_free(share, verdict):
    checked = check_config("verl", [*VERL, f"{R}.gpu_memory_utilization={share}"], OPTIONS)
    assert checked.verdict == verdict
    (pool,) = checked.forecast.memory
    assert (pool.gpu_peak_bytes > 0.9 * pool.capacity_bytes) == (verdict == "may not fit")
    assert any("leaves less than 10%" in each for each in checked.remarks) == (verdict != "fits")


@pytest.mark.full
@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(0.96, "fits"), (0.99, "may not fit"), (1.02, "may not fit"), (1.04, "does not fit")],
)
def test_what_trains_is_a_doubt_near_what_there_is(factor, verdict):
    words = [*VERL, *micro_batches(8, 4, 1), PADS, f"{R}.gpu_memory_utilization=0.5"]
    checked = check_config("verl", words, OPTIONS)
    plan = checked.plan
    large = PlacedPlan(plan, facts_with(plan.job, 10**12))
    peak = sum(memory_moments(large, plan.pool("train"))["actor.update"].values())
    again = check_plan(plan, facts_with(plan.job, round(peak / factor)), "plan")
    assert again.forecast.memory[0].peak_task == "actor.update"
    assert again.verdict == verdict


def test_weights_that_are_gibibytes_over_the_engines_share_do_not_fit():
    checked = check_config("verl", [*VERL, f"{R}.gpu_memory_utilization=0.05"], OPTIONS)
    (pool,) = checked.forecast.memory
    assert pool.gpu_peak_bytes < pool.capacity_bytes
    assert pool.cache_shortage_bytes > 0.04 * pool.capacity_bytes
    assert checked.verdict == "does not fit"
