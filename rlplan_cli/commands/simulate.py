"""`rlplan simulate PLAN`: the forecast of one plan."""

from pathlib import Path
from typing import Annotated

import typer

from rlplan_cli.terminal import JsonOption, ProfileOption, echo_json, print_table, say

EXAMPLE = "Example: rlplan simulate examples/ppo-7b-16xa100.plan.yaml --trace trace.json"


def command(
    plan: Annotated[
        Path, typer.Argument(help="A plan's file, or a run's folder.", show_default=False)
    ],
    profile: ProfileOption = None,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations to play.")] = 1,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write the timeline here, for Perfetto or chrome://tracing.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the forecast (JSON) here.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Forecast a plan: seconds by task, memory by term, cost, energy and warnings."""
    from planner.completion import load_plan
    from planner.explain import nearest_fit
    from reports.tables import memory_terms_table, task_table
    from rlplan.units import show_seconds
    from rlplan.writing import write_json
    from simulator.perfetto import trace_events
    from simulator.simulate import simulate

    complete, facts = load_plan(plan / "plan.yaml" if plan.is_dir() else plan, profile)
    forecast = simulate(complete, facts, iterations=iterations)
    if trace is not None:
        write_json(trace, trace_events(forecast.trace, complete))
    if out is not None:
        write_json(out, forecast)
    if as_json:
        echo_json(forecast)
        return
    print_table("Tasks", task_table(forecast))
    print_table("Memory of the fullest GPU", memory_terms_table(forecast))
    low, high = forecast.iteration_seconds_interval
    say(
        f"iteration: {show_seconds(forecast.iteration_seconds)} "
        f"(p10 to p90: {show_seconds(low)} to {show_seconds(high)}), "
        f"{forecast.tokens_per_second:,.0f} tokens/s, {forecast.cost_usd:.4f} USD, "
        f"{forecast.energy_joules / 3.6e6:.3f} kWh"
    )
    for warning in forecast.warnings:
        say(f"warning: {warning}")
    for reason in forecast.infeasible_reasons:
        say(f"does not fit: {reason}")
    if not forecast.feasible:
        say(f"nearest change that fits: {nearest_fit(complete, facts) or 'no single change does'}")
    for path in (trace, out):
        if path is not None:
            say(f"written: {path}")
