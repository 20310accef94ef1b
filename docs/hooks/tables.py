"""Tables of what is supported, made from the sheets: a page says `<!-- table: models -->` where one belongs."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.frameworks import frameworks_with
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.planner.objectives import OBJECTIVES
from rlplan.planner.systems.baselines import BASELINES
from rlplan.profiles.sheets import (
    device_names,
    engine_names,
    load_device,
    load_engine,
    load_framework,
    load_model,
    model_names,
    sheet_names,
)
from rlplan.algorithms import ALGORITHMS
from rlplan.layout import ModelCut
from rlplan.simulator.model import shard_parameters

MARK = re.compile(r"^<!-- table: ([a-z-]+) -->$", re.MULTILINE)
PUBLISHED = Path(__file__).resolve().parents[2] / "reports" / "published"
# Tables of the accuracy page that speak of jobs of today.
ERRORS = {
    "rl_steps": "step of a framework, uncalibrated",
    "trtllm_generation": "generation",
    "torchtitan_training": "training on H100",
    "trainer_memory": "peak memory of a trainer",
    "weight_sync": "weight sync",
}
BILLION, TERA, GIGA, GIB = 1e9, 1e12, 1e9, 2**30


def filled(markdown: str) -> str:
    """Return a page with its tables.

    Raises:
        KeyError: It asks for a table that there is not.
    """
    return MARK.sub(lambda mark: TABLES[mark.group(1)](), markdown)


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    heads = tuple(heads)
    lines = [heads, ("---",) * len(heads), *(tuple(str(cell) for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def models() -> str:
    """Return the models with a sheet of their own."""
    rows = []
    for name in model_names():
        model = load_model(name)
        kind = "dense"
        if model.num_experts:
            kind = f"{model.num_experts} experts, {model.experts_per_token} of them a token"
        size = shard_parameters(model, "lm", ModelCut(), 0) / BILLION
        rows.append((f"`{name}`", f"{size:,.1f}", model.num_layers, kind, f"{model.max_positions:,}"))
    return _table(("model", "parameters, 10^9", "layers", "feed-forward", "positions"), rows)


def families() -> str:
    """Return the families whose config.json is read."""
    return _code(sheet_names("families"))


def devices() -> str:
    """Return the devices with a sheet."""
    rows = []
    for name in device_names():
        sheet = load_device(name)
        peak = sheet.peak_flops_per_second.get("bf16")
        rows.append(
            (
                f"`{name}`",
                _code(sheet.aliases),
                sheet.title,
                f"{sheet.memory_bytes / GIB:,.1f}",
                "" if peak is None else f"{peak / TERA:,.0f}",
                f"{sheet.memory_bytes_per_second / TERA:,.2f}",
                f"{sheet.intra_node_bytes_per_second / GIGA:,.0f}",
                f"{sheet.usd_per_hour:,.2f}",
            )
        )
    heads = (
        "device", "also", "title", "memory, GiB", "bf16, TFLOP/s", "memory, TB/s", "link, GB/s one way",
        "USD per hour",
    )  # fmt: skip
    return _table(heads, rows)


def frameworks() -> str:
    """Return the frameworks whose steps are forecast."""
    rows = []
    for name in sheet_names("frameworks"):
        sheet = load_framework(name)
        engines = sheet.engines
        rows.append(
            (f"`{name}`", _code(sheet.aliases), sheet.title, engines.train or "", engines.generate or "")
        )
    return _table(("framework", "also", "stands for", "trains with", "generates with"), rows)


def configurations() -> str:
    """Return the frameworks whose configurations are read."""
    rows = []
    for name in frameworks_with("keys", "reading"):
        sheet = load_config_sheet(name)
        rules = len(rules_of(name))
        rows.append((f"`{name}`", sheet.version, len(sheet.settings), rules))
    return _table(("framework", "version", "settings that are mapped", "rules that `check` knows"), rows)


def engines() -> str:
    """Return the engines that train or generate."""
    rows = []
    for name in engine_names():
        sheet = load_engine(name)
        limits = {"PP": sheet.max_pp, "CP": sheet.max_cp, "EP": sheet.max_ep}
        few = ", ".join(f"no {size}" for size, most in limits.items() if most == 1)
        rows.append((f"`{name}`", sheet.role, sheet.batching if sheet.role == "generate" else "", few))
    return _table(("engine", "role", "batching", "limits"), rows)


def algorithms() -> str:
    """Return the algorithms, each with its tasks."""
    rows = []
    for name in ALGORITHMS.names():
        each = ALGORITHMS.load(name)
        rows.append((f"`{name}`", each.title, each.paper, _code(each.required_roles)))
    return _table(("algorithm", "name", "paper", "models that it needs"), rows)


def features() -> str:
    """Return what can be chosen by name elsewhere."""
    rows = (
        ("what a search minimises (`--objective`)", _code(OBJECTIVES.names())),
        ("systems to compare with (`rlplan compare --systems`)", _code(BASELINES.names())),
        ("logs that `calibrate` and `check-step` read", _code(frameworks_with("log"))),
        ("configurations that `import` and `check` read", _code(frameworks_with("keys", "reading"))),
        ("frameworks that `export` writes, and `search --for` searches", _code(frameworks_with("keys", "writing"))),
    )
    return _table(("feature", "names"), rows)


def errors() -> str:
    """Return errors of rows that nothing was fitted on, as the accuracy page has them."""
    page = (PUBLISHED / "accuracy.md").read_text(encoding="utf-8")
    rows = []
    for table, words in ERRORS.items():
        cells = _cells(page, f"| {table}, held back |")
        rows.append((words, f"`{table}`", cells[1], cells[3], cells[5], cells[8]))
    after = _cells(page.split("## Rows after calibration")[1], "| rl_steps |")
    rows.append(("step of a framework, after calibration", "`rl_steps`", after[1], after[2], after[4], ""))
    return _table(("what", "table", "rows", "median error", "p90", "within p10 to p90"), rows)


def fit() -> str:
    """Return how many reported runs are called right, as the page of them has it."""
    page = (PUBLISHED / "fit.md").read_text(encoding="utf-8")
    rows = []
    for group in ("shown", "collected", "later", "all"):
        cells = _cells(page, f"| {group} |")
        rows.append((group, *cells[1:4], cells[6], cells[8], cells[9]))
    heads = ("rows", "number", "right", "right or may not fit", "OOM reports seen", "median error of peaks", "worst")
    return _table(heads, rows)


def _cells(page: str, start: str) -> list[str]:
    """Return the cells of the first line of a page that starts so."""
    line = next(line for line in page.splitlines() if line.startswith(start))
    return [cell.strip() for cell in line.strip("| ").split("|")]


TABLES: dict[str, Callable[[], str]] = {
    each.__name__: each
    for each in (models, families, devices, frameworks, configurations, engines, algorithms, features, errors, fit)
}
