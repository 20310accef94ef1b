"""Read the steps of a framework's log: lines of its console, JSON lines, or JSON columns by step."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from profiles.sheets import load_log_sheet, sheet_names
from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.files.reading import read_text
from rlplan.results.step_log import LoggedSteps, LogSheet

# `step:3 - timing_s/gen:45.87 - response_length/mean:np.float64(220.5)`, after whatever Ray puts before it.
CONSOLE_STEP = re.compile(r"\bstep:\d+ - ")
CONSOLE_FIGURE = re.compile(r"([\w./@-]+):(?:np\.\w+\()?([-+]?\d[\d.]*(?:e[-+]?\d+)?)")
ENDS_OF_LINE = re.compile(r"\x1b\[[\d;]*m")

Figures = Mapping[str, float]


def read_log(path: Path, *, warmup: int = 1) -> LoggedSteps:
    """Return the medians of a log's steps.

    Args:
        warmup: First steps that are left out: engines compile and caches fill in them.

    Raises:
        FileError: The file cannot be read, or holds no steps of a framework that has a sheet.
    """
    text = read_text(path)
    every = _steps_of_columns(text) or [
        figures for line in text.splitlines() if (figures := _figures(line))
    ]
    for name in sheet_names("logs"):
        sheet = load_log_sheet(name)
        steps = [each for each in every if sheet.step in each]
        if len(steps) > warmup:
            return _medians(sheet, steps[warmup:])
        if steps:
            problem = f"holds {len(steps)} steps, of which the first {warmup} are left out"
            raise FileError(str(path), problem, allowed="a log of more steps")
    raise FileError(
        str(path),
        "holds no steps of a framework whose log is known",
        allowed=f"a log of {', '.join(sheet_names('logs'))}: its console, JSON lines, or JSON columns by step",
    )


def _steps_of_columns(text: str) -> list[Figures]:
    """Return the figures of every step of a JSON document of columns, `{key: {step: value}}`."""
    try:
        found = json.loads(text)
    except ValueError:
        return []
    steps: dict[int, dict[str, float]] = {}
    for key, column in found.items() if isinstance(found, dict) else ():
        for step, value in column.items() if isinstance(column, dict) else ():
            if str(step).isdigit() and isinstance(value, (int, float)):
                steps.setdefault(int(step), {})[key] = float(value)
    return [steps[step] for step in sorted(steps)]


def _figures(line: str) -> Figures:
    """Return the figures of a line by their keys; nothing where it is of no step."""
    line = ENDS_OF_LINE.sub("", line)
    if line.lstrip().startswith("{"):
        return dict(_figures_of_json(line))
    step = CONSOLE_STEP.search(line)
    if step is None:
        return {}
    return {key: float(value) for key, value in CONSOLE_FIGURE.findall(line[step.start() :])}


def _figures_of_json(line: str) -> Iterator[tuple[str, float]]:
    try:
        found = json.loads(line)
    except ValueError:
        return  # a line that was cut off, or of another process
    inner = found.get("data", found) if isinstance(found, dict) else None
    for key, value in inner.items() if isinstance(inner, dict) else ():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield key, float(value)


def _medians(sheet: LogSheet, steps: Sequence[Figures]) -> LoggedSteps:
    def middle(key: str) -> float | None:
        known = [each[key] for each in steps if key in each]
        return median(known) if known else None

    stages: dict[str, float] = {}
    for key, stage in sheet.stages.items():
        seconds = middle(key)
        if seconds is not None:
            stages[stage] = stages.get(stage, 0.0) + seconds
    return LoggedSteps(
        sheet=sheet,
        steps=len(steps),
        step_seconds=middle(sheet.step),
        stage_seconds=FrozenDict(stages),
        prompt_tokens=middle(sheet.prompt_tokens),
        response_tokens=middle(sheet.response_tokens),
    )
