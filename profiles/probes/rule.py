"""The job's reward and cost functions: seconds of one sample, over rows of the job's own prompts.

As a worker calls them, where somebody says how: a response is decoded first, and given with its prompt. Before each
repeat the process sleeps, as a worker does until its next call: a rule of some milliseconds takes 1.3 to 1.6 times as
long after that as in a loop, whether or not other processes have the cores meanwhile.
"""

from __future__ import annotations

import time

from rlplan.job import Job
from rlplan.profiles.probes.bench.contract import HostBench, HostProbe, JobRules, Keys, Settings
from rlplan.workload import mean_length

_KIND = "rule:"
# A usual time between two calls of a worker. A sweep over 32 MiB in its place makes a rule 1.1 times as slow.
_SLEPT_SECONDS = 0.1


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
    name = str(keys["kind"]).removeprefix(_KIND)
    response = "x" * round(mean_length(job.workload.response_tokens))
    seconds = []
    for _ in range(repeats + 1):
        time.sleep(_SLEPT_SECONDS)
        start_seconds = time.perf_counter()
        count = rules.judge(name) if rules.judge else _call_one_by_one(rules, name, response)
        seconds.append((time.perf_counter() - start_seconds) / count)
    return tuple(seconds[1:])


def _call_one_by_one(rules: JobRules, name: str, response: str) -> int:
    for row in rules.rows:
        rules.functions[name](str(row["prompt"]), response, row)
    return len(rules.rows)


PROBE = HostProbe(name="rule", table="call", points=points, measure=measure)
