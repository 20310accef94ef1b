"""MLflow: a run in the store that MLFLOW_TRACKING_URI names, a server, a database or a folder."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from rlplan.executor.control.services import PROJECT, TrackedRow, TrackedRun

PACKAGE = "mlflow"
# What a call of MLflow's interface takes at most, and the length of names and values
# (mlflow/utils/validation.py).
METRICS_OF_A_CALL, PARAMETERS_OF_A_CALL = 1000, 100
LONGEST_NAME, LONGEST_VALUE = 250, 6000
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")


class MlflowRun:
    """Log to a run of MLflow."""

    def __init__(self, client: Any, run_id: str, experiment: str) -> None:
        self._client, self.run_id = client, run_id
        # The store's address may hold a password.
        self.where = f"run {run_id} of experiment {experiment}"
        self._metric = import_module(f"{PACKAGE}.entities").Metric

    def log(self, rows: Sequence[TrackedRow]) -> None:
        """Send iterations, each as a step; MLflow keeps all values that a step was given."""
        metrics = [
            self._metric(name, value, int(row.time_seconds * 1000), row.iteration)
            for row in rows
            for name, value in row.metrics.items()
        ]
        for first in range(0, len(metrics), METRICS_OF_A_CALL):
            some = metrics[first : first + METRICS_OF_A_CALL]
            self._client.log_batch(self.run_id, metrics=some)

    def note_configuration(self, configuration: Mapping[str, Any]) -> None:
        """Send the configuration as parameters, which cannot change later."""
        entity = import_module(f"{PACKAGE}.entities").Param
        found = [
            entity(_NOT_IN_NAMES.sub("_", name)[:LONGEST_NAME], text[:LONGEST_VALUE])
            for name, text in flattened(configuration)
        ]
        for first in range(0, len(found), PARAMETERS_OF_A_CALL):
            some = found[first : first + PARAMETERS_OF_A_CALL]
            self._client.log_batch(self.run_id, params=some)

    def close(self, *, failed: bool) -> None:
        """End the run."""
        self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


def start(run: TrackedRun) -> MlflowRun:
    """Start a run in an experiment, or go on in one; a run that goes on keeps the configuration that it began with."""
    # Usage statistics would go to MLflow's makers, whom nobody asked for.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    client = import_module(f"{PACKAGE}.tracking").MlflowClient()
    experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    if run.run_id is not None:
        client.get_run(run.run_id)  # says so where there is none
        client.update_run(run.run_id, status="RUNNING")
        return MlflowRun(client, run.run_id, experiment)
    known = client.get_experiment_by_name(experiment)
    number = client.create_experiment(experiment) if known is None else known.experiment_id
    begun = client.create_run(number, run_name=run.name)
    found = MlflowRun(client, begun.info.run_id, experiment)
    found.note_configuration(run.configuration)
    return found


def flattened(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the single values of nested ones with dotted names; a list of single values is one."""
    items: Any = None
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list) and any(isinstance(each, Mapping | list) for each in value):
        items = enumerate(value)
    if items is None:
        yield name, value if isinstance(value, str) else json.dumps(value)
        return
    for key, each in items:
        yield from flattened(each, f"{name}.{key}" if name else str(key))
