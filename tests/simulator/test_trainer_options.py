"""How a role's trainer keeps its states and makes its logits: formats, the host's part, ways of their own."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import MissingFactError
from rlplan.estimate import Estimate, Source
from rlplan.files.frozen import FrozenDict
from rlplan.parts import num_parameters
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_model
from rlplan.sheets import LogitTensors
from rlplan.simulator.costs.layouts import passes_cost
from rlplan.simulator.costs.passes import (
    _optimizer_step,
    gradient_exchange,
    gradient_exchanges,
    infer_parts,
    micro_batches_of,
    train_parts,
    update_parts,
)
from rlplan.simulator.costs.taskcost import (
    STATES_AWAY,
    STATES_BACK,
    WEIGHTS_BACK,
    states_from_host,
    states_to_host,
)
from rlplan.simulator.memory.task_memory import gathers_weights
from rlplan.simulator.placed import PlacedTask, PlacedTasks
from rlplan.simulator.stages import task_memory
from rlplan.simulator.timeline.pool_memory import host_terms
from rlplan.trainers import TrainerOptions
from rlplan.workload import Lognormal
from tests.simulator.cost_jobs import PPO, facts_of, job_of, site_of

JOB = job_of(model="qwen2.5-7b", nodes=1)
PARAMETERS = num_parameters(load_model("qwen2.5-7b"))
VOCABULARY = load_model("qwen2.5-7b").vocab_size
SHARDED = TaskPlan(pool="p0", engine="fsdp2-hf", dp=8, zero=3, micro_batch=1, recompute="full")
MEGATRON = TaskPlan(
    pool="p0", engine="megatron-core-2025", tp=2, dp=4, zero=1, micro_batch=1, recompute="full"
)


def placed(layout, job=JOB, task="actor.update", **options):
    trainers = FrozenDict({"actor": TrainerOptions(**options)})
    chosen = replace(job, trainers=trainers)
    return PlacedTask(PPO[task], layout, site_of(chosen, 8), chosen, facts_of(chosen))


def terms_of(layout, **options):
    memory = task_memory(placed(layout, **options))
    return memory.resident | memory.transient


@pytest.mark.parametrize(
    ("weights", "sizes"),
    [(None, (4, 4, 8)), ("fp32", (4, 4, 8)), ("bf16", (2, 2, 4)), ("fp16", (2, 2, 4))],
)
def test_states_are_of_the_format_in_which_weights_are_kept(weights, sizes):
    terms = terms_of(SHARDED, weights=weights)
    kept = ("actor weights", "actor gradients", "actor optimizer states")
    for term, size in zip(kept, sizes, strict=True):
        assert terms[term] == pytest.approx(size * PARAMETERS / 8, rel=1e-6)


@pytest.mark.parametrize(("weights", "sizes"), [("bf16", (2, 2, 6)), (None, (4, 4, 6))])
def test_what_kahan_summation_keeps_is_one_more_value_a_parameter_in_bf16(weights, sizes):
    terms = terms_of(SHARDED, weights=weights, optimizer="kahan-bf16")
    kept = ("actor weights", "actor gradients", "actor optimizer states")
    for term, size in zip(kept, sizes, strict=True):
        assert terms[term] == pytest.approx(size * PARAMETERS / 8, rel=1e-6)


def test_products_in_fp32_read_weights_as_they_are_kept():
    alone = replace(SHARDED, engine="ddp-hf-padded-to-batch", dp=1, zero=0)
    whole = placed(alone, job=replace(JOB, precision="fp32"))
    assert not whole.casts_weights
    assert placed(alone).casts_weights
    copied = "actor weights that are stepped"
    assert not task_memory(whole).resident.get(copied)
    assert task_memory(placed(alone)).resident[copied] == 4 * PARAMETERS


def test_weights_in_the_format_of_products_are_gathered_from_shards_but_not_cast():
    assert not placed(SHARDED, weights="bf16").casts_weights
    assert placed(SHARDED).casts_weights
    alone = replace(SHARDED, dp=1)
    shards = [(SHARDED, "fp32"), (SHARDED, "bf16"), (alone, "fp32"), (alone, "bf16")]
    tables = [PlacedTasks.of(placed(layout, weights=weights)) for layout, weights in shards]
    assert [bool(gathers_weights(table)[0]) for table in tables] == [True, True, True, False]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_a_share_of_an_optimizer_steps_on_the_host_and_keeps_its_states_there(share):
    chosen = placed(MEGATRON, host_optimizer=share)
    memory = task_memory(chosen)
    stepped = chosen.trained_parameters / 4
    on_gpu = (memory.resident | memory.transient).get("actor optimizer states", 0)
    assert on_gpu == pytest.approx((1 - share) * 12 * stepped, rel=1e-6)
    on_host = host_terms([(chosen, memory)]).get("actor optimizer on the host", 0)
    # Master weights, both moments, and gradients in fp32.
    assert on_host == pytest.approx(share * 16 * stepped, rel=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_what_steps_on_the_host_takes_the_process_of_a_rank_its_time(share):
    """230 million parameters a second; Megatron's gradients stay on the GPU, DeepSpeed's go to and fro."""
    megatron, deepspeed = (
        placed(MEGATRON, host_optimizer=share),
        placed(SHARDED, host_optimizer=share),
    )
    parts = [
        {name: part.seconds[0] for name, part in update_parts(PlacedTasks.of(each)).items()}
        for each in (megatron, deepspeed)
    ]
    at_least = share * megatron.trained_parameters / 4 / 2.3e8
    assert at_least <= parts[0]["optimizer"] < at_least + 0.1
    assert "gradients to host" not in parts[0]
    assert ("gradients to host" in parts[1]) == (share > 0)


def test_gradients_on_the_host_come_back_to_be_added_to_for_every_micro_batch_but_the_first():
    def ways(micro_batch):
        task = placed(replace(SHARDED, micro_batch=micro_batch), host_optimizer=1.0)
        table = PlacedTasks.of(task)
        found = gradient_exchanges(table, micro_batches_of(table))["gradients to host"]
        whole = task.device.copy(4 * task.trained_parameters / task.state_ranks, "device_to_host")
        return found.seconds[0] / whole.seconds, -(-task.local // micro_batch)

    for micro_batch in (1, 2, 4):
        moved, count = ways(micro_batch)
        assert moved == pytest.approx(2 * count - 1, rel=1e-3)


def test_states_that_live_on_the_host_leave_what_passes_need_on_the_gpu():
    chosen = placed(SHARDED, host_states=True)
    memory = task_memory(chosen)
    terms = memory.resident | memory.transient
    assert not any(size for term, size in terms.items() if term.startswith("actor"))
    assert terms["gathered weights"] == terms_of(SHARDED)["gathered weights"] > 0
    assert "optimizer step" not in terms
    found = host_terms([(chosen, memory)])
    assert found["actor weights"] == pytest.approx(4 * PARAMETERS / 8, rel=1e-6)
    assert found["actor optimizer on the host"] == pytest.approx(12 * PARAMETERS / 8, rel=1e-6)


def test_gradients_are_reduced_and_read_in_the_format_that_a_trainer_says():
    layout = replace(MEGATRON, zero=1)
    whole, half, said = (
        placed(layout, **more) for more in ({}, {"gradients": "bf16"}, {"gradients": "fp32"})
    )
    reduced = [gradient_exchange(each)[0].seconds for each in (whole, half, said)]
    assert reduced[0] == reduced[2] == pytest.approx(2 * reduced[1], rel=0.05)
    norms = [_optimizer_step(each).seconds for each in (whole, half, said)]
    assert norms[0] == norms[2] > norms[1]


def test_layers_that_live_on_the_host_come_with_every_pass_and_later_gradients_are_added_there():
    """What is added goes to memory that is not pinned at 2.6 GB/s, four bytes of each, and 1.7 billion are added a second."""

    def parts(micro_batch, **layout):
        task = placed(replace(SHARDED, micro_batch=micro_batch, **layout), host_states=True)
        found = gradient_exchanges(PlacedTasks.of(task), micro_batches_of(PlacedTasks.of(task)))
        shard = 4 * task.trained_parameters / 8
        copies = [
            task.device.copy(shard, way).seconds for way in ("host_to_device", "device_to_host")
        ]
        names = ("weights from host", "gradients to host")
        times = [found[name].seconds[0] / copy for name, copy in zip(names, copies, strict=True)]
        return times, -(-task.local // micro_batch)

    for micro_batch in (1, 2, 4):
        (weights, gradients), count = parts(micro_batch)
        assert weights == pytest.approx(2 * count, rel=1e-3)
        local = placed(SHARDED).trained_parameters / 8
        once = placed(SHARDED).device.copy(4 * local, "device_to_host").seconds
        added = (4 * local / 2.6e9 + local / 1.7e9) / once
        assert gradients == pytest.approx(1 + (count - 1) * added, rel=1e-3)
    (weights, _), count = parts(2, zero=2)
    assert weights == pytest.approx(count, rel=1e-3)


def test_weights_in_memory_that_is_not_pinned_go_at_2_6_and_come_at_7_gigabytes_a_second():
    """Beside 8 bytes of moments in pinned memory, 4 bytes of each of the weights that a rank has."""
    away, verl = replace(SHARDED, offload=True), replace(JOB, framework="verl-fsdp")
    usual, unpinned = (placed(away, verl, unpinned_weights=said) for said in (False, True))
    local = usual.kept_states(8, 4)
    for copied, rate, way in (
        (states_to_host, 2.6e9, "device_to_host"),
        (states_from_host, 7.0e9, "host_to_device"),
    ):
        more = copied(unpinned).seconds - copied(usual).seconds
        pinned = usual.device.copy(local, way).seconds
        assert more == pytest.approx(local / rate - pinned, rel=1e-3)


@pytest.mark.parametrize(("seconds", "source"), [(100, Source.MEASURED), (0, Source.DATASHEET)])
def test_measured_copies_stay_so_where_their_node_is_no_limit(monkeypatch, seconds, source):
    """Else a site's factors, which are of what was not measured, would scale them."""
    task = placed(replace(SHARDED, offload=True), offloads=("optimizer", "weights"))
    monkeypatch.setattr(task.device, "copy", lambda *_: Estimate(seconds))
    assert {copied(task).source for copied in (states_to_host, states_from_host)} == {source}


@pytest.mark.parametrize("options", [{"host_states": True}, {"host_optimizer": 1.0}])
def test_what_lives_on_the_host_is_not_copied_there_and_back_as_well(options):
    """Off-loading between uses moves what is on the GPU: nothing of the states, or all but the optimizer's."""
    away = replace(SHARDED, offload=True)
    found = train_parts(PlacedTasks.of(placed(away, offloads=("optimizer",), **options)))
    for name in ("optimizer states from host", "optimizer states to host"):
        assert name not in found or found[name].seconds[0] < 1e-3
    usual = train_parts(PlacedTasks.of(placed(away, offloads=("optimizer",))))
    assert usual["optimizer states from host"].seconds[0] > 0.1


@pytest.mark.parametrize(
    ("offloads", "copied"), [(("optimizer",), False), (("optimizer", "weights"), True)]
)
def test_a_pass_copies_weights_back_that_have_left_and_no_others(offloads, copied):
    job = replace(JOB, trainers=FrozenDict({"critic": TrainerOptions(offloads=offloads)}))
    task, away = PPO["critic.compute_values"], replace(SHARDED, offload=True)
    passed = PlacedTask(task, away, site_of(job, 8), job, facts_of(job))
    found = infer_parts(PlacedTasks.of(passed))[WEIGHTS_BACK].seconds[0]
    assert (found > 0.1) == copied
    assert (found == 0) != copied


@pytest.mark.parametrize(
    ("framework", "value_bytes", "micro_batch"),
    [("verl-fsdp-0.5", 2, 2), ("verl-fsdp-0.5", 2, 8), ("verl-fsdp", 4, 8)],
)
def test_verls_reference_copies_its_shard_before_each_gather_and_its_actor_both_ways_once(
    framework, value_bytes, micro_batch
):
    """Shards are an eighth of 7.6 billion parameters: in 16 bits of a reference up to 0.5, in fp32 since and of what is trained."""
    away = replace(SHARDED, offload=True, micro_batch=micro_batch)
    verl = replace(JOB, framework=framework)
    reference, actor, other = (
        PlacedTask(PPO[name], away, site_of(job, 8), job, facts_of(job))
        for name, job in (
            ("reference.compute_log_prob", verl),
            ("critic.compute_values", verl),
            ("reference.compute_log_prob", JOB),
        )
    )
    once = reference.device.copy(2 * PARAMETERS / 8, "host_to_device").seconds
    found = [
        infer_parts(PlacedTasks.of(each))[WEIGHTS_BACK].seconds[0]
        for each in (reference, actor, other)
    ]
    each = once * value_bytes / 2
    assert found[0] == pytest.approx(each * -(-reference.local // micro_batch), rel=0.01)
    assert found[1] == pytest.approx(2 * 2 * once, rel=0.1)
    assert found[2] == pytest.approx(once, rel=0.01)


@pytest.mark.parametrize("budget", [None, 4096])
def test_ranks_that_pad_to_the_limits_wait_for_none(budget):
    job = job_of(nodes=1, response_tokens=Lognormal(mean=512, std=400, max=2048))
    packed, padded = (
        placed(replace(SHARDED, engine=engine, micro_batch=4, token_budget=budget), job)
        for engine in ("fsdp2-hf", "fsdp2-hf-padded-to-limits")
    )
    waits = [
        update_parts(PlacedTasks.of(each))["uneven lengths"].seconds[0] for each in (packed, padded)
    ]
    assert waits[1] == 0 < waits[0]


def test_nothing_is_gathered_and_no_gradient_is_whole_while_the_optimizer_steps():
    """Of 7.6 billion parameters on one GPU the step's 4 bytes are more than a short micro-batch works on."""
    alone = replace(SHARDED, dp=1)
    job = job_of(model="qwen2.5-7b", nodes=1, prompt_tokens=16, response_tokens=16)
    memory = task_memory(placed(alone, job=job))
    assert memory.transient["optimizer step"] == 4 * PARAMETERS
    for term in ("gathered weights", "gradients before they are reduced", "activations", "logits"):
        assert not memory.transient.get(term)
    halved = task_memory(placed(alone, job=job, weights="bf16")).transient
    assert halved["optimizer step"] == 2 * PARAMETERS


def test_what_passes_hold_is_there_where_it_is_more_than_the_step():
    terms = terms_of(SHARDED)
    assert "optimizer step" not in terms
    assert terms["gathered weights"] > 0


logit_bytes = st.sampled_from([0.0, 2.0, 4.0, 6.0, 14.0])
ways = st.builds(
    LogitTensors,
    infer_bytes=logit_bytes,
    train_bytes=logit_bytes,
    chunk_tokens=st.integers(0, 4096),
    chunk_infer_bytes=logit_bytes,
    chunk_train_bytes=logit_bytes,
)


@given(ways, st.integers(0, 10**5), st.integers(0, 10**5), st.integers(1, 2 * 10**5), st.booleans())
def test_more_tokens_never_hold_fewer_logits(way, tokens, more, width, trains):
    held, all_held = (
        way.logits_bytes(count, width, trains=trains) for count in (tokens, tokens + more)
    )
    assert 0 <= held <= all_held


def test_chunks_hold_logits_of_some_tokens_beside_those_of_all():
    way = LogitTensors(
        infer_bytes=4, train_bytes=14, chunk_tokens=2048, chunk_infer_bytes=12, chunk_train_bytes=8
    )
    assert way.logits_bytes(10_000, 1000, trains=False) == 1000 * (10_000 * 4 + 2048 * 12)
    assert way.logits_bytes(10_000, 1000, trains=True) == 1000 * (10_000 * 14 + 2048 * 8)
    assert way.logits_bytes(100, 1000, trains=True) == 1000 * 100 * (14 + 8)


@pytest.mark.parametrize(
    ("way", "chunk", "each_bytes", "chunk_bytes"),
    [
        ("log-probs", None, 4, 0),
        ("entropy", None, 6, 0),
        ("entropy-eager", None, 16, 0),
        ("fused", 4096, 0, 4096 * 24),
        ("entropy-chunked", 256, 14, 256 * 8),
    ],
)
def test_logits_are_held_as_the_trainers_way_makes_them(way, chunk, each_bytes, chunk_bytes):
    whole = replace(SHARDED, micro_batch=8)  # of 1,024 tokens each
    terms = terms_of(whole, logits=way, logit_chunk_tokens=chunk)
    assert terms["logits"] == VOCABULARY * (8192 * each_bytes + chunk_bytes)


def test_a_way_that_a_sheet_does_not_have_is_refused_with_those_it_has():
    with pytest.raises(MissingFactError, match=r"no way 'magic' .* its sheet has: log-probs, "):
        terms_of(SHARDED, logits="magic")


@pytest.mark.parametrize(("waits", "whole"), [("fp32", 4), ("bf16", 2)])
def test_gradients_that_wait_for_the_last_micro_batch_are_whole_beside_none_of_their_shards(
    waits, whole
):
    """7.6 billion parameters on 8 ranks: 4 (or 2) bytes of each, less 4 of an eighth that is counted as gradients."""
    usual, waiting = terms_of(SHARDED), terms_of(SHARDED, waiting_gradients=waits)
    more = waiting["gradients before they are reduced"] - usual["gradients before they are reduced"]
    assert more == pytest.approx(PARAMETERS * (whole - 4 / 8), rel=1e-6)
    kept = {
        name: size for name, size in waiting.items() if name != "gradients before they are reduced"
    }
    assert kept == {name: usual[name] for name in kept}


def test_gradients_of_a_single_micro_batch_wait_for_no_other():
    local = placed(SHARDED).local
    once = replace(SHARDED, micro_batch=local)
    assert terms_of(once, waiting_gradients="fp32") == terms_of(once)
    assert local > 1


def test_gradients_that_wait_are_reduced_once_an_update():
    def reduction(**options):
        table = PlacedTasks.of(placed(SHARDED, **options))
        batches = micro_batches_of(table)
        return gradient_exchanges(table, batches)["gradient reduction"].seconds[0], batches

    each, batches = reduction()
    once, _ = reduction(waiting_gradients="fp32")
    assert each == pytest.approx(once * batches.total_count[0])
    assert batches.total_count[0] > 1


@pytest.mark.parametrize(
    ("optimizer", "size"),
    [("masters", 12), ("masters-bf16", 8), ("remainders", 10), ("remainders-bf16", 6)],
)
def test_an_optimizer_with_masters_of_its_own_keeps_both_moments_and_the_master_or_its_remainder(
    optimizer, size
):
    terms = terms_of(SHARDED, weights="bf16", optimizer=optimizer)
    kept = ("actor weights", "actor gradients", "actor optimizer states")
    for term, each in zip(kept, (2, 2, size), strict=True):
        assert terms[term] == pytest.approx(each * PARAMETERS / 8, rel=1e-6)


def test_a_pass_that_its_host_launches_is_known_to_a_half_and_a_long_one_as_its_engines_are():
    """The engine's forecasts were 25 % off, one sigma; of a few tokens a micro-batch the host decides each layer."""
    relative = []
    for tokens in (16, 8192):
        job = job_of(nodes=1, prompt_tokens=tokens, response_tokens=tokens)
        forward = dict(passes_cost(placed(SHARDED, job)).parts)["forward"]
        relative.append(forward.spread_seconds / forward.seconds)
    assert relative[0] == pytest.approx(math.hypot(0.25, 0.5), rel=0.05)
    assert relative[1] == pytest.approx(0.25, rel=0.01)


def test_what_hosts_step_and_copy_is_known_as_they_are_and_not_as_passes():
    cost = dict(passes_cost(placed(SHARDED, host_states=True)).parts)
    for name, least in (("optimizer", 0.45), ("gradients to host", 0.4)):
        assert cost[name].spread_seconds / cost[name].seconds > least
    assert cost["forward"].spread_seconds / cost["forward"].seconds == pytest.approx(0.25)


@pytest.mark.parametrize("framework", ["nemo-rl-dtensor", "slime", "verl-fsdp"])
def test_no_copy_to_hosts_or_back_is_known_exactly(framework):
    """Rates that were seen under a framework have no spread of their own, and are of its hosts alone."""
    job = replace(JOB, framework=framework)
    parts = dict(passes_cost(placed(replace(SHARDED, offload=True), job)).parts)
    away, back = parts[STATES_AWAY], parts[STATES_BACK]
    for part in (away, back):
        assert part.spread_seconds / part.seconds >= 0.2
    if framework != "verl-fsdp":
        assert away.spread_seconds / away.seconds == pytest.approx(0.5)
