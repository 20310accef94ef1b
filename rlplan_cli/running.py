"""Running a plan and comparing it with its forecast: `rlplan execute`, `rlplan validate`, the demo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlplan_cli.terminal import echo_json, print_table, progress_bar, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlplan.executor.control.cluster import Cluster
    from rlplan.executor.control.moving import Adapter
    from rlplan.executor.control.run import Saving
    from rlplan.executor.control.stopping import Stopping
    from rlplan.job import NodeGroup
    from rlplan.plan import Plan
    from rlplan.profiles.facts import Facts
    from rlplan.replicas import Replicas
    from rlplan.results.forecast import Forecast
    from rlplan.results.measurement import Comparison, MeasuredRun, ReplicaRow

# Columns that the error table can spare on a narrow terminal, the last first.
_SPARE_OF_ERRORS = ("Source of the forecast", "Measured p10 to p90")


def require_execution() -> None:
    """Say how to install what execution needs, if it is not there.

    Raises:
        UserError: torch, ray or transformers is missing.
    """
    from importlib.util import find_spec

    from rlplan.errors import UserError

    missing = [name for name in ("torch", "ray", "transformers") if find_spec(name) is None]
    if missing:
        raise UserError(
            f"running a plan needs {', '.join(missing)}; install them with: pip install 'rlplan[execute]'"
        )


def require_tokenizers() -> None:
    """Say how to install what reads a folder's tokenizer, if it is not there.

    Raises:
        UserError: transformers is missing.
    """
    from importlib.util import find_spec

    from rlplan.errors import UserError

    if find_spec("transformers") is None:
        raise UserError(
            "reading a tokenizer needs transformers; install it with: pip install 'rlplan[execute]'"
        )


def check_warmup(warmup: int, iterations: int) -> None:
    """Refuse a warm-up that leaves nothing to measure.

    Raises:
        FileError: Names the option.
    """
    from rlplan.errors import FileError

    if warmup >= iterations:
        problem, allowed = "leaves no iteration to measure", f"below {iterations} (--iterations)"
        raise FileError("--warmup", problem, value=warmup, allowed=allowed)


def stopping_of(when: Sequence[str] | None, after: str | None, tokens: float | None) -> Stopping:
    """Return when a run stops, as options say.

    Raises:
        FileError: Names the option.
    """
    from rlplan.executor.control import stopping

    return stopping.stopping_of(when or (), after, tokens)


def place_of(given: str | None) -> Path | str | None:
    """Return a place that an option names: a folder's path, or a URL as it is."""
    from rlplan.files.decoding import is_url

    return given if given is None or is_url(given) else Path(given)


def run_plan(
    plan: Plan,
    out: Path,
    *,
    iterations: int,
    warmup: int,
    seed: int,
    folder: Path | None,
    saving: Saving | None = None,
    cluster: Cluster | None = None,
    simulate_nodes: bool = False,
    stopping: Stopping | None = None,
    log_to: Sequence[str] | None = None,
    adapter: Adapter | None = None,
    schedule: Replicas | None = None,
) -> MeasuredRun:
    """Carry a plan out on Ray, in the folder `out`."""
    from rlplan.executor.execute import execute

    with progress_bar("execute", lines=True) as progress:
        return execute(
            plan,
            out,
            iterations=iterations,
            warmup=warmup,
            seed=seed,
            folder=folder,
            progress=progress,
            saving=saving,
            cluster=cluster,
            simulate_nodes=simulate_nodes,
            stopping=stopping,
            log_to=log_to or (),
            adapter=adapter,
            schedule=schedule,
        )


def compare_run(
    out: Path,
    forecast: Forecast,
    run: MeasuredRun,
    facts: Facts | None = None,
    *,
    stores: bool = True,
) -> Comparison:
    """Compare a run with a forecast and store the comparison beside it.

    Where replicas come and go, both are of the number that most iterations had, and of each number beside them.

    Args:
        facts: To forecast it once more at the lengths that it had; None takes what is stored of that.
        stores: Whether the forecasts are stored as well; one that is the run's own stays as it was.

    Raises:
        PlanError: The run has nothing to compare, or no plan with as many replicas as it had can be forecast.
    """
    from dataclasses import replace

    from rlplan.errors import PlanError
    from rlplan.files.writing import write_json
    from rlplan.planner.measured.measured_lengths import forecast_as_run, same_lengths
    from rlplan.replicas import GENERATE
    from rlplan.results.stored import AS_RUN_FILE, COMPARISON_FILE, FORECAST_FILE
    from rlplan.simulator.simulate import simulate
    from rlplan.simulator.validation import (
        compare,
        replica_rows,
        tokens_by_replicas,
        with_usual_replicas,
    )

    of_replicas: tuple[ReplicaRow, ...] = ()
    if run.replicas:
        whole, of_replicas = run, stored_replicas(out)
        among = {row.replicas for row in of_replicas}  # the stored forecast is of one of these
        forecasts: dict[int, Forecast] = {}
        if facts is not None:
            forecasts = _by_replicas(whole, facts)
            as_run_of = _by_replicas(whole, facts, tokens_by_replicas(whole))
            of_replicas = replica_rows(whole, forecasts, as_run_of)
            among = set(forecasts)
        run = with_usual_replicas(whole, among)
        if facts is not None:
            if not forecasts:
                raise PlanError(
                    "run: no number of replicas that it had has a forecast to compare with"
                )
            forecast = forecasts[run.plan.tasks[GENERATE].dp]
    if run.replanned and facts is not None:  # what was measured is the last plan's
        forecast = simulate(run.plan, facts)
    as_run = stored_as_run(out)
    if facts is not None:
        as_run = None if same_lengths(run) else forecast_as_run(run.plan, facts, run)
    comparison = replace(compare(forecast, run, as_run), replicas=of_replicas)
    if stores:
        write_json(out / FORECAST_FILE, forecast)
        (out / AS_RUN_FILE).unlink(missing_ok=True)
        if as_run is not None:
            write_json(out / AS_RUN_FILE, as_run)
    write_json(out / COMPARISON_FILE, comparison)
    return comparison


def _by_replicas(
    run: MeasuredRun, facts: Facts, tokens: Mapping[int, float] | None = None
) -> dict[int, Forecast]:
    """Return a run's forecasts by the number of its replicas; without numbers that no plan may have, and says so once.

    Args:
        tokens: Mean response tokens by number; None: those of the plan.
    """
    from rlplan.errors import UserError
    from rlplan.planner.measured.measured_lengths import at_lengths
    from rlplan.replicas import with_replicas
    from rlplan.simulator.simulate import simulate
    from rlplan.simulator.validation import by_replicas

    found: dict[int, Forecast] = {}
    for count in by_replicas(run) if tokens is None else tokens:
        plan = with_replicas(run.plan, count)
        try:
            found[count] = simulate(at_lengths(plan, None, (tokens or {}).get(count)), facts)
        except UserError as error:
            if tokens is None:
                say(f"no forecast with {count} of the replicas: {error}")
    return found


def stored_replicas(run_folder: Path) -> tuple[ReplicaRow, ...]:
    """Return what is stored of a run's forecasts by the number of replicas; nothing where nothing is."""
    from rlplan.results.stored import COMPARISON_FILE, read_comparison

    path = run_folder / COMPARISON_FILE
    return read_comparison(path).replicas if path.exists() else ()


def stored_as_run(run_folder: Path) -> Forecast | None:
    """Return a run's forecast at the lengths that it had; None where none is stored."""
    from rlplan.results.stored import AS_RUN_FILE, read_forecast

    path = run_folder / AS_RUN_FILE
    return read_forecast(path) if path.exists() else None


def replanning(cluster: Cluster | None, facts: Facts, saving: Saving) -> Cluster | None:
    """Return a cluster whose run goes on with a plan for fewer nodes, where it waits for lost ones and has checkpoints."""
    from dataclasses import replace

    def replan(plan: Plan, groups: tuple[NodeGroup, ...]) -> Plan:
        from rlplan.errors import CapabilityError
        from rlplan.executor.control.capabilities import check_runnable
        from rlplan.planner.answers.best_plans import plans_on

        *others, last = plans_on(plan, groups, facts)
        for found in others:
            try:
                check_runnable(found)
            except CapabilityError:
                continue
            return found
        check_runnable(last)
        return last

    if cluster is None or not cluster.node_wait_seconds or saving.every is None:
        return cluster
    return replace(cluster, replan=replan)


def print_errors(comparison: Comparison) -> None:
    """Print forecast against measurement, task by task, and what keeps them from being comparable."""
    from rlplan.reports.tables.plans import error_table, replica_table
    from rlplan.reports.tables.wording import as_run_words, other_lengths, replayed_words

    title = "Forecast against measurement"
    print_table(title, error_table(comparison), spare=_SPARE_OF_ERRORS)
    if comparison.replicas:
        print_table("An iteration by the replicas that generate", replica_table(comparison))
        if words := replayed_words(comparison):
            say(words)
    for words in (other_lengths(comparison), as_run_words(comparison)):
        if words:
            say(words)


def joined_address(address: str | None) -> str | None:
    """Return the address of the Ray that is joined, as an option and `RAY_ADDRESS` say; None: one of the run's own."""
    import os

    found = address or os.environ.get("RAY_ADDRESS") or "local"
    return None if found == "local" else found


def print_evaluations(out: Path) -> None:
    """Print what a run's evaluations found, where it has some: at first, at last, and at best."""
    from rlplan.executor.control.evaluations import read_evaluations

    rows = read_evaluations(out)
    if not rows:
        return
    first, last, best = rows[0], rows[-1], max(rows, key=lambda row: row["accuracy"])
    shown = {"first": first, "last": last, "best": best}
    words = ", ".join(
        f"{name} {row['accuracy']:.1%} after {row['iteration']:.0f} iterations"
        for name, row in shown.items()
    )
    seconds = sum(row["seconds"] for row in rows)
    say(f"held-out accuracy: {words}; {len(rows)} evaluations took {seconds:.1f} s")


def print_run(out: Path, run: MeasuredRun, comparison: Comparison, *, as_json: bool) -> None:
    """Print a run beside its forecast; say where it lies, and why it stopped before its last iteration."""
    if as_json:
        echo_json(comparison)
        return
    print_errors(comparison)
    print_evaluations(out)
    if run.replanned:
        last = run.replanned[-1]
        say(
            f"from iteration {last.iteration} on with another plan, which is compared: {last.reason}"
        )
    stopped = f"; stopped: {run.stopped}" if run.stopped else ""
    say(f"run written to {out}{stopped}")


def cluster_of(
    address: str | None,
    node_wait: float | None,
    *,
    simulate_nodes: bool,
) -> Cluster | None:
    """Return the Ray that a run joins, as options and `RAY_ADDRESS` say; None for one of its own.

    Raises:
        FileError: An option is for the other of the two.
    """
    from rlplan.errors import FileError
    from rlplan.executor.control.cluster import Cluster

    address = joined_address(address)
    if address is None:
        if node_wait is not None:
            problem = "waits for nodes of a cluster that is joined"
            raise FileError("--node-wait", problem, allowed="together with --address")
        return None
    if simulate_nodes:
        problem = "is for a Ray of the run's own: a cluster has nodes"
        raise FileError("--simulate-nodes", problem, allowed="without --address and RAY_ADDRESS")
    return Cluster(address=address, node_wait_seconds=node_wait or 0.0)
