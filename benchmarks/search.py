"""Time the search: `python benchmarks/search.py [--out FOLDER] [CASE ...]`; a case is MODEL/GPUS or a job's name.

Every case runs in a process of its own, which nothing is remembered in: four models of one size in PPO
on A100, HybridFlow's workload (1,024 prompts of 1,024 tokens, 1,024 tokens of response, 8 updates), or a job
of `benchmarks/searches/`. Then, in the same process, a job of the first kind is searched with 512 tokens of
response. Prints a table; with
`--out` it writes `search.md` and `search.svg`, growth against the number of GPUs.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_text
from rlplan.job import Job
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_job, load_model
from rlplan.profiles.facts import Facts, load_facts
from rlplan.reports.pictures.picture import (
    PAGE_WIDTH,
    SERIES_COLOURS,
    drawing,
    new_canvas,
    panel_axes,
    write_figure,
)

ROOT = Path(__file__).resolve().parents[1]
JOBS = ROOT / "benchmarks" / "searches"
EXAMPLE = ROOT / "examples" / "ppo-7b-16xa100.yaml"
CASES = (
    "llama-2-7b/16",
    "llama-2-7b/128",
    "llama-2-70b/128",
    "llama-2-70b/256",
    "llama-2-70b/512",
    "llama-2-70b/1024",
    "llama-2-70b/2048",
    "llama-2-70b/4096",
    "llama-2-70b/8192",
    *sorted(path.stem for path in JOBS.glob("*.yaml")),
)
CHANGED_RESPONSE_TOKENS = 512
PLAIN = FuncFormatter(lambda value, _: f"{value:g}")
COLUMNS = (
    "case",
    "seconds",
    "CPU s",
    "peak MiB",
    "gap",
    "changed s",
    "changed CPU s",
    "layouts",
    "simulated",
    "best",
)


def job_of(case: str) -> Job:
    """Return the job of a case such as `llama-2-70b/128`, or of a job's name."""
    if "/" not in case:
        return load_job(JOBS / f"{case}.yaml")
    model, gpus = case.split("/")
    job = load_job(EXAMPLE)
    group = job.cluster[0]
    return replace(
        job,
        name=f"ppo-{model}-{gpus}xa100",
        models=FrozenDict(dict.fromkeys(job.models, load_model(model))),
        cluster=(replace(group, nodes=int(gpus) // group.gpus_per_node),),
    )


def measured(case: str) -> dict[str, str]:
    """Return one row of the table, searched in this process."""
    job = job_of(case)
    facts = load_facts(job)
    cpu_seconds = time.process_time()
    found = search(job, facts)
    cpu_seconds = time.process_time() - cpu_seconds
    changed_seconds, changed_cpu_seconds = changed(job, facts) if "/" in case else ("", "")
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    best = found.plans[0]
    pools = " + ".join(str(pool.gpus) for pool in best.plan.pools)
    numbers = (
        case,
        f"{found.search_seconds:.2f}",
        f"{cpu_seconds:.2f}",
        f"{peak_bytes / 2**20:.0f}",
        f"{found.gap:.3%}",
        changed_seconds,
        changed_cpu_seconds,
        f"{found.considered['layouts of tasks']:,}",
        f"{found.considered['simulated plans']}",
        f"{best.forecast.iteration_seconds:.1f} s: {best.plan.placement} on {pools}",
    )
    return dict(zip(COLUMNS, numbers, strict=True))


def changed(job: Job, facts: Facts) -> tuple[str, str]:
    """Return the seconds and the CPU seconds of searching a job with other responses."""
    workload = replace(job.workload, response_tokens=CHANGED_RESPONSE_TOKENS)
    cpu_seconds = time.process_time()
    found = search(replace(job, workload=workload), facts)
    cpu_seconds = time.process_time() - cpu_seconds
    return f"{found.search_seconds:.2f}", f"{cpu_seconds:.2f}"


def in_own_process(case: str) -> dict[str, str]:
    """Return one row of the table, searched in a process that remembers nothing."""
    command = [sys.executable, __file__, "--one", case]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    row: dict[str, str] = json.loads(done.stdout)
    return row


def growth_figure(rows: list[dict[str, str]]) -> Figure:
    """Draw seconds against GPUs, both on scales of powers."""
    height = 260.0
    with drawing():
        figure, canvas = new_canvas(height)
        canvas.text(0, height - 14, "Seconds of a search against the cluster's GPUs", weight="bold")
        axes = panel_axes(figure, 52, 36, PAGE_WIDTH - 60, height - 70, "growth")
        for colour, model in zip(SERIES_COLOURS, ("llama-2-7b", "llama-2-70b"), strict=False):
            own = [row for row in rows if row["case"].startswith(f"{model}/")]
            gpus = [int(row["case"].split("/")[1]) for row in own]
            axes.plot(gpus, [float(row["seconds"]) for row in own], "o-", color=colour, label=model)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(PLAIN)
        axes.yaxis.set_major_formatter(PLAIN)
        axes.yaxis.set_minor_formatter(PLAIN)
        axes.set_xlabel("GPUs")
        axes.set_ylabel("seconds")
        axes.legend(frameon=False, loc="upper left")
    return figure


def page(rows: list[dict[str, str]], note: str) -> str:
    """Return the table with what it was measured on."""
    lines = [
        "# The search against the size of the cluster",
        "",
        "PPO with four models of one size on A100 nodes of eight: 1,024 prompts of 1,024 tokens, 1,024",
        "tokens of response, 8 updates; and jobs of today (`benchmarks/searches/`). Written by `python benchmarks/search.py --out reports/published`.",
        "",
        f"Machine: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}. {note}",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(row[name] for name in COLUMNS) + " |" for row in rows),
        "",
        "`seconds` is the whole search in a process that remembers nothing: the winner with its",
        "certificate, and the best plan found of each placement (52 of PPO). `gap` is how far the winner",
        "may be from the optimum of the simulator. `changed s` is a second search in the same process, of",
        f"the same job with {CHANGED_RESPONSE_TOKENS} tokens of response. `peak MiB` is of both.",
        "",
        "![Seconds of a search against the cluster's GPUs](search.svg)",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Search the cases and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--out", type=Path, help="folder for search.md and search.svg")
    parser.add_argument("--note", default="", help="what else is to be said of the machine")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one)))
        return
    rows = []
    print("  ".join(COLUMNS))
    for case in options.cases:
        rows.append(in_own_process(case))
        print("  ".join(rows[-1].values()), flush=True)
    if options.out:
        write_text(options.out / "search.md", page(rows, options.note))
        write_figure(growth_figure(rows), options.out / "search.svg", title="Growth of the search")


if __name__ == "__main__":
    main()
