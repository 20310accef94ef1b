"""Run episodes of several turns, whose tool is waited for, in every mode on two pools of this machine.

    python benchmarks/episodes.py [--iterations 16] [--runs sync streaming ...] [--profile FOLDER]
        [--out reports/published]

The demo's tiny model plays 64 episodes of four turns with `benchmarks/waiting_tool.py`, 64 steps of which run at a time.
A core generates, another one has the trainer and the reference. The machine is measured as in
`benchmarks/asynchronous.py`, each mode forecast from that and run. Prints and writes `episodes.md`: seconds of an
iteration after the first quarter, and of them those without a turn to generate.
"""

import argparse
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from modes import DEMO, SETTINGS, plan_of
from waiting_tool import MAX_SECONDS, MEAN_SECONDS, OBSERVATION, STD_SECONDS

from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.execute import execute
from rlplan.executor.workers.processes.ray_session import running_ray
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_text
from rlplan.plan import Plan
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from rlplan.workload import Environment, Lognormal, LognormalSeconds
from rlplan_cli.measuring import measure_machine

RUNS = ("sync", "streaming", "one-step-off", "async, staleness 1", "async, staleness 4")
TURNS, WORKERS, MAX_RUNNING = 4, 64, 64
WARMUP_SHARE, LEAST_WARMUP = 0.25, 2
TOOL = Environment(
    name="tool",
    source=f"{Path(__file__).with_name('waiting_tool.py')}:WaitingTool",
    turns=TURNS,
    observation_tokens=len(OBSERVATION),
    step_seconds=LognormalSeconds(mean=MEAN_SECONDS, std=STD_SECONDS, max=MAX_SECONDS),
    cpu_cores=0,  # it sleeps
    workers=WORKERS,
)


def main() -> None:
    """Forecast and run every mode."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--iterations", type=int, default=16)
    parser.add_argument("--runs", nargs="+", default=list(RUNS))
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--out", type=Path, default=Path("reports/published"))
    options = parser.parse_args()
    job = episodes_plan("sync").job
    with tempfile.TemporaryDirectory(prefix="rlplan-profile-") as folder:
        profile = options.profile or Path(folder)
        if not profile.exists() or not any(profile.iterdir()):
            measure_machine(
                profile, job=job, folder=DEMO.parent, device="cpu", devices=2, quick=True
            )
        facts = load_facts(job, profile)
    lines = list[str]()
    with running_ray(devices=2, hosts=0):
        for name in options.runs:
            plan = episodes_plan(name)
            expected = simulate(plan, facts).iteration_seconds
            seconds, waiting, staleness = measured(plan, options.iterations)
            lines.append(
                f"| {name} | {seconds:.2f} | {expected:.2f} | {expected / seconds - 1:+.1%} | {waiting:.2f}"
                f" | {staleness:.2f} |"
            )
            print(lines[-1], flush=True)
    write_text(options.out / "episodes.md", page(lines, options.iterations))


def episodes_plan(name: str) -> Plan:
    """Return a run's plan: one core generates, one trains, processes of their own play the tool."""
    plan = plan_of(SETTINGS["tiny"], name)
    work = replace(
        plan.job.workload,
        environments=(TOOL,),
        response_tokens=Lognormal(mean=32.0, std=16.0, max=96),
        updates=1,
    )
    tasks = {task: layout for task, layout in plan.tasks.items() if layout.pool != "judge"}
    tasks["actor.generate"] = replace(tasks["actor.generate"], max_running=MAX_RUNNING)
    return replace(
        plan,
        job=replace(plan.job, name="episodes", workload=work, rewards=None),
        pools=tuple(pool for pool in plan.pools if pool.name != "judge"),
        tasks=FrozenDict(tasks),
        order=FrozenDict({pool: own for pool, own in plan.order.items() if pool != "judge"}),
    )


def measured(plan: Plan, iterations: int) -> tuple[float, float, float]:
    """Return the mean seconds of an iteration, those without a turn to generate, and the mean staleness in updates."""
    with tempfile.TemporaryDirectory(prefix="rlplan-episodes-") as folder:
        execute(plan, Path(folder), iterations=iterations, seed=0, folder=DEMO.parent)
        rows = read_metrics(Path(folder))
    timed = rows[max(LEAST_WARMUP, int(WARMUP_SHARE * iterations)) :]
    columns = ("seconds", "environment_seconds", "staleness_mean")
    seconds, waiting, staleness = (
        statistics.mean(row.get(name, 0.0) for row in timed) for name in columns
    )
    return seconds, waiting, staleness


def page(lines: list[str], iterations: int) -> str:
    """Return the page of all runs."""
    head = [
        "# Episodes in every mode on two pools of one machine",
        "",
        (
            f"Made by `python benchmarks/episodes.py --iterations {iterations}`: GRPO, 16 prompts of 4 samples, {TURNS} turns"
            f" with a tool that takes {MEAN_SECONDS:g} s on average (lognormal, deviation {STD_SECONDS:g} s, at most"
            f" {MAX_SECONDS:g} s), {WORKERS} workers; a core generates, a core trains. Forecasts are from a profile of"
            " this machine. `waiting` are the seconds in which there was no turn to generate; where a synchronous"
            " iteration waits for environments, all of them are counted."
        ),
        "",
        "| mode | iteration (s) | forecast (s) | error | waiting (s) | staleness |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *lines, ""])


if __name__ == "__main__":
    main()
