"""What transformers' layers keep for their backward pass, counted on the CPU, beside what memory is forecast by."""

import json
from contextlib import nullcontext
from math import prod

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from rlplan.models import KeptBatch, LayerKernels, Shard
from rlplan.profiles.catalog import read_hf_config
from rlplan.simulator.model import layer_activation_bytes
from tests.cases import only

SEQUENCES, TOKENS = 2, 192
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 448,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "max_position_embeddings": 1024,
}
MODELS = {
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 16}),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 224,
            "norm_topk_prob": True,
        },
    ),
}


def saved_bytes(kind, layers, kernels, recompute):
    """Return the bytes of what a forward pass of so many layers saves: storages once, weights and their casts left out."""
    # Slow to import, and every process of a suite reads this file.
    from transformers import AutoConfig, AutoModel

    options = {"experts_implementation": "eager"} if "moe" in kind else {}
    config = AutoConfig.for_model(
        kind, **SIZES, **MODELS[kind][1], num_hidden_layers=layers, use_cache=False
    )
    autocast = kernels == "autocast"
    dtype = torch.bfloat16 if kernels == "eager" else torch.float32
    torch.manual_seed(0)  # how many tokens an expert has
    model = AutoModel.from_config(config, attn_implementation="sdpa", dtype=dtype, **options)
    model.train()
    if recompute == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    # In autocast a product keeps a copy of its weight in bf16; experts' weights are stacked, and taken apart.
    shapes = {
        shape
        for each in model.parameters()
        for own in (tuple(each.shape), tuple(each.shape[1:]))
        for shape in (own, own[::-1])
        if len(shape) > 1
    }
    held, alive = {}, []

    def keep(tensor):
        storage = tensor.untyped_storage()
        is_cast = autocast and tensor.dtype == torch.bfloat16 and tuple(tensor.shape) in shapes
        if storage.data_ptr() not in weights and not is_cast:
            held[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # so that no other storage gets its address
        return tensor

    ids = torch.randint(0, SIZES["vocab_size"], (SEQUENCES, TOKENS))
    context = torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
    with saved_tensors_hooks(keep, lambda tensor: tensor), context:
        model(input_ids=ids)
    assert prod((SEQUENCES, TOKENS)) not in {size for shape in shapes for size in shape}
    return sum(held.values())


CASES = [
    (kind, recompute, kernels)
    for kind, modes in {
        "qwen2": ("none", "full"),
        "qwen3": ("none",),
        "qwen3_moe": ("none",),
    }.items()
    for recompute in modes
    for kernels in ("eager", "autocast", "fp32")
]


@pytest.mark.parametrize(
    ("kind", "recompute", "kernels"),
    only([each for each in CASES if each[0] != "qwen3_moe"], CASES),
)
def test_a_layer_more_keeps_what_is_forecast(kind, recompute, kernels, tmp_path):
    """But the inverse deviations of norms, and which expert is a token's."""
    file = tmp_path / "config.json"
    name, more = MODELS[kind]
    config = {"model_type": kind, "architectures": [name], "num_hidden_layers": 2}
    file.write_text(json.dumps(config | SIZES | more))
    shard = Shard(value_bytes=4 if kernels == "fp32" else 2)
    counted: LayerKernels = "autocast" if kernels == "autocast" else "eager"
    batch = KeptBatch(shard, SEQUENCES, TOKENS, fused_attention=True, kernels=counted)
    forecast = layer_activation_bytes(read_hf_config(file), batch, recompute)
    two, three = (saved_bytes(kind, layers, kernels, recompute) for layers in (2, 3))
    assert forecast == pytest.approx(three - two, rel=0.03)
