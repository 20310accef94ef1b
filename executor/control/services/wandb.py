"""Weights & Biases: a run of its project, on its servers or, with WANDB_MODE=offline, in the run's folder."""

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from rlplan.executor.control.services import CLOSE_SECONDS, PROJECT, TrackedRow, TrackedRun

PACKAGE = "wandb"
# The x axis of all metrics. W&B's own steps only go up, and what comes with a lower one is dropped; of its own
# accord it counts what it is given.
ITERATION = "iteration"


class WandbRun:
    """Log to a run of W&B."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.run_id: str = run.id
        # An address is one of its servers.
        self.where: str = f"offline in {run.dir}" if run.offline else run.url
        run.define_metric(ITERATION)
        run.define_metric("*", step_metric=ITERATION)

    def log(self, rows: Sequence[TrackedRow]) -> None:
        """Hand iterations to W&B's process, which sends them."""
        for row in rows:
            self._run.log({**row.metrics, ITERATION: row.iteration})

    def close(self, *, failed: bool) -> None:
        """End the run, as soon as all is sent."""
        self._run.finish(exit_code=int(failed))


def start(run: TrackedRun) -> WandbRun:
    """Start a run, or go on in one; the project, its owner and the mode are those of W&B's variables."""
    wandb: Any = import_module(PACKAGE)
    settings = wandb.Settings(
        silent=True,  # the terminal is the command's
        console="off",
        finish_timeout=CLOSE_SECONDS,
        # Metrics and configuration go out, and nothing else of this machine.
        disable_git=True,
        disable_code=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    begun = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        dir=os.environ.get("WANDB_DIR", str(run.folder)),
        id=run.run_id,
        name=run.name,
        resume=None if run.run_id is None else "allow",
        config=dict(run.configuration),
        allow_val_change=True,  # of a run that goes on in another layout
        settings=settings,
    )
    return WandbRun(begun)
