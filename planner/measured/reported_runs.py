"""Check configurations that were reported with their outcome, and hold what is said against what happened."""

import csv
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlplan.errors import FileError, UserError
from rlplan.files.decoding import decode, load_yaml, read_text, read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.planner.answers.completion import complete
from rlplan.planner.answers.verdicts import Verdict, verdict_at
from rlplan.planner.configs.checking import Checked, check_config, check_plan
from rlplan.planner.configs.importing import ImportOptions
from rlplan.planner.requests.drafts import read_draft
from rlplan.profiles.facts import load_facts
from rlplan.results.accuracy import FitCase, FitRow, Said
from rlplan.simulator.memory.task_memory import COMMUNICATORS, CONTEXT, FRAGMENTATION
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.timeline.pool_memory import APART, BESIDE, memory_moments
from rlplan.units import GB, GIB

ABOUT = "about.yaml"
PLAN = "plan"
NEEDED = ("case", "framework", "file", "arguments", "outcome")
TEXTS = (*NEEDED, "group", "trust", "stage", "version", "source", "assumed", "if_wrong")
SIZES = {
    "peak_gib": ("peak_bytes", GIB),
    "trainer_gib": ("trainer_bytes", GIB),
    "host_gb": ("host_memory_bytes", GB),
}
COLUMNS = (*TEXTS, *SIZES)
UNGROUPED = "collected"
NOT_ALLOCATED = frozenset({COMMUNICATORS, CONTEXT, FRAGMENTATION, BESIDE, APART})
# Options of a case's arguments, and the options of an import that they are; the rest are words of the framework.
NUMBERS = {"--mean-response": "mean_response", "--mean-prompt": "mean_prompt"}
NAMES = {"--gpu": "gpu", "--as": "taken_as", "--framework-version": "version"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSelection:
    """Say how cases were chosen and used. The file `about.yaml`."""

    note: str


def read_cases(table: Path) -> tuple[FitCase, ...]:
    """Return the cases of a table (CSV); each one's files lie in a folder of its name beside the table.

    Raises:
        FileError: A column is missing or not known, or a value is wrong.
    """
    reader = csv.DictReader(read_text(table).splitlines())
    found = tuple(reader.fieldnames or ())
    for column in NEEDED:
        if column not in found:
            raise FileError(str(table), "is missing", field=column, allowed=", ".join(COLUMNS))
    for column in found:
        if column not in COLUMNS:
            raise FileError(str(table), "is no column", field=column, allowed=", ".join(COLUMNS))
    return tuple(
        _case(record, f"{table}, line {line}") for line, record in enumerate(reader, start=2)
    )


def _case(record: dict[str, str], place: str) -> FitCase:
    values: dict[str, object] = {name: record.get(name) or "" for name in TEXTS}
    values["group"] = values["group"] or UNGROUPED
    for column, (field, unit) in SIZES.items():
        given = record.get(column) or ""
        try:
            values[field] = round(float(given) * unit) if given else None
        except ValueError:
            problem = "is no number"
            raise FileError(place, problem, field=column, value=given) from None
    return decode(FitCase, values, place)


def about_cases(table: Path) -> str:
    """Return how the cases of a table were chosen and used, as `about.yaml` beside it has it; empty without one."""
    path = table.parent / ABOUT
    return read_yaml(CaseSelection, path).note if path.is_file() else ""


def check_cases(
    cases: Sequence[FitCase], folder: Path, progress: Callable[[int, int, str], None]
) -> list[FitRow]:
    """Return what is said of each case.

    Args:
        folder: Holds the cases' folders.
        progress: Called with (done, total, case) before each.
    """
    rows: list[FitRow] = []
    for done, case in enumerate(cases):
        progress(done, len(cases), case.case)
        rows.append(checked_row(case, folder / case.case))
    return rows


def checked_row(case: FitCase, folder: Path) -> FitRow:
    """Return what is said of a case whose files lie in a folder."""
    try:
        checked = checked_case(case, folder)
    except UserError as error:
        return FitRow(case=case, said="no answer", why=str(error))
    if checked.forecast is None:
        why = "; ".join(str(each) for each in checked.findings)
        return FitRow(case=case, said="no answer", why=why)
    if case.group == "host":
        return _host_row(case, checked)
    fullest = max(
        checked.forecast.memory, key=lambda each: each.gpu_peak_bytes / max(1, each.capacity_bytes)
    )
    first = checked.first
    return FitRow(
        case=case,
        said=_said(checked.verdict),
        forecast_bytes=fullest.gpu_peak_bytes,
        capacity_bytes=fullest.capacity_bytes,
        trainer_bytes=_trainer_bytes(checked) if case.trainer_bytes else None,
        during="" if first is None else first.during,
    )


def _trainer_bytes(checked: Checked) -> int:
    """Return the most that trainers allocate on a GPU while they train or score, as PyTorch's allocator counts it.

    Neither CUDA's context nor communicators are among that, nor blocks that lie idle, nor what an engine keeps.
    """
    assert checked.plan is not None
    placed = PlacedPlan(checked.plan, load_facts(checked.plan.job))
    return max(
        sum(size for term, size in terms.items() if term not in NOT_ALLOCATED)
        for pool in placed.plan.pools
        for task in placed.tasks_on(pool)
        if task.task.kind in {"train", "infer"}
        for terms in (memory_moments(placed, pool)[task.task.name],)
    )


def _said(verdict: Verdict) -> Said:
    return "no answer" if verdict == "not known" else verdict


def _host_row(case: FitCase, checked: Checked) -> FitRow:
    """Return what is said of a node's host memory alone."""
    assert checked.forecast is not None
    assert checked.plan is not None
    per_node = max(group.gpus_per_node for group in checked.plan.job.cluster)
    fullest = max(checked.forecast.memory, key=lambda each: each.host_peak_bytes)
    share = fullest.host_peak_bytes / max(1, fullest.host_capacity_bytes)
    return FitRow(
        case=case,
        said=_said(verdict_at(share)),
        forecast_bytes=fullest.host_peak_bytes * per_node,
        capacity_bytes=fullest.host_capacity_bytes * per_node,
        during="" if share <= 1 else max(fullest.host_terms, key=fullest.host_terms.__getitem__),
    )


def checked_case(case: FitCase, folder: Path) -> Checked:
    """Return what `rlplan check` says of a case whose files lie in a folder.

    Raises:
        UserError: Something of it is wrong.
    """
    path = folder / case.file
    if case.framework == PLAN:
        draft, job = read_draft(load_yaml(path), path)
        facts = load_facts(job)
        plan = complete(draft, job, facts, str(path), misfits=True)
        return check_plan(plan, facts, str(path), improves=False)
    words, options = _options(case, folder)
    return check_config(case.framework, [str(path), *words], options)


def _options(case: FitCase, folder: Path) -> tuple[list[str], ImportOptions]:
    """Return the framework's words and the options among a case's arguments; a sheet of its own folder is found there.

    Raises:
        FileError: An option is not known, or lacks its value.
    """
    words: list[str] = []
    numbers: dict[str, float] = {}
    names: dict[str, str] = {}
    given = iter(shlex.split(case.arguments))
    for word in given:
        if word not in NUMBERS and word not in NAMES:
            words.append(word)
            continue
        value = next(given, None)
        if value is None:
            raise FileError(case.case, "has no value", field=word)
        if word in NUMBERS:
            numbers[NUMBERS[word]] = float(value)
        else:
            names[NAMES[word]] = value
    gpu = names.get("gpu", "")
    return words, ImportOptions(
        gpu=str(folder / gpu) if (folder / gpu).is_file() else gpu,
        mean_response=numbers.get("mean_response"),
        mean_prompt=numbers.get("mean_prompt"),
        environment=FrozenDict(),
        taken_as=names.get("taken_as", ""),
        version=names.get("version"),
        host_memory_bytes=case.host_memory_bytes,
    )
