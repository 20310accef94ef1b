"""How far sites are from their sheets, and forecasts of one site from each other: what calibration rests on."""

from dataclasses import dataclass
from functools import cache

from profiles.analytic.efficiencies import CALIBRATION_FILE, FITS_FOLDER, Constant
from rlplan.calibration import StageKind
from rlplan.files.decoding import read_yaml
from rlplan.files.frozen import FrozenDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreads:
    """Hold standard deviations of logarithms: relative, one sigma.

    Attributes:
        between_sites: Of what a site takes over what its sheets say, by kind of work.
        within_site: Of steps of one site around the forecasts with its factors.
        overhead_between_sites: Of the host's own seconds in a step over what is forecast.
        reading: Of published seconds, which are printed to few digits, around those measured.
        outlier: Residuals of more such deviations count as outliers, whose weight is cut.
    """

    between_sites: FrozenDict[StageKind, Constant]
    within_site: Constant
    overhead_between_sites: Constant
    reading: Constant
    outlier: Constant


@cache
def load_spreads() -> Spreads:
    """Return the spreads between and within sites, from `profiles/fits/calibration.yaml`."""
    return read_yaml(Spreads, FITS_FOLDER / f"{CALIBRATION_FILE}.yaml")
