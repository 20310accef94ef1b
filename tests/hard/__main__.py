"""Try to break everything, within a time: `python -m tests.hard`; results are kept and told on a page.

    python -m tests.hard                           # what `make test-hard` runs
    python -m tests.hard --parts fuzz --cases 3000 --first 700 --kept broken
    python -m tests.hard --faults 20 --minutes 60 --publish

It exits with 1 where something broke.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from tests.hard import page
from tests.house.tree import ROOT

RESULTS = ROOT / "reports" / "published" / "reliability.json"
PAGE = RESULTS.with_suffix(".md")


def options():
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.hard", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--parts", default="fuzz,numbers,fresh,faults,cluster,soak", help="comma-separated"
    )
    parser.add_argument("--cases", type=int, default=3000, help="of mutated inputs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutated input")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="that mutate inputs")
    parser.add_argument("--kept", type=Path, help="folder for inputs that broke something")
    parser.add_argument("--faults", type=int, default=1, help="runs of each fault in each mode")
    parser.add_argument("--minutes", type=float, default=2.0, help="of the soak")
    parser.add_argument("--results", type=Path, help="write them here (JSON)")
    parser.add_argument("--publish", action="store_true", help=f"renew {PAGE.relative_to(ROOT)}")
    return parser.parse_args()


def fuzzed(given):
    """Return the results of all processes that mutate inputs, each with a part of the cases."""
    share, rest = divmod(given.cases, given.processes)
    program = (
        "import json, sys; from tests.hard.fuzzing import fuzz; "
        "cases, seed, first, kept = json.loads(sys.argv[1]); "
        "found = fuzz(cases, seed=seed, first=first, kept=kept, "
        "say=lambda line: print(line, file=sys.stderr, flush=True)); print(json.dumps(found))"
    )
    started, first = [], given.first
    for place in range(given.processes):
        cases = share + (place < rest)
        asked = json.dumps([cases, given.seed, first, str(given.kept) if given.kept else None])
        command = [sys.executable, "-c", program, asked]
        started.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        first += cases
    parts = [json.loads(process.communicate()[0]) for process in started]
    return merged(parts)


def merged(parts):
    """Return the results of several processes as one: sums of counts, largest of the rest."""
    total = dict(parts[0])
    for part in parts[1:]:
        for key, value in part.items():
            if key in {"subjects", "exit_codes"}:
                total[key] = {
                    k: total[key].get(k, 0) + value.get(k, 0) for k in sorted({*total[key], *value})
                }
            elif key in {"cases", "failures", "cpu_seconds"}:
                total[key] = total[key] + value
            elif key != "seed":
                total[key] = max(total[key], value)
    return total


def part_of(name, given):
    """Return the results of one part."""
    if name == "fuzz":
        return fuzzed(given)
    if name == "numbers":
        from tests.hard.numbers_alike import alike

        return alike()
    if name == "fresh":
        from tests.hard.fresh_machine import installed

        return installed()
    if name == "faults":
        from tests.hard.faults import injected

        return injected(given.faults, given.seed)
    if name == "cluster":
        from tests.hard.joined import lost

        return lost(given.faults, given.seed)
    from tests.hard.soak import soaked

    return soaked(given.minutes)


def main():
    """Run the parts that were asked for."""
    given = options()
    found = json.loads(RESULTS.read_text()) if given.publish and RESULTS.exists() else {}
    broken = 0
    for name in given.parts.split(","):
        started = time.monotonic()
        result = part_of(name, given)
        result["seconds"] = round(time.monotonic() - started, 1)
        found[name] = result
        broken += len(result["failures"])
        print(
            f"{name}: {result['cases']} cases, {len(result['failures'])} failures, {result['seconds']:.0f} s",
            flush=True,
        )
        for failure in result["failures"]:
            print(f"  {json.dumps(failure)}", flush=True)
    for path in (given.results, RESULTS if given.publish else None):
        if path is not None:
            path.write_text(json.dumps(found, indent=1) + "\n")
    if given.publish:
        PAGE.write_text(page.page_of(found))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
