"""The page of results: what was tried, how often, what failed, and what of it was mended."""

from pathlib import Path

import yaml

MENDED = Path(__file__).with_name("mended.yaml")

INTRODUCTION = """What was tried to break `rlplan`, how often, and what came of it. Written by
`python -m tests.hard --publish` (`make test-hard` runs the same in a shorter form); the figures are in
[reliability.json](reliability.json)."""


def page_of(results):
    """Return the page (Markdown) of results by part; parts that were not run are left out."""
    told = {
        "fuzz": _fuzz, "numbers": _numbers, "fresh": _fresh, "faults": _faults, "cluster": _cluster,
        "soak": _soak,
    }  # fmt: skip
    parts = [told[name](results[name]) for name in told if name in results]
    totals = ["| Part | Cases | Failures | Seconds |", "|---|---:|---:|---:|"]
    totals += [
        f"| {name} | {found['cases']:,} | {len(found['failures'])} | {found['seconds']:,.0f} |"
        for name, found in results.items()
    ]
    head = [
        "# Hard to break",
        "",
        INTRODUCTION,
        "",
        *totals,
    ]
    return "\n\n".join(["\n".join(head), *parts, _mended()]) + "\n"


def _failures(found):
    if not found["failures"]:
        return "No failures."
    lines = [
        f"- {', '.join(f'{key} {value}' for key, value in each.items())}"
        for each in found["failures"]
    ]
    return "\n".join(["Failures:", "", *lines])


def _fuzz(found):
    rows = "\n".join(f"| {subject} | {count:,} |" for subject, count in found["subjects"].items())
    codes = ", ".join(f"{count:,} with {code}" for code, count in found["exit_codes"].items())
    return f"""## Wrong inputs

Files of every kind were mutated with seed {found["seed"]}: keys, values and shapes of trees, cells of tables, words of
scripts, bytes. Expected of each: exit code 0, 1 where a check says no, or 2; one message and no traceback; at most
10 s of CPU and 1 GiB; no file changed, none written beside a complaint.

| Mutated | Cases |
|---|---:|
{rows}

They ended {codes}; the slowest took {found["slowest_cpu_seconds"]:.1f} s of CPU.

{_failures(found)}"""


def _numbers(found):
    left_out = "; ".join(f"{name} {why}" for name, why in found["left_out"].items()) or "none"
    return f"""## The same numbers everywhere

`simulate --json` and `search --json` of three jobs, bit for bit the same in: {", ".join(found["surroundings"])}.
Left out: {left_out}.

{_failures(found)}"""


def _fresh(found):
    steps = "\n".join(f"- {step}" for step in found["steps"])
    return f"""## A fresh machine

A wheel in an environment of its own, in a folder whose name has spaces, an empty home, used from another folder
whose parent is read-only:

{steps}

Advisories on the installed packages: {found["audit"]}.

{_failures(found)}"""


def _counted(found):
    """Return the table of runs that ended well, by fault and mode."""
    modes = sorted({mode for by_mode in found["counts"].values() for mode in by_mode})
    rows = []
    for fault, by_mode in found["counts"].items():
        cells = [
            f"{done['runs'] - done['failed']} of {done['runs']}"
            if (done := by_mode.get(mode))
            else ""
            for mode in modes
        ]
        rows.append(f"| {fault} | {' | '.join(cells)} |")
    return "\n".join([f"| Fault | {' | '.join(modes)} |", f"|---|{'---|' * len(modes)}", *rows])


def _faults(found):
    table = _counted(found)
    left_out = "; ".join(f"{name} ({why})" for name, why in found.get("left_out", {}).items())
    return f"""## Faults of runs

Each fault came at a moment drawn from seed {found["seed"]}, in {found["runs_each"]} runs of each mode; the table counts those
that ended well. Well is: the run goes on by itself (after a killed driver, or one that Ray ended with its node, with `--resume`) and has every iteration
once, or ends with one message where the user's function is at fault; weights are the undisturbed run's to the
last bit in modes sync and one-step-off; no process and no folder is left. In {found["missed"]} runs
the process was gone before the moment came.

{table}

Of several Ray nodes on one machine, the one that is killed has a device's worker; another one has room for it. The clock
of the day jumps by a minute, an hour or a day, back or on, for all processes of a run at once: a library that is loaded
before any other answers those who ask for it (`tests/hard/shifted_clock.c`). Not tried: {left_out or "nothing of the list"}.

{_failures(found)}"""


def _cluster(found):
    # Results that are of more than one run say so.
    note = f"{found['note']}\n\n" if "note" in found else ""
    return f"""## Losses on a cluster

Runs that joined a Ray cluster of two nodes by `--address`, each of which has one of the plan's two pools, drawn from
seed {found["seed"]}, {found["runs_each"]} of each mode. Where a node is lost, a third one comes, for which the run waits
(`--node-wait`). Well is what it is above, and in the cluster nothing is left but what others have in it. In
{found["missed"]} runs the moment did not come.

{note}{_counted(found)}

{_failures(found)}"""


def _soak(found):
    rows = "\n".join(
        f"| {name} | {each['first']:,.1f} | {each['last']:,.1f} | {each['growth']:+.1%} |"
        for name, each in found["growth"].items()
    )
    together = " This soak took logs and Ray's other files together: they count as failures."
    if not any("Ray's folder" in name for name in found["growth"]):
        together = ""
    return f"""## Soak

{found["minutes"]:g} minutes, all modes in turn ({found["cases"]:,} iterations). Growth is of the medians of the last
third against the first third after the warm-up. At most 2 % of anything counts as none. By its last checkpoint each
run had learnt from every prompt once, or it counts as a failure. Ray's servers write down
every minute how they are: of these logs no file may be larger than the 16 MiB at which they are rotated, nor may they
get more.{together}

| What | First | Last | Growth |
|---|---:|---:|---:|
{rows}

{_failures(found)}"""


def _mended():
    mended = yaml.safe_load(MENDED.read_text(encoding="utf-8"))
    rows = "\n".join(
        f"| {each['found']} | {each['was']} | {each['is']} | `{each['test']}` |" for each in mended
    )
    return f"""## Found and mended

{len(mended)} kinds of failure were found by these tests and mended, each with a test that failed before.

| Found by | Was | Is | Test |
|---|---|---|---|
{rows}"""
