"""Warn where something takes much longer than it did: `python benchmarks/guard.py [--keep]`.

Every case's CPU seconds are divided by those of a fixed loop of Python and numpy that runs right before and after
it, so that kept ratios hold on machines of unlike speed and beside other work. `--keep` writes the ratios of this
run into guard.json; without it they are compared with those there. The exit code is 0 however it goes: machines
differ in more than speed, and a warning is for people to look at.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rlplan.plan import Plan
from rlplan.planner.answers.best_plans import best_plans
from rlplan.planner.answers.completion import load_plan
from rlplan.planner.configs.shell.script import evaluate
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate

ROOT = Path(__file__).parents[1]
KEPT = Path(__file__).with_name("guard.json")
EXAMPLES = ROOT / "examples"
PLANS = ROOT / "benchmarks" / "plans"
# Beyond it a case is warned of.
WARNED_RATIO = 1.3
REPEATS = 3
# About a fifth of a second each on a core of today.
PYTHON_ROUNDS, NUMPY_ROUNDS, NUMPY_SIZE = 1_500_000, 400, 50_000


def calibration() -> None:
    """Do a fixed amount of work in Python and in numpy."""
    total = 0
    table = {}
    for number in range(PYTHON_ROUNDS):
        total += number * number % 7
        table[number & 255] = total
    values = np.linspace(0.0, 1.0, NUMPY_SIZE)
    for _ in range(NUMPY_ROUNDS):
        values = np.sqrt(values * values + 1e-9)


def searched(name: str) -> None:
    """Search the best plan of an example."""
    job = load_job(EXAMPLES / name)
    best_plans(job, load_facts(job))


def simulated(iterations: int, folder: Path = EXAMPLES, name: str = "ppo-7b-16xa100") -> None:
    """Read and forecast a plan, the example's if no other is given."""
    plan, facts = load_plan(folder / f"{name}.plan.yaml")
    assert isinstance(plan, Plan)
    simulate(plan, facts, iterations=iterations)


def evaluated() -> None:
    """Evaluate a launch script of two thousand settings."""
    words = " ".join(f"a.b{number}=${{N{number % 7}:-{number}}}" for number in range(2000))
    evaluate(f"N1=3\npython3 -m verl.trainer.main_ppo {words}\n")


CASES: dict[str, Callable[[], object]] = {
    "simulate a plan": lambda: simulated(1),
    "simulate 50 iterations": lambda: simulated(50),
    "simulate 50 iterations of async-512xh100": lambda: simulated(50, PLANS, "async-512xh100"),
    "simulate 100 iterations of environments-15000": lambda: simulated(
        100, PLANS, "environments-15000"
    ),
    "search grpo-qwen2.5-7b-8xh100": lambda: searched("grpo-qwen2.5-7b-8xh100.yaml"),
    "search ppo-7b-16xa100": lambda: searched("ppo-7b-16xa100.yaml"),
    "evaluate a launch script": evaluated,
}


def seconds_of(run: Callable[[], object]) -> float:
    """Return the CPU seconds that a call takes."""
    begin = time.process_time()
    run()
    return time.process_time() - begin


def ratio_of(run: Callable[[], object]) -> float:
    """Return the least CPU seconds of some calls as a multiple of the calibration's beside them."""
    run()  # what is read and remembered once
    fixed, own = [seconds_of(calibration)], []
    for _ in range(REPEATS):
        own.append(seconds_of(run))
        fixed.append(seconds_of(calibration))
    return min(own) / min(fixed)


def main() -> int:
    """Print the ratios beside those kept."""
    parser = argparse.ArgumentParser(
        description="Warn where something takes much longer than it did."
    )
    parser.add_argument("--keep", action="store_true", help="keep the ratios of this run")
    keep = parser.parse_args().keep
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    found = {}
    for name, run in CASES.items():
        found[name] = ratio = round(ratio_of(run), 4)
        before = kept.get(name)
        times = f"{ratio / before:.2f} times the kept one" if before else "none is kept"
        print(f"{name}: {ratio:.3f} of the calibration loop, {times}")
        if before and ratio > WARNED_RATIO * before and not keep:
            print(f"WARNING: {name} takes {ratio / before:.2f} times what it took", file=sys.stderr)
    if keep:
        KEPT.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
