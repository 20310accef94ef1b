"""What samples of one prompt share: outputs and gradients are those of every sample by itself."""

from dataclasses import replace
from functools import cache
from itertools import groupby, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.executor.data.packing import balanced_rows, pack, packed_tokens, prompt_leaders
from rlplan.executor.parallel.meshes import RankGroup, make_mesh
from rlplan.executor.parallel.positions import train_positions
from rlplan.executor.passes import head_outputs, policy_reader, read_scores, read_values
from rlplan.executor.weights.shard import build_shard
from tests.executor.plans import TINY

PROMPT_WIDTH, RESPONSE_WIDTH, MOST_SAMPLES = 6, 5, 6
MODEL = replace(TINY, num_layers=2)
# By group: its prompt's tokens, and the tokens of each sample's response.
groups = st.lists(
    st.tuples(
        st.integers(0, PROMPT_WIDTH),
        st.lists(st.integers(0, RESPONSE_WIDTH), min_size=1, max_size=MOST_SAMPLES),
    ),
    min_size=1,
    max_size=4,
).filter(lambda drawn: sum(p + r for p, samples in drawn for r in samples) > 0)


def sequences(drawn, filler=0):
    """Return tokens and parts of drawn groups, padded as generation pads them."""
    generator = torch.Generator().manual_seed(len(drawn))
    rows = sum(len(samples) for _, samples in drawn)
    shape = (rows, PROMPT_WIDTH + RESPONSE_WIDTH)
    tokens = torch.randint(1, MODEL.vocab_size, shape, generator=generator)
    parts = torch.zeros(shape, dtype=torch.int8)
    row = 0
    for length, samples in drawn:
        prompt = tokens[row, :PROMPT_WIDTH].clone()
        for response in samples:
            tokens[row, :PROMPT_WIDTH] = prompt
            parts[row, PROMPT_WIDTH - length : PROMPT_WIDTH] = 1
            parts[row, PROMPT_WIDTH : PROMPT_WIDTH + response] = 2
            row += 1
    return torch.where(parts == 0, filler, tokens), parts


@cache
def shard_of(head):
    mesh = make_mesh(train_positions(1, 1), 0, torch.device("cpu"))
    return build_shard(
        MODEL, head, mesh, role="reward", seed=3, precision="fp32", learning_rate=1e-3
    )


def said_and_gradient(shard, reader, batches):
    """Return what is said of batches one after another, and the weights' gradient."""
    shard.flat.gradients.zero_()
    outputs = []
    for tokens, parts in batches:
        packed = pack(tokens, parts)
        outputs.append(reader(head_outputs(shard, packed), packed))
    joined = {name: torch.cat([each[name] for each in outputs]) for name in outputs[0]}
    generator = torch.Generator().manual_seed(0)
    loss = sum(
        (torch.randn(value.shape, generator=generator) * value).sum() for value in joined.values()
    )
    loss.backward()
    return {name: value.detach() for name, value in joined.items()}, shard.flat.gradients.clone()


# Each draws several passes of a model.
a_few = settings(max_examples=settings().max_examples // 4)
READERS = {
    "lm": policy_reader(0.7, entropy=True),
    "scalar": read_values,
}


@pytest.mark.full
@a_few
@given(groups, st.sampled_from(["lm", "scalar"]))
def test_a_sample_beside_others_of_its_prompt_says_and_learns_what_it_does_alone(drawn, head):
    tokens, parts = sequences(drawn)
    alone = [(tokens[[row]], parts[[row]]) for row in range(len(tokens))]

    shard, reader = shard_of(head), READERS[head]
    said, gradient = said_and_gradient(shard, reader, [(tokens, parts)])
    expected, expected_gradient = said_and_gradient(shard, reader, alone)

    for name, value in said.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-3, atol=1e-4)


@a_few
@given(groups.filter(lambda drawn: all(p for p, _ in drawn)))
def test_a_response_has_the_score_that_it_has_alone(drawn):
    tokens, parts = sequences(drawn)
    shard = shard_of("scalar")
    packed = pack(tokens, parts)
    beside = read_scores(head_outputs(shard, packed), packed)["scores"]
    for row in range(len(tokens)):
        packed = pack(tokens[[row]], parts[[row]])
        alone = read_scores(head_outputs(shard, packed), packed)["scores"]
        torch.testing.assert_close(beside[[row]], alone, rtol=1e-4, atol=1e-5)


@given(groups)
def test_a_prompt_without_its_last_token_stands_once_for_all_its_samples(drawn):
    tokens, parts = sequences(drawn)
    leaders = prompt_leaders(tokens, parts).tolist()
    expected = 0
    for _, group in groupby(range(len(tokens)), key=leaders.__getitem__):
        rows = list(group)
        prompt = int((parts[rows[0]] == 1).sum())
        expected += int((parts[rows] != 0).sum()) - (len(rows) - 1) * max(0, prompt - 1)
    assert packed_tokens(tokens, parts) == expected
    assert pack(tokens, parts).length == max(1, expected)


@given(groups, st.sampled_from([1, 2, 3]))
def test_every_token_of_a_sequence_is_found_in_the_row_and_followed_by_its_next_one(drawn, ranks):
    tokens, parts = sequences(drawn)
    shares = [pack(tokens, parts, ranks=RankGroup(ranks, rank)) for rank in range(ranks)]
    row = torch.stack([share.tokens[0] for share in shares], dim=1).flatten()
    following = torch.stack([share.next_tokens for share in shares], dim=1).flatten()
    positions = torch.stack([share.positions[0] for share in shares], dim=1).flatten()
    packed, slots = shares[0], shares[0].slots
    assert row[packed.found].equal(tokens[parts != 0])
    for before, after in pairwise(range(len(packed.rows))):
        if packed.rows[before] == packed.rows[after]:
            assert following[packed.found[before]] == row[packed.found[after]]
    taken = slots.taken.view(slots.count, slots.width)
    for sequence in range(slots.count):
        length = int((parts[sequence] != 0).sum())
        assert positions[taken[sequence, :length]].tolist() == list(range(length))
        assert row[taken[sequence, :length]].equal(tokens[sequence, parts[sequence] != 0])


def test_prompts_that_differ_by_a_token_or_by_their_padding_share_nothing():
    tokens = torch.tensor([[5, 6, 7, 1], [5, 6, 8, 2], [0, 6, 8, 3], [0, 6, 8, 4], [5, 6, 7, 1]])
    parts = torch.tensor([[1, 1, 1, 2]] * 2 + [[0, 1, 1, 2]] * 2 + [[1, 1, 1, 2]])
    assert prompt_leaders(tokens, parts).tolist() == [0, 1, 2, 2, 4]
    # The fourth row is without the 6 that the third one has already.
    assert pack(tokens, parts).tokens.tolist() == [
        [5, 6, 7, 1, 5, 6, 8, 2, 6, 8, 3, 8, 4, 5, 6, 7, 1]
    ]


def grouped(sizes, lengths=None):
    """Return groups of samples of prompts of three tokens, with responses of the lengths."""
    drawn, row = [], 0
    for size in sizes:
        drawn.append((3, [lengths[row + number] if lengths else 2 for number in range(size)]))
        row += size
    return sequences(drawn)


def balanced(sizes, micro_batch, lengths=None, multiple=1):
    """Return the rows of each micro-batch of groups."""
    tokens, parts = grouped(sizes, lengths)
    return balanced_rows(tokens, parts, micro_batch, multiple=multiple)


def test_samples_of_a_prompt_go_to_one_micro_batch_where_it_has_room_for_all():
    assert balanced([4, 4, 4], 8) == [[0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7]]


def test_groups_that_do_not_fit_are_cut():
    assert balanced([4, 4], 2) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert balanced([4, 4, 4], 6) == [[0, 1, 2, 3, 8, 9], [4, 5, 6, 7, 10, 11]]


def test_no_micro_batch_of_a_round_stays_empty_while_there_are_rows():
    assert balanced([4], 4, multiple=2) == [[0, 2], [1, 3]]
    assert balanced([1], 4, multiple=2) == [[0], []]


def test_the_longest_rows_go_first_each_to_the_lightest_micro_batch():
    lengths = [5, 1, 4, 2, 3, 3]
    assert balanced([1] * 6, 3, lengths) == [[0, 1, 5], [2, 3, 4]]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(1, 8), st.integers(1, 4))
def test_every_row_is_once_in_as_few_micro_batches_as_hold_all(sizes, micro_batch, multiple):
    tokens, parts = grouped(sizes)
    balanced = balanced_rows(tokens, parts, micro_batch, multiple=multiple)
    assert sorted(row for rows in balanced for row in rows) == list(range(sum(sizes)))
    fewest = -(-sum(sizes) // micro_batch)
    assert len(balanced) == -(-fewest // multiple) * multiple
    assert all(len(rows) <= micro_batch for rows in balanced)
    if len(set(sizes)) == 1 and micro_batch % sizes[0] == 0 and multiple == 1:
        assert all(len(rows) % sizes[0] == 0 for rows in balanced)


@pytest.mark.parametrize("rows", [[], [0], [0, 0]])
def test_empty_rows_share_nothing(rows):
    tokens = torch.zeros(len(rows), 4, dtype=torch.long)
    assert packed_tokens(tokens, torch.zeros_like(tokens)) == 0
