"""Decode steps give what the layers of transformers give, on the same modules."""

from dataclasses import replace

import pytest
import torch

from rlplan.executor.model import building
from rlplan.executor.model.building import build_stages, decoded, decodes_plainly
from rlplan.executor.passes import attention_mask, token_positions
from rlplan.executor.rollout.engines.torch_static import KeyValueCache
from tests.executor.plans import TINY

FAMILIES = {
    "llama": TINY,
    "qwen2": replace(TINY, family="qwen2", qkv_bias=True),
    "qwen3": replace(TINY, family="qwen3", qk_norm=True),
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_decode_step_is_what_the_layers_make_of_one_token(monkeypatch, family, padded):
    (stage,) = build_stages(FAMILIES[family], "lm", seed=0)
    parts = torch.ones(3, 6, dtype=torch.int8)
    parts[1, : 2 * padded] = 0
    tokens = torch.randint(0, 200, (3, 6), generator=torch.manual_seed(0))
    present = parts[:, None, None] != 0 if padded else None
    steps = []
    monkeypatch.setattr(building, "decoded", lambda *given: steps.append(given) or decoded(*given))
    outputs = []
    for plainly in (True, False):
        monkeypatch.setattr(
            building, "decodes_plainly", decodes_plainly if plainly else lambda _: False
        )
        cache = KeyValueCache(FAMILIES[family].num_layers, 6)
        positions = token_positions(parts)
        with torch.inference_mode():
            mask = attention_mask(parts[:, :5]) if padded else None
            stage(tokens[:, :5], mask, positions[:, :5], cache, only_last=True)
            cache.length = 5
            outputs.append(stage(tokens[:, 5:], present, positions[:, 5:], cache, only_last=True))
    assert len(steps) == 1
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-6)
