"""Memory by term: hand-computed bytes, and laws over all layouts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.files.frozen import FrozenDict
from rlplan.job import Role
from rlplan.layout import ModelCut
from rlplan.models import KeptBatch, Shard
from rlplan.parts import num_parameters
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.profiles.catalog import load_model
from rlplan.sheets import EngineShare
from rlplan.simulator.memory.task_memory import least_kv_bytes
from rlplan.simulator.memory.transition_memory import generation_room, transition_terms
from rlplan.simulator.model import (
    cached_sequence,
    largest_shard,
    layer_activation_bytes,
    layer_peak_bytes,
    logits_bytes,
    shard_parameters,
)
from rlplan.simulator.placed import PlacedPlan, PlacedTask
from rlplan.simulator.stages import task_memory
from rlplan.simulator.timeline.assemble import memory_shortage
from rlplan.simulator.timeline.pool_memory import kv_bytes_left, memory_moments, pool_memory
from tests.simulator.cost_jobs import A100, PPO, facts_of, job_of, site_of
from tests.simulator.placing import transition as placed_transition
from tests.simulator.test_costs_tasks import layouts
from tests.strategies import architectures

JOB = job_of(nodes=1)
FACTS = facts_of(JOB)
GPT = replace(load_model("llama-2-7b"), gated_mlp=False, ffn_size=4 * 4096)
UPDATE = PPO["actor.update"]


def layout(engine="megatron-core", **fields):
    return TaskPlan(pool="p0", engine=engine, **fields)


def memory_of(task, chosen, job=JOB):
    return task_memory(PlacedTask(PPO[task], chosen, site_of(job, chosen.gpus), job, facts_of(job)))


def bytes_of(task, chosen, job=JOB):
    memory = memory_of(task, chosen, job)
    return memory.resident_bytes + memory.transient_bytes


def colocated(job=JOB, transition="hybridflow", **changes):
    """Return a plan of all models on eight GPUs."""
    trained = layout(tp=8, recompute="selective")
    tasks = {
        "actor.generate": layout("vllm", tp=2, dp=4, memory_fraction=0.5),
        "critic.compute_values": layout(tp=8),
        "reference.compute_log_prob": layout(tp=8),
        "reward.compute_reward": layout(tp=8),
        "actor.update": trained,
        "critic.update": trained,
    }
    roles: tuple[Role, ...] = ("actor", "critic", "reference", "reward")
    return Plan(
        job=job,
        pools=(ResourcePool(name="p0", device=A100, gpus=8, roles=roles),),
        tasks=FrozenDict(tasks | changes),
        order=FrozenDict(),
        transition=transition,
    )


def peak_of(plan):
    return pool_memory(PlacedPlan(plan, facts_of(plan.job)), plan.pools[0])


def test_mixed_precision_adam_takes_eighteen_bytes_a_parameter():
    memory = memory_of("actor.update", layout(tp=1, micro_batch=1))
    parameters = 6_738_415_616
    assert memory.resident["actor weights"] == 2 * parameters
    assert memory.resident["actor gradients"] == 4 * parameters
    assert memory.resident["actor optimizer states"] == 12 * parameters


def test_zero_stages_shard_states_then_gradients_then_weights():
    parameters = 6_738_415_616
    shares = {
        zero: memory_of("actor.update", layout("torch-3d", dp=8, zero=zero))
        for zero in (0, 1, 2, 3)
    }
    both = {zero: memory.resident | memory.transient for zero, memory in shares.items()}
    states = [both[zero]["actor optimizer states"] for zero in (0, 1, 2, 3)]
    assert states == [12 * parameters] + [12 * parameters // 8] * 3
    gradients = [both[zero]["actor gradients"] for zero in (0, 1, 2, 3)]
    assert gradients == [4 * parameters] * 2 + [4 * parameters // 8] * 2
    weights = [both[zero]["actor weights"] for zero in (0, 1, 2, 3)]
    assert weights == [2 * parameters] * 3 + [2 * parameters // 8]


def test_a_gpt_layer_keeps_what_korthikanti_counts_less_dropout():
    """Korthikanti et al. 2022, equation 1: s b h (34 + 5 a s / h), of which dropout is 2 + 3 a s / h."""
    s, b, h, a = 2048, 2, 4096, 32
    kept = layer_activation_bytes(GPT, KeptBatch(Shard(), b, s, fused_attention=False), "none")
    assert kept == s * b * h * 32 + 2 * a * s * s * b


@pytest.mark.parametrize("fused", [True, False])
def test_a_core_of_attention_computed_again_keeps_all_but_scores(fused):
    """Korthikanti et al. 2022, section 5: the term of 5 a s / h goes; a kernel's statistics stay, 4 bytes a head."""
    s, b, h, a = 2048, 2, 4096, 32
    held = KeptBatch(Shard(), b, s, fused_attention=fused)
    again = layer_activation_bytes(GPT, held, "attention")
    assert again == s * b * h * 32 + 4 * a * s * b
    kept = layer_activation_bytes(GPT, held, "none")
    assert kept - again == (0 if fused else 2 * a * s * s * b - 4 * a * s * b)


def test_tensor_and_sequence_parallelism_divide_as_korthikanti_has_it():
    """Equations 2 and 4: s b h (10 + 24 / t), and everything over t with sequence parallelism."""
    s, b, h, t = 2048, 2, 4096, 8
    softmax = 4 * s * b * 32 // t  # the fused kernel's fp32 statistic of every query and head
    split = layer_activation_bytes(GPT, KeptBatch(Shard(tp=t), b, s, fused_attention=True), "none")
    assert split == s * b * h * (8 + 24 // t) + softmax
    sequence = Shard(tp=t, sequence_parallel=True)
    both = layer_activation_bytes(GPT, KeptBatch(sequence, b, s, fused_attention=True), "none")
    assert both == s * b * h * 32 // t + softmax
    full = layer_activation_bytes(GPT, KeptBatch(Shard(), b, s, fused_attention=True), "full")
    assert full == 2 * s * b * h


def test_logits_in_fp32_are_often_the_largest_transient():
    llama3 = load_model("llama-3.1-8b")
    tokens = 4 * 2048
    assert logits_bytes(llama3, 1, tokens, 2, backward=True) == tokens * 128_256 * 10
    assert logits_bytes(llama3, 8, tokens, 2, backward=False) == tokens * 16_032 * 6


def test_the_first_stage_of_a_pipeline_holds_as_many_micro_batches_as_there_are_stages():
    one = memory_of("critic.update", layout(pp=4, dp=2, micro_batch=8, recompute="full"))
    tokens, h = 8 * 1024, 4096
    row_bytes = tokens * h * 2
    batch = KeptBatch(Shard(), 8, 1024, fused_attention=True)
    peak = layer_peak_bytes(JOB.architecture("critic"), batch)
    assert one.transient["activations"] == 4 * 8 * row_bytes + peak - row_bytes


def test_offload_takes_residents_off_the_device_between_uses():
    stays = memory_of("reference.compute_log_prob", layout(tp=8))
    leaves = memory_of("reference.compute_log_prob", layout(tp=8, offload=True))
    assert stays.resident_bytes == leaves.transient["reference weights"]
    assert leaves.resident == {}
    trained = memory_of("actor.update", layout(tp=8, offload=True))
    assert "actor optimizer states" in trained.transient


def test_a_token_of_llama_2_7b_takes_half_a_mebibyte_of_cache():
    model = load_model("llama-2-7b")
    assert cached_sequence(model, 1, 1, 2, 1000) == (524_288, 0)
    assert cached_sequence(model, 4, 1, 2, 1000) == (131_072, 0)
    assert cached_sequence(load_model("qwen2.5-7b"), 8, 1, 2, 1000) == (2 * 28 * 128 * 2, 0)


@given(architectures(max_layers=8), st.sampled_from(["lm", "scalar"]))
def test_stages_and_ranks_together_hold_the_whole_model(model, head):
    assert shard_parameters(model, head, ModelCut(), 0) == num_parameters(model, head)
    stages = min(model.num_layers, 4)
    held = sum(shard_parameters(model, head, ModelCut(pp=stages), stage) for stage in range(stages))
    copied = model.embedding_parameters if model.tied_embeddings and head == "lm" else 0
    assert held == num_parameters(model, head) + (copied if stages > 1 else 0)


@given(architectures(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))
def test_more_tensor_parallelism_never_needs_more_weights_on_a_gpu(model, tp, pp):
    stages = min(pp, model.num_layers)
    assert largest_shard(model, "lm", ModelCut(tp=2 * tp, pp=stages)) <= largest_shard(
        model, "lm", ModelCut(tp=tp, pp=stages)
    )


@given(layouts())
def test_more_recomputation_never_keeps_more_activations(chosen):
    kept = [
        memory_of("actor.update", replace(chosen, recompute=mode), job_of()).transient[
            "activations"
        ]
        for mode in ("none", "attention", "selective", "full")
    ]
    assert kept == sorted(kept, reverse=True)


@given(layouts())
def test_more_sharding_never_holds_more_states(chosen):
    def states(zero):
        memory = memory_of("actor.update", replace(chosen, zero=zero), job_of())
        terms = memory.resident | memory.transient
        return sum(size for term, size in terms.items() if term.startswith("actor"))

    held = [states(zero) for zero in (0, 1, 2, 3)]
    assert held == sorted(held, reverse=True)


@given(layouts(), st.sampled_from(["actor.update", "critic.update", "critic.compute_values"]))
def test_larger_micro_batches_never_need_less(chosen, task):
    larger = replace(chosen, micro_batch=2 * chosen.micro_batch)
    assert bytes_of(task, larger, job_of()) >= bytes_of(task, chosen, job_of())


def test_the_peak_of_a_colocated_pool_is_its_residents_and_the_largest_task():
    plan = colocated()
    forecast = peak_of(plan)
    assert forecast.gpu_peak_bytes == sum(forecast.terms.values())
    assert forecast.peak_task == "actor.generate"
    assert forecast.capacity_bytes == 80 * 2**30
    assert forecast.fits
    for role in ("actor", "critic", "reference", "reward"):
        assert forecast.terms[f"{role} weights"] > 0


def test_the_cache_gets_what_everything_else_leaves_of_the_engines_share():
    plan = replace(colocated(), job=job_of(nodes=1, prompts=8192))
    terms = peak_of(plan).terms
    left = kv_bytes_left(PlacedPlan(plan, FACTS))
    own = ("actor weights for generation", "activations", "logits", "fragmentation margin")
    assert left == pytest.approx(0.5 * 80 * 2**30 - sum(terms[term] for term in own))
    assert terms["KV cache"] == round(left)


def test_a_share_is_filled_whatever_others_hold_and_whatever_is_of_use():
    """vLLM's cache takes the rest of its share when it starts; what the trainer holds lies beside it."""
    few = replace(colocated(), job=job_of(nodes=1, prompts=8, updates=1))
    many = replace(colocated(), job=job_of(nodes=1, prompts=8192))
    assert kv_bytes_left(PlacedPlan(few, FACTS)) >= kv_bytes_left(PlacedPlan(many, FACTS))
    lean = {
        name: replace(few.tasks[name], offload=True) for name in ("actor.update", "critic.update")
    }
    emptier = replace(few, tasks=FrozenDict(few.tasks | lean))
    assert kv_bytes_left(PlacedPlan(emptier, FACTS)) == kv_bytes_left(PlacedPlan(few, FACTS))
    spared = peak_of(few).gpu_peak_bytes - peak_of(emptier).gpu_peak_bytes
    assert spared >= peak_of(few).terms["actor optimizer states"]


def test_a_share_that_counts_everything_shrinks_with_what_others_hold():
    generate, train = layout("vllm", tp=2, dp=4), layout(tp=8)
    moved = placed_transition("hybridflow", train, generate, site_of(JOB, 8), JOB, FACTS)
    for share, less in (
        (EngineShare(), 10e9),
        (EngineShare(counts_others="nothing"), 0.0),
        (EngineShare(of="static", counts_others="nothing"), 0.0),
        (EngineShare(of="free"), 0.9 * 10e9),
    ):
        engine = replace(moved.generate.engine, share=share)
        caches = [
            float(generation_room(moved.generate, moved, others).cache_bytes(engine, 0.9))
            for others in (5e9, 15e9)
        ]
        assert caches[0] - caches[1] == pytest.approx(less)


def test_an_engine_that_does_not_sleep_stays_on_the_gpus_of_the_trainer():
    plan = colocated()
    awake = replace(plan, job=replace(plan.job, engines=replace(plan.job.engines, sleeps=False)))
    asleep, held = (
        memory_moments(PlacedPlan(each, FACTS), each.pools[0])["actor.update"]
        for each in (plan, awake)
    )
    share = sum(held.values()) - sum(asleep.values())
    assert share == held["KV cache"] + held["actor weights for generation"] > 0.4 * 80 * 2**30


def test_an_engine_that_does_not_sleep_has_its_cache_while_weights_come():
    plan = colocated()
    awake = replace(plan, job=replace(plan.job, engines=replace(plan.job.engines, sleeps=False)))
    asleep, held = (
        memory_moments(PlacedPlan(each, FACTS), each.pools[0])["transition"]
        for each in (plan, awake)
    )
    assert "KV cache" not in asleep
    assert sum(held.values()) == sum(asleep.values()) + round(
        kv_bytes_left(PlacedPlan(awake, FACTS))
    )


def test_zero_redundancy_grows_the_train_shard_and_the_others_copy_it():
    model = JOB.architecture("actor")
    shard = 2 * largest_shard(model, "lm", ModelCut(tp=2))
    kept = 2 * largest_shard(model, "lm", ModelCut(tp=8))
    extra = {
        name: peak_of(colocated(transition=name)).terms["actor weights for generation"]
        for name in ("hybridflow", "hybridflow-v")
    }
    assert extra == {"hybridflow": shard - kept, "hybridflow-v": shard}


EXECUTOR = layout("torch-3d", tp=2, pp=4)


@pytest.mark.parametrize(
    ("trained", "transition", "tp_gen", "pp_gen", "held"),
    [
        # Cut alike: the train shard is lent, and only what it lacks takes memory.
        (EXECUTOR, "hybridflow", 2, 1, lambda shard, kept, _: shard - kept),
        # Cut less: both shards are there until the generate shard is written.
        (EXECUTOR, "hybridflow", 1, 1, lambda shard, *_: shard),
        (EXECUTOR, "hybridflow-v", 2, 1, lambda shard, *_: shard),
        # Fully sharded: gathered whole before that, in modules and then laid out.
        (
            layout("torch-3d", tp=2, dp=4, zero=3),
            "hybridflow",
            2,
            1,
            lambda shard, _, whole: shard + 2 * whole,
        ),
        # Whole already: laid out.
        (
            layout("torch-3d", tp=2, dp=4, zero=2),
            "hybridflow",
            2,
            1,
            lambda shard, _, whole: shard + whole,
        ),
    ],
    ids=["lent", "moved", "vanilla groups", "fully sharded", "sharded gradients"],
)
def test_the_executors_transition_holds_its_shards_and_a_bucket(
    trained, transition, tp_gen, pp_gen, held
):
    model = JOB.architecture("actor")
    generate = layout("torch-static", tp=tp_gen, pp=pp_gen, dp=8 // (tp_gen * pp_gen))
    shard = 2 * largest_shard(model, "lm", ModelCut(tp=tp_gen, pp=pp_gen))
    kept = 2 * largest_shard(model, "lm", ModelCut(tp=trained.tp, pp=trained.pp))
    moved = placed_transition(transition, trained, generate, site_of(JOB, 8), JOB, FACTS)
    terms = transition_terms(replace(moved, bucket_bytes=10**6))
    received = 10**6 if trained.zero == 0 else 0  # no tensor-parallel rank lacks anything here
    assert terms["actor weights for generation"] == held(shard, kept, kept) + received


def test_vanilla_groups_hold_the_whole_model_while_they_regroup():
    small = colocated(
        transition="hybridflow-v",
        job=job_of(nodes=1, prompts=8, updates=1),
        **{"actor.generate": layout("vllm", tp=2, dp=4, memory_fraction=0.1)},
    )
    forecast = peak_of(small)
    whole = 2 * num_parameters(JOB.architecture("actor"))
    kept = 2 * largest_shard(JOB.architecture("actor"), "lm", ModelCut(tp=8))
    assert forecast.peak_task == "transition"
    assert forecast.terms["actor weights for generation"] == whole - kept


def test_a_pool_without_room_for_one_sequence_does_not_fit():
    job = job_of(nodes=1, model="llama-2-70b", prompts=64)
    trained = layout(tp=8, recompute="full", offload=True)
    plan = colocated(
        job,
        **{
            "actor.generate": layout("vllm", tp=8, dp=1, memory_fraction=0.01),
            "actor.update": trained,
            "critic.update": trained,
        },
    )
    forecast = peak_of(plan)
    placed = PlacedPlan(plan, facts_of(job))
    assert kv_bytes_left(placed) < least_kv_bytes(placed.tasks["actor.generate"])
    assert not forecast.fits


def test_an_engines_share_that_is_too_small_is_named():
    starved = colocated(**{"actor.generate": layout("vllm", tp=2, dp=4, memory_fraction=0.05)})
    forecast = peak_of(starved)
    generate = PlacedPlan(starved, FACTS).tasks["actor.generate"]
    assert kv_bytes_left(PlacedPlan(starved, FACTS)) == 0
    assert forecast.cache_shortage_bytes >= least_kv_bytes(generate)
    assert forecast.gpu_peak_bytes < forecast.capacity_bytes
    assert not forecast.fits
    said = memory_shortage(starved.pools[0], forecast)
    assert "the generation engine's share of each GPU lacks" in said


@pytest.mark.parametrize("of", ["card", "static"])
def test_a_share_lacks_what_weights_are_over_it_as_well(of):
    def shortage(fraction):
        starved = colocated(
            **{"actor.generate": layout("vllm", tp=2, dp=4, memory_fraction=fraction)}
        )
        generate = PlacedPlan(starved, FACTS).tasks["actor.generate"]
        share = replace(generate.engine.share, of=of)
        engine = replace(generate.engine, share=share)
        room = replace(generation_room(generate, None, 0.0), weights_bytes=40 * 2**30)
        return float(room.left_bytes(engine, fraction)), room

    (less, room), (more, _) = shortage(0.05), shortage(0.10)
    assert less < more < 0
    assert more - less == pytest.approx(0.05 * room.capacity_bytes)
    assert room.cache_bytes(PlacedPlan(colocated(), FACTS).generate.engine, 0.05) == 0


def test_a_copy_on_a_pool_of_its_own_stays():
    pools = (
        ResourcePool(name="p0", device=A100, gpus=4, roles=("critic", "reference", "reward")),
        ResourcePool(name="p1", device=A100, gpus=4, roles=("actor",)),
    )
    base = colocated(transition="two-copies")
    tasks = {name: replace(chosen, tp=4, dp=1, pool="p0") for name, chosen in base.tasks.items()}
    tasks["actor.generate"] = replace(base.tasks["actor.generate"], tp=2, dp=2, pool="p1")
    plan = replace(base, pools=pools, tasks=FrozenDict(tasks))
    terms = pool_memory(PlacedPlan(plan, FACTS), pools[1]).terms
    assert terms["actor weights for generation"] == 2 * largest_shard(
        JOB.architecture("actor"), "lm", ModelCut(tp=2)
    )
    assert "actor weights" not in terms


def test_fewer_residents_leave_more_cache():
    generate, train = layout("vllm", tp=2, dp=4), layout(tp=8)
    moved = placed_transition("hybridflow", train, generate, site_of(JOB, 8), JOB, FACTS)
    engine = replace(moved.generate.engine, share=EngineShare())
    budgets = [
        generation_room(moved.generate, moved, resident).cache_bytes(engine, 0.9)
        for resident in (10e9, 20e9, 200e9)
    ]
    assert budgets[0] - budgets[1] == pytest.approx(10e9)
    assert budgets[2] == 0


def test_a_host_pool_holds_nothing_on_gpus():
    plan = colocated()
    pool = ResourcePool(name="cpu", device="host", gpus=8, roles=("rule",))
    assert pool_memory(PlacedPlan(plan, FACTS), pool).gpu_peak_bytes == 0
