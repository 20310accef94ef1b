"""Factors of a site, as text."""

from rlplan.calibration import Calibration
from rlplan.reports.tables.plans import Table, columns
from rlplan.reports.tables.wording import percent


def factors_table(calibration: Calibration) -> Table:
    """Return a site's factors, one row each."""
    return Table(
        columns=columns("Factor", "#Times the sheet", "#Spread", "#Fitted on", "#Drawn to 1 by"),
        rows=tuple(
            (
                name,
                f"{each.value:.2f}",
                percent(each.spread),
                str(each.rows),
                percent(each.shrinkage),
            )
            for name, each in calibration.named()
        ),
    )
