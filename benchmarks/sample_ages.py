"""Fit what the age of samples costs, and say how it does on pairs that it has not seen: `python -m benchmarks.sample_ages`.

Prints the constants of `profiles/fits/sample_ages.yaml` and writes `reports/published/sample-ages.md`.
"""

import math
from collections.abc import Iterator
from pathlib import Path

from rlplan.evals.sample_ages import Judged, judged_pairs, load_pairs, observed_pairs, slopes
from rlplan.files.writing import write_text

PAGE = Path(__file__).resolve().parents[1] / "reports" / "published" / "sample-ages.md"
CORRECTIONS = {
    "none": "without a correction (the ratio to the policy that generated is clipped)",
    "decoupled": "with decoupled PPO",
}


def main() -> None:
    """Print the constants and write the page."""
    for correction, found in fits().items():
        print(correction, ", ".join(f"{slope:.3g}" for slope in found))
    write_text(PAGE, page())


def fits() -> dict[str, tuple[float, float]]:
    """Return (median, most) of the slopes of all pairs by correction."""
    every = observed_pairs()
    return {
        name: slopes(each for each in every if each.run.correction == name) for name in CORRECTIONS
    }


def page() -> str:
    """Return the published page."""
    judged = judged_pairs()
    fitted = [each for each in judged if each.observed.is_fitted]
    never = [each for each in judged if not each.observed.is_fitted]
    lines = [
        "# What the age of samples costs",
        "",
        ("Made by `python -m benchmarks.sample_ages` from `evals/held/sample_ages.yaml`. Assumed: `1 + slope x age` steps on samples that are "
        "`age` steps old on average get as far as one on fresh samples (`docs/time-to-score.md`)."),
        "",
        "| slope, all groups with the same weight | median | most, taken as p90 |",
        "|---|---:|---:|",
        *(
            f"| {CORRECTIONS[name]} | {' | '.join(f'{slope:.3g}' for slope in found)} |"
            for name, found in fits().items()
        ),
        "",
        ("A pair says how many steps on older samples got as far as one on fresh ones: directly where both runs' steps to a score are known. "
        "Where scores after equally many steps are, it is the fresh run's gain over the other's, as if scores grew evenly: the least "
        "that it can be, since they grow ever more slowly. What stands behind it is p10 to p90 of that, by how sharply so many answers "
        "measure a score; what runs differ by for other reasons comes on top (two runs of verl's without old samples, "
        "`7B, 128 GPUs` at age 0, differ by 14 %)."),
        "",
        ("p10 is no cost at all, p90 the largest cost of a run that did not collapse: with p10 and p90 of the pooled slopes only 16 of 31 "
        "pairs were met by a fit without their group, which was seen before this rule was chosen. Runs that gained less than a tenth of what the fresh one "
        "did have collapsed: one of AReaL's five without a correction, none with decoupled PPO. The interval does not speak of that."),
        "",
        "## A group under a fit on the others",
        "",
        (f"p10 to p90 of a fit that has not seen the group meet {_within(fitted)}. What they miss is mostly this project's own small models: "
        "they learn at large rates, and without a correction no fit on the others foresees what age costs them. Learning rate, batch and updates of "
        "an iteration decide more than the age does; so expect the interval to fail for a recipe unlike these."),
        "",
        *_table(fitted),
        "",
        "## Pairs in no fit",
        "",
        (f"Of these the score at first is not published; taking it as 0 brings what a pair says nearer to 1. p10 to p90 of the fit on all "
        f"pairs above meet {_within(never)}. In those that they miss the run on older samples got further, or no sample was old."),
        "",
        *_table(never),
        "",
        "## Sources",
        "",
        *(f"- {each.group}, {each.setting}: {each.source}" for each in load_pairs()),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _within(some: list[Judged]) -> str:
    return f"{sum(each.is_within for each in some)} of {len(some)} pairs"


def _table(some: list[Judged]) -> Iterator[str]:
    yield "| group, setting | correction | age | steps for one fresh | p10 to p90 | unseen fit: p10, median, p90 | |"
    yield "|---|---|---:|---:|---:|---:|---|"
    for each in some:
        seen, needed = each.observed, each.needed
        low, high = seen.interval
        sharp = "" if low == high else f"{_shown(low)} to {_shown(high)}"
        fit = "" if needed is None else ", ".join(map(_shown, needed))
        bound = "at most " if seen.run.age_is == "bound" else ""
        met = "" if each.is_within else "missed"
        yield (
            f"| {seen.group}, {seen.setting} | {seen.run.correction} | {bound}{seen.run.age:g} | {_shown(seen.needed)} | {sharp} "
            f"| {fit} | {met} |"
        )


def _shown(needed: float) -> str:
    return "never" if math.isinf(needed) else f"{needed:.2f}"


if __name__ == "__main__":
    main()
