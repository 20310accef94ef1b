from hypothesis import given
from hypothesis import strategies as st

from rlplan.layout import GenerateLayout, ModelCut, TrainLayout
from rlplan.plan import TaskPlan
from rlplan.transfers import TRANSFERS, TransitionShape, transfer_names, transition_volume
from tests.strategies import train_layouts

EXAMPLE = GenerateLayout(train=TrainLayout(pp=1, tp=4, dp=2), pp=1, tp=2)


def test_the_groups_of_the_paper_s_example():
    assert [EXAMPLE.replica(rank) for rank in range(8)] == [0, 1, 0, 1, 2, 3, 2, 3]
    assert EXAMPLE.micro_dp_groups() == ((0, 1), (2, 3), (4, 5), (6, 7))


def test_tensor_parallel_ranks_are_consecutive_then_pipeline_then_data():
    layout = TrainLayout(pp=2, tp=2, dp=2)
    places = [layout.coordinate(rank) for rank in range(layout.ranks)]
    assert [place.tp for place in places] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [place.pp for place in places] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [place.dp for place in places] == [0, 0, 0, 0, 1, 1, 1, 1]


@given(train_layouts)
def test_every_rank_is_at_its_own_coordinate(layout):
    assert len({layout.coordinate(rank) for rank in range(layout.ranks)}) == layout.ranks


@st.composite
def generate_layouts(draw):
    train = draw(train_layouts)
    divisors = lambda n: [size for size in (1, 2, 4) if n % size == 0]  # noqa: E731
    return GenerateLayout(
        train=train,
        pp=draw(st.sampled_from(divisors(train.pp))),
        tp=draw(st.sampled_from(divisors(train.tp))),
    )


@given(generate_layouts())
def test_every_replica_holds_each_shard_once(layout):
    seen = {(layout.replica(rank), layout.shard(rank)) for rank in range(layout.train.ranks)}
    assert len(seen) == layout.train.ranks
    assert {replica for replica, _ in seen} == set(range(layout.micro_dp * layout.train.dp))


@given(generate_layouts())
def test_ranks_of_one_block_that_hold_the_same_shard_are_one_group(layout):
    held = {}
    for rank in range(layout.train.ranks):
        held.setdefault((layout.train.coordinate(rank).dp, layout.shard(rank)), []).append(rank)
    assert layout.micro_dp_groups() == tuple(map(tuple, sorted(held.values())))


@given(generate_layouts())
def test_without_redundancy_a_train_shard_is_a_slice_of_its_generate_shard(layout):
    for rank in range(layout.train.ranks):
        at, (pp, tp) = layout.train.coordinate(rank), layout.shard(rank)
        assert pp * layout.train.pp // layout.pp <= at.pp < (pp + 1) * layout.train.pp // layout.pp
        assert tp * layout.train.tp // layout.tp <= at.tp < (tp + 1) * layout.train.tp // layout.tp


def test_the_transitions_of_the_paper_s_table():
    shape = TransitionShape(tp=4, pp=2, dp=2, tp_gen=2, pp_gen=1)
    known = [name for name in transfer_names() if not TRANSFERS.load(name).method]
    rows = {name: transition_volume(name, 160.0, shape) for name in known if name != "none"}
    figures = {
        name: (row.received_bytes, row.peak_weight_bytes, row.redundant_bytes)
        for name, row in rows.items()
    }
    assert figures == {
        "all-gather": (150.0, 160.0, 10.0),
        "hybridflow-v": (140.0, 160.0, 20.0),
        "hybridflow": (60.0, 80.0, 0.0),
        "two-copies": (80.0, 80.0, 80.0),
    }


def test_a_layout_says_how_it_cuts_weights():
    layout = TaskPlan(pool="p0", tp=4, pp=2, dp=3, ep=8, expert_tp=2, last_stage_layers=5)
    assert layout.cut == ModelCut(tp=4, pp=2, ep=8, expert_tp=2, first_layers=0, last_layers=5)
    assert (layout.cut.expert_width, TaskPlan(pool="p0", tp=4).cut.expert_width) == (2, 4)


def test_layers_are_cut_alike_on_every_stage_and_shared_out_alike_however_they_are_cut():
    cut = ModelCut(tp=4, pp=2, ep=8, expert_tp=2, first_layers=3)
    assert cut.of_layers == ModelCut(tp=4, ep=8, expert_tp=2)
    assert cut.of_stages == ModelCut(pp=2, first_layers=3)
