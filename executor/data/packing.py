"""Sequences packed one after another into micro-batches, with what each layout makes of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

import torch
from torch import Tensor

from rlplan.executor.data.batches import PADDING, PROMPT
from rlplan.executor.parallel.context import gather_rows
from rlplan.executor.parallel.meshes import ONE_RANK, RankGroup

# Queries of a block under a mask. On a CPU 64 to 256 are equally fast: fewer are more calls, more
# multiply more keys that they mask out.
BLOCK_QUERIES = 128


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Locate packed sequences one after another, in the form of variable-length attention kernels.

    Tokens that sequences share, such as a prompt, are stored once, before each sequence's own tokens.

    Attributes:
        filled: Tokens of the packed row before its filler.
        queries: Offsets of each sequence's own tokens in the row, with the end of the last. int32, (B + 1,).
        keys: Offsets of all tokens of each sequence, shared ones included, laid out one sequence after another. int32,
            (B + 1,).
        found: Packed position of each token of that layout; None where it equals the row. Shape (n,).
    """

    filled: int
    queries: Tensor
    keys: Tensor
    found: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class SequenceSlots:
    """Map a packed row to a padded batch, in which every sequence has its own row, and back.

    Attributes:
        count: Sequences, B.
        width: Tokens of the longest one, W.
        taken: Packed position of each of the B * W padded places; shared tokens are taken several times, and places
            beyond a sequence's end take any token.
        places: Padded place of each packed token, in the first sequence that has it. Shape (L,).
        dense: Whether both orders are equal, so that nothing needs to be moved.
        runs: The same sequences for variable-length kernels; None if other ranks hold some of their tokens.
        stripe: This rank's queries, where context-parallel ranks share them.
    """

    count: int
    width: int
    taken: Tensor
    places: Tensor
    dense: bool
    runs: Runs | None = None
    stripe: "Stripe | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class Stripe:
    """Say where this rank's tokens of a packed row stand among its sequences.

    Attributes:
        ranks: Who has the other tokens.
        slots: Where this rank's stand when every sequence has a row of its own.
        seen: True where such a query attends a key of its sequence. Shape (B, 1, its width, W).
        blocks: Queries that are multiplied together, each with how many keys any of them sees.
    """

    ranks: RankGroup
    slots: SequenceSlots
    seen: Tensor
    blocks: tuple[tuple[slice, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Hold the tokens of a micro-batch in one row of L, filler at its end; or a rank's share of them.

    Attributes:
        tokens: This rank's. Shape (1, L / n).
        next_tokens: What follows each of them in the row. Shape (L / n,).
        positions: Position of each of them in its sequence. Shape (1, L / n).
        slots: Which tokens attend to each other.
        rows, columns: Where each of the n real tokens stands in the padded batch. Shape (n,).
        found: Packed position of each of them, the same one where sequences share a token. (n,).
        shape: (B, T) of the padded batch.
        ranks: The n ranks that share the row.
    """

    tokens: Tensor
    next_tokens: Tensor
    positions: Tensor
    slots: SequenceSlots
    rows: Tensor
    columns: Tensor
    found: Tensor
    shape: tuple[int, int]
    ranks: RankGroup = ONE_RANK

    @property
    def length(self) -> int:
        """Return this rank's part of L, the filler included."""
        return self.tokens.shape[1]

    def whole(self, values: Tensor) -> Tensor:
        """Return the values of all ranks' positions, in the row's order. Shape (L,).

        Args:
            values: Of this rank's positions. Shape (L / n,).
        """
        return gather_rows(values, self.ranks, alike=True)

    def predictions_at_tokens(self, values: Tensor) -> Tensor:
        """Return what each position predicts of the next token, at that token's place. Shape (B, T).

        The first token of a sequence is predicted by nothing: zero, as all padding.

        Args:
            values: What this rank's positions predict of the tokens after them. Shape (L / n,).
        """
        before = self.whole(values).index_select(0, self.found[:-1])
        follows = self.rows[1:] == self.rows[:-1]
        kept = torch.where(follows, before, torch.zeros_like(values[:1]))
        placed = values.new_zeros(self.shape)
        return placed.index_put((self.rows[1:], self.columns[1:]), kept)

    def last_positions(self) -> Tensor:
        """Return the packed position of each sequence's last token. Shape (B,)."""
        lengths = torch.bincount(self.rows, minlength=self.shape[0])
        return self.found[lengths.cumsum(0) - 1]


def pack(
    tokens: Tensor,
    parts: Tensor,
    *,
    length: int = 0,
    multiple: int = 1,
    ranks: RankGroup = ONE_RANK,
) -> Packed:
    """Return the tokens of padded sequences in one row, or this rank's share of them.

    Args:
        tokens: Shape (B, T).
        parts: What stands where. Shape (B, T).
        length: Least L; the filler attends to no sequence.
        multiple: Each rank's share is divisible by it.
        ranks: Who shares the row; rank r of n has every n-th token, from its r-th on.
    """
    present = parts != PADDING
    rows, columns = present.nonzero(as_tuple=True)
    leaders = prompt_leaders(tokens, parts)
    kept = _stored_once(parts, leaders)
    held, _ = kept.nonzero(as_tuple=True)
    filled = len(held)
    step = multiple * ranks.size
    total = -(-max(length, filled, 1) // step) * step
    positions = tokens.new_zeros(total)
    positions[:filled] = (present.cumsum(dim=1) - 1)[kept]
    packed = tokens.new_zeros(total)
    packed[:filled] = tokens[kept]
    numbers = (kept.flatten().cumsum(0) - 1).view(kept.shape)
    found = torch.where(kept, numbers, numbers[leaders])[present]
    lengths = present.sum(dim=1)
    slots = _slots(lengths, found, held, positions)
    mine = slice(ranks.position, None, ranks.size)
    if ranks.size > 1:
        slots = replace(slots, stripe=_stripe(slots, held[mine], positions[mine], ranks))
    elif filled:
        slots = replace(slots, runs=_runs(lengths, found, held))
    return Packed(
        tokens=packed[None, mine],
        next_tokens=packed.roll(-1)[mine],
        positions=positions[None, mine],
        slots=slots,
        rows=rows,
        columns=columns,
        found=found,
        shape=(tokens.shape[0], tokens.shape[1]),
        ranks=ranks,
    )


def _runs(lengths: Tensor, found: Tensor, rows: Tensor) -> Runs:
    """Return where sequences lie one after another; arguments are those of `_slots`."""
    keys = _bounds(lengths)
    if len(found) == len(rows):
        return Runs(len(rows), keys, keys, None)
    return Runs(len(rows), _bounds(torch.bincount(rows, minlength=len(lengths))), keys, found)


def _bounds(lengths: Tensor) -> Tensor:
    """Return where each of some runs begins, and where the last one ends. int32, (B + 1,)."""
    bounds = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=lengths.device)
    torch.cumsum(lengths, dim=0, dtype=torch.int32, out=bounds[1:])
    return bounds


def _stripe(slots: SequenceSlots, rows: Tensor, positions: Tensor, ranks: RankGroup) -> Stripe:
    """Return where a rank's tokens stand.

    Args:
        rows: Sequence of each of its n tokens. Shape (n,).
        positions: Their positions in them, then those of filler. Shape (L / n,).
    """
    lengths = torch.bincount(rows, minlength=slots.count)
    ordinals = torch.zeros_like(positions)
    places = torch.arange(len(rows), device=rows.device)
    ordinals[: len(rows)] = places - (lengths.cumsum(0) - lengths)[rows]
    mine = _slots(lengths, places, rows, ordinals)
    reach = positions[mine.taken].view(slots.count, 1, mine.width, 1)
    keys = torch.arange(slots.width, device=rows.device)
    return Stripe(ranks, mine, keys <= reach, _blocks(reach.amax(dim=(0, 1, 3))))


def _blocks(reach: Tensor) -> tuple[tuple[slice, int], ...]:
    """Return blocks of queries, each with how many keys any of them sees.

    Args:
        reach: Position of the last key that a query of any sequence sees. Shape (queries,).
    """
    blocks = [
        slice(start, min(start + BLOCK_QUERIES, len(reach)))
        for start in range(0, len(reach), BLOCK_QUERIES)
    ]
    last = torch.stack([reach[queries].max() for queries in blocks]).tolist()
    return tuple((queries, key + 1) for queries, key in zip(blocks, last, strict=True))


def packed_tokens(tokens: Tensor, parts: Tensor) -> int:
    """Return how many tokens padded sequences have between them, shared ones counted once."""
    return int(_stored_once(parts, prompt_leaders(tokens, parts)).sum())


def _stored_once(parts: Tensor, leaders: Tensor) -> Tensor:
    """Return which tokens are stored in a packed row; tokens shared with the row's leader are stored with the leader. (B, T)."""
    leads = leaders == torch.arange(len(leaders), device=leaders.device)
    return (parts != PADDING) & (leads[:, None] | ~shared_part(parts))


def _slots(lengths: Tensor, found: Tensor, rows: Tensor, positions: Tensor) -> SequenceSlots:
    """Return the slots of a packed row.

    Args:
        lengths: Tokens of each sequence. Shape (B,).
        found: Packed position of each token of each sequence. Shape (n,).
        rows: First sequence of each packed token. Shape (filled,).
        positions: Their positions in it, then those of filler. Shape (L,).
    """
    if lengths.numel() == 0:
        lengths = positions.new_zeros(1)
    width, filled = max(1, int(lengths.max())), len(rows)
    places = positions.new_zeros(positions.shape)
    places[:filled] = rows * width + positions[:filled]
    inside = torch.arange(width, device=positions.device) < lengths[:, None]
    taken = positions.new_zeros(inside.shape).masked_scatter(inside, found).flatten()
    dense = taken.numel() == filled == positions.numel()
    return SequenceSlots(lengths.numel(), width, taken, places, dense)


def prompt_leaders(tokens: Tensor, parts: Tensor) -> Tensor:
    """Return each row's leader: the first of the neighbouring rows that have its prompt. Shape (B,).

    Args:
        tokens: Prompts stand in the same columns where they are the same. Shape (B, T).
        parts: What stands where. Shape (B, T).
    """
    prompts = torch.where(parts == PROMPT, tokens, -1)
    leads = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
    leads[1:] = (prompts[1:] != prompts[:-1]).any(dim=1)
    rows = torch.arange(len(tokens), device=tokens.device)
    return torch.where(leads, rows, 0).cummax(dim=0).values


def shared_part(parts: Tensor) -> Tensor:
    """Return which tokens the samples of a prompt share: all of it but its last token. Shape (B, T).

    What follows the last token differs by sample.
    """
    prompt = parts == PROMPT
    ordinals = prompt.cumsum(dim=1)
    return prompt & (ordinals < ordinals[:, -1:])


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Hold the tokens of each row, and how many of them its prompt's other samples have too."""

    tokens: Sequence[int]
    shared: Sequence[int]

    def of(self, rows: Sequence[int]) -> int:
        """Return the packed tokens of samples of one prompt."""
        return sum(self.tokens[row] for row in rows) - (len(rows) - 1) * self.shared[rows[0]]


def balanced_rows(
    tokens: Tensor, parts: Tensor, micro_batch: int, *, multiple: int = 1
) -> list[list[int]]:
    """Return the rows of micro-batches of at most `micro_batch` sequences and about equal tokens.

    There are as few micro-batches as hold all rows. Samples of one prompt stay together, since they share its tokens
    in a packed row. Prompts are placed by descending tokens, each in the micro-batch with the fewest tokens that has
    room (Graham 1969, longest processing time first). Samples of a prompt are split only if they exceed a micro-batch,
    if no micro-batch has room for all of them, or if a micro-batch would stay empty.

    Args:
        tokens: Shape (B, T).
        parts: Kind of each token (prompt, response, padding). Shape (B, T).
        multiple: Divides the number of micro-batches; with too few rows some are empty.
    """
    sizes = _Sizes((parts != PADDING).sum(dim=1).tolist(), shared_part(parts).sum(dim=1).tolist())
    count = -(-len(tokens) // micro_batch)
    count = -(-count // multiple) * multiple
    pieces: list[list[int]] = []
    for row, leader in enumerate(prompt_leaders(tokens, parts).tolist()):
        if row == leader:
            pieces.append([])
        pieces[-1].append(row)
    pieces = [part for rows in pieces for part in _cut(rows, -(-len(rows) // micro_batch), sizes)]
    while len(pieces) < min(count, len(tokens)):
        largest = max((rows for rows in pieces if len(rows) > 1), key=sizes.of)
        pieces.remove(largest)
        pieces += _cut(largest, 2, sizes)
    return _balanced(pieces, count, micro_batch, sizes)


def _cut(rows: list[int], count: int, sizes: _Sizes) -> list[list[int]]:
    """Return samples of one prompt in so many parts of about equal tokens."""
    if count == 1:
        return [rows]
    return _balanced([[row] for row in rows], count, -(-len(rows) // count), sizes)


def _balanced(
    pieces: Sequence[list[int]], count: int, capacity: int, sizes: _Sizes
) -> list[list[int]]:
    """Return `count` sets of at most `capacity` rows, which have room for all; pieces stay together."""
    held: list[list[int]] = [[] for _ in range(count)]
    weights = [0] * count
    waiting = [(-sizes.of(rows), rows) for rows in pieces]
    heapify(waiting)
    while waiting:
        _, rows = heappop(waiting)
        most = max(capacity - len(each) for each in held)
        fits = min(most, len(rows))
        open_ones = [index for index in range(count) if capacity - len(held[index]) >= fits]
        lightest = min(open_ones, key=lambda index: (weights[index], len(held[index]), index))
        held[lightest] += rows[:fits]
        weights[lightest] += sizes.of(rows[:fits])
        if rows[fits:]:
            heappush(waiting, (-sizes.of(rows[fits:]), rows[fits:]))
    return [sorted(rows) for rows in held]
