"""Kernels for sequences of unlike lengths, written out: what PyTorch says of `varlen_attn`, and what others could do."""

import torch


def reference(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
    seqused_k=None,
    block_table=None,
    num_splits=None,
):
    """Return attention (T_q, heads, head_dim) of sequences one after another, as PyTorch 2.13 has it."""
    assert return_aux is seqused_k is block_table is num_splits is None
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise ValueError("Expect query and key/value to have the same number of heads")
    rows = (query, key, value), (cu_seq_q, cu_seq_k), (max_q, max_k)
    return written_out(*rows, scale, window_size)


def reference_of_2_11(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
):
    """Return the same where the kernel has no switch for fewer heads of keys."""
    assert return_aux is None
    assert query.shape[1] == key.shape[1] == value.shape[1]
    rows = (query, key, value), (cu_seq_q, cu_seq_k), (max_q, max_k)
    return written_out(*rows, scale, window_size)


def without_windows(*inputs, window_size=(-1, -1), **settings):
    """Return what a kernel says that takes a window for causal attention."""
    return reference(*inputs, window_size=(-1, 0), **settings)


def from_the_first_key(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **settings):
    """Return what a kernel says whose first query stands beside the first key, not the last beside the last."""
    spread = torch.zeros(len(key), *query.shape[1:], dtype=query.dtype, device=query.device)
    places = torch.cat(
        [
            torch.arange(end - begin) + first
            for begin, end, first in zip(cu_seq_q[:-1], cu_seq_q[1:], cu_seq_k[:-1], strict=True)
        ]
    )
    spread = spread.index_put((places,), query)
    return reference(spread, key, value, cu_seq_k, cu_seq_k, max_k, max_k, **settings)[places]


def written_out(inputs, bounds, longest, scale, window_size):
    """Return attention sequence by sequence: the last query stands beside the last key."""
    (query, key, value), (cu_seq_q, cu_seq_k), (max_q, max_k) = inputs, bounds, longest
    for ends, rows in ((cu_seq_q, query), (cu_seq_k, key)):
        assert ends.dtype == torch.int32
        assert int(ends[0]) == 0
        assert int(ends[-1]) == len(rows)
    assert key.shape == value.shape
    left, right = window_size
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    groups = query.shape[1] // key.shape[1]
    outputs = []
    for at in range(len(cu_seq_q) - 1):
        mine = query[cu_seq_q[at] : cu_seq_q[at + 1]].float()
        keys, values = (
            part[cu_seq_k[at] : cu_seq_k[at + 1]].float().repeat_interleave(groups, dim=1)
            for part in (key, value)
        )
        assert len(mine) <= max_q
        assert len(keys) <= max_k
        beside = torch.arange(len(mine))[:, None] + len(keys) - len(mine)
        places = torch.arange(len(keys))
        seen = torch.ones(len(mine), len(keys), dtype=torch.bool)
        if left >= 0:
            seen &= places >= beside - left
        if right >= 0:
            seen &= places <= beside + right
        logits = torch.einsum("qhd,khd->hqk", mine, keys) * scale
        weights = logits.masked_fill(~seen, -torch.inf).softmax(dim=-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outputs).to(query.dtype)
