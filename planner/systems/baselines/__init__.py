"""Systems of the field, one file each: `best_plan(job, facts) -> SystemForecast`.

A user names a system as its file, with dashes for underscores and a dot between figures:
`openrlhf_0_2.py` is `openrlhf-0.2`.
"""

from typing import Protocol

from rlplan.job import Job
from rlplan.plug_ins import PlugIns
from rlplan.profiles.facts import Facts
from rlplan.results.accuracy import SystemForecast


class Baseline(Protocol):
    """Be a system of the field."""

    ABOUT: str

    def best_plan(self, job: Job, facts: Facts) -> SystemForecast:
        """Return the best plan that the system can express, or the reason why none fits.

        Args:
            job: A resolved job.
        """
        ...


BASELINES = PlugIns[Baseline](__name__, __path__, kind="system")
baseline_names, load_baseline = BASELINES.names, BASELINES.load
