"""How tokens reach experts: copies for experts, nodes or all ranks; who waits for whom; what graphs and overlap save."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.dispatchers import DISPATCHERS, Reach, dispatcher_over, distinct, neighbouring
from rlplan.errors import MissingFactError
from rlplan.files.frozen import FrozenDict
from rlplan.models import (
    Attention,
    Batch,
    Collective,
    Elementwise,
    KeptBatch,
    is_narrow,
    layer_kinds,
)
from rlplan.parts import experts
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.profiles.catalog import load_device, load_engine, load_model
from rlplan.simulator.costs.pricing import (
    _layer_launch,
    fused_attention_seconds,
    pass_seconds,
    price,
)
from rlplan.simulator.costs.setting import setting_of
from rlplan.simulator.model import layer_activation_bytes, layer_operators, recomputed_operators
from rlplan.simulator.placed import PlacedTask, Site
from rlplan.simulator.timeline.assemble import _of_usual_dispatchers, assumptions_of
from rlplan.trainers import TrainerOptions
from tests.simulator.cost_jobs import A100, PPO, facts_of, job_of

MODEL = "qwen3-30b-a3b"
TOKENS = 4096
ONE = Batch(sequences=1, tokens=TOKENS, sequence_tokens=TOKENS, head_tokens=TOKENS)
BALANCED = TrainerOptions(popularity_spread=0.0)
NETWORK = 5e10
DEVICE = "h100-80gb-sxm"
sizes = st.integers(1, 64)


def placed(
    options=BALANCED, *, ep=16, gpus=16, engine="megatron-core-2026", precision="bf16", model=MODEL
):
    """Return an update on nodes of eight H100 with a network of 50 GB/s a GPU."""
    job = job_of(model=model, nodes=gpus // 8, prompt_tokens=512, response_tokens=512)
    cluster = (replace(job.cluster[0], gpu=DEVICE, inter_node_gbps=8 * 8 * NETWORK / 1e9),)
    options = FrozenDict({"actor": options})
    job = replace(job, trainers=options, precision=precision, cluster=cluster)
    layout = TaskPlan(pool="p0", engine=engine, dp=gpus, ep=ep, zero=1, micro_batch=1)
    site = Site(DEVICE, gpus, 8, NETWORK)
    return PlacedTask(PPO["actor.update"], layout, site, job, facts_of(job))


def layer(options=BALANCED, direction="forward", **changes):
    task = placed(options, **changes)
    return pass_seconds(setting_of(task), task.model, "layer", ONE, direction)


def by(name, **options):
    return replace(BALANCED, dispatcher=name, **options)


@given(places=sizes, chosen=sizes)
def test_a_token_reaches_no_more_places_than_there_are_or_than_it_chose(places, chosen):
    found = distinct(places, chosen)
    assert found <= min(places, chosen) + 1e-9
    assert found >= 1 - 1e-9
    assert distinct(places, chosen + 1) >= found
    assert distinct(places + 1, chosen) >= found - 1e-9


@given(nodes=sizes, per_node=st.sampled_from([1, 4, 8, 72]), chosen=sizes)
def test_what_crosses_nodes_by_copies_is_no_more_than_by_rows(nodes, per_node, chosen):
    reach = Reach(nodes * per_node, per_node, chosen)
    rows = chosen * (1 - 1 / nodes)
    assert reach.network_copies <= rows + 1e-9
    assert reach.link_copies <= chosen + 1e-9


def test_copies_of_two_nodes_of_h100_are_those_that_hybridep_moves():
    """Of 8 experts among 16 ranks a token has some on 1.99 of 2 nodes, and on 6.45 ranks."""
    reach = Reach(16, 8, 8)
    assert distinct(2, 8) == pytest.approx(1.992, abs=1e-3)
    assert distinct(16, 8) == pytest.approx(6.45, abs=0.01)
    assert reach.network_copies == pytest.approx(0.996, abs=1e-3)
    assert reach.link_copies == pytest.approx(6.45 * 7 / 8, abs=0.01)


@pytest.mark.parametrize(
    ("places", "chosen", "experts", "reached"),
    [(8, 8, 128, 1), (32, 8, 128, 2), (8, 4, 32, 1), (64, 8, 256, 2), (8, 8, 256, 1), (3, 2, 6, 1)],
)
def test_experts_that_are_dealt_out_in_turn_lie_on_few_ranks(places, chosen, experts, reached):
    """Of 128 experts each of 8 ranks has 16, so that 8 in a row from a multiple of 8 on lie on one; of 32 ranks on two."""
    assert neighbouring(places, chosen, experts) == reached


def test_experts_in_turn_that_begin_within_a_rank_reach_the_next_one_now_and_then():
    """Three of 8 on ranks of 4: 0-2, 3-5, 6-0, 1-3, 4-6, 7-1, 2-4, 5-7: four of eight tokens on two ranks."""
    assert neighbouring(2, 3, 8) == 1.5


@given(ranks=st.sampled_from([1, 2, 4, 8, 16, 32]), chosen=st.integers(1, 16))
def test_experts_in_turn_reach_no_fewer_places_than_hold_them_and_no_more_than_there_are(
    ranks, chosen
):
    found = neighbouring(ranks, chosen, 64)
    assert max(1, chosen * ranks / 64) <= found <= min(ranks, chosen)


def test_a_gate_that_deals_experts_out_in_turn_sends_fewer_copies():
    """A copy of each token in place of 5.25, over the link of one node."""
    chosen, turn = (
        layer(by("deepep", experts_in_turn=each), ep=8, gpus=8).collectives.seconds - 2 * 1.5e-4
        for each in (False, True)
    )
    assert chosen / turn == pytest.approx(distinct(8, 8), rel=1e-6)
    assert distinct(8, 8) == pytest.approx(5.25, abs=0.01)


def test_experts_that_are_dealt_out_in_turn_are_balanced_whatever_traces_say():
    """All-to-all sends every chosen expert its own copy, so that only the balance tells the two apart."""
    turn, balanced, traces = (
        layer(TrainerOptions(dispatcher="all-to-all", **each), ep=8, gpus=8).collectives.seconds
        for each in ({"experts_in_turn": True}, {"popularity_spread": 0.0}, {})
    )
    assert turn == balanced < traces


def oss_setting(engine="megatron-core-2026"):
    """Return a layer with a bias for each expert, and its setting where no host is waited for."""
    task = placed(ep=8, gpus=8, engine=engine, model="gpt-oss-20b")
    return layer_kinds(task.model).models[0], replace(setting_of(task), launches_hidden=True)


def test_biases_of_experts_move_what_kernels_of_their_own_read_and_write():
    """GPT-OSS 20B, 4,096 tokens of 4 experts: 28 bytes a value of 2,880 that leaves an expert, 8 of 5,760 before it."""
    rows = 4096 * 4
    for engine, num_bytes in (
        ("megatron-core-2026", rows * 28 * 2880),
        ("nemo-automodel", rows * (28 * 2880 + 8 * 5760)),
    ):
        model, setting = oss_setting(engine)
        with_biases, without = (
            pass_seconds(each, model, "layer", ONE)
            for each in (setting, replace(setting, expert_biases=None))
        )
        rate = setting.kernels.elementwise_rate
        moved = setting.device.memory_bound(num_bytes).seconds / rate
        added = with_biases.compute.seconds - without.compute.seconds
        assert added == pytest.approx(moved, rel=0.02)


def test_biases_are_computed_again_with_their_layer_and_not_without():
    model, setting = oss_setting()
    bare = replace(setting, expert_biases=None)
    added = {
        mode: pass_seconds(setting, model, "layer", ONE, mode).compute.seconds
        - pass_seconds(bare, model, "layer", ONE, mode).compute.seconds
        for mode in ("forward", "full", "none")
    }
    assert added["full"] == pytest.approx(added["forward"])
    assert added["none"] == 0


@pytest.mark.parametrize(("ranks", "milliseconds"), [(16, 1.64), (32, 3.66), (64, 6.16)])
def test_kernels_of_hybridep_take_what_was_published(ranks, milliseconds):
    """4,096 tokens of 7,168 in bf16 on H100; DeepEP, branch hybrid-ep, docs/README_Hybrid-EP.md, algorithm bandwidth."""
    own = DISPATCHERS.load("hybridep")
    rows = 4096 * 7168 * 2
    found = own.seconds(rows, Reach(ranks, 8, 8), 4.5e11, NETWORK) - own.fixed_seconds
    assert found == pytest.approx(milliseconds / 1e3, rel=0.1)


def test_rows_that_a_processor_posts_take_their_time_however_short_they_are():
    """2,048 tokens on two nodes: 0.996 copies at 1.8 microseconds, beside 4 kB each at 0.65 of 50 GB/s (0.26 ms)."""
    own = replace(DISPATCHERS.load("uccl"), fixed_seconds=0.0, link_efficiency=1e9)
    reach = Reach(16, 8, 8)
    posted = 2048 * own.row_seconds["hopper"]
    assert own.seconds(2048 * 4096, reach, 4.5e11, NETWORK, posted) == pytest.approx(
        3.67e-3, rel=0.01
    )
    assert own.seconds(2048 * 4096, reach, 4.5e11, NETWORK) == pytest.approx(0.257e-3, rel=0.01)
    alone = Reach(8, 8, 8)
    assert own.seconds(1e6, alone, 4.5e11, NETWORK, posted) == own.seconds(
        1e6, alone, 4.5e11, NETWORK
    )


@pytest.mark.parametrize(
    ("network", "name"), [(None, "deepep"), ("infiniband", "deepep"), ("efa", "deepep-efa")]
)
def test_deepep_over_efa_is_posted_by_processors(network, name):
    assert dispatcher_over("deepep", network) == DISPATCHERS.load(name)
    assert dispatcher_over("hybridep", network) == DISPATCHERS.load("hybridep")


@pytest.mark.parametrize(
    ("network", "nodes", "dispatcher", "said"),
    [
        ("efa", 2, "deepep", True),
        ("efa", 2, "hybridep", False),
        ("efa", 1, "deepep", False),
        (None, 2, "deepep", False),
    ],
)
def test_a_dispatcher_that_takes_the_place_of_another_is_named(network, nodes, dispatcher, said):
    job = job_of(model=MODEL, nodes=nodes)
    job = replace(
        job,
        cluster=tuple(replace(each, network=network) for each in job.cluster),
        trainers=FrozenDict({"actor": TrainerOptions(dispatcher=dispatcher)}),
    )
    words = "the actor's tokens go to experts by deepep-efa: deepep does not run over efa"
    assert (words in assumptions_of(job, facts_of(job))) == said


@pytest.mark.parametrize(
    ("engine", "ep", "named", "said"),
    [
        ("nemo-automodel", 16, None, True),
        ("nemo-automodel", 1, None, False),
        ("nemo-automodel", 16, "hybridep", False),  # what a job names is said of the job
        ("megatron-core-2026", 16, None, False),
    ],
)
def test_a_dispatcher_that_takes_the_place_of_an_engines_own_is_named(engine, ep, named, said):
    job = job_of(model=MODEL)
    job = replace(
        job,
        cluster=tuple(replace(each, network="efa") for each in job.cluster),
        trainers=FrozenDict({"actor": TrainerOptions(dispatcher=named)}),
    )
    layout = TaskPlan(pool="p0", engine=engine, dp=16, ep=ep, zero=3)
    plan = Plan(
        job=job,
        pools=(ResourcePool(name="p0", gpus=16, device=A100, roles=("actor",)),),
        tasks=FrozenDict({"actor.update": layout}),
        order=FrozenDict(),
    )
    words = "the actor's tokens go to experts by deepep-efa: deepep, which nemo-automodel takes, does not run over efa"
    assert (words in tuple(_of_usual_dispatchers(plan, facts_of(job)))) == said


def test_a_layer_over_efa_takes_what_posting_its_rows_takes():
    """4,096 tokens, 0.996 copies and 1.47 of the mean rank where experts are as popular as in traces."""
    by_rows, by_bytes = (layer(by(name)).collectives.seconds / 2 for name in ("uccl", "deepep"))
    assert by_rows == pytest.approx(4096 * 0.996 * 1.8e-6 + 1.5e-4, rel=0.05)
    assert by_rows > 5 * by_bytes


@pytest.mark.parametrize(
    ("name", "adds"), [("uccl", True), ("deepep-efa", True), ("deepep", False)]
)
def test_nothing_is_launched_beside_rows_that_processors_post(name, adds):
    few = Batch(sequences=1, tokens=512, sequence_tokens=512, head_tokens=512)
    task = placed(by(name))
    setting = setting_of(task)
    found = pass_seconds(setting, task.model, "layer", few)
    exchanged = found.collectives.seconds
    launched = _layer_launch(setting, task.model)  # longer than this layer takes to compute
    assert exchanged > 0
    whole = launched + exchanged if adds else max(launched, exchanged)
    assert found.total.seconds == pytest.approx(whole, rel=0.02)


def test_inside_a_node_no_processor_posts_and_launches_go_on():
    few = Batch(sequences=1, tokens=512, sequence_tokens=512, head_tokens=512)
    task = placed(by("uccl"), ep=8, gpus=8)
    found = pass_seconds(setting_of(task), task.model, "layer", few)
    assert found.total.seconds == pytest.approx(
        _layer_launch(setting_of(task), task.model), rel=0.02
    )


def test_a_copy_a_node_is_several_times_faster_across_nodes_than_a_row_an_expert():
    rows, copies = (layer(by(name)).collectives.seconds for name in ("all-to-all", "hybridep"))
    assert 2.5 < rows / copies < 5


def test_an_all_to_all_of_rows_takes_its_share_of_the_network_and_nothing_else():
    """Half of 134 MB leave the node: at 0.7 of 50 GB/s 1.9 ms, twice a pass. NCCL on 4 nodes of p5 reaches as much."""
    rows = TOKENS * 8 * 2048 * 2
    found = layer(by("all-to-all")).collectives.seconds / 2
    assert found == pytest.approx(rows / 2 / (0.7 * NETWORK), rel=0.02)


def test_counts_and_probabilities_go_beside_rows_but_not_beside_copies_for_nodes():
    """Over EFA next to nothing takes 0.256 ms between two nodes, three times for four exchanges."""
    task = placed(by("all-to-all"))
    task = replace(task, site=replace(task.site, network="efa"))
    setting = setting_of(task)
    alone = replace(setting, exchange_messages=0.0)
    with_messages, rows = (
        pass_seconds(each, task.model, "layer", ONE).collectives.seconds
        for each in (setting, alone)
    )
    assert with_messages - rows == pytest.approx(2 * 0.75 * (2.26e-4 + 8 * 3.7e-6))
    copies = setting_of(placed(by("hybridep")))
    same = replace(copies, exchange_messages=0.0)
    assert pass_seconds(copies, task.model, "layer", ONE) == pass_seconds(
        same, task.model, "layer", ONE
    )


@given(tp=st.sampled_from([2, 4, 8]), tokens=st.integers(1, 2**14))
def test_beside_products_gathers_hide_and_sums_but_for_a_part_and_never_more_than_is_computed(
    tp, tokens
):
    task = placed(model="llama-2-7b", ep=1, gpus=8, engine="megatron-core-2025")
    batch = Batch(sequences=1, tokens=tokens, sequence_tokens=tokens, head_tokens=tokens)
    alone = replace(setting_of(task), shard=replace(setting_of(task).shard, tp=tp))
    beside = replace(alone, overlaps_products=True)
    whole, left = (pass_seconds(each, task.model, "layer", batch) for each in (alone, beside))
    assert left.compute.seconds >= whole.compute.seconds
    hidden = whole.collectives.seconds - left.collectives.seconds
    assert hidden <= left.compute.seconds * (1 + 1e-9)
    assert left.collectives.seconds >= whole.collectives.seconds / (2 * tp) * (1 - 1e-6)


def test_gathering_all_tokens_depends_on_no_choice_of_experts():
    gathered = by("all-gather")
    uneven = replace(gathered, popularity_spread=1.5)
    seconds = layer(gathered).collectives.seconds
    assert layer(uneven).collectives.seconds == pytest.approx(seconds)
    assert layer(gathered).collectives.seconds > layer(by("hybridep")).collectives.seconds


@given(spread=st.floats(0, 2), more=st.floats(0, 1))
def test_ranks_wait_longer_the_less_alike_experts_are(spread, more):
    even, uneven = (experts.busiest_rank(128, 16, each) for each in (spread, spread + more))
    assert uneven >= even >= 1
    assert experts.reached(128, 8, 64, spread + more) <= experts.reached(128, 8, 64, spread) + 1e-6


def test_experts_balanced_by_force_leave_nothing_to_wait_for():
    assert experts.busiest_rank(128, 16, 0.0) == 1
    launched_at_once = by("hybridep", graphs=("iteration",))
    forced = layer(launched_at_once)
    usual = layer(replace(launched_at_once, popularity_spread=None))
    waiting = experts.busiest_rank(128, 16)
    assert usual.compute.seconds > forced.compute.seconds
    ratio = usual.collectives.seconds / forced.collectives.seconds
    assert 1.2 < ratio <= waiting


def test_overlap_hides_its_share_of_the_exchange_and_no_more_than_there_is_to_compute():
    alone, beside = (
        layer(by("hybridep", overlaps_exchange=each, graphs=("iteration",)))
        for each in (False, True)
    )
    share = load_engine("megatron-core-2026").exchange_overlap_fraction
    assert beside.compute == alone.compute
    assert beside.collectives.seconds == pytest.approx(alone.collectives.seconds * (1 - share))
    slow = layer(by("all-to-all", overlaps_exchange=True), gpus=64, ep=64)
    assert slow.collectives.seconds > 0


def test_graphs_take_launches_off_the_host_part_by_part():
    def seconds(*graphs):
        few = replace(ONE, tokens=256, sequence_tokens=256, head_tokens=256)
        task = placed(by("hybridep", graphs=graphs), precision="fp8", ep=8, gpus=8)
        return pass_seconds(setting_of(task), task.model, "layer", few).total.seconds

    none, router, both, whole = (
        seconds(), seconds("router"), seconds("attention", "router"), seconds("iteration"),
    )  # fmt: skip
    assert none > router > both >= whole
    sheet = load_engine("megatron-core-2026")
    saved = sheet.router_launch_share * (
        sheet.expert_layer_launch_seconds - sheet.layer_launch_seconds / 2
    )
    assert none - router <= sheet.narrow_launch_factor * saved * 1.01


def test_python_takes_every_host_as_long_and_launches_grow_with_its_factor_and_the_format():
    """2.75 ms of 4.0 are Python's; the other 1.25 are 2.6 times as long on Grace, and 2.35 times in mxfp8."""
    sheet = load_engine("megatron-core-2026")
    found = {
        (device, precision): 1e3
        * sheet.expert_launch_seconds_on(
            load_device(device).host_times, precision, narrow=is_narrow(precision)
        )
        for device in (DEVICE, "gb200")
        for precision in ("bf16", "fp8", "mxfp8")
    }
    assert found == pytest.approx(
        {
            (DEVICE, "bf16"): 4.0, (DEVICE, "fp8"): 4.0, (DEVICE, "mxfp8"): 2.75 + 2.35 * 1.25,
            ("gb200", "bf16"): 2.75 + 2.6 * 1.25, ("gb200", "fp8"): 2.75 + 2.6 * 1.25,
            ("gb200", "mxfp8"): 2.75 + 2.6 * 2.35 * 1.25,
        }
    )  # fmt: skip


@given(tokens=st.integers(1, 2**15), sequences=st.integers(1, 64))
def test_attention_takes_longer_for_a_longer_sequence_and_less_for_a_token_of_a_shorter_one(
    tokens, sequences
):
    """The kernel's own start does not grow as sequences shrink, though their rate falls."""
    setting = setting_of(placed())

    def seconds(each):
        operator = Attention("core", sequences, each, 0, 32, 8, 128)
        facts, rates = setting.device, setting.kernels
        return fused_attention_seconds(facts, rates, operator, "bf16", backward=False).seconds

    assert seconds(tokens) <= seconds(tokens + 1)
    assert 2 * seconds(tokens) <= seconds(2 * tokens) + seconds(1)


def test_attention_has_half_of_its_rate_at_800_keys():
    """cuDNN on Hopper, by its calls on an H200: without its start, 3,200 keys take 10 times as long as 800, with 16 times the work."""
    setting = setting_of(placed())
    facts, rates = setting.device, setting.kernels

    def seconds(each):
        operator = Attention("core", 64, each, 0, 32, 8, 128)
        return fused_attention_seconds(facts, rates, operator, "bf16", backward=False).seconds

    assert seconds(3200) / seconds(800) == pytest.approx(16 * (4000 / 3200) / 2, rel=0.02)


def test_experts_computed_again_repeat_their_products_and_exchanges_and_no_attention():
    setting = setting_of(placed(by("hybridep")))
    forward = layer_operators(load_model(MODEL), setting.shard, ONE)
    again = recomputed_operators(forward, "experts", fused_attention=True)
    names = [each.name for each in again]
    assert names.count("expert exchange") == 2
    assert {"router", "mlp up", "mlp down", "combine"} <= set(names)
    assert not {"qkv", "attention", "attention output"} & set(names)
    cheap = recomputed_operators(forward, "selective", fused_attention=True)
    assert all(isinstance(each, Elementwise) and not each.permutes for each in cheap)
    exchanged = [each for each in again if isinstance(each, Collective)]
    assert price(setting, tuple(exchanged)).collectives == layer(by("hybridep")).collectives


def test_experts_computed_again_keep_less_than_cheap_kernels_computed_again():
    task = placed(by("hybridep"))
    held = KeptBatch(task.shard, 1, TOKENS, fused_attention=True)
    kept = {
        mode: layer_activation_bytes(task.model, held, mode)
        for mode in ("selective", "experts", "full")
    }
    assert kept["full"] < kept["experts"] < kept["selective"]


def test_a_layer_of_one_part_is_launched_as_one_part():
    """Of Nemotron 3 Nano, layers have a mixer or experts: none is launched as if it had both."""
    task = placed(by("hybridep"), model="nemotron-3-nano-30b-a3b", ep=8)
    setting, sheet = setting_of(task), load_engine("megatron-core-2026")
    found = {
        (kind.attention, kind.feed_forward_part): _layer_launch(setting, kind)
        for kind in layer_kinds(task.model).models
    }
    half = sheet.layer_launch_seconds / 2
    assert found["state-space", "none"] == found["grouped-attention", "none"] == half
    # Without attention, with a shared expert.
    assert found["none", "experts"] == pytest.approx(sheet.expert_layer_launch_seconds)


@pytest.mark.parametrize(
    ("model", "halves"), [("qwen3-235b-a22b", 0), ("glm-4.5-air", 1), ("deepseek-v3", 2)]
)
def test_latent_attention_and_shared_experts_are_launched_beside_what_other_layers_have(
    model, halves
):
    task = placed(by("all-to-all"), model=model, ep=8)
    setting, sheet = setting_of(task), load_engine("megatron-core-2026")
    kinds = layer_kinds(task.model).models
    kind = next(each for each in kinds if each.feed_forward_part == "experts")
    more = halves * sheet.layer_launch_seconds / 2
    told = sheet.expert_layer_launch_seconds + more
    assert _layer_launch(setting, kind) == pytest.approx(told)


def test_passes_without_gradients_have_no_other_micro_batch_to_overlap_with_and_no_graphs():
    told = by("hybridep", overlaps_exchange=True, graphs=("iteration",))
    task = placed(told)
    passed = replace(task, task=replace(task.task, kind="infer"))
    setting, trained = setting_of(passed), setting_of(task)
    assert (setting.hidden_exchange, setting.graphs) == (0.0, ())
    assert (trained.hidden_exchange, trained.graphs) == (0.45, ("iteration",))
    assert setting.dispatcher == trained.dispatcher == "hybridep"


def test_overlap_is_refused_where_nobody_knows_how_much_it_hides():
    with pytest.raises(MissingFactError, match=r"trainers\.actor\.overlaps_exchange"):
        setting_of(placed(by("hybridep", overlaps_exchange=True), engine="fsdp2-hf-experts"))


@pytest.mark.parametrize("engine", ["prime-rl", "megatron-core-2026"])
def test_ranks_of_a_context_bring_one_batch_to_the_experts_that_they_share_out(engine):
    """Eight ranks of a group are two contexts of four ranks, whatever places a rank: four batches do not meet in it."""
    task = placed(ep=8, engine=engine)
    layout = replace(task.layout, dp=4, cp=4)
    assert replace(task, layout=layout).expert_batches == 2
