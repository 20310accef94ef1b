"""Compare forecasts with those that are kept: `python -m tests.golden.check [NAME ...] [--every N]`.

NAME is one of `forecasts`, `accuracy`, `searches`; without one all are compared. `--every N` takes every
N-th plan only.
"""

import sys

from tests.golden.drawing import jobs
from tests.golden.kept import accuracy_rows, figures, kept_plans, read, searched

TOLERANCE = 1e-9
# Words that may be said better; figures may not move.
WORDS = ("warnings", "note", "skipped", "source_note")


def moves(old, new, at=""):
    """Yield what differs between two kept values, with its place."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted((old.keys() | new.keys()) - set(WORDS)):
            if key in old and key in new:
                yield from moves(old[key], new[key], f"{at}/{key}")
            else:
                yield f"{at}/{key}: only {'new' if key in new else 'old'}"
    elif isinstance(old, list) and isinstance(new, list):
        for index, (one, other) in enumerate(zip(old, new, strict=False)):
            yield from moves(one, other, f"{at}/{index}")
        if len(old) != len(new):
            yield f"{at}: {len(old)} -> {len(new)} entries"
    elif not same(old, new):
        yield f"{at}: {old!r} -> {new!r}"


def same(old, new):
    """Tell whether two figures or names are the same."""
    if isinstance(old, (int, float)) and isinstance(new, (int, float)):
        return abs(old - new) <= TOLERANCE * max(abs(old), abs(new))
    return old == new


def forecast_moves(every=1):
    """Return what moved of the forecasts of kept plans."""
    kept = read("forecasts")
    found = []
    for index, (plan, facts) in enumerate(kept_plans()):
        if index % every == 0:
            found += moves(kept[index], figures(plan, facts), f"plan {index}")
    return found


def main():
    """Print what moved; exit with 1 if anything did."""
    arguments = sys.argv[1:]
    every = 1
    if "--every" in arguments:
        at = arguments.index("--every")
        every = int(arguments[at + 1])
        del arguments[at : at + 2]
    names = ["forecasts", "accuracy", "searches"]
    if unknown := set(arguments) - set(names):
        raise SystemExit(
            f"{', '.join(sorted(unknown))}: is not one of {', '.join(names)}\n{__doc__}"
        )
    wanted = arguments or names
    found = []
    if "forecasts" in wanted:
        found += forecast_moves(every)
    if "accuracy" in wanted:
        found += moves(read("accuracy"), accuracy_rows(), "accuracy")
    if "searches" in wanted:
        new = [searched(index) for index in range(len(jobs()))]
        found += moves(read("searches"), new, "searches")
    for line in found[:60]:
        print(line)
    print(f"{len(found)} figures moved" if found else "nothing moved")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
