"""Low-rank adapters: what is frozen, what is trained, and what generation gets of it."""

from dataclasses import replace

import pytest

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.files.frozen import FrozenDict
from rlplan.layout import ModelCut
from rlplan.models import Adapter, Batch, Gemm, Shard
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_engine, load_model
from rlplan.simulator.columns import columns_of
from rlplan.simulator.costs.layouts import layout_seconds, passes_cost
from rlplan.simulator.costs.syncs import moved_bytes, transition_cost
from rlplan.simulator.memory.transition_memory import extra_weight_bytes
from rlplan.simulator.model import (
    adapter_shard,
    backward_operators,
    flops_of,
    layer_operators,
    shard_parameters,
)
from rlplan.simulator.placed import PlacedTask, PlacedTasks
from rlplan.simulator.stages import task_cost, task_memory
from rlplan.trainers import TrainerOptions
from tests.simulator.cost_jobs import PPO, facts_of, job_of, site_of
from tests.simulator.placing import transition

RANK = 16
FULL = job_of(algorithm="grpo", nodes=2, samples_per_prompt=4)


def job_with(**settings):
    return replace(FULL, adapters=FrozenDict({"actor": Adapter(rank=RANK, **settings)}))


def placed(job, task="actor.update", gpus=8, **sizes):
    layout = TaskPlan(pool="p0", **({"engine": "megatron-core", "dp": gpus} | sizes))
    tasks = {each.name: each for each in tasks_of(load_algorithm("grpo"), job)}
    return PlacedTask(tasks[task], layout, site_of(job, gpus), job, facts_of(job))


@pytest.mark.parametrize(
    ("model", "targets", "rank", "parameters"),
    [
        # tloen/alpaca-lora, README: q, k, v and o of LLaMA-7B at rank 16.
        ("llama-2-7b", "attention", 16, 16_777_216),
        # artidoro/qlora: all linear layers of LLaMA-7B at rank 64, and a quarter of it at 16.
        ("llama-2-7b", "all-linear", 64, 159_907_840),
        ("llama-2-7b", "all-linear", 16, 39_976_960),
    ],
)
def test_adapters_have_the_published_number_of_parameters(model, targets, rank, parameters):
    assert adapter_shard(load_model(model), Adapter(rank=rank, targets=targets)) == parameters


def test_experts_have_adapters_of_their_own_which_expert_parallelism_shares_out():
    model, adapter = load_model("qwen3-30b-a3b"), Adapter(rank=1, targets="feed-forward")
    each = 3 * (model.hidden_size + model.moe_ffn_size)
    assert adapter_shard(model, adapter) == model.num_layers * model.num_experts * each
    assert adapter_shard(model, adapter, ModelCut(ep=8)) * 8 == adapter_shard(model, adapter)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_ranks_share_one_side_of_every_adapter_and_copy_the_other(tp):
    model, adapter = load_model("llama-2-7b"), Adapter(rank=1)
    hidden, inner = model.hidden_size, model.ffn_size
    by_columns = 3 * (hidden + hidden // tp) + 2 * (hidden + inner // tp)
    by_rows = (hidden // tp + hidden) + (inner // tp + hidden)
    assert adapter_shard(model, adapter, ModelCut(tp=tp)) == model.num_layers * (
        by_columns + by_rows
    )


def test_a_frozen_layers_backward_pass_has_the_flops_of_its_forward_pass():
    model, batch = (
        load_model("llama-2-7b"),
        Batch(sequences=1, tokens=4096, sequence_tokens=4096, head_tokens=0),
    )
    plain = layer_operators(model, Shard(), batch)
    adapted = layer_operators(model, Shard(), batch, Adapter(rank=RANK))
    products = tuple(each for each in plain if isinstance(each, Gemm))
    own = tuple(each for each in adapted if isinstance(each, Gemm) and each.frozen)
    extra = tuple(each for each in adapted if isinstance(each, Gemm) and not each.frozen)
    assert flops_of(backward_operators(own)) == flops_of(own) == flops_of(products)
    assert flops_of(backward_operators(extra)) == 2 * flops_of(extra)
    assert flops_of(extra) < 0.02 * flops_of(own)


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_only_adapters_have_gradients_and_optimizer_states(zero):
    job = job_with()
    model, size = job.architecture("actor"), placed(job).adapter_parameters
    found = task_memory(placed(job, zero=zero)).resident
    share = -(-size // 8) if zero else size
    assert found["actor weights"] == 2 * shard_parameters(model, "lm", ModelCut(), 0)
    assert found["actor adapters"] == 2 * size
    assert found["actor gradients"] == 4 * (share if zero == 2 else size)
    assert found["actor optimizer states"] == 12 * share


def test_a_model_beside_one_with_adapters_trains_whole():
    job = replace(job_of(), adapters=FrozenDict({"actor": Adapter(rank=RANK)}))
    layout = TaskPlan(pool="p0", engine="megatron-core", dp=8)
    ours, theirs = (
        PlacedTask(PPO["critic.update"], layout, site_of(each, 8), each, facts_of(each))
        for each in (job, job_of())
    )
    assert task_memory(ours) == task_memory(theirs)
    assert passes_cost(ours) == passes_cost(theirs)


def test_fully_sharded_frozen_weights_are_sharded_and_gathered_like_others():
    job = job_with()
    sizes = {"engine": "deepspeed-zero3", "zero": 3}
    ours, theirs = (task_memory(placed(each, **sizes)) for each in (job, FULL))
    assert ours.resident["actor weights"] == theirs.resident["actor weights"]
    assert ours.transient["gathered weights"] == theirs.transient["gathered weights"]
    assert ours.resident["actor optimizer states"] < theirs.resident["actor optimizer states"] / 50


def test_an_update_of_adapters_is_shorter_in_the_backward_pass_the_reduction_and_the_step():
    ours, theirs = (dict(passes_cost(placed(each)).parts) for each in (job_with(), FULL))
    # Half of the products' backward pass is left, attention's is whole, and adapters come on top.
    assert 0.5 < ours["backward"].seconds / theirs["backward"].seconds < 0.85
    assert 1 < ours["forward"].seconds / theirs["forward"].seconds < 1.25
    for part in ("gradient reduction", "optimizer"):
        assert ours[part].seconds < theirs[part].seconds / 20


def test_inputs_that_nothing_lets_go_are_of_all_of_an_updates_tokens():
    """verl issue 6698: 0.262 GiB for each 16,384 tokens of 4,096 values in bf16, of an output and of its gradient."""
    kept = FrozenDict({"actor": TrainerOptions(keeps_embedded=True)})
    ours, usual = (
        task_memory(placed(job, engine="fsdp2-hf", zero=3))
        for job in (replace(job_with(), trainers=kept), job_with())
    )
    more = ours.transient["inputs of earlier micro-batches"]
    tokens = placed(job_with(), engine="fsdp2-hf", zero=3).most_local_tokens
    assert more == tokens * 4096 * 2 * 2
    assert more / tokens * 16_384 == pytest.approx(0.262 * 2**30, rel=0.06)
    rest = {name: size for name, size in ours.transient.items() if "inputs" not in name}
    assert rest == usual.transient
    whole = replace(FULL, trainers=kept)
    assert task_memory(placed(whole)).transient == task_memory(placed(FULL)).transient


def test_adapters_that_are_gathered_one_by_one_are_launched_so():
    """Seven linear layers of Llama 2 have fourteen matrices; recomputed layers gather them a second time.

    What is measured of them holds their layer's own gather, which a layer without them has beside.
    """
    apart = FrozenDict({"actor": TrainerOptions(adapters_apart=True)})
    short = replace(FULL.workload, prompt_tokens=8, response_tokens=8)
    small = replace(job_with(), workload=short)
    sizes = {"engine": "fsdp2-hf", "zero": 3, "micro_batch": 1, "recompute": "full"}
    ours, theirs = (
        dict(passes_cost(placed(job, **sizes)).parts)
        for job in (replace(small, trainers=apart), small)
    )
    engine, update = load_engine("fsdp2-hf"), placed(small, **sizes)
    layers = small.workload.updates * update.local * update.model.num_layers
    gathers, reduced = 14 * engine.adapter_gather_seconds, 14 * engine.adapter_reduce_seconds
    for way, seconds in {
        "forward": gathers - engine.unit_gather_seconds,
        "recompute": gathers,
        "backward": reduced - engine.unit_reduce_seconds,
    }.items():
        assert ours[way].seconds - theirs[way].seconds == pytest.approx(layers * seconds)


def test_a_layer_whose_weights_are_spread_is_gathered_by_the_host():
    """Of one short sequence the host is what takes longer: forwards a gather, backwards a reduction more, again nothing."""
    small = replace(FULL, workload=replace(FULL.workload, prompt_tokens=8, response_tokens=8))
    sizes = {"engine": "fsdp2-hf", "micro_batch": 1, "recompute": "full"}
    spread, whole = (placed(small, zero=stage, **sizes) for stage in (3, 2))
    ours, theirs = (dict(passes_cost(each).parts) for each in (spread, whole))
    layers = small.workload.updates * spread.local * spread.model.num_layers
    engine = spread.engine
    for way, seconds in {
        "forward": engine.unit_gather_seconds,
        "recompute": 0.0,
        "backward": engine.unit_reduce_seconds,
    }.items():
        assert ours[way].seconds - theirs[way].seconds == pytest.approx(layers * seconds)


@pytest.mark.parametrize("apart", [False, True])
def test_a_gpu_alone_gathers_nothing(apart):
    """FSDP of one rank is NO_SHARD (PyTorch, fsdp/_init_utils.py); many layouts are priced as one is alone."""
    options = FrozenDict({"actor": TrainerOptions(adapters_apart=apart)})
    small = replace(job_with() if apart else FULL, trainers=options)
    small = replace(small, workload=replace(small.workload, prompt_tokens=8, response_tokens=8))
    sizes = {"engine": "fsdp2-hf", "micro_batch": 1}
    alone, whole = (
        dict(passes_cost(placed(small, gpus=1, dp=1, zero=stage, **sizes)).parts)
        for stage in (3, 2)
    )
    for way in ("forward", "backward"):
        assert alone[way] == whole[way]


@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_what_computes_no_product_again_gathers_no_adapter_again(recompute):
    apart = FrozenDict({"actor": TrainerOptions(adapters_apart=True)})
    sizes = {"engine": "fsdp2-hf", "zero": 3, "micro_batch": 1, "recompute": recompute}
    ours, theirs = (
        dict(passes_cost(placed(job, **sizes)).parts)
        for job in (replace(job_with(), trainers=apart), job_with())
    )
    assert ours["forward"].seconds > theirs["forward"].seconds
    assert ours.get("recompute") == theirs.get("recompute")


def test_adapters_go_with_their_layers_where_weights_are_whole():
    apart = FrozenDict({"actor": TrainerOptions(adapters_apart=True)})
    ours, theirs = (
        passes_cost(placed(job, engine="fsdp2-hf", zero=2))
        for job in (replace(job_with(), trainers=apart), job_with())
    )
    assert ours == theirs


@pytest.mark.parametrize("stages", [(2, 3), (3, 2)])
def test_many_layouts_of_adapters_that_are_gathered_one_by_one_cost_what_each_costs(stages):
    apart = FrozenDict({"actor": TrainerOptions(adapters_apart=True)})
    job = replace(job_with(), trainers=apart)
    alone = [placed(job, engine="fsdp2-hf", zero=stage) for stage in stages]
    table = PlacedTasks(columns_of("fsdp2-hf", [each.layout for each in alone]), alone[0])
    expected = [task_cost(each).total.seconds for each in alone]
    assert layout_seconds(table).tolist() == pytest.approx(expected)


def test_frozen_weights_are_the_reference_unless_the_job_says_else():
    shared, apart = job_with(), job_with(shares_reference=False)
    ours = {task.name: task for task in tasks_of(load_algorithm("grpo"), shared)}
    theirs = {task.name: task for task in tasks_of(load_algorithm("grpo"), apart)}
    assert ours.keys() == theirs.keys()
    name = "reference.compute_log_prob"
    assert (ours[name].role, theirs[name].role) == ("actor", "reference")
    own, other = placed(shared, name), placed(apart, name)
    assert own.adapter is None  # it is off
    assert passes_cost(own).total.seconds == passes_cost(other).total.seconds
    assert task_memory(own).resident.keys() == {"actor weights"}


def test_generation_elsewhere_gets_adapters_or_whole_weights():
    layouts = (
        TaskPlan(pool="p0", engine="megatron-core", dp=8),
        TaskPlan(pool="p1", engine="vllm", dp=8),
    )

    def moved(job):
        site = site_of(job, 8)
        return transition("two-copies", *layouts, site, job, facts_of(job), target=site)

    adapter, merged = moved(job_with()), moved(job_with(sync="merged"))
    assert moved_bytes(adapter) == 2 * 39_976_960
    assert moved_bytes(merged) == moved_bytes(moved(FULL)) == 2 * 6_738_415_616
    seconds = [transition_cost(each).total.seconds for each in (adapter, merged, moved(FULL))]
    assert seconds[0] < seconds[2] <= seconds[1]  # merging comes on top


def test_an_engine_that_is_cut_otherwise_keeps_frozen_weights_of_its_own():
    job, train = job_with(), TaskPlan(pool="p0", engine="megatron-core", tp=4, dp=2)

    def moved(job, tp):
        generate = TaskPlan(pool="p0", engine="vllm", tp=tp, dp=8 // tp)
        return transition("hybridflow", train, generate, site_of(job, 8), job, facts_of(job))

    adapters = moved(job, 4).generate.adapter_parameters
    assert extra_weight_bytes(moved(job, 4)) == 2 * adapters
    assert transition_cost(moved(job, 4)).parts == ()
    whole = moved(job, 2).generate.weight_bytes
    assert extra_weight_bytes(moved(job, 2)) == whole > extra_weight_bytes(moved(FULL, 2))
    assert "weights from host" in dict(transition_cost(moved(job, 2)).parts)


def test_a_layer_holds_the_widest_matrixs_product_and_its_scaled_copy_beside_what_it_holds_else():
    sizes = {"engine": "prime-rl", "zero": 3, "recompute": "full"}
    job = job_of(algorithm="grpo", prompt_tokens=4096, response_tokens=4096, samples_per_prompt=4)
    adapted = replace(job, adapters=FrozenDict({"actor": Adapter(targets="feed-forward")}))
    ours, theirs = (task_memory(placed(each, **sizes)).transient for each in (adapted, job))
    wider = 2 * 8192 * job.architecture("actor").ffn_size * 2
    assert ours["activations"] == theirs["activations"] + wider


@pytest.mark.parametrize(
    ("targets", "gathers"), [("all-linear", 2), ("attention", 1), ("feed-forward", 1)]
)
def test_ranks_that_split_sequences_gather_what_adapters_add(targets, gathers):
    """By Megatron-Bridge's ParallelLinearAdapter: all tokens' outputs of each part, which has one row-parallel product."""
    model, adapter = load_model("llama-2-7b"), Adapter(rank=1, targets=targets)
    batch = Batch(sequences=1, tokens=64, sequence_tokens=64, head_tokens=0)

    def gathered(shard, beside):
        found = layer_operators(model, shard, batch, beside)
        return [each.num_bytes for each in found if each.name == "adapter gather"]

    assert (
        gathered(Shard(tp=2, sequence_parallel=True), adapter)
        == [64 * model.hidden_size * 2] * gathers
    )
    assert gathered(Shard(tp=2, sequence_parallel=True), None) == []
    assert gathered(Shard(tp=1, sequence_parallel=True), adapter) == []
    assert gathered(Shard(tp=2), adapter) == []
