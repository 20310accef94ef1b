"""Forecast every published recipe that a checkout holds, and publish them: `python -m benchmarks.gallery`, or `make gallery`.

Recipes are the rows of the tables of RL steps (`evals/held/rl_steps*.csv`), whose steps were measured, and the reported
configurations of `evals/held/fit`, of which it was reported whether they ran. Each is read and forecast as `rlplan accuracy`
does it. Written are `reports/published/gallery.json`, its page, its Markdown, and the picture of the README.
`--pages` makes the pages again from the JSON, without a forecast.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlplan.errors import UserError
from rlplan.evals.reading import HELD, HELD_CASES, read_table
from rlplan.files.decoding import read_json
from rlplan.files.writing import write_json
from rlplan.plan import Plan
from rlplan.planner.configs.checking import Checked
from rlplan.planner.measured.framework_runs import UnknownSettingError, device_sheet
from rlplan.planner.measured.reported_runs import checked_case, read_cases
from rlplan.reports.pages.gallery import Gallery, Recipe, write_gallery_pages
from rlplan.reports.tables.wording import TIMES
from rlplan.results.accuracy import FitCase, Row
from rlplan.workload import longest, mean_length

PUBLISHED = Path(__file__).resolve().parents[1] / "reports" / "published"
STEPS = ("rl_steps", "rl_steps_nemo")
OUTCOMES = {"runs": "ran", "oom": "ran out"}
GROUPS = ("shown", "collected")  # of cases; the others are no recipes, or faults of one version
SIZES = ("tp", "cp", "ep", "pp")


def main() -> None:
    """Write the gallery's files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pages", action="store_true", help="make pages of the JSON that is there")
    path = PUBLISHED / "gallery.json"
    if not parser.parse_args().pages:
        recipes = [recipe for table in STEPS for recipe in steps_of(table)]
        recipes += reported()
        write_json(path, Gallery(recipes=tuple(recipes)))
    print(write_gallery_pages(PUBLISHED, read_json(Gallery, path)))


def steps_of(table: str) -> Iterator[Recipe]:
    """Yield the recipes of a table of measured steps; rows that time a weight sync alone are left out."""
    path = HELD / f"{table}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        records = list(csv.DictReader(file))
    for row in read_table(path):
        if records[row.index]["mode"] != "weight sync only":
            yield step_of(records[row.index], row)


def step_of(record: dict[str, str], row: Row) -> Recipe:
    """Return a record of a table of steps with its forecast."""
    known = row.forecast is not None
    return Recipe(
        name=record["id"],
        framework=record["framework"],
        version=record["version"],
        algorithm=record["algorithm"],
        model=record["model"],
        gpu=_device(record["gpu"]),
        gpus=int(record["gpus"]),
        mode=record["mode"],
        work=_work(record),
        layout=_layout(record),
        forecast_seconds=row.predicted if known else None,
        interval_seconds=row.interval_seconds if known else None,
        measured_seconds=float(record["step_s"]) if record["step_s"] else None,
        is_fitted=row.fitted,
        refused=row.skipped or "",
        source=record["source"],
    )


def _device(name: str) -> str:
    try:
        return device_sheet(name)
    except UnknownSettingError:
        return name


def _work(record: dict[str, str]) -> str:
    """Return the published batch and lengths; what is not published is left out."""
    batch = f" {TIMES} ".join(
        record[name] for name in ("prompts", "samples_per_prompt") if record[name]
    )
    mean, most = (record[name] for name in ("mean_response", "max_response"))
    words = [f"{batch} responses" if batch else ""]
    words += [f"{_tokens(mean)} tokens on average" if mean else ""]
    words += [f"up to {_tokens(most)}" if most else ""]
    return ", ".join(word for word in words if word)


def _tokens(text: str) -> str:
    return f"{float(text):,.0f}"


def _layout(record: dict[str, str]) -> str:
    trains = [
        f"{size.upper()} {record[f'train_{size}']}" for size in SIZES if record[f"train_{size}"]
    ]
    trains += [f"Ulysses {record['train_ulysses']}"] if record["train_ulysses"] else []
    words = [f"{record['trainer']} {' '.join(trains)}".strip()]
    words += [
        f"{record['rollout_engine']} TP {record['rollout_tp']}" if record["rollout_tp"] else ""
    ]
    return "; ".join(word for word in words if word)


def reported() -> Iterator[Recipe]:
    """Yield the reported configurations; none of them has a measured step."""
    yield from map(case_of, recipe_cases())


def recipe_cases() -> list[FitCase]:
    """Return the reported cases that are configurations of frameworks."""
    cases = read_cases(HELD_CASES)
    return [case for case in cases if case.group in GROUPS and case.framework != "plan"]


def case_of(case: FitCase) -> Recipe:
    """Return a reported configuration with its forecast, or why there is none."""
    try:
        checked = checked_case(case, HELD_CASES.parent / case.case)
    except UserError as error:
        return _refused(case, str(error))
    if checked.plan is None or checked.forecast is None:
        return _refused(case, "; ".join(str(each) for each in checked.findings))
    return _checked(case, checked, checked.plan)


def _refused(case: FitCase, why: str) -> Recipe:
    return Recipe(
        **_named(case),
        algorithm="",
        model="",
        gpu="",
        gpus=0,
        mode="",
        work="",
        layout="",
        refused=why,
    )


def _named(case: FitCase) -> dict[str, Any]:
    """Return what a case says itself."""
    return {
        "name": f"{case.case}/{case.file}",
        "framework": FRAMEWORK_WORDS.get(case.framework, case.framework),
        "version": case.version,
        "outcome": OUTCOMES[case.outcome],
        "source": case.source,
    }


FRAMEWORK_WORDS = {"nemo-rl": "NeMo-RL", "openrlhf": "OpenRLHF"}


def _checked(case: FitCase, checked: Checked, plan: Plan) -> Recipe:
    forecast, job = checked.forecast, plan.job
    assert forecast is not None
    work = job.workload
    pools = [pool for pool in plan.pools if not pool.is_host]
    filled = max(each.gpu_peak_bytes / max(1, each.capacity_bytes) for each in forecast.memory)
    seconds = forecast.iteration_seconds if forecast.feasible else None
    mean, most = mean_length(work.response_tokens), longest(work.response_tokens)
    return Recipe(
        **_named(case),
        algorithm=job.algorithm,
        model=_model(plan),
        gpu=" + ".join(dict.fromkeys(pool.device for pool in pools)),
        gpus=sum(pool.gpus for pool in pools),
        mode=plan.mode,
        work=f"{work.prompts} {TIMES} {work.samples_per_prompt} responses, {mean:,.0f} tokens on average, up to {most:,}",
        layout=_layout_of(plan),
        forecast_seconds=seconds,
        interval_seconds=forecast.iteration_seconds_interval if forecast.feasible else None,
        cost_usd=forecast.cost_usd if forecast.feasible else None,
        said=checked.verdict,
        filled_fraction=filled,
    )


def _model(plan: Plan) -> str:
    actor = plan.job.models["actor"]
    return actor if isinstance(actor, str) else actor.name


def _layout_of(plan: Plan) -> str:
    words = []
    for task, engine in (("actor.update", "trains"), ("actor.generate", "generates")):
        layout = plan.tasks[task]
        sizes = [f"{size.upper()} {getattr(layout, size)}" for size in (*SIZES, "dp")]
        words.append(
            f"{engine}: {' '.join(size for size in sizes if not size.endswith(' 1')) or 'TP 1'}"
        )
    return "; ".join(words)


if __name__ == "__main__":
    main()
