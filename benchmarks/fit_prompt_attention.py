"""Fit how fast engines' attention computes prompts, by their length, to tables of aiconfigurator (NVIDIA, Apache-2.0).

    python benchmarks/fit_prompt_attention.py PATH_TO_DATA

PATH_TO_DATA is `systems/data` of its package `aiconfigurator_core` (0.12). Kernels reach a rate for the longest prompts, over
that of the device's facts, and half of it at so many tokens (`KernelRates.attention_half_tokens`). Both are fitted for each engine
to grouped attention with heads of 128 on the first device of an architecture, every second pair of heads and KV heads, by the
absolute value of relative errors. Errors are of the other pairs, of other sizes of a head and of the second device.
Latent attention is fitted likewise to vLLM's whole modules, less their products, and to SGLang's kernels, with 16 and 64
heads a rank; 8, 32 and 128 are held out. It writes nothing: the constants stand in `profiles/engines/`.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from fit_latent_attention import products, said, steps_of
from scipy.optimize import minimize

from rlplan.models import Attention
from rlplan.parts import attention_core
from rlplan.profiles.catalog import load_device, load_model
from rlplan.profiles.facts import DeviceFacts
from rlplan.units import seconds_from_ms

ENGINES = ("vllm/0.24.0", "sglang/0.5.14", "trtllm/1.3.0rc20")
FAMILIES = ((("h100-80gb-sxm", "h100_sxm"), ("h200", "h200_sxm")), (("b200", "b200_sxm"),))
GROUPED = "{}/attention/{}/context_attention_perf.parquet"
MODULES = "{}/mla/{}/mla_context_module_perf.parquet"
KERNELS = "{}/mla/{}/context_mla_perf.parquet"
TOKENS, LEAST_TOKENS = (1024, 32768), 64  # of a batch, and of a prompt
LEAST_HEADS, SAMPLE, SEED = 4, 600, 0
SHOWN, HELD = (16, 64), (8, 32, 128)
LATENT = "deepseek-v3"


class Case(NamedTuple):
    """Hold a measured attention of prompts, and the seconds of what was measured beside it."""

    operator: Attention
    beside: float
    seconds: float


def grouped(path: Path, size: int) -> list[Case]:
    """Return a table's cases with heads of a size, prompts alone, no window and a cache in 16 bits."""
    table = pd.read_parquet(path)
    tokens = table.batch_size * table.isl
    table = table[
        (table.head_dim == size)
        & (table.window_size == 0)
        & (table.step == 0)
        & (table.kv_cache_dtype == "bfloat16")
        & tokens.between(*TOKENS)
        & (table.isl >= LEAST_TOKENS)
        & (table.num_heads >= LEAST_HEADS)
    ]
    return [
        Case(
            Attention(
                "attention",
                int(row["batch_size"]),
                int(row["isl"]),
                0,
                int(row["num_heads"]),
                int(row["num_key_value_heads"]) or int(row["num_heads"]),
                size,
            ),
            0.0,
            seconds_from_ms(row["latency"]),
        )
        for row in table.to_dict("records")
    ]


def latent(folder: Path, engine: str, device: tuple[str, str], heads: Sequence[int]) -> list[Case]:
    """Return cases of DeepSeek-V3's attention: vLLM's modules, other engines' kernels."""
    whole = engine.startswith("vllm")
    table = pd.read_parquet(folder / (MODULES if whole else KERNELS).format(device[1], engine))
    tokens = table.batch_size * table.isl
    table = table[
        tokens.between(TOKENS[0] * 4, TOKENS[1])
        & (table.isl >= LEAST_TOKENS)
        & (table.step == 0)
        & (table.kv_cache_dtype == "bfloat16")
    ]
    if whole:
        table = table[table.gemm_type == "bfloat16"]
    model, found = load_model(LATENT), list[Case]()
    for count in heads:
        steps = steps_of(device[0], count, "bf16")
        kind, _ = steps.dense_layers[-1]
        alone = steps.latent.beside_products(kind).seconds
        for row in table[table.num_heads == count].to_dict("records"):
            batch, length = int(row["batch_size"]), int(row["isl"])
            (operator,) = attention_core(kind, model.num_heads // count, batch, length, 0)
            assert isinstance(operator, Attention)
            beside = alone + products(steps, batch * length) if whole else 0.0
            found.append(Case(operator, beside, seconds_from_ms(row["latency"])))
    return found


def off(facts: DeviceFacts, cases: Sequence[Case], rate: float, half: float) -> np.ndarray:
    """Return relative errors of forecasts."""
    found: list[float] = []
    for each in cases:
        longer = replace(each.operator, cached_tokens=each.operator.cached_tokens + round(half / 2))
        seconds = facts.attention(longer, "bf16", backward=False).seconds / rate
        found.append((seconds + each.beside) / each.seconds - 1)
    return np.array(found)


def fitted(facts: DeviceFacts, cases: Sequence[Case]) -> tuple[float, float]:
    """Return the rate of the longest prompts over the device's, and the tokens at which half of it is reached."""
    best = minimize(
        lambda logs: float(np.mean(np.abs(off(facts, cases, *np.exp(logs))))),
        np.log([1.2, 1000]),
        method="Nelder-Mead",
        options={"maxiter": 60},
    )
    rate, half = np.exp(best.x)
    return float(rate), float(half)


def sampled(cases: list[Case]) -> list[Case]:
    """Return some of many cases, the same each time."""
    chosen = np.random.default_rng(SEED).permutation(len(cases))[:SAMPLE]
    return [cases[at] for at in sorted(chosen)]


def tell(name: str, facts: DeviceFacts, cases: list[Case], found: tuple[float, float]) -> None:
    """Print errors before and now."""
    if cases:
        some = sampled(cases)
        before, now = (said(off(facts, some, *each)) for each in ((1.0, 0.0), found))
        print(f"  {name}, {len(some)} cases: {before}; now {now}")


def fit_grouped(folder: Path, engine: str, devices: Sequence[tuple[str, str]]) -> None:
    """Fit grouped attention, and print errors where nothing was fitted."""
    (device, name) = devices[0]
    cases = grouped(folder / GROUPED.format(name, engine), 128)
    pairs = sorted({(each.operator.q_heads, each.operator.kv_heads) for each in cases})
    shown = set(pairs[::2])
    is_shown: Callable[[Case], bool] = lambda each: (  # noqa: E731
        (each.operator.q_heads, each.operator.kv_heads) in shown
    )
    facts = DeviceFacts(load_device(device))
    found = fitted(facts, sampled([each for each in cases if is_shown(each)]))
    print(f"{engine} {device}: rate {found[0]:.3g}, half {found[1]:.4g}")
    tell("other heads", facts, [each for each in cases if not is_shown(each)], found)
    for other, folder_name in devices:
        facts = DeviceFacts(load_device(other))
        for size in (64, 128, 256):
            if (other, size) != (device, 128):
                path = folder / GROUPED.format(folder_name, engine)
                tell(f"{other}, heads of {size}", facts, grouped(path, size), found)


def fit_latent(folder: Path, engine: str, devices: Sequence[tuple[str, str]]) -> None:
    """Fit latent attention, and print errors where nothing was fitted."""
    facts = DeviceFacts(load_device(devices[0][0]))
    found = fitted(facts, sampled(latent(folder, engine, devices[0], SHOWN)))
    print(f"{engine} {devices[0][0]}, latent: rate {found[0]:.3g}, half {found[1]:.4g}")
    for device in devices:
        facts = DeviceFacts(load_device(device[0]))
        tell(f"{device[0]}, {HELD} heads", facts, latent(folder, engine, device, HELD), found)


def main(folder: Path) -> None:
    """Fit every engine on every architecture."""
    for devices in FAMILIES:
        for engine in ENGINES:
            fit_grouped(folder, engine, devices)
            fit_latent(folder, engine, devices)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
