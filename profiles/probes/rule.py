"""The job's reward and cost functions: seconds of one sample, over rows of the job's own prompts."""

from __future__ import annotations

import time

from profiles.probes.bench.contract import HostBench, HostProbe, Keys, Settings
from rlplan.job import Job
from rlplan.lengths import mean_length

_KIND = "rule:"


def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
    """Return one point for each function that was handed in."""
    if job is None:
        return []
    return [{"kind": f"{_KIND}{name}", "num_bytes": 0} for name in settings.rules]


def measure(bench: HostBench, keys: Keys, repeats: int) -> tuple[float, ...]:
    """Return the seconds of a sample in each repeat, the mean over some rows."""
    rules, job = bench.rules, bench.job
    assert rules is not None, "points are asked for rules"
    assert job is not None, "points are asked for a job"
    rule = rules.functions[str(keys["kind"]).removeprefix(_KIND)]
    response = "x" * round(mean_length(job.workload.response_tokens))
    seconds = []
    for _ in range(repeats + 1):
        start_seconds = time.perf_counter()
        for row in rules.rows:
            rule(str(row["prompt"]), response, row)
        seconds.append((time.perf_counter() - start_seconds) / len(rules.rows))
    return tuple(seconds[1:])


PROBE = HostProbe(name="rule", table="call", points=points, measure=measure)
