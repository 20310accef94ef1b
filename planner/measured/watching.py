"""Watch a run that goes on: each of its steps beside the forecast at the lengths that it had."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rlplan.plan import Plan
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.checking import training_steps
from rlplan.planner.configs.importing import ImportOptions, imported_run, run_of, settings_of
from rlplan.planner.measured.calibrating import row_of_log
from rlplan.planner.measured.checking import RunContext
from rlplan.planner.measured.following import FollowedRun
from rlplan.planner.measured.logs import OF_ANOTHER, medians_of, other_framework
from rlplan.planner.measured.measured_lengths import (
    SAME_LENGTH_FRACTION,
    at_logged_lengths,
    in_iterations,
    options_at,
    own_steps,
)
from rlplan.profiles.facts import load_facts
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import LoggedSteps, WatchedStage, WatchedStep
from rlplan.simulator.simulate import simulate

RanAt = Callable[[LoggedSteps], RunContext]


@dataclass(frozen=True, slots=True)
class ForecastAtLengths:
    """Hold the forecast of steps of some mean lengths, with so many batches of generation."""

    prompt_tokens: float | None
    response_tokens: float | None
    generated_batches: float | None
    plan: Plan
    forecast: Forecast

    def serves(self, steps: LoggedSteps) -> bool:
        """Tell whether the steps' mean lengths are close enough to reuse this forecast."""
        pairs = (
            (self.prompt_tokens, steps.prompt_tokens),
            (self.response_tokens, steps.response_tokens),
            (self.generated_batches, steps.generated_batches),
        )
        return all(
            known == now
            if known is None or now is None
            else abs(now - known) <= SAME_LENGTH_FRACTION * known
            for known, now in pairs
        )


@dataclass(slots=True, kw_only=True)
class Watch:
    """Lay the steps of a log beside their forecasts.

    Attributes:
        ran_at: Returns what runs at the lengths of some steps.
        updates: Of an iteration, with which logs of updates are read.
        all_steps: Of the training; None where that is not known.
        framework: Of the configuration; empty where a plan or a job is watched.
    """

    ran_at: RanAt
    updates: int
    all_steps: int | None = None
    framework: str = ""
    _last: ForecastAtLengths | None = field(default=None, init=False)

    @classmethod
    def of_configuration(
        cls,
        framework: str,
        words: Sequence[str],
        options: ImportOptions,
        *,
        profile: Path | None = None,
        site: Path | None = None,
    ) -> "Watch":
        """Return the watch of a framework's configuration.

        Args:
            options: What it does not say; mean lengths are the log's where that has them.

        Raises:
            UserError: As of `importing.settings_of` and `importing.run_of`.
        """
        settings = settings_of(framework, words, options)
        run = run_of(settings)
        updates = run.work.updates * run.work.epochs

        def ran_at(steps: LoggedSteps) -> RunContext:
            found = imported_run(settings, run, options_at(options, settings, run, steps))
            facts = load_facts(found.resolved, profile, site)
            plan = complete(found.draft, found.resolved, facts, settings.file, misfits=True)
            own, _ = own_steps(steps, plan.job.workload.mean_observations_tokens)
            return RunContext(plan=at_logged_lengths(plan, own), facts=facts, imported=found)

        all_steps, _ = training_steps(settings, run.work.prompts, updates)
        return cls(ran_at=ran_at, updates=updates, all_steps=all_steps, framework=framework)

    @classmethod
    def of_plan(cls, ran: RunContext) -> "Watch":
        """Return the watch of a plan."""
        work = ran.plan.job.workload

        def ran_at(steps: LoggedSteps) -> RunContext:
            own, _ = own_steps(steps, work.mean_observations_tokens)
            return replace(ran, plan=at_logged_lengths(ran.plan, own))

        return cls(
            ran_at=ran_at,
            updates=work.updates * work.epochs,
        )

    def ends_at(self, log: FollowedRun) -> int | None:
        """Return the number of the training's last step, as the log counts; None where that is not known."""
        return None if self.all_steps is None else self.all_steps - log.from_zero

    def doubt(self, log: FollowedRun) -> str:
        """Return what speaks against the log being one of what is watched; empty where nothing does."""
        name = other_framework(log.sheet, self.framework)
        return OF_ANOTHER.format(name, self.framework) if name else ""

    def steps(self, log: FollowedRun, first: int) -> Iterator[WatchedStep]:
        """Yield the steps of a log from a place in it on; those that do not say what they took are left out.

        Raises:
            UserError: The configuration cannot be imported at the lengths of a step.
        """
        for at in range(first, len(log.steps)):
            steps = medians_of(log.sheet, log.steps[at : at + 1])
            if steps.step_seconds:
                starts = log.begins and at == 0
                yield self._beside(log.numbers[at], steps, steps.step_seconds, starts=starts)

    def _beside(
        self, number: int, steps: LoggedSteps, measured_seconds: float, *, starts: bool
    ) -> WatchedStep:
        known = self._forecast(steps)
        steps, _ = in_iterations(steps, known.plan)
        row = row_of_log("", steps, known.plan, known.forecast)
        return WatchedStep(
            step=number,
            starts=starts,
            measured_seconds=steps.step_seconds or measured_seconds,
            forecast_seconds=known.forecast.iteration_seconds,
            interval_seconds=known.forecast.iteration_seconds_interval,
            prompt_tokens=steps.prompt_tokens,
            response_tokens=steps.response_tokens,
            stages=tuple(
                WatchedStage(
                    name=name,
                    measured_seconds=stage.measured_seconds,
                    forecast_seconds=stage.forecast_seconds,
                )
                for name, stage in row.stages.items()
                if stage.measured_seconds and stage.forecast_seconds > 0
            ),
        )

    def _forecast(self, steps: LoggedSteps) -> ForecastAtLengths:
        """Return the forecast at the lengths of steps; the last one serves where they are the same."""
        if self._last is None or not self._last.serves(steps):
            ran = self.ran_at(steps)
            forecast = simulate(ran.plan, ran.facts)
            self._last = ForecastAtLengths(
                steps.prompt_tokens,
                steps.response_tokens,
                steps.generated_batches,
                ran.plan,
                forecast,
            )
        return self._last
