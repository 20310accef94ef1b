"""Time what trainers around transformers' layers do on this machine's GPU, a row a case.

    python benchmarks/transformers_layers.py --out layers.csv --seconds 150

Layers of a model stand in no framework's log by themselves, so each case is timed with few layers and with more,
and a row holds the difference, a layer. `host_seconds` is what the CPU takes to launch it: from a GPU that is
idle until the call returns. `bytes` is what the peak of torch's allocated bytes grows by. Weights are random, in
bf16; attention is torch's own, causal, without padding. Cases that do not fit or are not there are left out
by name, on stderr. `rlplan accuracy` forecasts such a table once rows
have columns `device` and `source`.
"""

import argparse
import csv
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModel
from transformers import __version__ as transformers_version

COLUMNS = (
    "part", "model", "variant", "sequences", "tokens", "work", "seconds", "host_seconds", "bytes",
)  # fmt: skip
Tensors = tuple[Tensor, ...]
FEW, MORE = 2, 6
WARMUPS, REPEATS = 2, 5
ANY_VOCABULARY = 1024

MODELS: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": {
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
    "llama-3-8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
    },
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "head_dim": 16,
}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Timed:
    """Hold what a call took: medians of its repeats."""

    seconds: float
    host_seconds: float
    peak_bytes: int


def alone(got: Timed) -> Timed:
    """Return a call's time without its memory, which says nothing of it."""
    return replace(got, peak_bytes=0)


class Bench:
    """Write rows as they come, until the time is over."""

    def __init__(self, out: Path, seconds: float, device: torch.device) -> None:
        self.device, self._until = device, time.monotonic() + seconds
        self._file = out.open("w", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        self._rows.writerow(COLUMNS)

    def row(self, part: str, *values: str | float) -> None:
        """Write a row, at once."""
        self._rows.writerow([part, *(f"{v:.6g}" if isinstance(v, float) else v for v in values)])
        self._file.flush()

    def took(
        self, part: str, model: str, variant: str, shape: tuple[int, int], work: str, got: Timed
    ) -> None:
        """Write what a call took, and by how much memory grew."""
        self.row(part, model, variant, *shape, work, got.seconds, got.host_seconds, got.peak_bytes)

    @property
    def over(self) -> bool:
        """Tell whether the time that was given is over."""
        return time.monotonic() > self._until

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Leave a case out, by name, that does not fit or that this version does not have."""
        try:
            yield
        except (
            RuntimeError,
            ValueError,
            ImportError,
            TypeError,
            AttributeError,
            KeyError,
        ) as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def wait(self) -> None:
        """Wait for what was launched."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def timed(self, call: Callable[[], object], repeats: int = REPEATS) -> Timed:
        """Return what a call takes, as the median of some."""
        cuda = self.device.type == "cuda"
        for _ in range(WARMUPS):
            call()
        self.wait()
        before = 0
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        seconds, host = [], []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            host.append(time.perf_counter() - start)
            self.wait()
            seconds.append(time.perf_counter() - start)
        peak = torch.cuda.max_memory_allocated() - before if cuda else 0
        return Timed(statistics.median(seconds), statistics.median(host), peak)


def build(
    name: str, layers: int, device: torch.device, experts: str | None, tiny: bool
) -> nn.Module:
    """Return a model of few layers with random weights in bf16."""
    sizes = dict(MODELS[name])
    if tiny:
        sizes |= {key: value for key, value in TINY.items() if key in sizes or key == "head_dim"}
    config = AutoConfig.for_model(
        **sizes,
        num_hidden_layers=layers,
        vocab_size=ANY_VOCABULARY,
        max_position_embeddings=65536,
        use_cache=False,
    )
    options = {} if experts is None else {"experts_implementation": experts}
    with torch.device(device):
        model = AutoModel.from_config(
            config, attn_implementation="sdpa", dtype=torch.bfloat16, **options
        )
    return model.train()


def shard(model: nn.Module) -> nn.Module:
    """Shard layer by layer as FSDP2 trainers do, over this one rank: its own work on the CPU, no exchange."""
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def passes(model: nn.Module, ids: Tensor) -> dict[str, Callable[[], object]]:
    """Return what is timed: a pass without gradients, and a step's passes with and without recomputation."""

    def infer() -> None:
        with torch.no_grad():
            model(input_ids=ids, use_cache=False)

    def train() -> None:
        model(input_ids=ids, use_cache=False).last_hidden_state.sum().backward()
        model.zero_grad(set_to_none=True)

    def recompute() -> None:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        train()
        model.gradient_checkpointing_disable()

    return {"infer": infer, "train": train, "train-recompute": recompute}


def layers(
    bench: Bench, name: str, shapes: list[tuple[int, int]], variant: str, tiny: bool
) -> None:
    """Write a layer's rows of a model, by the difference between more layers and few."""
    sharded, experts = variant.startswith("fsdp2"), variant.partition("+")[2] or None
    found: dict[tuple[int, int, str], list[Timed]] = {}
    for count in (FEW, MORE):
        model = build(name, count, bench.device, experts, tiny)
        if sharded:
            model = shard(model)
        for sequences, tokens in shapes:
            ids = torch.randint(0, ANY_VOCABULARY, (sequences, tokens), device=bench.device)
            for work, call in passes(model, ids).items():
                if bench.over:
                    print(
                        f"{name} {variant} {sequences} x {tokens} {work}: no time", file=sys.stderr
                    )
                    continue
                with bench.case(f"{name} {variant} {sequences} x {tokens} {work}"):
                    found.setdefault((sequences, tokens, work), []).append(bench.timed(call))
        del model
        gc.collect()
    for (sequences, tokens, work), both in found.items():
        if len(both) == len((FEW, MORE)):
            few, more = both
            by = MORE - FEW
            layer = Timed(
                (more.seconds - few.seconds) / by,
                (more.host_seconds - few.host_seconds) / by,
                max(0, more.peak_bytes - few.peak_bytes) // by,
            )
            bench.took("layer", name, variant, (sequences, tokens), work, layer)


def attention(bench: Bench, tiny: bool) -> None:
    """Write rows of causal attention alone: torch's flash kernel, cuDNN's, and what torch takes by itself."""
    heads, keys, width = (4, 2, 16) if tiny else (32, 8, 128)
    shapes = [(2, 64)] if tiny else [(16, 1024), (4, 4096), (1, 16384), (1, 32768)]
    for sequences, tokens in shapes:

        def drawn(count: int, s: int = sequences, t: int = tokens) -> Tensor:
            like = {"device": bench.device, "dtype": torch.bfloat16, "requires_grad": True}
            return torch.randn(s, count, t, width, **like)

        q, k, v = drawn(heads), drawn(keys), drawn(keys)
        for variant, backends in (
            ("default", None),
            ("flash", [SDPBackend.FLASH_ATTENTION]),
            ("cudnn", [SDPBackend.CUDNN_ATTENTION]),
        ):

            def forward(
                backends: list[SDPBackend] | None = backends,
                q: Tensor = q,
                k: Tensor = k,
                v: Tensor = v,
            ) -> Tensor:
                if backends is None:
                    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                with sdpa_kernel(backends):
                    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

            def both(forward: Callable[[], Tensor] = forward, inputs: Tensors = (q, k, v)) -> None:
                out = forward()
                torch.autograd.grad(out, inputs, torch.ones_like(out))

            for work, call in (("forward", forward), ("forward-backward", both)):
                with bench.case(f"attention {variant} {sequences} x {tokens} {work}"):
                    got = bench.timed(call)
                    bench.took(
                        "attention",
                        f"{heads}/{keys}x{width}",
                        variant,
                        (sequences, tokens),
                        work,
                        got,
                    )


def products(bench: Bench, tiny: bool) -> None:
    """Write rows of matrix products in bf16, and in fp8 with one scale a tensor and one a row."""
    rows = (64,) if tiny else (128, 2048, 16384)
    shapes = (
        [(64, 64)]
        if tiny
        else [(4096, 6144), (4096, 28672), (14336, 4096), (3584, 37888), (896, 9728)]
    )
    for inner, outer in shapes:
        for count in rows:
            x = torch.randn(count, inner, device=bench.device, dtype=torch.bfloat16)
            w = torch.randn(outer, inner, device=bench.device, dtype=torch.bfloat16)
            name = f"{inner}x{outer}"
            got = bench.timed(lambda x=x, w=w: F.linear(x, w), 10)
            bench.took("product", name, "bf16", (1, count), "forward", alone(got))
            with bench.case(f"product fp8 {name}"):
                low, high = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
                one = torch.ones((), device=bench.device)
                a, b = (
                    torch.ones(count, 1, device=bench.device),
                    torch.ones(1, outer, device=bench.device),
                )
                for variant, scales in (("fp8-tensor", (one, one)), ("fp8-row", (a, b))):

                    def multiply(
                        scales: Tensors = scales, low: Tensor = low, high: Tensor = high
                    ) -> None:
                        torch._scaled_mm(low, high.t(), *scales, out_dtype=torch.bfloat16)  # noqa: SLF001  # it has no public name

                    got = bench.timed(multiply, 10)
                    bench.took("product", name, variant, (1, count), "forward", alone(got))
                got = bench.timed(lambda x=x: (x / x.abs().amax()).to(torch.float8_e4m3fn), 10)
                bench.took("product", name, "to-fp8-eager", (1, count), "forward", alone(got))


def logits(bench: Bench, tiny: bool) -> None:
    """Write rows of log-probabilities from whole logits in fp32, without gradients and with: bytes are of all of it."""
    vocabulary, width = (1024, 64) if tiny else (152064, 3584)
    for tokens in (64,) if tiny else (2048, 8192):
        like = {"device": bench.device, "dtype": torch.bfloat16}
        x = torch.randn(tokens, width, requires_grad=True, **like)
        head = torch.randn(vocabulary, width, requires_grad=True, **like)
        picked = torch.randint(0, vocabulary, (tokens, 1), device=bench.device)

        def log_probs(x: Tensor = x, head: Tensor = head, picked: Tensor = picked) -> Tensor:
            return F.log_softmax(F.linear(x, head).float(), dim=-1).gather(1, picked)

        def infer(call: Callable[[], Tensor] = log_probs) -> None:
            with torch.no_grad():
                call()

        def train(call: Callable[[], Tensor] = log_probs, inputs: Tensors = (x, head)) -> None:
            torch.autograd.grad(call().sum(), inputs)

        for work, call in (("infer", infer), ("train", train)):
            with bench.case(f"logits {tokens} {work}"):
                got = bench.timed(call)
                bench.took("logits", f"{width}x{vocabulary}", "log-softmax", (1, tokens), work, got)


def copies(bench: Bench, tiny: bool) -> None:
    """Write rows of copies between device and host, and of Adam's step: `tokens` is the number of bytes, of parameters."""
    size = 1 << (20 if tiny else 30)
    there = torch.empty(size, dtype=torch.uint8, device=bench.device)
    for variant in ("pinned", "pageable"):
        pinned = variant == "pinned" and bench.device.type == "cuda"
        here = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        for work, call in (
            ("to-device", lambda here=here: there.copy_(here, non_blocking=True)),
            ("to-host", lambda here=here: here.copy_(there, non_blocking=True)),
        ):
            got = bench.timed(call)
            bench.took("copy", "", variant, (1, size), work, alone(got))
    with bench.case("copy on the device"):
        other = torch.empty_like(there)
        got = bench.timed(lambda: other.copy_(there))
        bench.took("copy", "", "device", (1, size), "on-device", alone(got))
    count, tensors = (1 << 14, 8) if tiny else (1 << 25, 32)
    weights = [nn.Parameter(torch.randn(count, device=bench.device)) for _ in range(tensors)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    for variant in ("fused", "foreach", "for-loop"):
        with bench.case(f"adamw {variant}"):
            ways = {
                "fused": {"fused": True},
                "foreach": {"foreach": True},
                "for-loop": {"foreach": False},
            }
            step = torch.optim.AdamW(weights, lr=1e-6, **ways[variant])
            got = bench.timed(step.step)
            bench.took("adamw", "", variant, (1, count * tensors), "fp32", got)
            del step


def main() -> None:
    """Time all parts, the most wanted ones first."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument(
        "--tiny", action="store_true", help="sizes that a CPU takes, to try the script"
    )
    given = parser.parse_args()
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    bench = Bench(given.out, given.seconds, device)
    store = dist.HashStore()
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", store=store, rank=0, world_size=1
    )
    what = torch.cuda.get_device_name(0) if device.type == "cuda" else "cpu"
    bench.row(
        "machine",
        what,
        f"torch {torch.__version__}, transformers {transformers_version}",
        "",
        "",
        "",
        "",
        "",
        "",
    )
    small, large = [(1, 64), (1, 512)], [(1, 2048), (1, 8192), (4, 4096), (16, 1024), (1, 16384)]
    if given.tiny:
        small, large = [(1, 16)], [(2, 32)]
    copies(bench, given.tiny)
    products(bench, given.tiny)
    attention(bench, given.tiny)
    logits(bench, given.tiny)
    for name, shapes, variant in (
        ("qwen2.5-7b", [*small, *large], "fsdp2"),
        ("qwen3-30b-a3b", [small[0], (1, 2048), large[-1]], "fsdp2+eager"),
        ("qwen3-30b-a3b", [small[0], (1, 2048), large[-1]], "fsdp2+grouped_mm"),
        ("llama-3-8b", [*small, *large], "fsdp2"),
        ("qwen2.5-0.5b", [*small, *large], "fsdp2"),
        ("qwen2.5-7b", [*small, large[0], large[-1]], "alone"),
        ("qwen3-30b-a3b", [small[0], (1, 2048)], "fsdp2+batched_mm"),
        ("qwen2.5-0.5b", small, "alone"),
    ):
        if bench.over:
            print(f"{name} {variant}: no time", file=sys.stderr)
        else:
            with bench.case(f"{name} {variant}"):
                layers(bench, name, shapes, variant, given.tiny)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
