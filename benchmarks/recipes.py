"""Time forecasts of NeMo-RL's recipes: `python benchmarks/recipes.py`.

Prints for each what simulating its plan takes, in a process that has simulated those before it, what is
forecast, and how full its GPUs are.
"""

import time

from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from tests.simulator.recipes import plan_of, recipes


def main() -> None:
    """Print a line for each recipe."""
    for row in recipes():
        plan = plan_of(row)
        facts = load_facts(plan.job)
        start = time.perf_counter()
        forecast = simulate(plan, facts)
        seconds = time.perf_counter() - start
        fullest = max(each.gpu_peak_bytes / each.capacity_bytes for each in forecast.memory)
        print(
            f"{row.recipe:50} {seconds:5.2f} s, iteration {forecast.iteration_seconds:7.1f} s, "
            f"memory {fullest:4.0%}"
        )


if __name__ == "__main__":
    main()
