"""What a framework adds to a step: passes, host time, states that leave the GPUs, packing by tokens."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.files.frozen import FrozenDict
from rlplan.framework import HostTime
from rlplan.job import Job, NodeGroup, Rewards
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.planner.plans.assembly import with_largest_share
from rlplan.profiles.analytic.efficiencies import copies_of_node
from rlplan.profiles.catalog import load_device, load_engine, load_model
from rlplan.profiles.facts import load_facts
from rlplan.profiles.jobs.resolve import resolve_job
from rlplan.profiles.sheets import load_framework
from rlplan.results.forecast import CALL
from rlplan.simulator.costs.taskcost import (
    DRIVER,
    STATES_AWAY,
    STATES_BACK,
    WEIGHTS_BACK,
    uncalibrated_spread,
)
from rlplan.simulator.simulate import simulate
from rlplan.simulator.workload import (
    packed_sequences,
    packed_waiting,
    statistics_of,
    unbalanced_waiting,
)
from rlplan.workload import Lognormal, PromptImages, Workload, mean_length

COLLECTIONS = 0.5  # seconds of one
POOL = ResourcePool(name="all", device="h100-80gb-sxm", gpus=8, roles=("actor",))
HOST = ResourcePool(name="host", device="host", gpus=8, roles=("rule",))
WORK = Workload(
    prompts=64,
    samples_per_prompt=8,
    prompt_tokens=128,
    response_tokens=Lognormal(mean=800, std=500, max=3000),
)
TOKENS = 128 + mean_length(WORK.response_tokens)


def plan_of(framework, *, offload=False, old_log_prob=None, model="qwen3-8b", **batch):
    """Return a GRPO step of a model on eight H100 without a reference."""
    job = resolve_job(
        Job(
            algorithm="grpo",
            framework=framework,
            old_log_prob=old_log_prob,
            models=FrozenDict({"actor": model, "reference": model}),
            workload=WORK,
            cluster=(NodeGroup(gpu="h100", gpus_per_node=8),),
            rewards=Rewards(function="digits"),
        ),
        Path(),
    )
    job = replace(job, hyperparameters=replace(job.hyperparameters, kl_coefficient=0.0))
    cut = TaskPlan(pool="all", **{"engine": "megatron-core", "tp": 2, "dp": 4, **batch})
    tasks = {
        "actor.generate": TaskPlan(pool="all", engine="vllm", dp=8, max_running=64),
        "actor.compute_log_prob": replace(cut, offload=offload),
        "rule.compute_reward": TaskPlan(pool="host", dp=8, engine="python"),
        "actor.update": replace(cut, zero=max(cut.zero, 1), offload=offload),
    }
    if job.old_log_prob == "engine":
        del tasks["actor.compute_log_prob"]
    order = tuple(name for name in tasks if not name.startswith("rule"))
    return Plan(
        job=job,
        pools=(POOL, HOST),
        tasks=FrozenDict(tasks),
        order=FrozenDict({"all": order, "host": ("rule.compute_reward",)}),
        transition="hybridflow",
    )


def forecast(framework, **changes):
    """Return the forecast of such a step."""
    plan = plan_of(framework, **changes)
    return simulate(plan, load_facts(plan.job))


def seconds(found, task):
    """Return what a task of a forecast takes."""
    return next(cost.seconds for cost in found.costs if cost.name == task)


def test_a_framework_that_computes_old_log_probabilities_takes_their_pass_longer():
    without, nemo = forecast("nemo-rl", old_log_prob="engine"), forecast("nemo-rl")
    extra = seconds(nemo, "actor.compute_log_prob")
    assert extra > 0.15 * seconds(nemo, "actor.update")
    assert nemo.iteration_seconds == pytest.approx(without.iteration_seconds + extra, rel=0.01)


def test_a_steps_own_host_time_is_a_part_of_the_actors_update(monkeypatch):
    plan = plan_of("nemo-rl")
    facts = load_facts(plan.job)
    sheet = facts.framework("nemo-rl-megatron")
    before = simulate(plan, facts)
    own, fixed = sheet.driver.seconds_per_token, sheet.driver.seconds
    longest = plan.job.workload.longest_sequence_tokens
    longer = replace(
        sheet,
        driver=HostTime(
            seconds=fixed,
            seconds_per_token=own,
            seconds_per_sequence=1.0 / 512,
            seconds_per_padded_token=2.0 / (512 * longest),
        ),
    )
    others = load_facts(plan.job)
    monkeypatch.setattr(others, "framework", lambda _: longer)
    after = simulate(plan, others)
    assert after.iteration_seconds == pytest.approx(before.iteration_seconds + 3.0, rel=1e-3)
    (update,) = (cost for cost in after.costs if cost.name == "actor.update")
    assert update.parts[DRIVER] == pytest.approx(fixed + 3.0 + own * 512 * TOKENS, rel=1e-3)


def test_pixels_are_sent_to_each_rank_that_has_a_sample_of_their_prompt():
    """Eight ranks have one of a prompt's eight samples with 1 - (7/8)^8 = 0.6564: 336 copies of 64 prompts' pixels."""
    images, calls = PromptImages(tokens=334, per_prompt=2.0), dict[str, dict[str, float]]()
    for name in ("easyr1", "easyr1-0.3"):
        plan = plan_of(name)
        work = replace(WORK, images=images)
        plan = replace(plan, job=replace(plan.job, workload=work))
        found = simulate(plan, load_facts(plan.job)).costs
        calls[name] = {cost.name: cost.parts.get(CALL, 0.0) for cost in found}
    sent = 64 * 8 * 0.6564 * 2 * 334 * 2.0e-5
    for task, more in (("update", sent), ("compute_log_prob", sent), ("generate", 0.0)):
        before, after = (each[f"actor.{task}"] for each in calls.values())
        assert after - before == pytest.approx(more, rel=1e-3, abs=1e-9)


def test_work_of_a_drivers_process_takes_no_longer_where_hosts_launch_more_slowly():
    plan = plan_of("nemo-rl")
    cluster = (NodeGroup(gpu="gb200", gpus_per_node=4, nodes=2),)
    job = resolve_job(replace(plan.job, cluster=cluster), Path())
    pools = (replace(POOL, device="gb200"), HOST)
    sheet = load_facts(job).framework("nemo-rl-megatron")
    found = simulate(replace(plan, job=job, pools=pools), load_facts(job))
    (update,) = (cost for cost in found.costs if cost.name == "actor.update")
    assert load_device("gb200").host_times > 2
    assert update.parts[DRIVER] == pytest.approx(
        sheet.driver.seconds + sheet.driver.seconds_per_token * 512 * TOKENS, rel=1e-3
    )


def test_a_call_takes_what_it_takes_for_any_batch_and_what_its_tokens_take():
    plan = plan_of("verl-megatron")
    facts = load_facts(plan.job)
    call = facts.framework("verl-megatron").calls["generate"]
    assert call.seconds > 0
    (generated,) = (each for each in simulate(plan, facts).costs if each.name == "actor.generate")
    expected = call.seconds + call.seconds_per_token * 512 * TOKENS
    assert generated.parts[CALL] == pytest.approx(expected, rel=1e-3)


def costs_of(plan):
    """Return the parts of each task of a plan's forecast, and of its transition."""
    return {each.name: each.parts for each in simulate(plan, load_facts(plan.job)).costs}


def test_a_trainer_that_is_paused_whole_moves_its_gradients_too_and_comes_back_at_its_own_rate():
    plan = plan_of("slime", old_log_prob="trainer", offload=True)
    sheet = load_facts(plan.job).framework("slime")
    moved = costs_of(plan)
    # Of half the model weights, and gradients in fp32; an eighth of what Adam keeps.
    num_bytes = 8.19e9 * ((2 + 4) / 2 + 12 / 8)
    for part, rate in (
        (STATES_AWAY, sheet.to_host_bytes_per_second),
        (STATES_BACK, sheet.from_host_bytes_per_second),
    ):
        assert moved["actor.update"][part] == pytest.approx(num_bytes / rate, rel=0.05)
    assert moved["transition"]["engine switch"] == sheet.calls["transition"].seconds
    stays = costs_of(plan_of("slime", old_log_prob="trainer"))
    assert not {STATES_AWAY, STATES_BACK} & set(stays["actor.update"])


def test_an_engine_that_sleeps_with_its_weights_in_host_memory_copies_them_there_and_back():
    def moved(framework, method):
        plan = replace(plan_of(framework, old_log_prob="trainer"), transition=method)
        return {
            part: seconds
            for part, seconds in costs_of(plan)["transition"].items()
            if part.startswith("engine's weights")
        }

    there_and_back = moved("nemo-rl-megatron", "nemo-rl-ipc")
    assert len(there_and_back) == 2
    # 16.4 GB of Qwen3-8B on each of eight GPUs, which share their host's 195 GB/s.
    for seconds in there_and_back.values():
        assert seconds == pytest.approx(8 * 16.4e9 / 1.95e11, rel=0.01)
    assert not moved("verl-megatron", "verl-naive")  # sleeps without them


def test_stages_of_a_framework_are_no_surer_than_its_sheet_says():
    usual, wide = (
        uncalibrated_spread(load_framework(name), "training")
        for name in ("verl-fsdp-0.2", "verl-megatron-0.2")
    )
    assert usual < wide == load_framework("verl-megatron-0.2").stages_spread
    transitions = {
        uncalibrated_spread(load_framework(name), "transition")
        for name in ("verl-fsdp-0.2", "verl-megatron-0.2")
    }
    assert len(transitions) == 1


def test_stages_are_no_surer_than_on_the_device_that_nobody_measured():
    """Whatever the framework; what a site was calibrated on needs no such width."""
    laid, unlaid = (load_device(name) for name in ("h100-80gb-sxm", "rtx-4090"))
    framework = load_framework("verl-fsdp")
    usual = uncalibrated_spread(framework, "training")
    assert uncalibrated_spread(framework, "training", laid) == usual
    assert uncalibrated_spread(framework, "training", laid, unlaid) == unlaid.stages_spread > usual
    transitions = {uncalibrated_spread(framework, "transition", *each) for each in ((), (unlaid,))}
    assert len(transitions) == 1
    assert uncalibrated_spread(load_framework("rlplan"), "training", unlaid) == 0.0


def test_exchanges_of_eager_layers_are_paid_for_each_micro_batch():
    """Gathers and reductions of one update: of four times as many micro-batches, four times as long."""
    small, large = (
        costs_of(plan_of("verl-fsdp", engine="fsdp2-hf", tp=1, dp=8, zero=3, micro_batch=size))
        for size in (4, 16)
    )
    for part in ("gradient reduction", "weight gathers"):
        times = small["actor.update"][part] / large["actor.update"][part]
        assert times == pytest.approx(4.0, rel=0.01)


def test_states_reach_unpinned_memory_more_slowly_than_they_come_back():
    away = {
        name: next(
            each for each in forecast(name, offload=True).costs if each.name == "actor.update"
        ).parts
        for name in ("nemo-rl", "verl-megatron")
    }
    slow = away["nemo-rl"]["optimizer states to host"]
    fast = away["verl-megatron"]["optimizer states to host"]
    # 12 bytes of 8.19 billion parameters over eight ranks: TP 2, and DP 4 that shard the optimizer.
    assert slow == pytest.approx(12 * 8.19e9 / 8 / 2.6e9, rel=0.1)
    copied = away["nemo-rl"]["optimizer states from host"]
    assert fast == pytest.approx(copied + COLLECTIONS * 2, rel=0.01)
    assert slow > 5 * copied


@pytest.mark.parametrize(
    ("model", "ep", "optimizers"),
    [("qwen3-8b", 1, 1), ("qwen3-30b-a3b", 1, 1), ("qwen3-30b-a3b", 4, 2)],
)
def test_moves_of_states_end_with_collections_of_garbage(model, ep, optimizers):
    """One of weights, and one of each optimizer: of dense weights and of parted experts. Copies to the GPU go on beside them."""
    costs = costs_of(plan_of("verl-megatron", offload=True, model=model, ep=ep))
    bare = costs_of(plan_of("verl-fsdp", offload=True, model=model, ep=ep))
    back, away = (costs["actor.update"][name] for name in (STATES_BACK, STATES_AWAY))
    copied = bare["actor.update"][STATES_BACK]
    assert away == pytest.approx(copied + COLLECTIONS * (1 + optimizers), rel=0.01)
    assert back == pytest.approx(max(copied, COLLECTIONS * (1 + optimizers)), rel=0.01)
    passes = costs["actor.compute_log_prob"][WEIGHTS_BACK]
    weights = bare["actor.compute_log_prob"][WEIGHTS_BACK] / 2
    assert passes == pytest.approx(max(weights, COLLECTIONS) + weights + COLLECTIONS, rel=0.01)


def test_states_of_a_nodes_gpus_share_its_host():
    """Of 8.19 billion parameters 12 bytes over eight ranks, at an eighth of 195 GB/s and not at 48."""
    parts = costs_of(
        plan_of("verl-fsdp", offload=True, engine="fsdp2-hf", tp=1, dp=8, zero=3, micro_batch=4)
    )["actor.update"]
    assert parts[STATES_BACK] == pytest.approx(12 * 8.19e9 / 1.95e11, rel=0.01)
    assert parts[STATES_AWAY] == parts[STATES_BACK]


def test_a_grace_copies_to_memory_of_its_own():
    assert copies_of_node(1e12, load_device("h200").host_bytes_per_second).seconds > 1
    assert copies_of_node(1e12, load_device("gb200").host_bytes_per_second).seconds == 0


def test_states_that_leave_the_gpus_make_room_for_the_cache_and_lie_in_host_memory():
    plans = [plan_of("nemo-rl"), plan_of("nemo-rl", offload=True)]
    stays, leaves = (
        simulate(with_largest_share(plan, load_facts(plan.job)), load_facts(plan.job))
        for plan in plans
    )
    (kept,), (left,) = (
        [each for each in found.memory if each.pool == "all"] for found in (stays, leaves)
    )
    assert kept.fits
    assert left.fits
    assert left.terms["KV cache"] > kept.terms["KV cache"]
    away = {"actor optimizer states", "actor weights"}
    assert away <= set(left.host_terms)
    assert not away & set(kept.host_terms)
    assert seconds(leaves, "actor.generate") <= seconds(stays, "actor.generate")
    assert seconds(leaves, "actor.update") > seconds(stays, "actor.update")


def test_a_budget_of_tokens_is_a_micro_batch_of_as_many_sequences_as_it_holds():
    mean = 128 + 795  # of the cut lengths
    assert packed_sequences(4096, WORK) == 4096 // mean
    assert packed_sequences(100, WORK) == 1
    packed, counted = (
        forecast("verl-megatron", **batch) for batch in ({"token_budget": 8192}, {"micro_batch": 8})
    )
    assert packed.iteration_seconds == counted.iteration_seconds
    # Eight sequences may all be the longest one; a budget is never exceeded by more than one.
    assert packed.memory[0].gpu_peak_bytes <= counted.memory[0].gpu_peak_bytes


@given(st.integers(1, 100_000), st.integers(1, 100_000))
def test_a_larger_budget_never_holds_fewer_sequences(one, other):
    least, most = sorted((one, other))
    assert packed_sequences(least, WORK) <= packed_sequences(most, WORK)


def test_micro_batches_that_hold_one_sequence_are_as_unlike_as_those_and_full_ones_alike():
    statistics = statistics_of(WORK)
    alone, _ = statistics.longest_of(8)
    single = packed_waiting(statistics, 1, 8)  # no two fit together
    assert single == pytest.approx(alone / statistics.mean_tokens - 1, rel=0.01)
    assert packed_waiting(statistics, 4096, 8) < 0.1 * single
    assert packed_waiting(statistics, 4096, 1) == 0.0
    for budget in (
        100_000,
        200_000,
        300_000,
    ):  # micro-batches of hundreds, of which the last is not full
        assert packed_waiting(statistics, budget, 8) < 0.01


def test_parts_of_an_update_are_the_more_uneven_the_fewer_sequences_and_the_more_ranks():
    statistics = statistics_of(WORK)
    few, many = unbalanced_waiting(statistics, 8, 16), unbalanced_waiting(statistics, 128, 16)
    normal = 1.77 * statistics.std_tokens / statistics.mean_tokens  # the largest of 16 normal draws
    assert many == pytest.approx(normal / 128**0.5, rel=0.1)
    assert few > 1.9 * many  # the square root of 128 / 8 is 4, but lengths are cut
    assert unbalanced_waiting(statistics, 8, 2) < few
    assert unbalanced_waiting(statistics, 8, 1) == 0.0
    equal = statistics_of(replace(WORK, response_tokens=500))
    assert unbalanced_waiting(equal, 8, 16) == pytest.approx(0.0)


def test_a_few_sequences_that_never_end_make_parts_of_an_update_far_more_uneven():
    endless = replace(WORK, response_tokens=Lognormal(mean=500, std=300, max=28_672, at_max=0.003))
    statistics = statistics_of(endless)
    # Of 512 sequences on 16 ranks 1.5 are so long: 32 others, and the one of 28,800 tokens, are waited for.
    expected = 28_672 * (1 - 0.997**512) / (32 * statistics.mean_tokens)
    assert unbalanced_waiting(statistics, 32, 16) > 0.9 * expected


def test_ranks_wait_in_each_update_where_only_a_batch_is_balanced():
    plan = plan_of("verl-fsdp", engine="fsdp2-hf", tp=1, dp=8, token_budget=30_000)
    passes = ("actor.compute_log_prob", "actor.update")
    sharded = {name: replace(plan.tasks[name], zero=3) for name in passes}
    tasks = {**plan.tasks, **sharded}
    job = replace(plan.job, workload=replace(WORK, updates=4))
    plan = replace(plan, job=job, tasks=FrozenDict(tasks))

    def update(framework, plan=plan):
        job = replace(plan.job, framework=framework)
        found = simulate(replace(plan, job=job), load_facts(job)).costs
        return next(cost.parts for cost in found if cost.name == "actor.update")

    balanced, dealt = update("verl-fsdp"), update("verl-fsdp-0.6")
    done = balanced["forward"] + balanced["backward"]
    expected = unbalanced_waiting(statistics_of(plan.job.workload), 512 // 4 // 8, 8)
    assert dealt["uneven lengths"] / done == pytest.approx(expected, rel=0.05)
    assert balanced["uneven lengths"] < 0.5 * dealt["uneven lengths"]
    once = replace(plan, job=replace(plan.job, workload=replace(WORK, updates=1)))
    newer, older = (dict(update(name, once)) for name in ("verl-fsdp", "verl-fsdp-0.6"))
    handed = older.pop(CALL)  # of padded rows, which versions since then do not hand on
    assert newer == older
    oldest = dict(update("verl-fsdp-0.5", once))  # whose ranks get rows of their own alone
    assert 0 < oldest.pop(CALL) < handed / 4
    assert oldest == older


def test_rows_that_nemo_rl_does_not_pack_are_as_wide_as_the_longest_of_a_step():
    """NeMo-RL, algorithms/grpo.py: batched_message_log_to_flat_message pads all samples of a step alike."""
    counted = plan_of("nemo-rl", micro_batch=1)
    statistics = statistics_of(counted.job.workload)
    (update,) = (
        each
        for each in simulate(counted, load_facts(counted.job)).costs
        if each.name == "actor.update"
    )
    packed = plan_of("nemo-rl", token_budget=round(statistics.mean_tokens))
    (other,) = (
        each
        for each in simulate(packed, load_facts(packed.job)).costs
        if each.name == "actor.update"
    )
    width = statistics.longest_of(statistics.workload.sequences)[0] / statistics.mean_tokens
    assert width > 2
    assert update.parts["forward"] / other.parts["forward"] == pytest.approx(width, rel=0.1)
    assert "uneven lengths" not in update.parts


def test_packs_of_a_pipeline_are_padded_to_the_fullest_of_a_ranks_batch(monkeypatch):
    plan = plan_of("nemo-rl", dp=2, pp=2, token_budget=4096)
    facts = load_facts(plan.job)
    padding = facts.framework("nemo-rl-megatron")
    assert padding.pads_packs

    def waits(sheet):
        facts = load_facts(plan.job)
        monkeypatch.setattr(facts, "framework", lambda _: sheet)
        (update,) = (each for each in simulate(plan, facts).costs if each.name == "actor.update")
        work = ("forward", "backward", "tensor-parallel collectives")
        done = sum(update.parts.get(part, 0.0) for part in work)
        return update.parts.get("uneven lengths", 0.0) / done

    packs = 512 // 2 // (4096 // (128 + 795))  # of 512 sequences on two ranks
    expected = packed_waiting(statistics_of(WORK), 4096, packs)
    assert waits(padding) == pytest.approx(expected, rel=0.05)
    assert waits(replace(padding, pads_packs=False)) < 0.1 * expected


def test_logits_that_are_padded_before_the_loss_move_bytes_of_the_longest_response():
    packed, padded = (
        {each.name: each.parts for each in forecast("nemo-rl", engine=name).costs}
        for name in ("megatron-core-2025", "megatron-core-padded-logits")
    )

    def extra(task, part):
        return padded[task][part] - packed[task][part]

    sheet = load_engine("megatron-core-padded-logits").padded_logits
    forward = extra("actor.update", "forward")
    logits = 512 / 4 * 3000 * load_model("qwen3-8b").vocab_size / 2  # on a rank: DP 4, TP 2
    assert 1e12 < logits * sheet.forward_bytes / forward < 3.35e12  # an H100's memory
    for task, part, num_bytes in (
        ("actor.update", "backward", sheet.backward_bytes),
        ("actor.compute_log_prob", "forward", sheet.infer_bytes),
    ):
        assert extra(task, part) == pytest.approx(
            forward * num_bytes / sheet.forward_bytes, rel=0.01
        )


def test_logits_that_are_padded_with_their_prompts_move_bytes_of_the_longest_sequence():
    """Worked out by hand: 128 sequences a rank, of 128 and up to 3,000 tokens, and 151,936 / 2 logits of 44 bytes."""
    plain, padded = (
        {each.name: each.parts for each in forecast("skyrl-megatron", engine=name).costs}
        for name in ("megatron-core-2025", "megatron-core-2025-padded-sequences")
    )
    task = "actor.compute_log_prob"
    extra = padded[task]["forward"] - plain[task]["forward"]
    num_bytes = 128 * (128 + 3000) * (151_936 / 2) * 44
    assert 1e12 < num_bytes / extra < 3.35e12  # an H100's memory
    assert padded["actor.update"]["forward"] - plain["actor.update"]["forward"] == pytest.approx(
        extra * 84 / 44, rel=0.01
    )


def test_weights_that_a_framework_does_not_pin_reach_the_host_as_slowly_as_optimizer_states():
    pinned, unpinned = (
        next(
            each.parts for each in forecast(name, offload=True).costs if each.name == "actor.update"
        )
        for name in ("nemo-rl", "nemo-rl-dtensor")
    )
    # Half of 8.19e9 parameters: a fourth of 12 bytes of Adam's states, and 2 of weights.
    states, weights = 4.095e9 * 12 / 4, 4.095e9 * 2
    assert unpinned[STATES_AWAY] == pytest.approx((states + weights) / 2.6e9, rel=0.01)
    assert states / 2.6e9 < pinned[STATES_AWAY] < states / 2.6e9 + weights / 2e10
