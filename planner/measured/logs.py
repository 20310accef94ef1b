"""Read the steps of a framework's log: lines of its console, pasted keys, exports of trackers as JSON or CSV, trackers' files."""

import csv
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from rlplan.errors import FileError
from rlplan.files.decoding import read_text
from rlplan.files.frozen import FrozenDict
from rlplan.planner.measured.trackers import WANDB_STEP, tracked_files, tracked_steps
from rlplan.profiles.sheets import load_log_sheet, sheet_names
from rlplan.results.measurement import LoggedSteps, LogSheet

# `step:3 - timing_s/gen:45.87 - response_length/mean:np.float64(220.5)`, after whatever Ray puts before it.
CONSOLE_STEP = re.compile(r"\bstep:\d+ - ")
CONSOLE_FIGURE = re.compile(r"([\w./@-]+):(?:np\.\w+\()?([-+]?\d[\d.]*(?:e[-+]?\d+)?)")
# What goes on with such a line behind its end: more figures, or the rest of a key or number.
WRAPPED = re.compile(r" -(?: [\w./@-]*(?::[-+\dn]|:?$)|$)|^[ -]{0,3}[\w./@:()+-]+ ?$")
# A step's line has a few thousand characters; one that outgrows these is none.
LONGEST_STEP, MOST_PIECES = 2**16, 1000
# `Global step 3: {'policy_loss': 0.1, 'timing/generation': 45.87}`, a Python dict.
CONSOLE_DICT = re.compile(r"\bGlobal step (\d+): (?=\{)")
# `{'loss': 0.01, 'step_time': 3.3}`, what transformers' Trainer prints, behind a progress bar too.
TRAINER_DICT = re.compile(r"\{'(?:loss|step_time|num_tokens|reward)': ")
DICT_FIGURE = re.compile(r"'([\w./@()-]+)': (?:np\.\w+\()?'?([-+]?\d[\d.]*(?:e[-+]?\d+)?)")
# How many steps there were of all, as `5/94`.
SO_FAR = re.compile(r"\d{1,18}/\d{1,18}")
DICT_END = re.compile(r"\}$")
# `│ timeperf/rollout │ 1.2345e+01 │ ...`, rows of a table, and its last line.
TABLE_CELLS = re.compile(r"│ *([\w./@-]+) +│ *([-+]?\d[\d.]*(?:e[-+]?\d+)?) *(?=│)")
TABLE_END = re.compile("╘[═╧]*╛")
# What trainer_state.json calls what was logged.
HISTORY = "log_history"
# `  • generation: 20.13s (44.4%)`, `  • Mean Generation Length: 812.5`.
CONSOLE_ROW = re.compile(r"• ([\w /-]+): ([\d.]+)(s\b)?")
# What Ray puts before the lines of a process, and then `timing_s:` or `  gen: 31.2`: lines of a YAML document.
RAY_PREFIX = re.compile(r"\([\w.:]+ pid=[^)]*\) ")
NESTED_ROW = re.compile(r"(?P<indent> *)(?P<name>[\w./@-]+):(?: (?P<value>\S+))?")
# `timing_s/gen: 45.87`, `- timing_s/gen = 45.87 s`, `timing_s/gen | 45.87`, `"timing_s/gen": 45.87,`, and in Markdown's quotes.
PASTED_ROW = re.compile(
    r"(?:\([\w.:]+ pid=[^)]*\) )?(?:wandb:)?[\s>|*\-\u2022\"'`]*([A-Za-z][\w./@-]*)[\"'`*]{0,2}\s*(?:[:=|,\t]|\s)[\s`*]*(?:np\.\w+\()?"
    r"([-+]?\d[\d.]*(?:e[-+]?\d+)?)\)?[\s`*]*(?:s|sec|seconds|tokens)?[\s`*]*[|,;]?\s*"
)
# A key and its figure have a few dozen characters.
LONGEST_ROW = 300
# What a step has that came to its end.
OF_EVERY_STEP = ("generation", "update_actor", "weight_sync")
# What a step's number is called that stands on the console's line alone.
STEP_NUMBER = "step"
# Under what a line of verl's file logger has a step's number and its figures (verl, utils/tracking.py, FileLogger).
LOGGED_STEP, LOGGED = "step", "data"
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

OF_ANOTHER = (
    "the log reads as one of {}, and the configuration is of {}: is it the log of this run?"
)

Figures = Mapping[str, float]


def read_log(path: Path, *, warmup: int = 1, updates: int = 1) -> LoggedSteps:
    """Return the medians of a log's steps.

    Args:
        path: A file, a folder with files of TensorBoard's events, or W&B's folder of a run.
        warmup: First steps that are left out: engines compile and caches fill in them.
        updates: Of an iteration; where a log's steps are updates, so many of them are taken together.

    Raises:
        FileError: The file cannot be read, or holds no steps of a framework that has a sheet.
    """
    found = steps_of_log(path, updates=updates)
    if found is not None:
        sheet, steps, alone = found
        number = max(steps[0].get(key, 0) for key in (STEP_NUMBER, sheet.merged_by))
        if len(steps) == 1 and (alone or number > warmup):
            warmup = 0  # whoever hands on one step means that one
        if len(steps) > warmup:
            return medians_of(sheet, steps[warmup:])
        problem = f"holds {len(steps)} steps, of which the first {warmup} are left out"
        raise FileError(str(path), problem, allowed="a log of more steps, or --warmup 0")
    raise no_steps_error(path)


class StepsOfLog(NamedTuple):
    """Hold the figures of every whole step of a log, in order, by the keys of its sheet.

    Attributes:
        alone: Whether the log is of a kind that may hold one step alone, such as pasted keys.
    """

    sheet: LogSheet
    steps: Sequence[Figures]
    alone: bool


def steps_of_log(path: Path, *, updates: int = 1, grows: bool = False) -> StepsOfLog | None:
    """Return a log's steps one by one; None where it holds none of a framework that has a sheet.

    Args:
        updates: Of an iteration; where a log's steps are updates, so many of them are taken together.
        grows: Whether somebody still writes the file, so that a last line without its end is not read yet.

    Raises:
        FileError: The file cannot be read.
    """
    sheets = [load_log_sheet(name) for name in sheet_names("logs")]
    sheets.sort(key=lambda each: not each.tells)
    known = (
        (
            sheet,
            _whole(
                sheet,
                _summed(sheet, _alone(sheet, _completed(sheet, found))),
                updates if sheet.of_updates else 1,
            ),
            alone,
        )
        for sheet, found, alone in _steps_by_sheet(path, sheets, grows=grows)
    )
    logged = [each for each in known if each[1]]
    if not logged:
        return None
    sheet = _named_most(path, [each for each, _, _ in logged])
    steps, alone = next((steps, alone) for each, steps, alone in logged if each is sheet)
    return StepsOfLog(sheet, steps, alone)


def other_framework(sheet: LogSheet, framework: str) -> str:
    """Return whose log it is that a sheet reads, where another framework than this one writes such; empty where this one may."""
    if sheet.name == framework or framework not in sheet_names("logs"):
        return ""
    return "" if load_log_sheet(framework).step == sheet.step else sheet.name


def no_steps_error(path: Path) -> FileError:
    """Return what is to be said of a file that holds no steps."""
    kinds = "its console, pasted keys one a line, JSON lines, a JSON summary, columns or rows, CSV, TensorBoard's events, or W&B's folder"
    return FileError(
        str(path),
        "holds no steps of a framework whose log is known",
        allowed=f"a log of {', '.join(sheet_names('logs'))}: {kinds}",
    )


def _completed(sheet: LogSheet, found: Iterable[Figures]) -> Iterator[Figures]:
    """Yield the figures of steps, with those that a step has under another key alone."""
    for each in found:
        other = {key: each[at] for key, at in sheet.else_from.items() if at in each}
        yield {**other, **each}


def _alone(sheet: LogSheet, found: Iterable[Figures]) -> Iterator[Figures]:
    """Yield the figures of steps with the seconds of one alone, where a log has the mean of all steps so far."""
    if not sheet.mean_until:
        yield from found
        return
    steps, seconds = 0.0, 0.0
    for each in found:
        mean_seconds = each.get(sheet.step)
        now = next((each[key] for key in sheet.mean_until if key in each), 0.0)
        if mean_seconds is None:
            yield each
        elif now > steps:
            own = (now * mean_seconds - seconds) / (now - steps)
            steps, seconds = now, now * mean_seconds
            yield {**each, sheet.step: own}


def _summed(sheet: LogSheet, found: Iterable[Figures]) -> Iterator[Figures]:
    """Yield the figures of steps, with the seconds of those whose timers make them up."""
    timers = re.compile(sheet.timers) if sheet.adds_up else None
    for each in found:
        if timers is None or sheet.step in each or not all(key in each for key in sheet.tells):
            yield each
            continue
        parts = [
            value
            for key, value in each.items()
            if timers.fullmatch(key) and key not in (*sheet.inside, *sheet.outer)
        ]
        yield {**each, sheet.step: sum(parts)}


def _whole(sheet: LogSheet, found: Iterable[Figures], updates: int) -> list[Figures]:
    """Return the figures of whole iterations; what stands between two steps belongs to the later.

    Args:
        updates: Logged steps of an iteration, whose seconds add up and whose other figures are means.
    """
    steps, waiting = list[Figures](), dict[str, float]()
    for each in found:
        figures = {**waiting, **each} if sheet.of_updates else each
        whole = all(key in each for key in (sheet.step, *sheet.tells))
        steps += [figures] if whole else []
        waiting = {} if whole else dict(figures)
    if updates == 1:
        return steps
    seconds = {sheet.step, *sheet.stages}
    return [
        {
            key: sum(known) if key in seconds else mean(known)
            for key in dict.fromkeys(key for each in part for key in each)
            if (known := [each[key] for each in part if key in each])
        }
        for part in (steps[at : at + updates] for at in range(0, len(steps), updates))
        if len(part) == updates
    ]


def _named_most(path: Path, sheets: Sequence[LogSheet]) -> LogSheet:
    """Return the sheet of a log; among frameworks that log alike (forks), the one whose name the log has most often."""
    if sheets[0].tells:
        return sheets[0]
    alike = [each for each in sheets if each.step == sheets[0].step]
    if len(alike) == 1:
        return alike[0]
    text = _text_of(path).lower() if path.is_file() and not tracked_files(path) else ""
    return max(alike, key=lambda each: (text.count(each.name), not each.is_fork))


def _steps_by_sheet(
    path: Path, sheets: Sequence[LogSheet], *, grows: bool = False
) -> Iterator[tuple[LogSheet, list[Figures], bool]]:
    """Yield the figures of a log's steps as each sheet reads them, and whether it is of a kind that may hold one alone."""
    if tracked_files(path):
        logged = tracked_steps(path)
        for sheet in sheets:
            yield sheet, _merged(sheet, [_keyed(sheet, each) for each in logged]), False
        return
    text = _in_whole_lines(_text_of(path)) if grows else _text_of(path)
    every = _steps_of_history(text) or _steps_of_columns(text) or _steps_of_csv(text, path)
    summary = [] if every else _steps_of_document(text)
    every = every or summary
    lines = [] if every else list(_unwrapped(text.splitlines(), {each.step for each in sheets}))
    every = every or [figures for line in lines if (figures := _figures(line))]
    every = _of_one_record(every)
    for sheet in sheets:
        printed = _steps_of_blocks(sheet, lines) if sheet.console_step else []
        printed = printed or list(_rows_of_dicts(sheet, lines))
        printed = printed or list(_timed_steps(sheet, lines))
        found = _merged(sheet, printed or [_keyed(sheet, each) for each in every])
        pasted = [] if any(sheet.step in each for each in found) else _pasted(sheet, lines)
        yield sheet, pasted or found, bool(pasted or summary)


def _of_one_record(rows: Sequence[Figures]) -> list[Figures]:
    """Return rows of W&B's history, those that follow one another under one number taken together unless a figure differs."""
    found: list[dict[str, float]] = []
    for row in rows:
        last = found[-1] if found else {}
        same = WANDB_STEP in row and row[WANDB_STEP] == last.get(WANDB_STEP)
        if same and all(last.get(key, value) == value for key, value in row.items()):
            last |= row
        else:
            found.append(dict(row))
    return list(found)


def _text_of(path: Path) -> str:
    """Return the text of a log: it holds what a model said and what a terminal drew, cut anywhere, and is read all the same.

    Where a file is emptied under a process that writes it, zeros stand in place of what was there.

    Raises:
        FileError: The file is missing, is none, or is too large.
    """
    return read_text(path, errors="replace").replace("\0", "")


def _in_whole_lines(text: str) -> str:
    """Return a text without a last line that has no end yet, unless it is a whole JSON document."""
    if text.endswith("\n"):
        return text
    with suppress(ValueError, RecursionError):
        json.loads(text)
        return text
    return text.rpartition("\n")[0] + "\n"


def _pasted(sheet: LogSheet, lines: Sequence[str]) -> list[Figures]:
    """Return the figures of steps as people paste them: keys one a line, or the rows of a console."""
    steps = _pasted_steps(sheet, lines)
    return steps if any(sheet.step in each for each in steps) else _pasted_blocks(sheet, lines)


def _pasted_steps(sheet: LogSheet, lines: Iterable[str]) -> list[Figures]:
    """Return the figures of steps whose keys stand one a line, as people paste them: a key that comes again begins a step."""
    steps: list[dict[str, float]] = []
    for raw in lines:
        row = PASTED_ROW.fullmatch(ENDS_OF_LINE.sub("", raw)) if len(raw) < LONGEST_ROW else None
        for key, value in _numbers([(row[1], row[2])] if row else ()).items():
            named = next(
                (key.removeprefix(each) for each in sheet.prefixes if key.startswith(each)), key
            )
            if not steps or named in steps[-1]:
                steps.append({})
            steps[-1][named] = value
    return list(steps)


def _pasted_blocks(sheet: LogSheet, lines: Iterable[str]) -> list[Figures]:
    """Return the figures of steps whose rows were pasted without the lines that begin them: a row that comes again begins a step."""
    steps: list[dict[str, float]] = []
    for line in lines if sheet.console_prefix else ():
        row = _figure_on_row(sheet, ENDS_OF_LINE.sub("", line))
        if row and (not steps or row.keys() & steps[-1].keys()):
            steps.append({})
        if row:
            steps[-1] |= row
    return list(steps)


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
    if sheet.console_nested:
        return list(_nested_steps(re.compile(sheet.console_step), lines))
    if sheet.console_quoted or sheet.console_cells:
        return list(_numbered_steps(sheet, lines))
    steps: list[dict[str, float]] = []
    for raw in lines:
        line = ENDS_OF_LINE.sub("", raw)
        if begins := re.search(sheet.console_step, line):
            steps.append(_number_on(begins))
        elif steps:
            steps[-1] = {**_figure_on_row(sheet, line), **steps[-1]}
    return list(steps)


def _figure_on_row(sheet: LogSheet, line: str) -> Figures:
    """Return the figure of a row such as `generation: 20.1s (44.4%)` by its key; nothing where the line is none."""
    found = CONSOLE_ROW.search(line)
    if found is None:
        return {}
    name, number, seconds = found.groups()
    key = sheet.console_names.get(name, sheet.console_prefix + name if seconds else name)
    return _numbers([(key, number)])


def _number_on(line: re.Match[str]) -> dict[str, float]:
    """Return the number of the step that a console's line begins, where the line has it."""
    return _numbers([(STEP_NUMBER, line[1])]) if line.re.groups else {}


def _numbered_steps(sheet: LogSheet, lines: Iterable[str]) -> Iterator[Figures]:
    """Yield the figures of steps that a console prints as a Python dict, or a table, over several lines, with their numbers."""
    begins = re.compile(sheet.console_step)
    rows, end = (TABLE_CELLS, TABLE_END) if sheet.console_cells else (DICT_FIGURE, DICT_END)
    step: dict[str, float] = {}
    for raw in lines:
        line = ENDS_OF_LINE.sub("", raw).rstrip()
        if found := begins.search(line):
            step = _numbers([(sheet.merged_by, found[1])])
        elif step:
            step |= _numbers(rows.findall(line))
            if end.search(line):
                yield step
                step = {}


def _timed_steps(sheet: LogSheet, lines: Iterable[str]) -> Iterator[Figures]:
    """Yield the figures of steps whose timers a console prints one by one as they end, the step's own last.

    What an error ends is no step: its timers end without those of the stages behind it.
    """
    if not sheet.console_timers:
        return
    needed = {key for key, stage in sheet.stages.items() if stage in OF_EVERY_STEP}
    step: dict[str, float] = {}
    plain = (ENDS_OF_LINE.sub("", line) for line in lines)
    for match in (found for line in plain for found in re.finditer(sheet.console_timers, line)):
        name, number = (each for each in match.groups() if each is not None)
        key = sheet.console_names.get(name, sheet.console_prefix + name)
        for known, value in _numbers([(key, number)]).items():
            step[known] = step.get(known, 0.0) + value
        if key == sheet.step:
            if step.keys() >= needed:
                yield step
            step = {}


def _nested_steps(begins: re.Pattern[str], lines: Sequence[str]) -> Iterator[Figures]:
    """Yield the figures of steps that a console prints as YAML documents, whose mappings and names make a key.

    Lines of other processes may stand between those of one; another line of the same process ends a document.
    """
    step: dict[str, float] = {}
    process, parents = "", list[tuple[int, str]]()
    is_open = False
    for raw in lines:
        line = ENDS_OF_LINE.sub("", raw).rstrip()
        if begin := begins.search(line):
            if is_open:
                yield step
            step, parents, process, is_open = _number_on(begin), [], line[: begin.start()], True
            continue
        of_ray = RAY_PREFIX.match(line)
        if not is_open or not line or (of_ray[0] if of_ray else "") != process:
            continue
        row = NESTED_ROW.fullmatch(line[len(process) :])
        if row is None:
            yield step
            is_open = False
            continue
        depth = len(row["indent"])
        parents = [each for each in parents if each[0] < depth]
        if row["value"] is None:
            parents.append((depth, row["name"]))
        else:
            key = "/".join([*(name for _, name in parents), row["name"]])
            step |= _numbers([(key, row["value"])])
    if is_open:
        yield step


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
    """Return the steps of rows: those of one number are one, where a sheet has a key for it.

    Where a step's seconds come again with other figures, the run was started again: steps before stay as they are.
    """
    if not sheet.merged_by:
        return list(rows)
    seconds = {sheet.step, *sheet.stages}
    starts: list[dict[float, dict[str, float]]] = [{}]
    for row in rows:
        if sheet.merged_by not in row:
            continue
        step = starts[-1].get(row[sheet.merged_by], {})
        if any(key in seconds and step.get(key, value) != value for key, value in row.items()):
            starts.append({})
        starts[-1].setdefault(row[sheet.merged_by], {}).update(row)
    return [step for start in starts for step in start.values()] or list(rows)


def _steps_of_csv(text: str, path: Path) -> list[Figures]:
    """Return the figures of every step of an exported table: a column for each key, or a row for each figure.

    Trackers put a run's name before a key (`run - timing_s/gen`), and columns of bounds behind (`__MIN`).

    Raises:
        FileError: It has one figure of several runs; names them.
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
    _check_one_run(keys, path)
    return [
        {key: value for name, key in keys.items() if (value := _number(row.get(name))) is not None}
        for row in rows
    ]


def _check_one_run(keys: Mapping[str, str], path: Path) -> None:
    """Refuse a table that has one figure of several runs: their steps are none of one run.

    Args:
        keys: By the column's title.

    Raises:
        FileError: Names the runs.
    """
    runs: dict[str, list[str]] = {}
    for title, key in keys.items():
        runs.setdefault(key, []).append(title.removesuffix(key).removesuffix(" - "))
    several = next((each for each in runs.values() if len(set(each)) > 1), None)
    if several is not None:
        named = ", ".join(each or "one without a name" for each in dict.fromkeys(several))
        raise FileError(
            str(path), f"holds steps of several runs: {named}", allowed="the export of one run"
        )


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


def _steps_of_document(text: str) -> list[Figures]:
    """Return the figures of a JSON document of one step, as `wandb-summary.json` is, or of a list of steps."""
    if not text.lstrip().startswith(("{", "[")):
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    rows = found if isinstance(found, list) else [found]
    if any(isinstance(each, dict) and isinstance(each.get(LOGGED), dict) for each in rows):
        return []  # lines of a file logger, of which there is one
    return [_numbers(_named("", each)) for each in rows if isinstance(each, dict)]


def _steps_of_history(text: str) -> list[Figures]:
    """Return the figures of every step of a trainer_state.json of transformers, `{log_history: [{key: value}]}`."""
    if HISTORY not in text:
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    listed = found.get(HISTORY) if isinstance(found, dict) else None
    steps = (each for each in listed if isinstance(each, dict)) if isinstance(listed, list) else ()
    return [
        _numbers((key, value) for key, value in each.items() if isinstance(value, int | float))
        for each in steps
    ]


def _figures(line: str) -> Figures:
    """Return the figures of a line by their keys; nothing where it is of no step."""
    line = ENDS_OF_LINE.sub("", line)
    if printed := TRAINER_DICT.search(line):
        return _numbers(DICT_FIGURE.findall(line[printed.start() :]))
    if line.lstrip().startswith("{"):
        return _figures_of_json(line)
    if step := CONSOLE_STEP.search(line):
        return _numbers(CONSOLE_FIGURE.findall(line[step.start() :]))
    if step := CONSOLE_DICT.search(line):
        return _number_on(step) | _numbers(DICT_FIGURE.findall(line[step.end() :]))
    return {}


def _figures_of_json(line: str) -> Figures:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}  # a line that was cut off, or of another process
    if not isinstance(found, dict):
        return {}
    inner, number = found.get(LOGGED), found.get(LOGGED_STEP)
    if not isinstance(inner, dict):
        return _numbers(_named("", found))
    counted = [(STEP_NUMBER, number)] if isinstance(number, int) else []
    return _numbers([*counted, *_named("", inner)])


def _named(prefix: str, held: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """Yield the numbers in a mapping; those in mappings in it by both names, with a slash between."""
    for name, value in held.items():
        if isinstance(value, dict):
            yield from _named(f"{prefix}{name}/", value)
        elif isinstance(value, (int, float)):
            yield f"{prefix}{name}", value
        elif isinstance(value, str) and SO_FAR.fullmatch(value):
            yield f"{prefix}{name}", float(value.partition("/")[0])


def medians_of(sheet: LogSheet, steps: Sequence[Figures]) -> LoggedSteps:
    """Return the medians of some steps of a log, at least one."""

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
    if responses is None and prompts is not None and both is not None:
        responses = max(1.0, both - prompts)
    waited, engine = (middle(key) for key in sheet.slowest_episode or ("", ""))
    return LoggedSteps(
        sheet=sheet,
        steps=len(steps),
        step_seconds=_middle_step(sheet, steps),
        stage_seconds=FrozenDict(stages),
        prompt_tokens=prompts,
        response_tokens=responses,
        step_tokens=middle(sheet.step_tokens),
        longest_response=middle(sheet.longest_response),
        clip_ratio=middle(sheet.clip_ratio),
        generated_batches=middle(sheet.generated_batches),
        growth=_growth(sheet, steps),
        trainer_idle_fraction=_idle_fraction(
            middle(sheet.trainer_idle), middle(sheet.trainer_idle_seconds), middle(sheet.step)
        ),
        generator_idle_fraction=middle(sheet.generator_idle),
        tool_seconds=middle(sheet.tool_seconds),
        slowest_episode=None if waited is None or engine is None else (waited, engine),
        states_seconds=middle(sheet.states_timer),
        beside_seconds=_beside(sheet, steps),
        beside_each_seconds=_beside_each(sheet, steps),
        other_seconds=FrozenDict(
            {
                key.rsplit("/", 1)[-1]: seconds
                for key in _other_timers(sheet, steps)
                if (seconds := middle(key)) is not None
            }
        ),
    )


def _idle_fraction(
    fraction: float | None, seconds: float | None, step_seconds: float | None
) -> float | None:
    """Return the share of a step in which training waits for samples, logged as a share or in seconds."""
    if fraction is None and seconds is not None and step_seconds:
        return seconds / step_seconds
    return fraction


def _middle_step(sheet: LogSheet, steps: Sequence[Figures]) -> float | None:
    """Return the median of whole steps without validation and checkpoints, where their timer holds those.

    Some versions time them inside the step, others behind it; inside they are where the stages leave room for them.
    """
    known = []
    for each in steps:
        if sheet.step in each:
            apart = sum(each.get(key, 0.0) for key in sheet.beside)
            left = each[sheet.step] - apart
            stages = sum(each.get(key, 0.0) for key in sheet.stages)
            known.append(left if left >= stages else each[sheet.step])
    return median(known) if known else None


def _beside(sheet: LogSheet, steps: Sequence[Figures]) -> FrozenDict[str, float]:
    """Return the seconds a step, on average, of what is no part of every step."""
    found = dict[str, float]()
    for key, name in sheet.beside.items():
        seconds = sum(each.get(key, 0.0) for each in steps) / len(steps)
        if seconds > 0:
            found[name] = found.get(name, 0.0) + seconds
    return FrozenDict(found)


def _beside_each(sheet: LogSheet, steps: Sequence[Figures]) -> FrozenDict[str, float]:
    """Return the median seconds of one of each of these, over the steps that had it."""
    found = dict[str, list[float]]()
    for key, name in sheet.beside.items():
        found.setdefault(name, []).extend(each[key] for each in steps if each.get(key, 0.0) > 0)
    return FrozenDict({name: median(seconds) for name, seconds in found.items() if seconds})


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
    outer |= {*sheet.inside, *sheet.beside}
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
