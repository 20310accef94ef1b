"""Fit the training engines' constants to published iterations, and write them into their sheets.

    python benchmarks/fit_training.py PATH_TO_TRUTH [ENGINE ...] [--dry]

Every table is read by its own reader; half of its rows, chosen by a hash of their settings
(`evals/rows.py`), are fitted by least squares on log ratios with a robust loss, the
others are reported. `profiles/engines/*.yaml` get the values and the spread of the held-back rows.
"""

import argparse
import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from rlplan.evals.settings.pretraining import Pretraining, iteration_seconds
from rlplan.evals.tables import (
    megatron_training,
    mosaicml_training,
    torchtitan_training,
    vtrain_training,
)
from rlplan.profiles.catalog import load_engine
from rlplan.profiles.sheets import VARIANT_KEY
from rlplan.sheets import EngineSheet, KernelRates

ENGINES = Path(__file__).resolve().parents[1] / "profiles" / "engines"
Floats = npt.NDArray[np.float64]
Case = tuple[Pretraining, float, bool]  # settings, measured seconds, whether it is fitted
KERNELS = {field.name for field in fields(KernelRates)}
TABLES = (vtrain_training, megatron_training, mosaicml_training, torchtitan_training)
# Sheets that differ from another in what they shard, keep or fuse, and share its fitted constants.
FAMILY = {
    "megatron-2022-full": "megatron-2022",
    "fsdp2-compiled": "fsdp2-hopper",
    "fsdp2-float8-async": "fsdp2-float8",
}
ROBUST_SCALE = 0.01  # residuals of log ratios beyond it count by their size, not its square
DIGITS = 3
SHIFT = 20.0  # steps of derivatives are relative to logarithms, which must stay away from 0


@dataclass(frozen=True)
class Knob:
    """Name a constant of an engine that is fitted, with its bounds."""

    name: str
    low: float
    high: float


GEMM = Knob("gemm_rate", 0.5, 1.3)  # 1.3 is 94 % of A100's peak in large products
GEMM_FP8 = Knob("gemm_rate", 0.5, 2.0)  # over bf16's
OVERLAP = Knob("overlap_fraction", 0.0, 0.98)
LAUNCH = Knob("layer_launch_seconds", 1e-4, 4e-3)
GAP = Knob("layer_gap_seconds", 1e-6, 2e-3)
NETWORK = Knob("network_rate", 0.1, 1.43)  # 1.43 is the cards' line rate
LINK = Knob("link_rate", 0.3, 2.0)
FORWARD = Knob("attention_rate", 0.2, 2.0)
BACKWARD = Knob("attention_backward_rate", 0.2, 2.0)
SCORES = Knob("score_bytes", 2.0, 40.0)
FALLBACK = Knob("softmax_fallback_seconds", 1e-5, 1e-3)

ODD = Knob("odd_rate", 0.1, 1.0)
SENDS = Knob("send_bytes_per_second", 1e9, 1e12)

SHARDED = (GEMM, FORWARD, BACKWARD, GAP, OVERLAP, NETWORK)
# Constants that a sheet takes from another's fit, since both ran on the same cluster.
BORROWED: dict[str, tuple[str, tuple[Knob, ...]]] = {
    "megatron-2021": ("megatron-2022", (SENDS,)),
    "llm-foundry-fsdp-hopper-fp8": ("llm-foundry-fsdp-hopper", SHARDED[1:]),
}
FITS: dict[str, tuple[Knob, ...]] = {
    "megatron-deepspeed-2022": (GEMM, SCORES, ODD, LAUNCH, GAP, LINK, FALLBACK, SENDS),
    "megatron-deepspeed-2022-cluster": (GEMM, SCORES, GAP, NETWORK),
    "megatron-2022": (GEMM, SENDS),
    "megatron-2021": (GEMM,),
    "megatron-deepspeed-2021": (GEMM, NETWORK),
    "llm-foundry-fsdp": SHARDED,
    "llm-foundry-fsdp-hopper": SHARDED,
    "llm-foundry-fsdp-hopper-fp8": (GEMM_FP8,),
    "fsdp2": (GEMM, OVERLAP),
    "fsdp2-hopper": (GEMM,),
    "fsdp2-float8": (GEMM_FP8,),
}


def with_values(sheet: EngineSheet, knobs: Sequence[Knob], values: Sequence[float]) -> EngineSheet:
    """Return the sheet with these constants."""
    chosen: dict[str, Any] = {
        knob.name: float(value) for knob, value in zip(knobs, values, strict=True)
    }
    kernels = {name: value for name, value in chosen.items() if name in KERNELS}
    whole = {name: value for name, value in chosen.items() if name not in KERNELS}
    return replace(sheet, kernels=replace(sheet.kernels, **kernels), **whole)


def value_of(sheet: EngineSheet, knob: Knob) -> float:
    """Return the present value of a constant."""
    owner: Any = sheet.kernels if knob.name in KERNELS else sheet
    return float(getattr(owner, knob.name))


def log_ratios(cases: Sequence[Case], sheet: EngineSheet) -> Floats:
    """Return the logarithms of forecast over measured seconds. Shape (cases,)."""
    knobs = FITS[sheet.name]
    values = [value_of(sheet, knob) for knob in knobs]
    engines = {sheet.name: sheet} | {
        name: with_values(load_engine(name), knobs, values)
        for name, other in FAMILY.items()
        if other == sheet.name
    }
    return np.array(
        [np.log(iteration_seconds(run, engines).seconds / seconds) for run, seconds, _ in cases]
    )


def fitted_sheet(sheet: EngineSheet, knobs: Sequence[Knob], cases: Sequence[Case]) -> EngineSheet:
    """Return the sheet with the constants that fit the rows to be fitted best."""
    chosen = [case for case in cases if case[2]]
    low, high = (np.log([getattr(knob, side) + 1e-9 for knob in knobs]) for side in ("low", "high"))
    start = np.clip(
        np.log([value_of(sheet, knob) + 1e-9 for knob in knobs]), low + 1e-3, high - 1e-3
    )

    def residuals(logs: Floats) -> Floats:
        return log_ratios(chosen, with_values(sheet, knobs, np.exp(logs - SHIFT).tolist()))

    found = least_squares(
        residuals,
        start + SHIFT,
        bounds=(low + SHIFT, high + SHIFT),
        loss="soft_l1",
        f_scale=ROBUST_SCALE,
        diff_step=1e-4,
        xtol=1e-5,
        ftol=1e-5,
        max_nfev=40,
    )
    best = np.exp(found.x - SHIFT)
    return with_values(sheet, knobs, [float(f"{value:.{DIGITS}g}") for value in best])


def report(cases: Sequence[tuple[str, Case]], sheet: EngineSheet) -> float:
    """Print errors by table, for fitted and held-back rows; return the held-back rows' spread."""
    errors = np.exp(log_ratios([case for _, case in cases], sheet)) - 1
    fitted = np.array([case[2] for _, case in cases])
    tables = np.array([table for table, _ in cases])
    for table in dict.fromkeys(tables):
        for word, side in (("fitted", fitted), ("held back", ~fitted)):
            some = errors[(tables == table) & side]
            if len(some):
                a = np.abs(some)
                print(
                    f"  {table:42} {word:9} {len(some):4} rows: median {np.median(a):.3f}, mean "
                    f"{a.mean():.3f}, p90 {np.quantile(a, 0.9):.3f}, worst {a.max():.3f}, "
                    f"bias {some.mean():+.3f}"
                )
    judged = np.abs(errors[~fitted] if (~fitted).any() else errors)
    return float(np.quantile(judged, 0.8) / 1.2816)


def write_all(name: str, sheet: EngineSheet, knobs: Sequence[Knob], spread: float) -> None:
    """Write the constants into an engine's sheet, and into those that share or borrow them.

    Variants of the sheet have them from it.
    """
    for each in (name, *(other for other, owner in FAMILY.items() if owner == name)):
        if f"{VARIANT_KEY}: {name}\n" not in (ENGINES / f"{each}.yaml").read_text(encoding="utf-8"):
            write(each, sheet, knobs, spread)
    for borrower, (owner, borrowed) in BORROWED.items():
        if owner == name:
            write(borrower, sheet, borrowed, load_engine(borrower).forecast_spread)


def write(name: str, sheet: EngineSheet, knobs: Sequence[Knob], spread: float) -> None:
    """Write the constants into an engine's sheet, each in its own line."""
    path = ENGINES / f"{name}.yaml"
    text = path.read_text(encoding="utf-8")
    values = {knob.name: value_of(sheet, knob) for knob in knobs}
    for key, value in {**values, "forecast_spread": round(spread, 3)}.items():
        text, count = re.subn(rf"(?m)^( *{key}: )[-+.\de]+$", rf"\g<1>{value:.{DIGITS}g}", text)
        assert count == 1, f"{path} has {count} lines of {key}"
    path.write_text(text, encoding="utf-8")


def main() -> None:
    """Fit all engines, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("truth", type=Path)
    parser.add_argument("engines", nargs="*")
    parser.add_argument(
        "--dry", action="store_true", help="only report, with the sheets as they are"
    )
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args()
    for name, knobs in FITS.items():
        if options.engines and name not in options.engines:
            continue
        cases = _cases(options.truth, name)
        sheet = load_engine(name)
        if not options.dry:
            sheet = fitted_sheet(sheet, knobs, [case for _, case in cases])
        print(name, {knob.name: value_of(sheet, knob) for knob in knobs})
        spread = report(cases, sheet)
        if options.rows:
            _print_rows(cases, sheet)
        if not options.dry:
            write_all(name, sheet, knobs, spread)


def _cases(truth: Path, engine: str) -> list[tuple[str, Case]]:
    found: list[tuple[str, Case]] = []
    for path in sorted(truth.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as stream:
            records = list(csv.DictReader(stream))
        for table in TABLES:
            if table.READER.matches(frozenset(records[0])):
                iterations = map(table.iteration_of, records)
                found += [
                    (path.stem, (each.run, each.seconds, each.fitted))
                    for each in iterations
                    if each.run is not None
                    and FAMILY.get(each.run.engine, each.run.engine) == engine
                ]
    return found


def _print_rows(cases: Sequence[tuple[str, Case]], sheet: EngineSheet) -> None:
    errors = np.exp(log_ratios([case for _, case in cases], sheet)) - 1
    for (table, (run, seconds, fitted)), error in zip(cases, errors, strict=True):
        print(f"{error:+.3f} {'fit ' if fitted else 'held'} {seconds:9.4f} s {run.label} {table}")


if __name__ == "__main__":
    main()
