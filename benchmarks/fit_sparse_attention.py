"""Fit what latent attention to chosen tokens takes in engines, by tables of aiconfigurator.

    python benchmarks/fit_sparse_attention.py PATH_TO_DATA

PATH_TO_DATA is `systems/data` of the package `aiconfigurator_core` (0.12, NVIDIA, Apache-2.0): whole modules of the attention
of DeepSeek-V3.2 and GLM-5, from the first projection to the last. Constants of prompts of 4,096 to 16,384 tokens are fitted to
DeepSeek-V3.2's with products in fp8 on the first device, by the absolute value of relative errors; those of vLLM's decode steps
likewise. SGLang's kernel on Hopper is vLLM's, so that only what its index takes for a query is fitted. Errors are
printed of what was fitted, of the other model, of products in 16 bits and of the other device. It writes nothing: the
constants stand in `profiles/engines/vllm-0.11.yaml` and `sglang-0.4.yaml`.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from fit_latent_attention import FORMATS, products, said
from scipy.optimize import minimize, nnls

from rlplan.files.frozen import FrozenDict
from rlplan.models import Precision
from rlplan.parts.grouped_attention import seen_pairs
from rlplan.plan import TaskPlan
from rlplan.profiles.catalog import load_device, load_engine, load_model
from rlplan.profiles.facts import DeviceFacts
from rlplan.simulator.costs.setting import setting_on
from rlplan.simulator.generation.prices import EngineSteps, ReplicaSetting, engine_steps
from rlplan.simulator.placed import Site
from rlplan.units import seconds_from_ms

FILE = "{}/sparse_attention/{}/dsa_{}_module_perf.parquet"
# Sheets by names in the tables; the first one is fitted to.
MODELS = {"deepseek-ai/DeepSeek-V3.2": "deepseek-v3.2", "zai-org/GLM-5": "glm-5.1"}
WITHOUT_INDEX = {"zai-org/GLM-5.2-FP8": "glm-5.2"}
HEADS = (8, 16, 32, 64, 128)
TOKENS, CACHED, RUNNING = (4096, 16384), (64, 16384), 512
HOPPER = (("h200", "h200_sxm"), ("h100-80gb-sxm", "h100_sxm"))
BLACKWELL = (("b200", "b200_sxm"),)
VLLM, SGLANG = ("vllm/0.24.0", "vllm-0.15"), ("sglang/0.5.14", "sglang-0.5")
WIDE, NARROW = "bfloat16", "fp8"


class Where(NamedTuple):
    """Name modules: the engine's folder and sheet, the device's sheet and folder, heads of a block, format of the cache."""

    engine: tuple[str, str]
    device: tuple[str, str]
    block: int
    cache: str = WIDE


def steps_of(where: Where, name: str, heads: int, precision: Precision) -> EngineSteps:
    """Return an engine's steps where a rank has so many heads, without the constants of chosen tokens."""
    model, sheet = load_model(name), load_engine(where.engine[1])
    engine = replace(sheet, steps=replace(sheet.steps, sparse=FrozenDict()))
    device, tp = where.device[0], model.num_heads // heads
    setting = setting_on(
        TaskPlan(pool="", tp=tp, engine=engine.name),
        engine,
        DeviceFacts(load_device(device)),
        Site(device, tp, max(tp, 8), 5e10),
        precision,
        cache_value_bytes=2,
    )
    found = engine_steps(ReplicaSetting(model, engine, setting))
    assert isinstance(found, EngineSteps)
    return found


def table(folder: Path, where: Where, part: str, model: str, dtype: str) -> pd.DataFrame:
    """Return the rows of a model's modules with products in a format."""
    rows = pd.read_parquet(folder / FILE.format(where.device[1], where.engine[0], part))
    chosen = (
        (rows.model == model) & (rows.gemm_type == dtype) & (rows.kv_cache_dtype == where.cache)
    )
    return rows[chosen & ~rows.kernel_source.str.contains("dense")]


def prompts(
    folder: Path, where: Where, model: str, sheet: str, dtype: str, precision: Precision
) -> np.ndarray:
    """Return modules of prompts: queries, heads, chosen tokens, scores, products, what was forecast, and seconds."""
    rows = table(folder, where, "context", model, dtype)
    tokens = rows.batch_size * rows.isl
    rows = rows[(rows.step == 0) & tokens.between(*TOKENS) & (rows.isl >= TOKENS[0] // 8)]
    sizes = load_model(sheet).latent
    assert sizes is not None
    found: list[tuple[float, ...]] = []
    for heads in (each for each in HEADS if each <= load_model(sheet).num_heads):
        steps = steps_of(where, sheet, heads, precision)
        for row in rows[rows.num_heads == heads].to_dict("records"):
            count, length = int(row["batch_size"]), int(row["isl"])
            alone = products(steps, count * length)
            old = steps.prefill_attention(count, 0, length).seconds / steps.model.num_layers
            chosen = count * seen_pairs(sizes.index_tokens, length, 0) * -(-heads // where.block)
            indexed = 0.0 if model in WITHOUT_INDEX else sizes.index_heads
            scored = count * seen_pairs(TOKENS[1], length, 0) * indexed
            queries, measured = count * length, seconds_from_ms(row["latency"])
            found.append((queries, queries * heads, chosen, scored, alone, alone + old, measured))
    return np.array(found)


def steps(
    folder: Path, where: Where, model: str, sheet: str, dtype: str, precision: Precision
) -> np.ndarray:
    """Return modules of decode steps: sequences, tokens that each attends to, reading, what was forecast, and seconds."""
    rows = table(folder, where, "generation", model, dtype)
    rows = rows[rows.step.between(*CACHED) & (rows.batch_size <= RUNNING)]
    sizes = load_model(sheet).latent
    assert sizes is not None
    found: list[tuple[float, ...]] = []
    for heads in (each for each in HEADS if each <= load_model(sheet).num_heads):
        costs = steps_of(where, sheet, heads, precision)
        kind, _ = costs.dense_layers[-1]
        for row in rows[rows.num_heads == heads].to_dict("records"):
            running, cached = int(row["batch_size"]), int(row["step"])
            reading = costs.decode_attention(running, cached).seconds / costs.model.num_layers
            old = products(costs, running) + costs.latent.beside_products(kind).seconds + reading
            seen = min(cached, sizes.index_tokens)
            found.append((running, seen, reading, old, seconds_from_ms(row["latency"])))
    return np.array(found)


def fitted(rows: np.ndarray, used: Sequence[int], known: np.ndarray) -> np.ndarray:
    """Return seconds of a query, of a head, of a chosen token and of a score, by the absolute value of relative errors."""
    wanted = (rows[:, 6] - rows[:, 4] - rows[:, :4] @ known) / rows[:, 6]
    shares, weights = rows[:, used] / rows[:, 6:], np.ones(len(rows))
    for _ in range(30):
        least, _ = nnls(shares * weights[:, None], wanted * weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(shares @ least - wanted), 1e-3))
    whole = known.copy()
    whole[list(used)] = least
    return whole


def prompt_error(rows: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Return relative errors of prompts."""
    return (rows[:, :4] @ costs + rows[:, 4]) / rows[:, 6] - 1


def step_error(rows: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Return relative errors of decode steps, by seconds of the index, of a sequence and of a token one after another."""
    index, sequence, serial = costs
    waits = np.maximum(0.0, serial * rows[:, 1] - rows[:, 2])
    return (rows[:, 3] + index + sequence * rows[:, 0] + waits) / rows[:, 4] - 1


def tell(
    folder: Path,
    where: Where,
    devices: Sequence[tuple[str, str]],
    read: Callable[..., np.ndarray],
    costs: np.ndarray,
) -> None:
    """Print errors before and now on all devices, of both models, in both formats."""
    error, old = (prompt_error, 5) if read is prompts else (step_error, 3)
    for device in devices:
        for model, sheet in MODELS.items():
            for dtype, precision in (("fp8_block", FORMATS[1][1]), FORMATS[0]):
                rows = read(folder, where._replace(device=device), model, sheet, dtype, precision)
                if len(rows):
                    before = rows[:, old] / rows[:, -1] - 1
                    name = f"{device[0]}, {sheet}, {precision}, {len(rows)} {read.__name__}"
                    print(f"  {name}: {said(before)}; now {said(error(rows, costs))}")


def fit_steps(folder: Path, where: Where, devices: Sequence[tuple[str, str]]) -> None:
    """Fit decode steps, and print errors."""
    model, sheet = next(iter(MODELS.items()))
    rows = steps(folder, where, model, sheet, "fp8_block", FORMATS[1][1])
    starts = np.log([[4e-5, 1e-7, 2e-8], [8e-5, 3e-7, 1e-9]])
    best = min(
        (
            minimize(
                lambda logs: float(np.mean(np.abs(step_error(rows, np.exp(logs))))),
                start,
                method="Nelder-Mead",
                options={"maxiter": 400},
            )
            for start in starts
        ),
        key=lambda each: each.fun,
    )
    costs = np.exp(best.x)
    print(f"{where}: step, sequence, serial {costs}")
    tell(folder, where, devices, steps, costs)


def fit_prompts(
    folder: Path,
    where: Where,
    devices: Sequence[tuple[str, str]],
    used: Sequence[int],
    known: np.ndarray | None = None,
) -> np.ndarray:
    """Fit prompts, and print errors."""
    model, sheet = next(iter(MODELS.items()))
    rows = prompts(folder, where, model, sheet, "fp8_block", FORMATS[1][1])
    costs = fitted(rows, used, np.zeros(4) if known is None else known)
    print(f"{where}: query, head, chosen, score {costs}")
    tell(folder, where, devices, prompts, costs)
    return costs


def main(folder: Path) -> None:
    """Fit both engines on Hopper and on Blackwell."""
    hopper, blackwell = Where(VLLM, HOPPER[0], 64), Where(VLLM, BLACKWELL[0], 128)
    every = (0, 1, 2, 3)
    found = fit_prompts(folder, hopper, HOPPER, every)
    fit_steps(folder, hopper, HOPPER)
    fit_prompts(folder, blackwell, BLACKWELL, every)
    fit_steps(folder, blackwell, BLACKWELL)
    known = found * np.array([0, 1, 1, 1])
    other = Where(SGLANG, HOPPER[0], 64)
    fit_prompts(folder, other, HOPPER, (0,), known)
    model, sheet = next(iter(WITHOUT_INDEX.items()))
    rows = prompts(folder, other, model, sheet, "fp8_block", FORMATS[1][1])
    alone = fitted(rows, (0,), known)
    print(f"without an index: {alone}, {said(prompt_error(rows, alone))}")
    fit_prompts(folder, Where(SGLANG, BLACKWELL[0], 8, NARROW), BLACKWELL, (0, 2, 3))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
