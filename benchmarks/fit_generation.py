"""Fit the generation engines' constants to published throughput, and say how well they hold.

    python benchmarks/fit_generation.py PATH_TO_TRUTH [PATH_TO_OPS]

Reads `trtllm_generation.csv` and `lmdeploy_generation_a100.csv` of that folder, for the skew of vLLM 0.3's ranks
`hybridflow_transition_generation_search.csv` of `evals/held`, and for its host time the host-overhead
table `a100/cpu_overheads.csv` of microsoft/vidur (MIT), milliseconds by step. The rows fitted on
are the half that `rlplan.evals.rows` names; A100 and Hopper rows only. A generation's time is
linear in every constant once rates are turned upside down, since no schedule depends on them: one
forecast for each constant gives its share, and a damped least squares on relative errors the rest.
The values printed go into `profiles/engines/` by hand, with the spread of the rows held back.
"""

import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.optimize import least_squares, minimize_scalar

from rlplan.evals.reading import HELD
from rlplan.evals.rows import fitted_on, row_key
from rlplan.evals.settings.hybridflow_jobs import GENERATE
from rlplan.evals.settings.serving import Service, serve
from rlplan.evals.tables import lmdeploy_generation_a100, trtllm_generation
from rlplan.evals.tables.hybridflow_transition_generation_search import (
    FITTED_TP,
    generation_seconds,
    generation_tp,
)
from rlplan.planner.measured.rows import Record
from rlplan.profiles.catalog import load_engine
from rlplan.sheets import EngineSheet
from rlplan.units import seconds_from_ms

Floats = npt.NDArray[np.float64]
Coefficients = dict[str, float]

HOST_PARTS = ("schedule", "sampler_e2e", "prepare_inputs_e2e", "process_model_outputs")

SKEW_BOUNDS = (0.0, 5e-4)  # seconds for every doubling of ranks

# Constants, as coefficients of seconds: least and most. Rates come as their inverse.
BOUNDS: dict[str, tuple[float, float]] = {
    "1 / gemm_rate": (0.7, 1.6),
    "1 / attention_rate": (0.2, 3.0),
    "1 / cache_read_efficiency": (1.05, 2.5),
    "seconds_per_sequence": (0.0, 2e-4),
    "all_reduce_seconds": (2e-6, 1e-4),
}


def with_coefficients(engine: EngineSheet, values: Coefficients) -> EngineSheet:
    """Return an engine with other constants."""
    kernels, steps = engine.kernels, engine.steps
    slowness = values.get("1 / gemm_rate", 1 / kernels.gemm_rate)
    attention = values.get("1 / attention_rate", 1 / kernels.attention_rate)
    reading = values.get("1 / cache_read_efficiency", 1 / steps.cache_read_efficiency)
    return replace(
        engine,
        kernels=replace(kernels, gemm_rate=1 / slowness, attention_rate=1 / attention),
        steps=replace(
            steps,
            cache_read_efficiency=1 / reading,
            seconds_per_sequence=values.get("seconds_per_sequence", steps.seconds_per_sequence),
            all_reduce_seconds=values.get("all_reduce_seconds", steps.all_reduce_seconds),
        ),
    )


@dataclass(frozen=True)
class Schema:
    """Say how one table is read, and which constants its engine has."""

    file: str
    engine: str
    key: tuple[str, ...]
    names: tuple[str, ...]
    service_of: Callable[[Record], Service]
    measured_seconds: Callable[[Record], float]
    unknown: Callable[[Record], str | None]
    kind: str
    left_out: frozenset[str] = frozenset()


SCHEMAS = (
    Schema(
        "trtllm_generation.csv",
        trtllm_generation.ENGINE,
        trtllm_generation.KEY,
        (
            "1 / gemm_rate",
            "1 / attention_rate",
            "1 / cache_read_efficiency",
            "seconds_per_sequence",
            "all_reduce_seconds",
        ),
        trtllm_generation.service_of,
        trtllm_generation.measured_seconds,
        trtllm_generation.unknown,
        "gpu",
        frozenset({"L40S"}),
    ),
    Schema(
        "lmdeploy_generation_a100.csv",
        lmdeploy_generation_a100.ENGINE,
        lmdeploy_generation_a100.KEY,
        (
            "1 / gemm_rate",
            "1 / cache_read_efficiency",
            "seconds_per_sequence",
            "all_reduce_seconds",
        ),
        lmdeploy_generation_a100.service_of,
        lmdeploy_generation_a100.measured_seconds,
        lmdeploy_generation_a100.unknown,
        "model",
    ),
)


@dataclass(frozen=True)
class Shares:
    """Hold rows' seconds as a constant part and a part for each coefficient.

    Attributes:
        fixed: Seconds by row that no coefficient changes.
        each: Seconds by row and coefficient, at a coefficient of 1.
    """

    names: tuple[str, ...]
    fixed: Floats
    each: Floats
    measured: Floats

    def errors(self, values: Floats) -> Floats:
        """Return forecast / measured - 1 by row."""
        return (self.fixed + self.each @ values) / self.measured - 1


def shares_of(schema: Schema, engine: EngineSheet, records: Sequence[Record]) -> Shares:
    """Return what each constant has to do with every row, by forecasting it with other values."""
    middle = {name: sum(BOUNDS[name]) / 2 for name in schema.names}

    def seconds(values: Coefficients) -> Floats:
        changed = with_coefficients(engine, values)
        return np.array([serve(schema.service_of(each), changed).seconds for each in records])

    base = seconds(middle)
    columns = []
    for name in schema.names:
        step = (BOUNDS[name][1] - BOUNDS[name][0]) / 4
        columns.append((seconds(middle | {name: middle[name] + step}) - base) / step)
    each = np.array(columns).T
    fixed = base - each @ np.array(list(middle.values()))
    measured = np.array([schema.measured_seconds(record) for record in records])
    return Shares(schema.names, fixed, each, measured)


def fit(shares: Shares) -> Floats:
    """Return the coefficients with the least relative errors, outliers damped."""
    low, high = (np.array([BOUNDS[name][side] for name in shares.names]) for side in (0, 1))

    def residuals(at: Floats) -> Floats:
        return np.log1p(np.maximum(shares.errors(low + at * (high - low)), -0.99))

    start = np.full(len(low), 0.4)
    answer = least_squares(residuals, start, bounds=(0, 1), loss="soft_l1", f_scale=0.05)
    return np.asarray(low + answer.x * (high - low), dtype=np.float64)


def show(what: str, relative: Floats) -> None:
    """Print the errors of some rows."""
    if not len(relative):
        return
    size = np.abs(relative)
    print(
        f"  {what}: {len(size)} rows, median {np.median(size):.1%}, mean {size.mean():.1%}, "
        f"p90 {np.quantile(size, 0.9):.1%}, worst {size.max():.1%}, bias {relative.mean():+.1%}, "
        f"68% within {np.quantile(size, 0.68):.3f}"
    )


def fit_table(schema: Schema, folder: Path) -> None:
    """Fit one table's engine and print its constants and their errors."""
    with (folder / schema.file).open(encoding="utf-8", newline="") as stream:
        records = [row for row in csv.DictReader(stream) if not schema.unknown(row)]
    records = [row for row in records if row[schema.kind] not in schema.left_out]
    fitted = [row for row in records if fitted_on(row_key(row, schema.key))]
    held = [row for row in records if not fitted_on(row_key(row, schema.key))]
    engine = load_engine(schema.engine)
    values = fit(shares_of(schema, engine, fitted))
    print(schema.engine)
    for name, value in zip(schema.names, values, strict=True):
        print(f"    {name}: {value:.4g}" + (f" (rate {1 / value:.3f})" if "/" in name else ""))
    final = with_coefficients(engine, dict(zip(schema.names, values.tolist(), strict=True)))
    for what, rows in (("fitted", fitted), ("held back", held)):
        errors = np.array(
            [
                serve(schema.service_of(row), final).seconds / schema.measured_seconds(row) - 1
                for row in rows
            ]
        )
        show(what, errors)
        for kind in sorted({row[schema.kind] for row in rows}):
            mask = np.array([row[schema.kind] == kind for row in rows])
            show(f"{what}, {kind}", errors[mask])


def fit_host(table: Path) -> None:
    """Fit vLLM's host time of a step to straight lines over the batch, and print them.

    Models of one GPU give the step and the time by sequence, the others what several GPUs add; the
    largest model, whose sampler runs over a vocabulary five times as large, is left out.
    """
    frame = pd.read_csv(table)
    frame = frame[~frame.model_name.str.contains("72B")]
    own = [f"{name}_median" for name in HOST_PARTS]
    frame["host"] = seconds_from_ms(1.0) * frame[own].sum(axis=1)
    frame["messages"] = seconds_from_ms(1.0) * frame["ray_comm_time_mean"]
    alone = frame[frame.tensor_parallel_degree == 1]
    slope, step = np.polyfit(alone.batch_size, alone.host + alone.messages, 1)
    several = frame[frame.tensor_parallel_degree > 1]
    beside = several.host - step - slope * several.batch_size
    print("vllm-0.3")
    print(f"    step_seconds: {step:.3g}")
    print(f"    seconds_per_sequence: {slope:.3g}")
    print(f"    worker_seconds, a scheduler on every rank: {beside.median():.3g}")
    print(f"    worker_seconds, with Ray's messages: {(beside + several.messages).median():.3g}")
    whole = step + slope * alone.batch_size
    show("host seconds at TP 1", np.asarray(whole / (alone.host + alone.messages) - 1))


def fit_skew() -> None:
    """Fit how long vLLM 0.3's ranks wait for each other's launches, as HybridFlow ran it."""
    with (HELD / "hybridflow_transition_generation_search.csv").open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["series"] == "generation"]
    measured = np.array([float(row["seconds"]) for row in rows])
    fitted = np.array([generation_tp(row) in FITTED_TP for row in rows])
    engine = load_engine(GENERATE)

    def errors(skew_seconds: float) -> Floats:
        steps = replace(engine.steps, launch_skew_seconds=skew_seconds)
        trial = replace(engine, steps=steps)
        seconds = np.array([generation_seconds(row, trial).seconds for row in rows])
        return np.asarray(seconds / measured - 1)

    found = minimize_scalar(
        lambda skew: float(np.sum(errors(skew)[fitted] ** 2)), bounds=SKEW_BOUNDS
    )
    print(f"{GENERATE}, as HybridFlow ran it\n    launch_skew_seconds: {found.x:.3g}")
    for row, error, used in zip(rows, errors(found.x), fitted, strict=True):
        print(f"    TP {generation_tp(row)} {'fitted' if used else 'held back'}: {error:+.1%}")


def main(truth: Path, ops: Path | None = None) -> None:
    """Fit each table's engine in turn."""
    if ops is not None:
        fit_host(ops / "a100" / "cpu_overheads.csv")
    fit_skew()
    for schema in SCHEMAS:
        fit_table(schema, truth)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
