"""What ranks receive in a transition makes up their generate shards, and is as much as the formulas say.

Weights are cut, sent and put together here without any process, for all train layouts of up to
eight ranks and all generate layouts that divide them.
"""

from itertools import product
from math import prod
from types import SimpleNamespace

import pytest
import torch

from rlplan.executor.model.building import stage_layers
from rlplan.executor.parallel.positions import gather_groups, generation_positions, train_positions
from rlplan.executor.parallel.tensor_parallel import span_of
from rlplan.executor.weights.flat import Entry
from rlplan.executor.weights.transition import (
    Block,
    Part,
    ShardLayout,
    buckets_of,
    export_slices,
    overlap,
    spans_of_blocks,
    wanted_entries,
    write_block,
    write_shard,
    write_slice,
)
from rlplan.plan import TaskPlan
from rlplan.transfers import TransitionShape, transition_volume
from tests.cases import only

# The width divides by every size up to eight, the layers by all but five and seven, the vocabulary by none.
LAYERS, WIDTH, VOCABULARY = 24, 840, 841
BYTES = torch.float32.itemsize
# Elements; it cuts most parameters, and holds a few of others.
BUCKET = 500


def parameters(norms):
    """Return whole parameters and how each is cut; without norms all of them are cut evenly."""
    generator = torch.Generator().manual_seed(1)
    made = {}
    for layer in range(LAYERS):
        made[f"layers.{layer}.up"] = (torch.randn(WIDTH, 1, generator=generator), 0)
        made[f"layers.{layer}.down"] = (torch.randn(1, WIDTH, generator=generator), 1)
        if norms:
            made[f"layers.{layer}.norm"] = (torch.randn(5, generator=generator), None)
    if norms:
        made["embed"] = (torch.randn(VOCABULARY, 1, generator=generator), 0)
        made["head"] = (torch.randn(VOCABULARY, 1, generator=generator), 0)
    return made


def shard_of(whole, rank, pp, tp, pp_size, tp_size):
    """Return what a rank holds: cut parameters first, as the executor lays them out."""
    mine = set(stage_layers(LAYERS, pp_size)[pp])
    names = [n for n in whole if n.startswith("layers") and int(n.split(".")[1]) in mine]
    names += ["embed"] if "embed" in whole and pp == 0 else []
    names += ["head"] if "head" in whole and pp == pp_size - 1 else []
    entries, values, start = [], [], 0
    for name in sorted(names, key=lambda n: (whole[n][1] is None, names.index(n))):
        tensor, dimension = whole[name]
        if tp_size == 1:
            dimension = None
        part, lies = tensor, (0, 0)
        if dimension is not None:
            whole_size = tensor.shape[dimension]
            first, end = span_of(whole_size, tp_size, tp)
            part, lies = tensor.narrow(dimension, first, end - first), (first, whole_size)
        stop = start + part.numel()
        entries.append(Entry(name, start, stop, tuple(part.shape), dimension, *lies))
        values.append(part.reshape(-1))
        start = stop
    return ShardLayout(rank, pp, tp, tuple(entries)), torch.cat(values)


def plan_of(train, generate, transition, two_pools=False):
    pools = {"actor.update": "p0", "actor.generate": "p1" if two_pools else "p0"}
    tasks = {
        "actor.update": TaskPlan(pool="p0", pp=train[0], tp=train[1], dp=train[2]),
        "actor.generate": TaskPlan(pool=pools["actor.generate"], pp=generate[0], tp=generate[1]),
    }
    gpus = train[0] * train[1] * train[2]
    return SimpleNamespace(
        tasks=tasks, transition=transition, pool_of=lambda _: SimpleNamespace(gpus=gpus)
    )


def write_blocks(target, made, blocks, source):
    """Write rows of a rank's weights into a shard; nothing but the rows is read."""
    _, values = source
    targets = {entry.name: entry for entry in target.entries}
    for block in blocks:
        entry = targets.get(block.entry.name)
        if entry is not None:
            start, stop = block.span
            rows = values[start:stop].view(-1, *block.entry.shape[1:])
            view = made[entry.start : entry.stop].view(entry.shape)
            write_block(block, rows, entry, view)


def divisors(number):
    return [size for size in range(1, number + 1) if number % size == 0]


LAYOUTS = [
    (train, generate)
    for train in product(range(1, 9), repeat=3)
    if train[0] * train[1] * train[2] <= 8
    for generate in product(divisors(train[0]), divisors(train[1]))
]
# By default those on eight ranks, where every size has room to differ.
CHOSEN = [case for case in LAYOUTS if prod(case[0]) == 8][::3]


def gathered(plan, whole):
    """Return, by rank, the generate shard that a transition makes, what it should be, and bytes."""
    train, generate = plan.tasks["actor.update"], plan.tasks["actor.generate"]
    ranks = plan.pool_of("actor.update").gpus
    at, gen_at = train_positions(train.tp, ranks, train.pp), generation_positions(plan)
    held = [
        shard_of(whole, rank, at.pp[rank], at.tp[rank], train.pp, train.tp) for rank in range(ranks)
    ]
    for group in gather_groups(plan):
        members = [held[rank][0] for rank in group]
        for rank in group:
            place = gen_at.pp[rank], gen_at.tp[rank]
            target, expected = shard_of(whole, rank, *place, generate.pp, generate.tp)
            names = {entry.name for entry in target.entries}
            if plan.transition != "hybridflow":
                names = set(whole)
            made, received = torch.full_like(expected, float("nan")), 0
            own = [Block(entry, 0, entry.shape[0]) for entry in held[rank][0].entries]
            write_blocks(target, made, own, held[rank])
            for member in members:
                entries = wanted_entries(held[rank][0], member, members, frozenset(names))
                for bucket in buckets_of(entries, BUCKET):
                    received += sum(block.elements for block in bucket) * BYTES
                    write_blocks(target, made, bucket, held[member.rank])
            back = torch.full_like(held[rank][1], float("nan"))
            yield made, expected, received, (target, held[rank], back)


@pytest.mark.parametrize("transition", ["hybridflow", "hybridflow-v"])
@pytest.mark.parametrize(
    ("train", "generate"),
    only(CHOSEN, [case for case in LAYOUTS if LAYERS % case[0][0] == 0]),
    ids=str,
)
def test_bytes_are_the_formula_s_where_weights_divide_evenly(train, generate, transition):
    whole = parameters(norms=False)
    model_bytes = sum(tensor.numel() for tensor, _ in whole.values()) * BYTES
    shape = TransitionShape(
        pp=train[0], tp=train[1], dp=train[2], pp_gen=generate[0], tp_gen=generate[1]
    )
    formula = transition_volume(transition, model_bytes, shape)
    for made, expected, received, _ in gathered(plan_of(train, generate, transition), whole):
        assert torch.equal(made, expected)
        assert received == round(formula.received_bytes)


@pytest.mark.parametrize(("train", "generate"), only(CHOSEN, LAYOUTS), ids=str)
def test_zero_redundancy_receives_what_a_rank_lacks_and_gives_the_train_shard_back(train, generate):
    whole = parameters(norms=True)
    for made, expected, received, (target, (mine, flat), back) in gathered(
        plan_of(train, generate, "hybridflow"), whole
    ):
        assert torch.equal(made, expected)
        assert received == (len(expected) - len(flat)) * BYTES
        write_shard(Part(mine.entries, back), Part(target.entries, made))
        assert torch.equal(back, flat)


@pytest.mark.parametrize(("train", "generate"), only(CHOSEN, LAYOUTS), ids=str)
def test_a_whole_block_receives_what_a_rank_lacks_of_the_model(train, generate):
    whole = parameters(norms=True)
    size = sum(tensor.numel() for tensor, _ in whole.values())
    plan = plan_of(train, generate, "all-gather")
    for made, expected, received, (_, (_, flat), _) in gathered(plan, whole):
        assert torch.equal(made, expected)
        assert received == (size - len(flat)) * BYTES


@pytest.mark.parametrize("generate", [(1, 1), (1, 4), (2, 2), (4, 1), (1, 8), (8, 1)], ids=str)
@pytest.mark.parametrize("train", [(1, 1), (2, 2), (4, 1), (1, 4), (1, 8)], ids=str)
def test_another_pool_receives_its_shards_and_no_byte_more(train, generate):
    whole = parameters(norms=True)
    sources = [
        shard_of(whole, rank, rank // train[1], rank % train[1], *train)
        for rank in range(train[0] * train[1])
    ]
    for rank in range(generate[0] * generate[1]):
        target, expected = shard_of(whole, rank, rank // generate[1], rank % generate[1], *generate)
        made, received = torch.full_like(expected, float("nan")), 0
        for bucket in buckets_of(target.entries, BUCKET):
            came = 0
            for layout, values in sources:
                slices, message = export_slices(layout, values, bucket)
                came += message.numel()
                write_slices(target, made, slices, message)
            assert came == sum(block.elements for block in bucket) <= WIDTH
            received += came
        assert torch.equal(made, expected)
        assert received == len(expected)


def write_slices(target, made, slices, message):
    entries = {entry.name: entry for entry in target.entries}
    for piece in slices:
        entry = entries[piece.name]
        write_slice(piece, message, made[entry.start : entry.stop].view(entry.shape))


def test_a_tied_head_comes_from_the_stage_that_embeds():
    embedding = torch.randn(4, 2)
    source = ShardLayout(0, 0, 0, (Entry("backbone.embed_tokens.weight", 0, 8, (4, 2), None),))
    target = ShardLayout(0, 1, 0, (Entry("head.weight", 0, 8, (4, 2), None),))
    (bucket,) = buckets_of(target.entries, 8)
    slices, message = export_slices(source, embedding.reshape(-1), bucket, target_head_is_tied=True)
    made = torch.zeros(8)
    write_slices(target, made, slices, message)
    assert torch.equal(made, embedding.reshape(-1))
    assert export_slices(source, embedding.reshape(-1), bucket)[0] == []


def test_parts_that_do_not_overlap_give_nothing():
    halves = [Entry("w", 0, 8, (4, 2), 0, first, 8) for first in (0, 4)]
    quarters = [Entry("w", 0, 4, (2, 2), 0, first, 8) for first in (0, 2, 4, 6)]
    assert overlap(halves[0], quarters[1]) == (0, 2, 0, 2)
    assert overlap(halves[0], quarters[2]) is None
    assert overlap(quarters[3], halves[1]) == (0, 0, 2, 2)
    uneven = Entry("w", 0, 6, (3, 2), 0, 2, 8)
    assert overlap(uneven, halves[0]) == (0, 0, 2, 2)
    assert overlap(uneven, halves[1]) == (0, 2, 0, 1)


def test_rows_fill_buckets_one_after_another():
    wide = Entry("wide", 0, 12, (4, 3), 0)
    norm = Entry("norm", 12, 14, (2,), None)
    assert buckets_of([wide, norm], 7) == [
        [Block(wide, 0, 2)],
        [Block(wide, 2, 4), Block(norm, 0, 1)],
        [Block(norm, 1, 2)],
    ]
    assert buckets_of([wide], 2) == [[Block(wide, row, row + 1)] for row in range(4)]
    assert buckets_of([], 7) == []


def test_neighbouring_rows_are_one_message():
    one, other = Entry("a", 0, 4, (4,), 0), Entry("b", 4, 6, (2,), 0)
    apart = Entry("c", 9, 10, (1,), 0)
    blocks = [Block(one, 1, 4), Block(other, 0, 2), Block(apart, 0, 1)]
    assert spans_of_blocks(blocks) == [(1, 6), (9, 10)]
