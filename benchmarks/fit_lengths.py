"""Fit how widely response lengths of one step are spread, and say how well it holds on other runs.

    python benchmarks/fit_lengths.py

`benchmarks/published_lengths.csv` holds quantiles, and means beside medians or shares that were cut, of
published runs. Each is one standard deviation of the logarithms of lognormal lengths; the constant of
`profiles/fits/lengths.yaml` is their median, which runs with endless repetition hardly move. Held out: each
run's figures (the share that is cut, or the 90th percentile over the median) from the median of the others.
"""

import csv
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist, fmean, median

import numpy as np
from scipy.special import ndtri

from rlplan.profiles.jobs.logged_lengths import clip_ratio_of, log_mean_of, log_std_of_clip_ratio

TABLE = Path(__file__).with_name("published_lengths.csv")
NORMAL = NormalDist()
# As wide only where some responses never end: their share is no matter of the spread of the others.
NEVER_ENDING = 1.4

Record = Mapping[str, str]


def log_std(record: Record) -> float:
    """Return the standard deviation of the logarithms that a run's figures mean."""
    if record["figure"] == "quantiles":
        shares, logs = quantiles(record)
        return float(np.polyfit(ndtri(shares), logs, 1)[0])
    mean = float(record["mean_tokens"])
    if record["figure"] == "median":
        return math.sqrt(2 * math.log(mean / float(record["median_tokens"])))
    return log_std_of_clip_ratio(float(record["clip_ratio"]), mean, int(record["max_tokens"]))


def quantiles(record: Record) -> tuple[list[float], list[float]]:
    """Return the shares and the logarithms of a run's quantiles, from the first quartile on."""
    known = {key: cell for key, cell in record.items() if key.startswith("p") and cell}
    return [int(key[1:]) / 100 for key in known], [math.log(float(cell)) for cell in known.values()]


def held_out(record: Record, spread: float) -> str:
    """Return what this spread says of a run, beside what was published."""
    if record["figure"] == "clip ratio":
        mean, most = float(record["mean_tokens"]), int(record["max_tokens"])
        cut = clip_ratio_of(log_mean_of(mean, spread, most), spread, most)
        return f"cut {cut:.3f}, published {float(record['clip_ratio']):.3f}"
    if record["figure"] == "median":
        ratio = float(record["mean_tokens"]) / float(record["median_tokens"])
        return f"mean over median {math.exp(spread**2 / 2):.2f}, published {ratio:.2f}"
    ratio = float(record["p90"]) / float(record["p50"])
    return f"p90 over median {math.exp(spread * NORMAL.inv_cdf(0.9)):.2f}, published {ratio:.2f}"


def main() -> None:
    """Print every run's spread and what the others say of it, and the median of all."""
    records = list(csv.DictReader(TABLE.open(encoding="utf-8")))
    spreads = [log_std(record) for record in records]
    errors = []
    for index, record in enumerate(records):
        others = median(spreads[:index] + spreads[index + 1 :])
        errors.append(abs(math.log(spreads[index] / others)))
        found = f"{spreads[index]:.2f}, of the others {others:.2f}: {held_out(record, others)}"
        sys.stdout.write(f"{record['run']:36} {found}\n")
    ending = [math.log(each / median(spreads)) for each in spreads if each < NEVER_ENDING]
    apart = math.sqrt(fmean(each**2 for each in ending))
    sys.stdout.write(f"between_runs {apart:.2f}, of {len(ending)} runs\n")
    sys.stdout.write(
        f"response_log_std {median(spreads):.2f}; held out: a factor of {math.exp(median(errors)):.2f} "
        f"(median), {math.exp(fmean(errors)):.2f} (mean)\n"
    )


if __name__ == "__main__":
    main()
