"""How fast commands answer, beside another checkout: `python benchmarks/answers.py --beside ../other [CASE ...]`.

Both checkouts take turns, so that both see the same machine, each case in a process of its own, which remembers
nothing. Seconds are CPU seconds of the user's side, the least of the repeats: what others on the machine do changes
them least. Cases of commands run the command, `version` to `search`; those that begin with `search of` call the search in one
process: first, then for what is said to be changed, each by facts of its own as the page and tools for agents ask. What both checkouts answer is compared: the plans of
searches, what commands print.

With `--out FOLDER` the table is written to `answers.md`.
"""

import argparse
import hashlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_text
from rlplan.job import Specs
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_job, load_model
from rlplan.profiles.facts import load_facts
from rlplan.results.forecast import SearchResult

ROOT = Path(__file__).resolve().parents[1]
START = "from rlplan_cli.main import main; main()"
CONFIG = "skills/rlplan/examples/run.sh"
JOB = "examples/ppo-7b-16xa100.yaml"
PLAN = "{plan}"
COMMANDS = {
    "version": ("--version",),
    "help of fit": ("fit", "--help"),
    "schema job": ("schema", "job"),
    "simulate a complete plan": ("simulate", PLAN),
    "check verl, a script": (
        "check",
        "verl",
        CONFIG,
        "--gpu",
        "h100-80gb-sxm",
        "--mean-response",
        "300",
    ),
    "fit qwen2.5-7b on 8": ("fit", "--model", "qwen2.5-7b", "--gpus", "8xh100"),
    "fit qwen2.5-32b on 8": ("fit", "--model", "qwen2.5-32b", "--gpus", "8xh100"),
    "fit qwen2.5-32b on 64": ("fit", "--model", "qwen2.5-32b", "--gpus", "64xh100"),
    "search 7B on 16": ("search", JOB),
}
# As many placements as the page shows.
SHOWN = 8
# Model, GPUs, how old weights may be (synchronous first, then within that limit), and of how many placements plans are wanted.
SEARCHES: dict[str, tuple[str, int, int, int | None]] = {
    "search of 70B on 128": ("llama-2-70b", 128, 0, None),
    "search of 70B on 128, the best 8": ("llama-2-70b", 128, 0, SHOWN),
    "search of 7B on 16": ("llama-2-7b", 16, 0, None),
    "search of 7B on 16, the best 8": ("llama-2-7b", 16, 0, SHOWN),
    "search of 7B on 256, staleness 1": ("llama-2-7b", 256, 1, None),
    "search of 70B on 256, staleness 1": ("llama-2-70b", 256, 1, None),
}
CHANGED_RESPONSE_TOKENS = 512
CHANGED_USD_PER_GPU_HOUR = 1.5


@dataclass(frozen=True, slots=True)
class Answer:
    """Hold what a case took and what it answered.

    Attributes:
        cpu_seconds: By what was asked, in the order in which it was.
        said: By the same: what both checkouts should answer alike.
    """

    cpu_seconds: dict[str, float]
    said: dict[str, str]


def command(tree: Path, name: str, plan: Path) -> Answer:
    """Return what a command takes in a checkout, and what it prints.

    Raises:
        RuntimeError: It prints nothing; its complaint is the message.
    """
    arguments = [str(plan) if each == PLAN else each for each in COMMANDS[name]]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = in_tree(tree, [sys.executable, "-c", START, *arguments])
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if not done.stdout:
        raise RuntimeError(done.stderr)
    return Answer({name: seconds}, {name: hashlib.sha256(done.stdout.encode()).hexdigest()[:12]})


def in_tree(tree: Path, words: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a program with a checkout's modules; commands that answer no end with a code of their own."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run(
        words, cwd=tree, env=environment, capture_output=True, text=True, check=False
    )


def searches(tree: Path, name: str) -> Answer:
    """Return what searches take, one after another in one process of a checkout.

    Raises:
        RuntimeError: The process failed; its complaint is the message.
    """
    done = in_tree(tree, [sys.executable, str(Path(__file__).resolve()), "--one", name])
    if done.returncode:
        raise RuntimeError(done.stderr)
    return Answer(**json.loads(done.stdout.rstrip().rsplit("\n", 1)[-1]))


def searched(name: str) -> Answer:
    """Return what the searches of a case take in this process."""
    model, gpus, staleness, placements = SEARCHES[name]
    # Before `left_out` was, searches looked at all placements.
    knows = "left_out" in SearchResult.__dataclass_fields__
    limited: dict[str, Any] = {"placements": placements} if knows else {}
    job = load_job(Path(JOB))
    group = job.cluster[0]
    models = FrozenDict(dict.fromkeys(job.models, load_model(model)))
    group = replace(group, nodes=gpus // group.gpus_per_node)
    job = replace(job, models=models, cluster=(group,))
    priced = replace(job, cluster=(replace(group, usd_per_gpu_hour=CHANGED_USD_PER_GPU_HOUR),))
    longer = replace(job.workload, response_tokens=CHANGED_RESPONSE_TOKENS)
    asked = {name: (job, None, "throughput")}
    if staleness:
        asked[f"{name}: within it"] = (job, Specs(staleness=staleness), "throughput")
    else:
        asked[f"{name}: then at another price"] = (priced, None, "throughput")
        asked[f"{name}: then for cost"] = (job, None, "cost")
        asked[f"{name}: then other responses"] = (replace(job, workload=longer), None, "throughput")
    seconds, said = {}, {}
    for what, (each, specs, objective) in asked.items():
        start = time.process_time()
        found = search(each, load_facts(each), specs=specs, objective=objective, **limited)
        seconds[what] = time.process_time() - start
        best = found.plans[0]
        figure = best.forecast.iteration_seconds
        others = hashlib.sha256(repr([each.plan for each in found.plans[:placements]]).encode())
        said[what] = (
            f"{figure:.9g} s, gap {found.gap:.2%}, {best.plan.mode}, plans {others.hexdigest()[:8]}"
        )
    return Answer(seconds, said)


def measured(trees: list[Path], name: str, repeats: int, plan: Path) -> list[str]:
    """Return rows of the table: what was asked, least CPU seconds of each checkout, their ratio, whether answers are alike."""
    least: list[dict[str, float]] = [{} for _ in trees]
    said: list[dict[str, str]] = [{} for _ in trees]
    for _ in range(repeats):
        for place, tree in enumerate(trees):
            found = command(tree, name, plan) if name in COMMANDS else searches(tree, name)
            for what, seconds in found.cpu_seconds.items():
                least[place][what] = min(seconds, least[place].get(what, seconds))
            said[place] |= found.said
    rows = []
    for what, seconds in least[-1].items():
        before = least[0][what]
        alike = "yes" if said[0][what] == said[-1][what] else "no"
        known = f"; {said[-1][what]}" if name in SEARCHES else ""
        rows.append(
            f"| {what} | {before:.2f} | {seconds:.2f} | {seconds / before:.2f} | {alike}{known} |"
        )
    return rows


def main() -> None:
    """Measure the cases and print them as a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=[*COMMANDS, *SEARCHES])
    parser.add_argument(
        "--beside", type=Path, help="the checkout before; without it this one alone"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for answers.md")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        found = searched(given.one)
        print(json.dumps({"cpu_seconds": found.cpu_seconds, "said": found.said}))
        return
    unknown = set(given.cases) - {*COMMANDS, *SEARCHES}
    if unknown:
        parser.error(
            f"no case: {', '.join(sorted(unknown))}; there are {', '.join((*COMMANDS, *SEARCHES))}"
        )
    trees = [given.beside.resolve() if given.beside else ROOT, ROOT]
    lines = [
        "| asked | before, CPU s | now, CPU s | ratio | alike |",
        "|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.yaml"
        in_tree(
            trees[0],
            [sys.executable, "-c", START, "search", JOB, "--seconds", "1", "--out", str(plan)],
        )
        for name in given.cases:
            rows = measured(trees, name, given.repeats, plan)
            print("\n".join(rows), flush=True)
            lines += rows
    if given.out:
        machine = (
            f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        )
        heading = f"# How fast commands answer\n\n{machine}. Written by `benchmarks/answers.py`: see there.\n\n"
        write_text(given.out / "answers.md", heading + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
