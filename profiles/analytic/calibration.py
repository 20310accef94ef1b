"""How far sites are from their sheets, and forecasts of one site from each other: what calibration rests on."""

from dataclasses import dataclass
from functools import cache
from math import hypot

from rlplan.calibration import WorkKind
from rlplan.files.decoding import read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.profiles.analytic.efficiencies import CALIBRATION_FILE, FITS_FOLDER, Constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreads:
    """Hold standard deviations of logarithms: relative, one sigma.

    Attributes:
        between_sites: Of what a site takes over what its sheets say, by kind of work.
        links_between_sites: Of collectives on a kind of link over what is forecast.
        within_site: Of stages of one site around the forecasts with its factors.
        of_step: The same as a share of the whole step, beside that of the stage: timers of small stages
            hold what belongs to others; published seconds are printed to few digits.
        overhead_between_sites: Of the host's own seconds in a step over what is forecast.
        uncalibrated_step: Of steps around their forecasts at sites that were not calibrated: less than of their
            stages, whose errors make up for each other in part.
        outlier: Residuals of more such deviations count as outliers, whose weight is cut.
    """

    between_sites: FrozenDict[WorkKind, Constant]
    links_between_sites: Constant
    within_site: Constant
    of_step: Constant
    overhead_between_sites: Constant
    uncalibrated_step: Constant
    outlier: Constant

    def uncalibrated(self, kind: WorkKind) -> float:
        """Return the spread of one kind of work around its forecast at a site that was not calibrated."""
        if kind != "transition":
            return self.uncalibrated_step.value
        return hypot(self.between_sites[kind].value, self.within_site.value)


@cache
def load_spreads() -> Spreads:
    """Return the spreads between and within sites, from `profiles/fits/calibration.yaml`."""
    return read_yaml(Spreads, FITS_FOLDER / f"{CALIBRATION_FILE}.yaml")
