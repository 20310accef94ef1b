"""What a configuration has beside its steps: validation, checkpoints, and how many steps there are.

None of it changes a step, so a value that cannot be evaluated is told and refuses nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from rlplan.job import Checkpoints, Job
from rlplan.planner.configs.reading.settings import OFF, Settings, is_on
from rlplan.workload import Evaluation

# Of prompts or steps: what is beyond it stands for all of them, or for no end.
LARGEST_COUNT = 1e9
# A limit of steps that no training reaches stands for none.
MOST_STEPS: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BetweenSteps:
    """Hold what a run does between its steps: validation, checkpoints, and when it ends; with notes for the user."""

    evaluation: Evaluation | None = None
    checkpoints: Checkpoints | None = None
    iterations: int | None = None
    notes: tuple[str, ...] = ()

    def in_job(self, job: Job) -> Job:
        """Return a job that says it."""
        return replace(
            job,
            evaluation=self.evaluation,
            checkpoints=self.checkpoints,
            iterations=self.iterations,
        )


def beside_of(settings: Settings, updates: int = 1) -> BetweenSteps:
    """Return what a configuration has beside its steps, by the settings that its framework's sheet has for that.

    Args:
        updates: Of an iteration, for frameworks that count in updates (`steps_are_updates` of the sheet, and how many there
            are in all by its setting `updates_of_training`).
    """
    run = _RunSettings(settings, updates if settings.sheet.steps_are_updates else 1)
    evaluation, checkpoints = _evaluation(run), _checkpoints(run)
    return BetweenSteps(
        evaluation=evaluation,
        checkpoints=checkpoints,
        iterations=_iterations(run),
        notes=tuple(_notes(run, evaluation)),
    )


class _RunSettings:
    """Read the settings of a run, and remember the keys whose values cannot be evaluated."""

    def __init__(self, settings: Settings, updates: int) -> None:
        self.settings, self.updates = settings, updates
        self.lost: list[str] = []

    def value(self, name: str) -> object:
        """Return a setting's value; None where the sheet has no such setting, or its value cannot be evaluated."""
        settings = self.settings
        setting = settings.sheet.settings.get(name)
        if setting is None or not setting.keys:  # what is always so has no key
            return None if setting is None else setting.default
        key = settings.key_of(name)
        given = settings.flat.get(key)
        if given is not None and given.gaps:
            self.lost.append(key)
            return None
        return settings.value(name)

    def count(self, name: str) -> int | None:
        """Return a setting that counts something; None where it is none, 0 or below, as words for all or never are."""
        value = self.value(name)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 1 <= value < LARGEST_COUNT
        ):
            return None
        return round(value)

    def share(self, name: str) -> float | None:
        """Return a setting below 1 that counts steps, as a share of all of them; None where it is none."""
        value = self.value(name) if self.settings.sheet.steps_below_one_are_shares else None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
            return None
        return float(value)

    def said(self, name: str) -> str:
        """Return a setting's key with its value, as they are given."""
        key = self.settings.key_of(name)
        return f"{key}={self.settings.given(key)}"

    def all_steps(self) -> int | None:
        """Return the steps of the training, as the framework counts them; None where nothing says it."""
        iterations, updates = self.count("steps"), self.count("updates_of_training")
        if updates is None and iterations is not None:
            updates = iterations * self.updates
        return None if updates is None or updates > MOST_STEPS * self.updates else updates

    def every(self, name: str) -> int | None:
        """Return iterations of a setting that counts steps; of a share as transformers does (`compute_steps`, trainer_callback.py)."""
        steps, share, whole = self.count(name), self.share(name), self.all_steps()
        if share is not None and whole is not None:
            steps = math.ceil(share * whole)
        return None if steps is None else max(1, round(steps / self.updates))

    def is_on(self, name: str) -> bool:
        """Return whether a switch is on."""
        return is_on(self.value(name))

    def is_off(self, name: str) -> bool:
        """Return whether a setting that turns all of it on is there and off; a path that cannot be evaluated is one all the same."""
        setting = self.settings.sheet.settings.get(name)
        if setting is None:
            return False
        given = self.settings.flat.get(self.settings.key_of(name)) if setting.keys else None
        is_path = name == "checkpoint_on" and setting.default is None
        return not (is_path and given is not None and given.gaps) and self.value(name) in OFF


def _iterations(run: _RunSettings) -> int | None:
    """Return the iterations of the training; None where nothing says it."""
    iterations, updates = run.count("steps"), run.count("updates_of_training")
    if iterations is None and updates is not None:
        iterations = -(-updates // run.updates)
    return None if iterations is None or iterations > MOST_STEPS else iterations


def _evaluation(run: _RunSettings) -> Evaluation | None:
    """Return the validation that training waits for; None where there is none, or only one that nobody asked for, before the first step or behind the last."""
    every = run.every("validation_every")
    if run.is_off("validation_on") or run.count("validation_gpus"):
        return None
    first = run.is_on("validation_first") and not run.is_on("validation_skips_first")
    alone = (
        first
        and run.settings.is_given("validation_first")
        and not run.is_off("validation_first_alone")
    )
    last = run.is_on("validation_last") and (
        every is not None or run.is_on("validation_last_alone")
    )
    asked = last and run.settings.is_given("validation_last")
    if every is None and not (alone or asked):
        return None
    return Evaluation(
        every=every,
        before_first=first,
        after_last=last,
        prompts=run.count("validation_prompts"),
        samples_per_prompt=run.count("validation_samples") or 1,
        prompts_at_a_time=run.count("validation_batch"),
    )


def _checkpoints(run: _RunSettings) -> Checkpoints | None:
    """Return the checkpoints; None where there are none."""
    every = run.every("checkpoint_every")
    if every is None or run.is_off("checkpoint_on"):
        return None
    contents = run.value("checkpoint_contents")
    alone = isinstance(contents, list) and "optimizer" not in contents
    alone = alone or run.is_on("checkpoint_model_only") or run.is_off("checkpoint_optimizer")
    return Checkpoints(
        every=every,
        states=("weights",) if alone else ("weights", "optimizer"),
        in_background=run.is_on("checkpoint_background"),
    )


def _notes(run: _RunSettings, evaluation: Evaluation | None) -> Iterator[str]:
    own = run.count("validation_gpus")
    if own:
        yield (
            f"validation has engines on GPUs of their own ({own}), which no pool of the plan has: training does not wait for it, and the "
            "copies of the weights that they read are not counted"
        )
    for key in dict.fromkeys(run.lost):
        yield f"{key} cannot be evaluated: what it says of validation and checkpoints is left out"
    for name, what in (("validation", "validation"), ("checkpoint", "checkpoints")):
        yield from _other_frequencies(run, name, what)
    yield from _recovery(run)
    if evaluation is not None and evaluation.prompts is None:
        every = f" every {evaluation.every} steps" if evaluation.every else ""
        yield (
            f"validation{every} is not counted: no key says how many prompts it has; say it under evaluation.prompts of "
            "the job"
        )


def _other_frequencies(run: _RunSettings, name: str, what: str) -> Iterator[str]:
    """Yield a note for each frequency that is not in steps: no key says how many steps an epoch, or an hour, has."""
    if run.is_off(f"{name}_on") and not run.count(f"{name}_epochs"):
        return
    if run.share(f"{name}_every") is not None and run.all_steps() is None:
        said = run.said(f"{name}_every")
        yield f"{said} is a share of all steps and not counted: no key says how many these are"
    for unit in ("epochs", "seconds"):
        if run.count(f"{name}_{unit}"):
            said = run.said(f"{name}_{unit}")
            yield f"{said} is not counted: no key says how many steps there are between {what} by {unit}"


def _recovery(run: _RunSettings) -> Iterator[str]:
    """Yield a note where states are saved to start again from, beside the checkpoints."""
    if run.is_off("recovery_on") or str(run.value("recovery_on")) == "off":
        return
    names = [f"recovery_{unit}" for unit in ("steps", "epochs", "seconds")]
    said = ", ".join(run.said(name) for name in names if run.count(name))
    if said:
        yield f"{said}: weights and optimizer are saved to start again from, beside checkpoints, which is not counted"
