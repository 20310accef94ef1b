"""Fit what kernels take to operator tables, write them down, and say how well they hold elsewhere.

    python benchmarks/fit_kernels.py PATH_TO_OPS [PART...]

The tables are those of microsoft/vidur (MIT): folders `a100` and `h100` of `*_mlp.csv`,
`attention_*.csv`, `all_reduce_*.csv` and `send_recv_*.csv`. The readers in `evals/`
say which rows the constants are fitted on; the others are held out, and give the spread. Beside
that, every part is fitted once without a model (CodeLlama-34B) or a number of ranks (4), to say
what a model or a size that no fit has seen may expect; those constants are not written. With names
of parts (`gemm`, `norm`, ..., `decode`) only those are fitted. Files written:
`profiles/kernels/constants/<architecture>.yaml`.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from kernel_cases import Case
from kernel_parts import ROWS, Part, parts_of
from scipy.optimize import OptimizeResult, least_squares
from scipy.stats import qmc

from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import plain, write_yaml
from rlplan.profiles.analytic.roofline import Roofline
from rlplan.profiles.catalog import load_device
from rlplan.profiles.kernels.kernel_time import KERNELS_FOLDER, Kernels, load_kernels
from rlplan.sheets import DeviceSheet

Floats = npt.NDArray[np.float64]

DEVICES = {"a100": "a100-80gb-sxm", "h100": "h100-80gb-sxm"}
MOST_CASES = 800  # enough for a dozen constants; more only takes longer
STARTS = 16  # points of a Sobol sequence from which the search starts: times climb in stairs
SCOUT_EVALUATIONS, BEST_STARTS, EVALUATIONS = 12, 3, 80
LAYER = "layer operators"
SIGMA = 0.68  # the share of a normal distribution within one standard deviation


def thinned(cases: Sequence[Case]) -> list[Case]:
    """Return at most so many cases, drawn with a fixed seed, in their order."""
    if len(cases) <= MOST_CASES:
        return list(cases)
    chosen = np.random.default_rng(0).choice(len(cases), MOST_CASES, replace=False)
    return [cases[index] for index in sorted(chosen)]


def search(sheet: DeviceSheet, start: Kernels, part: Part, cases: Sequence[Case]) -> OptimizeResult:
    """Return the best of many searches for values, as shares of the way between their bounds."""
    low, high = np.array(list(part.bounds.values())).T

    def residuals(shares: Floats) -> Floats:
        kernels = part.build(start, [*map(float, low + shares * (high - low))])
        line = Roofline(sheet, kernels=kernels)
        return np.log([case.forecast(line) / case.seconds for case in cases])

    def descend(shares: Floats, evaluations: int) -> OptimizeResult:
        return least_squares(
            residuals, shares, bounds=(0, 1), loss="soft_l1", f_scale=0.05, diff_step=3e-3,
            max_nfev=evaluations,
        )  # fmt: skip

    points = qmc.Sobol(len(low), seed=0).random(STARTS) * 0.96 + 0.02
    scouts = sorted((descend(each, SCOUT_EVALUATIONS) for each in points), key=lambda it: it.cost)
    best = [descend(np.clip(each.x, 0.001, 0.999), EVALUATIONS) for each in scouts[:BEST_STARTS]]
    return min(best, key=lambda answer: answer.cost)


def fit(
    sheet: DeviceSheet, start: Kernels, part: Part, cases: Sequence[Case]
) -> tuple[Kernels, FrozenDict[str, float]]:
    """Return kernels with the part's constants fitted to relative errors, and standard errors."""
    low, high = np.array(list(part.bounds.values())).T
    cases = thinned(cases)
    best = search(sheet, start, part, cases)
    values = [float(f"{value:.4g}") for value in low + best.x * (high - low)]
    variance = 2 * best.cost / max(1, len(cases) - len(low))
    # Constants at their bounds have no standard error.
    inside = (best.x > 0.001) & (best.x < 0.999)  # noqa: PLR2004 -- shares, see above
    jacobian = best.jac[:, inside]
    errors = np.zeros(len(low))
    diagonal = np.diag(np.linalg.pinv(jacobian.T @ jacobian))
    errors[inside] = np.sqrt(np.maximum(0.0, diagonal) * variance)
    named = dict(zip(part.bounds, errors * (high - low), strict=True))
    known = {name: float(f"{each:.2g}") for name, each in named.items() if each > 0}
    return part.build(start, values), FrozenDict(known)


def errors_of(sheet: DeviceSheet, kernels: Kernels, cases: Sequence[Case]) -> Floats:
    """Return the relative errors of cases."""
    line = Roofline(sheet, kernels=kernels)
    return np.array([case.forecast(line) / case.seconds - 1 for case in cases])


def note(errors: Floats) -> str:
    """Return errors in words."""
    size = np.abs(errors)
    median, high = np.median(size), np.quantile(size, 0.95)
    return f"{median:.1%} median, {high:.1%} p95 of {len(size)}"


def with_spread(
    kernels: Kernels, part: str, spread: float, errors: FrozenDict[str, float]
) -> Kernels:
    """Return kernels that know the spread of a part and the standard errors of its constants."""
    spread = float(f"{spread:.2g}")
    if part == "gemm":
        return replace(kernels, gemm=replace(kernels.gemm, spread=spread, standard_errors=errors))
    if part in kernels.rows:
        row = replace(kernels.rows[part], spread=spread, standard_errors=errors)  # type: ignore[index]
        return replace(kernels, rows=kernels.rows.with_item(part, row))  # type: ignore[arg-type]
    if part in ("all_reduce", "send_recv"):
        side = "reduce" if part == "all_reduce" else "send"
        known = FrozenDict({**kernels.links.standard_errors, **errors})
        changes: dict[str, Any] = {f"{side}_spread": spread, "standard_errors": known}
        return replace(kernels, links=replace(kernels.links, **changes))
    assert kernels.attention is not None
    known = FrozenDict({**kernels.attention.standard_errors, **errors})
    changes = {f"{part}_spread": spread, "standard_errors": known}
    return replace(kernels, attention=replace(kernels.attention, **changes))


@dataclass(frozen=True)
class Fitted:
    """Hold a part that was fitted.

    Attributes:
        held: Errors of the cases that were held out; of the fitted ones where `all_fitted`.
        tried: Errors of the cases that a fit which is only tried left out.
    """

    kernels: Kernels
    held: Floats
    tried: Floats
    all_fitted: bool = False

    @property
    def note(self) -> str:
        """Return the errors in words."""
        tried = f"without what is left out {note(self.tried)}" if len(self.tried) else ""
        held = f"all fitted on, {note(self.held)}" if self.all_fitted else note(self.held)
        return "; ".join(filter(None, (held, tried)))


def fit_part(sheet: DeviceSheet, kernels: Kernels, part: Part) -> Fitted:
    """Return a part's fit and its errors elsewhere."""
    fitted = [case for case in part.cases if case.fitted]
    held = [case for case in part.cases if not case.fitted]
    kept = [case for case in fitted if not case.left_out]
    tried = np.array([])
    if len(kept) < len(fitted):
        without, _ = fit(sheet, kernels, part, kept)
        tried = errors_of(sheet, without, [case for case in part.cases if case.left_out])
    kernels, errors = fit(sheet, kernels, part, fitted)
    found = errors_of(sheet, kernels, held or fitted)
    kernels = with_spread(kernels, part.name, float(np.quantile(np.abs(found), SIGMA)), errors)
    return Fitted(kernels, found, tried, all_fitted=not held)


def together(parts: Sequence[Fitted]) -> dict[str, str]:
    """Return a note of all operators of a layer without its attention."""
    held = np.concatenate([part.held for part in parts])
    tried = np.concatenate([part.tried for part in parts])
    return {LAYER: Fitted(parts[0].kernels, held, tried).note}


def main(ops: Path, chosen: Sequence[str]) -> None:
    """Fit every architecture's kernels, write them, and print the errors held out."""
    for folder, device in DEVICES.items():
        sheet = load_device(device)
        kernels = load_kernels(sheet.architecture)
        notes = dict(kernels.held_out)
        layer = []
        for part in parts_of(ops / folder, device):
            if chosen and part.name not in chosen:
                continue
            fitted = fit_part(sheet, kernels, part)
            kernels, notes[part.name] = fitted.kernels, fitted.note
            layer += [fitted] if part.name in ("gemm", *ROWS) else []
            print(f"{device}: {part.name} {fitted.note}", flush=True)
        if len(layer) > len(ROWS):
            notes |= together(layer)
            print(f"{device}: {LAYER} {notes[LAYER]}", flush=True)
        kernels = replace(kernels, held_out=FrozenDict(notes))
        write_yaml(KERNELS_FOLDER / f"{sheet.architecture}.yaml", plain(kernels))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
