"""Fit what latent attention takes in SGLang's decode steps beside its products and its cache, by tables of aiconfigurator.

    python benchmarks/fit_sglang_latent.py PATH_TO_DATA

PATH_TO_DATA is `systems/data` of the package `aiconfigurator_core` (0.12, NVIDIA, Apache-2.0): the attention kernel of SGLang 0.5.14
over a cache in 16 bits, and the two absorbed products around it, by heads of a rank, sequences and cached tokens. The forecast has the product
of keys and values in their place, and reads the cache. As `fit_latent_attention.py` does for vLLM's whole modules, two constants
are fitted by the absolute value of relative errors to every second number of heads on the first device: seconds in a layer, and
bytes for every head of a sequence. Errors are of the other numbers of heads and of other devices. It writes nothing: the constants stand
in `profiles/engines/sglang-0.4.yaml`.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from fit_latent_attention import HEADS, LAYERS, MODEL, Module, off, said
from scipy.optimize import minimize

from rlplan.files.frozen import FrozenDict
from rlplan.models import Batch
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_device, load_engine, load_model
from rlplan.profiles.facts import DeviceFacts
from rlplan.simulator.costs.setting import setting_on
from rlplan.simulator.generation.prices import EngineSteps, ReplicaSetting, engine_steps
from rlplan.simulator.model import layer_operators
from rlplan.simulator.placed import Site
from rlplan.units import seconds_from_ms

FAMILIES = ((("h100-80gb-sxm", "h100_sxm"), ("h200", "h200_sxm")), (("b200", "b200_sxm"),))
ATTENTION = "{}/mla/sglang/0.5.14/generation_mla_perf.parquet"
PRODUCTS = "{}/mla_bmm/sglang/0.5.14/mla_bmm_perf.parquet"
ENGINE, ABSORBED = "sglang-0.5", "keys and values up"
MOST_SEQUENCES, MOST_CACHED = 256, 8192


class Device(NamedTuple):
    """Name a device and the folder of its tables."""

    name: str
    folder: str


def steps_of(device: str, heads: int) -> EngineSteps:
    """Return what SGLang's steps take where a rank has so many heads, without the constants."""
    sheet, tp = load_engine(ENGINE), HEADS // heads
    engine = replace(sheet, steps=replace(sheet.steps, latent=FrozenDict()))
    site, layout = Site(device, tp, max(tp, 8), 5e10), TaskPlan(pool="", tp=tp, engine=ENGINE)
    facts = DeviceFacts(load_device(device))
    setting = setting_on(layout, engine, facts, site, "bf16", cache_value_bytes=2)
    return engine_steps(ReplicaSetting(load_model(MODEL), engine, setting))


def absorbed(steps: EngineSteps, tokens: int) -> float:
    """Return the forecast seconds of the product in whose place both absorbed ones stand."""
    kind, _ = steps.dense_layers[-1]
    batch = Batch(sequences=tokens, tokens=tokens, sequence_tokens=1, head_tokens=0)
    operators = layer_operators(kind, steps.setting.shard, batch)
    named = tuple(each for each in operators if getattr(each, "name", "") == ABSORBED)
    return sum(each.seconds for each in steps.prices(named, tokens))


def modules(folder: Path, device: Device, heads: int) -> Iterator[Module]:
    """Yield what lies between projections in decode steps with so many heads."""
    table = pd.read_parquet(folder / ATTENTION.format(device.folder))
    table = table[(table.num_heads == heads) & (table.kv_cache_dtype == "bfloat16")]
    table = table[(table.batch_size <= MOST_SEQUENCES) & (table.step <= MOST_CACHED)]
    around = pd.read_parquet(folder / PRODUCTS.format(device.folder))
    around = around[(around.num_heads == heads) & (around.bmm_dtype == "bfloat16")]
    beside = around.groupby(["num_tokens", "op_name"]).latency.median().groupby("num_tokens").sum()
    steps, rate = steps_of(device.name, heads), load_device(device.name).memory_bytes_per_second
    for row in table.to_dict("records"):
        running, cached = int(row["batch_size"]), int(row["step"])
        forecast = (
            absorbed(steps, running) + steps.decode_attention(running, cached).seconds / LAYERS
        )
        seconds = seconds_from_ms(row["latency"] + beside[running])
        yield Module(forecast, running * heads / rate, seconds)


def fit(folder: Path, devices: Sequence[tuple[str, str]]) -> None:
    """Fit on the first device, and print errors where nothing was fitted."""
    counts = [4, 8, 16, 32, 64, 128]
    shown = [row for heads in counts[::2] for row in modules(folder, Device(*devices[0]), heads)]
    found = np.exp(
        minimize(
            lambda logs: float(np.mean(np.abs(off(shown, *np.exp(logs))))),
            np.log([1e-5, 1e4]),
            method="Nelder-Mead",
            options={"maxiter": 80},
        ).x
    )
    print(f"layer_seconds {found[0]:.3g}, head_bytes {found[1]:.4g}: {len(shown)} modules")
    for device in devices:
        held = counts[1::2] if device == devices[0] else counts
        for heads in held:
            rows = list(modules(folder, Device(*device), heads))
            print(
                f"{device[0]}, {heads} heads, {len(rows)} modules: {said(off(rows, 0, 0))}; now {said(off(rows, *found))}"
            )


def main(folder: Path) -> None:
    """Fit to devices of each architecture."""
    for devices in FAMILIES:
        fit(folder, devices)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
