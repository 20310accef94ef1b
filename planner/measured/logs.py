"""Read the steps of a framework's log: lines of its console, JSON lines, or JSON columns by step."""

import csv
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.files.reading import read_text
from rlplan.planner.measured.event_files import event_files, events_by_step
from rlplan.profiles.sheets import load_log_sheet, sheet_names
from rlplan.results.step_log import LoggedSteps, LogSheet

# `step:3 - timing_s/gen:45.87 - response_length/mean:np.float64(220.5)`, after whatever Ray puts before it.
CONSOLE_STEP = re.compile(r"\bstep:\d+ - ")
CONSOLE_FIGURE = re.compile(r"([\w./@-]+):(?:np\.\w+\()?([-+]?\d[\d.]*(?:e[-+]?\d+)?)")
# What goes on with such a line behind its end: more figures, or the rest of a key or number.
WRAPPED = re.compile(r" -(?: [\w./@-]*(?::[-+\dn]|:?$)|$)|^[ -]{0,3}[\w./@:()+-]+ ?$")
# A step's line has a few thousand characters; one that outgrows these is none.
LONGEST_STEP, MOST_PIECES = 2**16, 1000
# `Global step 3: {'policy_loss': 0.1, 'timing/generation': 45.87}`, a Python dict.
CONSOLE_DICT = re.compile(r"\bGlobal step \d+: (?=\{)")
DICT_FIGURE = re.compile(r"'([\w./@-]+)': (?:np\.\w+\()?([-+]?\d[\d.]*(?:e[-+]?\d+)?)")
# `  • generation: 20.13s (44.4%)`, `  • Mean Generation Length: 812.5`.
CONSOLE_ROW = re.compile(r"• ([\w /-]+): ([\d.]+)(s\b)?")
# What exported tables call the step and the name of a figure, in small letters.
STEP_COLUMNS = ("step", "_step", "global_step", "trainer/global_step", "iteration")
TAG_COLUMNS = ("tag", "key", "metric", "name")
BOUND_COLUMN = re.compile(r"__(MIN|MAX)$")
# Of steps: medians of fewer say nothing of a trend.
LEAST_THIRD = 3
STEP = re.compile(r"[0-9]{1,18}")
# Seconds or tokens beyond it no step has; sums and products of what is below stay numbers.
LARGEST_FIGURE = 1e15
ENDS_OF_LINE = re.compile(r"\x1b\[[\d;]*m")

Figures = Mapping[str, float]


def read_log(path: Path, *, warmup: int = 1) -> LoggedSteps:
    """Return the medians of a log's steps.

    Args:
        path: A file, or a folder with files of TensorBoard's events.
        warmup: First steps that are left out: engines compile and caches fill in them.

    Raises:
        FileError: The file cannot be read, or holds no steps of a framework that has a sheet.
    """
    sheets = [load_log_sheet(name) for name in sheet_names("logs")]
    known = ((sheet, [each for each in found if sheet.step in each])
             for sheet, found in _steps_by_sheet(path, sheets))  # fmt: skip
    logged = [(sheet, steps) for sheet, steps in known if steps]
    if logged:
        sheet = _named_most(path, [each for each, _ in logged])
        steps = next(steps for each, steps in logged if each is sheet)
        if len(steps) > warmup:
            return _medians(sheet, steps[warmup:])
        problem = f"holds {len(steps)} steps, of which the first {warmup} are left out"
        raise FileError(str(path), problem, allowed="a log of more steps")
    kinds = "its console, JSON lines, JSON columns by step, CSV, or TensorBoard's events"
    raise FileError(
        str(path),
        "holds no steps of a framework whose log is known",
        allowed=f"a log of {', '.join(sheet_names('logs'))}: {kinds}",
    )


def _named_most(path: Path, sheets: Sequence[LogSheet]) -> LogSheet:
    """Return the sheet of a log: of those whose frameworks log alike, as forks do, that which it names most."""
    alike = [each for each in sheets if each.step == sheets[0].step]
    if len(alike) == 1:
        return alike[0]
    text = read_text(path).lower() if path.is_file() and not event_files(path) else ""
    return max(alike, key=lambda each: (text.count(each.name), not each.is_fork))


def _steps_by_sheet(
    path: Path, sheets: Sequence[LogSheet]
) -> Iterator[tuple[LogSheet, list[Figures]]]:
    """Yield the figures of a log's steps as each sheet reads them."""
    if event_files(path):
        logged = events_by_step(path)
        for sheet in sheets:
            yield sheet, _merged(sheet, [_keyed(sheet, each) for each in logged])
        return
    text = read_text(path)
    every = _steps_of_columns(text) or _steps_of_csv(text)
    lines = [] if every else list(_unwrapped(text.splitlines(), {each.step for each in sheets}))
    every = every or [figures for line in lines if (figures := _figures(line))]
    for sheet in sheets:
        printed = _steps_of_blocks(sheet, lines) if sheet.console_step else []
        printed = printed or list(_rows_of_dicts(sheet, lines))
        yield sheet, _merged(sheet, printed or [_keyed(sheet, each) for each in every])


def _unwrapped(lines: Iterable[str], ends: Collection[str]) -> Iterator[str]:
    """Yield lines; a step that a terminal has wrapped, in the midst of words too, is one line again.

    Args:
        ends: Keys of which a whole step has one.
    """
    whole = re.compile(f"(?:{'|'.join(map(re.escape, ends))}):\\S+ - ")
    held, pieces = "", 0
    for raw in lines:
        line = ENDS_OF_LINE.sub("", raw)
        room = 0 < len(held) < LONGEST_STEP and pieces < MOST_PIECES
        if room and WRAPPED.search(line) and not CONSOLE_STEP.search(line):
            held, pieces = held + line, pieces + 1
        else:
            yield held
            held, pieces = line, 0
        if not CONSOLE_STEP.search(held) or whole.search(held):
            yield held
            held = ""
    yield held


def _keyed(sheet: LogSheet, figures: Figures) -> Figures:
    """Return a step's figures by the sheet's keys, without what trackers put before them."""
    found = dict(figures)
    for prefix in sheet.prefixes:
        for key, value in figures.items():
            found.setdefault(key.removeprefix(prefix), value)
    return found


def _steps_of_blocks(sheet: LogSheet, lines: Sequence[str]) -> list[Figures]:
    """Return the figures of steps that a console prints on lines of their own, such as `generation: 20.1s (44.4%)`."""
    steps: list[dict[str, float]] = []
    for raw in lines:
        line = ENDS_OF_LINE.sub("", raw)
        if re.search(sheet.console_step, line):
            steps.append({})
        elif steps and (found := CONSOLE_ROW.search(line)):
            name, number, seconds = found.groups()
            key = sheet.console_names.get(name, sheet.console_prefix + name if seconds else name)
            for known, value in _numbers([(key, number)]).items():
                steps[-1].setdefault(known, value)
    return list(steps)


def _rows_of_dicts(sheet: LogSheet, lines: Iterable[str]) -> Iterator[Figures]:
    """Yield the figures of each line of a console that holds a Python dict, with the step's number."""
    if not sheet.console_dict:
        return
    begins = re.compile(sheet.console_dict)
    for raw in lines:
        line = ENDS_OF_LINE.sub("", raw)
        if found := begins.search(line):
            number = _numbers([(sheet.merged_by, found[1])])
            yield {**_numbers(DICT_FIGURE.findall(line[found.end() :])), **number}


def _merged(sheet: LogSheet, rows: Sequence[Figures]) -> list[Figures]:
    """Return the steps of rows: those of one number are one, where a sheet has a key for it."""
    if not sheet.merged_by:
        return list(rows)
    steps: dict[float, dict[str, float]] = {}
    for row in rows:
        if sheet.merged_by in row:
            steps.setdefault(row[sheet.merged_by], {}).update(row)
    return list(steps.values()) or list(rows)


def _steps_of_csv(text: str) -> list[Figures]:
    """Return the figures of every step of an exported table: a column for each key, or a row for each figure.

    Trackers put a run's name before a key (`run - timing_s/gen`), and columns of bounds behind (`__MIN`).
    """
    lines = text.splitlines()
    if max(map(len, lines), default=0) > csv.field_size_limit():
        return []  # no table that a tracker wrote
    head = next(csv.reader(lines[:1]), [])
    named = {name.strip().lower(): name for name in head}
    step = next((named[name] for name in STEP_COLUMNS if name in named), None)
    if step is None:
        return []
    rows = list(csv.DictReader(lines))
    tag = next((named[name] for name in TAG_COLUMNS if name in named), None)
    if tag is not None and "value" in named:
        found: dict[str, dict[str, float]] = {}
        for row in rows:
            value = _number(row[named["value"]])
            if value is not None and row[tag] is not None:
                found.setdefault(row[step], {})[row[tag]] = value
        return list(found.values())
    keys = {name: name.rsplit(" - ", 1)[-1] for name in head if not BOUND_COLUMN.search(name)}
    return [
        {key: value for name, key in keys.items() if (value := _number(row.get(name))) is not None}
        for row in rows
    ]


def _number(text: str | float | None) -> float | None:
    """Return a figure of a log; None where it is no number, or none that seconds or tokens can be."""
    try:
        value = math.nan if text is None or isinstance(text, bool) else float(text)
    except (ValueError, OverflowError):
        return None
    return value if abs(value) <= LARGEST_FIGURE else None


def _numbers(found: Iterable[tuple[str, str | float]]) -> dict[str, float]:
    """Return the figures among what stands under keys."""
    return {key: value for key, text in found if (value := _number(text)) is not None}


def _steps_of_columns(text: str) -> list[Figures]:
    """Return the figures of every step of a JSON document of columns, `{key: {step: value}}`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    steps: dict[int, dict[str, float]] = {}
    for key, column in found.items() if isinstance(found, dict) else ():
        for step, value in column.items() if isinstance(column, dict) else ():
            if STEP.fullmatch(str(step)) and isinstance(value, (int, float)):
                steps.setdefault(int(step), {}).update(_numbers([(key, value)]))
    return [steps[step] for step in sorted(steps)]


def _figures(line: str) -> Figures:
    """Return the figures of a line by their keys; nothing where it is of no step."""
    line = ENDS_OF_LINE.sub("", line)
    if line.lstrip().startswith("{"):
        return _figures_of_json(line)
    if step := CONSOLE_STEP.search(line):
        return _numbers(CONSOLE_FIGURE.findall(line[step.start() :]))
    if step := CONSOLE_DICT.search(line):
        return _numbers(DICT_FIGURE.findall(line[step.end() :]))
    return {}


def _figures_of_json(line: str) -> Figures:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}  # a line that was cut off, or of another process
    inner = found.get("data", found) if isinstance(found, dict) else None
    held = inner.items() if isinstance(inner, dict) else ()
    return _numbers((key, value) for key, value in held if isinstance(value, (int, float)))


def _medians(sheet: LogSheet, steps: Sequence[Figures]) -> LoggedSteps:
    def middle(key: str) -> float | None:
        known = [each[key] for each in steps if key in each]
        return median(known) if known else None

    stages: dict[str, float] = {}
    for key, stage in sheet.stages.items():
        seconds = middle(key)
        if seconds is not None:
            stages[stage] = stages.get(stage, 0.0) + seconds
    prompts, responses, both = map(
        middle, (sheet.prompt_tokens, sheet.response_tokens, sheet.total_tokens)
    )
    if prompts is None and responses is not None and both is not None:
        prompts = max(1.0, both - responses)
    return LoggedSteps(
        sheet=sheet,
        steps=len(steps),
        step_seconds=middle(sheet.step),
        stage_seconds=FrozenDict(stages),
        prompt_tokens=prompts,
        response_tokens=responses,
        longest_response=middle(sheet.longest_response),
        clip_ratio=middle(sheet.clip_ratio),
        growth=_growth(sheet, steps),
        other_seconds=FrozenDict(
            {
                key.rsplit("/", 1)[-1]: seconds
                for key in _other_timers(sheet, steps)
                if (seconds := middle(key)) is not None
            }
        ),
    )


def _growth(sheet: LogSheet, steps: Sequence[Figures]) -> FrozenDict[str, float]:
    """Return how stages' seconds grew from the first third of the steps to the last, beyond their responses."""
    third = len(steps) // 3
    if third < LEAST_THIRD:
        return FrozenDict()

    def times(key: str) -> float | None:
        ends = (
            [each[key] for each in part if key in each] for part in (steps[:third], steps[-third:])
        )
        first, last = (median(values) if values else 0.0 for values in ends)
        return last / first if first > 0 and last > 0 else None

    tokens = times(sheet.response_tokens) or 1.0
    grown = {stage: times(key) for key, stage in sheet.stages.items()}
    return FrozenDict(
        {stage: found / tokens for stage, found in grown.items() if found is not None}
    )


def _other_timers(sheet: LogSheet, steps: Sequence[Figures]) -> list[str]:
    """Return the keys of timers of whole stages that the sheet does not name."""
    group = sheet.step.rpartition("/")[0] + "/"
    known = {sheet.step, *sheet.stages, *(key for key in sheet.stages if "/" in key)}
    keys = dict.fromkeys(key for each in steps for key in each)
    outer = {*sheet.outer, *(key.rpartition("/")[0] for key in sheet.stages)}
    return [
        key
        for key in keys
        if key.startswith(group)
        and (not sheet.timers or re.fullmatch(sheet.timers, key))
        and key not in known
        and "/" not in key[len(group) :]
        and key not in outer
        and "per_sec" not in key
    ]
