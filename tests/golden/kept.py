"""Write and read what is kept of random plans: `python -m tests.golden.kept` writes it anew.

`plans.json.gz` holds jobs and plans, `forecasts.json.gz` their forecasts, `accuracy.json.gz` the forecasts
of every row of the tables that rlplan holds, `searches.json.gz` what searches of the examples find.
"""

import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path

from rlplan.errors import InfeasibleError
from rlplan.files.decoding import decode
from rlplan.files.writing import plain
from rlplan.job import Job
from rlplan.plan import Plan
from rlplan.planner.search import search
from rlplan.profiles.facts import load_facts
from rlplan.results.accuracy import Row
from rlplan.simulator.simulate import simulate
from tests.golden.drawing import drawn_plans, jobs

FOLDER = Path(__file__).parent
COUNT = 500
NUMBERS = ("iteration_seconds", "tokens_per_second", "cost_usd", "energy_joules", "feasible")


def figures(plan, facts):
    """Return the numbers of a plan's forecast."""
    found = plain(simulate(plan, facts))
    kept = {name: found[name] for name in (*NUMBERS, "iteration_seconds_interval")}
    kept |= {name: found[name] for name in ("stage_seconds", "idle_seconds", "warnings")}
    kept["costs"] = {
        f"{cost['name']} on {cost['pool']}": [
            cost["seconds"], cost["interval_seconds"], cost["source"], cost["parts"]
        ]
        for cost in found["costs"]
    }  # fmt: skip
    kept["memory"] = {each["pool"]: [each["peak_task"], each["terms"]] for each in found["memory"]}
    return kept


def write(name, value):
    """Write a value as compressed JSON, the same bytes for the same value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def read(name):
    """Return a kept value."""
    return json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))


def kept_plans():
    """Return kept plans with the facts of their jobs."""
    kept = read("plans")
    every = [decode(Job, job, "kept job") for job in kept["jobs"]]
    facts = [load_facts(job) for job in every]
    found = []
    for at, fields in kept["plans"]:
        plan = decode(Plan, fields | {"job": kept["jobs"][at]}, "kept plan")
        found.append((replace(plan, job=every[at]), facts[at]))
    return found


def accuracy_rows():
    """Return the forecast of every row of the tables that rlplan holds."""
    from rlplan.evals.reading import held_tables, read_table

    found = {}
    for path in held_tables():
        rows: list[Row] = read_table(path, device="", name=path.stem)
        found[path.stem] = plain(rows)
    return found


def searched(index):
    """Return what a search of a job finds: the figures of its plans, and its certificate."""
    job = jobs()[index]
    try:
        found = search(job, load_facts(job))
    except InfeasibleError as error:
        return {"job": job.name, "infeasible": str(error)}
    return {
        "job": job.name,
        "bound_seconds": found.bound_seconds,
        "gap": found.gap,
        "considered": plain(found.considered),
        "plans": [
            [each.forecast.iteration_seconds, each.plan.placement, plain(each.plan.tasks)]
            for each in found.plans
        ],
    }


def main():
    """Write everything anew; with a name, that alone."""
    wanted = sys.argv[1:] or ["plans", "forecasts", "accuracy", "searches"]
    if "plans" in wanted:
        every, _, found = drawn_plans(COUNT)
        plans = []
        for at, plan in found:
            fields = plain(plan)
            del fields["job"]
            plans.append([at, fields])
        write("plans", {"jobs": [plain(job) for job in every], "plans": plans})
    if "forecasts" in wanted:
        write("forecasts", [figures(plan, facts) for plan, facts in kept_plans()])
    if "accuracy" in wanted:
        write("accuracy", accuracy_rows())
    if "searches" in wanted:
        write("searches", [searched(index) for index in range(len(jobs()))])


if __name__ == "__main__":
    main()
