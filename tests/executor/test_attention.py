"""Attention of decode steps: the same as torch's own."""

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor.model.attention import attention_of_one_query

sizes = st.integers(1, 4)


@given(sizes, sizes, sizes, st.integers(1, 9), st.sampled_from([torch.float32, torch.bfloat16]))
def test_one_query_attends_as_torch_has_it(batch, together, shares, keys, kind):
    generator = torch.Generator().manual_seed(keys)

    def drawn(heads, tokens):
        return torch.randn(batch, heads, tokens, 8, generator=generator).to(kind)

    # Keys and values of a cache are slices of what it has room for.
    query = drawn(together * shares, 1)
    key, value = (drawn(together, keys + 3)[:, :, :keys] for _ in range(2))
    expected = F.scaled_dot_product_attention(query, key, value, enable_gqa=True, scale=0.3)
    found = attention_of_one_query(query, key, value, 0.3)
    assert found.dtype == kind
    rounding = 1e-5 if kind == torch.float32 else 5e-2
    torch.testing.assert_close(found.transpose(1, 2), expected, rtol=rounding, atol=rounding)
