"""Files of a run's evaluations, and which of them are due."""

from pathlib import Path
from typing import Any

from rlplan.executor.control.line_file import drop_iterations
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.data.prompt_files import json_object
from rlplan.files.decoding import read_text
from rlplan.workload import Evaluation

# What names of metrics begin with that evaluations find.
EVALUATION = "evaluation"
EVALUATIONS_FILE, SAMPLES_FILE = "evaluations.jsonl", "samples.jsonl"


def read_evaluations(out: Path) -> list[dict[str, float]]:
    """Return the numbers of a run's evaluations by name, in their order; none without any."""
    path = out / EVALUATIONS_FILE
    return read_metrics(path) if path.exists() else []


def read_samples(out: Path) -> list[dict[str, Any]]:
    """Return the responses that a run's evaluations kept: `iteration`, `prompt`, `response`, `score`, `tokens`.

    A last line that was cut off is left out.

    Raises:
        FileError: A line before it is broken.
    """
    path = out / SAMPLES_FILE
    lines = read_text(path, most_bytes=None).split("\n")[:-1] if path.exists() else []
    return [json_object(line, f"{path}: line {number}") for number, line in enumerate(lines, 1)]


class Evaluations:
    """Know which evaluations a run has behind it, and when the next one is due.

    Args:
        out: Folder of the run.
        iterations: In all.
    """

    def __init__(self, evaluation: Evaluation | None, out: Path, iterations: int) -> None:
        self._evaluation, self._out, self._iterations = evaluation, out, iterations

    def is_due(self, done: int, *, ends: bool = False) -> bool:
        """Tell whether a run evaluates after so many iterations, and has not yet.

        Args:
            ends: Whether it stops there.
        """
        asked = self._evaluation
        if asked is None:
            return False
        last = asked.after_last and (ends or done == self._iterations)
        between = done > 0 and asked.every is not None and done % asked.every == 0
        wanted = last or between or (done == 0 and asked.before_first)
        return wanted and all(row["iteration"] != done for row in self.rows)

    @property
    def rows(self) -> list[dict[str, float]]:
        """Return the numbers of the evaluations that were done, in their order."""
        return read_evaluations(self._out)

    @property
    def best(self) -> int | None:
        """Return after how many iterations accuracy was best, the first of equals; None where nothing was trained yet."""
        trained = [row for row in self.rows if row["iteration"] > 0]
        if not trained:
            return None
        best = max(trained, key=lambda row: (row["accuracy"], -row["iteration"]))
        return int(best["iteration"])


def found_after(out: Path, done: int) -> dict[str, float]:
    """Return what a run's evaluation after so many iterations found, by the names that metrics have; nothing without one."""
    rows = (row for row in read_evaluations(out) if row["iteration"] == done)
    return {
        f"{EVALUATION}/{name}": each
        for row in rows
        for name, each in row.items()
        if name != "iteration"
    }


def evaluation_names(evaluation: Evaluation | None) -> tuple[str, ...]:
    """Return the names of the metrics that evaluations find; none where there are no evaluations."""
    if evaluation is None:
        return ()
    passing = (f"pass@{count}" for count in passing_counts(evaluation))
    found = ("accuracy", *passing, "score", "response_tokens", "cut", "seconds")
    return tuple(f"{EVALUATION}/{name}" for name in found)


def passing_counts(evaluation: Evaluation) -> tuple[int, ...]:
    """Return for which numbers of responses it is asked whether one is right: powers of two up to all of a prompt's."""
    return tuple(2**power for power in range(1, evaluation.samples_per_prompt.bit_length()))


def drop_evaluations(out: Path, done: int) -> None:
    """Remove from a run's folder the evaluations after more than so many iterations, and one that was not finished; below 0 all."""
    drop_iterations(out / EVALUATIONS_FILE, done + 1)
    is_whole = any(row["iteration"] == done for row in read_evaluations(out))
    drop_iterations(out / SAMPLES_FILE, done + is_whole)
