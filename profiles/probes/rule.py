"""The job's reward function: seconds of one sample, over the rows of the job's own prompts."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from profiles.probes.bench.contract import HostBench, HostProbe, Keys, Settings
from rlplan.errors import FileError
from rlplan.job import Job
from rlplan.lengths import mean_length

# Rows that one repeat goes over: enough to see short and long ones.
_ROWS = 64


def points(job: Job | None, settings: Settings) -> list[dict[str, str | int]]:
    """Return one point when a reward function was handed in and the job names its prompts."""
    if job is None or job.prompts_file is None or settings.rule is None:
        return []
    return [{"kind": f"rule:{settings.rule}", "num_bytes": 0}]


def measure(bench: HostBench, keys: Keys, repeats: int) -> tuple[float, ...]:
    """Return the seconds of a sample in each repeat, the mean over some rows.

    Raises:
        FileError: The job's prompts cannot be read.
    """
    del keys
    rule, job = bench.rule, bench.job
    assert rule is not None, "points are asked for a rule"
    assert job is not None, "points are asked for a job"
    rows = _rows(Path(job.prompts_file or ""))
    response = "x" * round(mean_length(job.workload.response_tokens))
    seconds = []
    for _ in range(repeats + 1):
        start_seconds = time.perf_counter()
        for row in rows:
            rule(str(row["prompt"]), response, row)
        seconds.append((time.perf_counter() - start_seconds) / len(rows))
    return tuple(seconds[1:])


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()[:_ROWS]
        rows = [json.loads(line) for line in lines if line.strip()]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FileError(str(path), f"cannot be read as JSONL: {error}") from None
    if not rows or not all(isinstance(row, dict) and "prompt" in row for row in rows):
        raise FileError(str(path), "every row must hold a `prompt`", field="prompt")
    return rows


PROBE = HostProbe(name="rule", table="call", points=points, measure=measure)
