"""Advise a run that goes on: calibrate on its own steps, search anew, and say which change repays a restart."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Any, Final, NamedTuple

from rlplan.calibration import Calibration
from rlplan.errors import FileError, UserError
from rlplan.plan import Plan
from rlplan.planner.answers.completion import complete
from rlplan.planner.answers.verdicts import Verdict
from rlplan.planner.configs.checking import check_plan, training_steps
from rlplan.planner.configs.frameworks import absent, has
from rlplan.planner.configs.importing import ImportOptions, imported_run, run_of, settings_of
from rlplan.planner.configs.proposing.changes import (
    Assignment,
    RetypedConfiguration,
    argument,
    needed_assignments,
    typed_value,
)
from rlplan.planner.configs.proposing.improving import improvements
from rlplan.planner.configs.proposing.searching import plans_of
from rlplan.planner.configs.reading.laid_over import laid_over
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.run import Run
from rlplan.planner.configs.writing.exporting import exported
from rlplan.planner.measured.calibrating import measured_in_steps, row_of_log
from rlplan.planner.measured.checking import NORMAL_STDS
from rlplan.planner.measured.following import (
    LEAST_STEPS,
    FollowedRun,
    newest_apart,
    unlike_before,
)
from rlplan.planner.measured.gains import answer_of, gain_of, most_restart_seconds
from rlplan.planner.measured.logs import OF_ANOTHER, other_framework
from rlplan.planner.measured.measured_lengths import at_lengths, options_at, own_steps
from rlplan.profiles.analytic.efficiencies import load_spreads
from rlplan.profiles.facts import Facts, load_facts
from rlplan.results.advice import Decision, Departure, Gain, KeyChange, Outcome
from rlplan.results.forecast import Forecast
from rlplan.results.measurement import LoggedSteps
from rlplan.simulator.calibration import calibrate
from rlplan.simulator.simulate import simulate
from rlplan.units import show_seconds

# Name of the factors that are fitted on a run's own steps.
SITE: Final = "this run"
# Plans of a search that are typed as the configuration would have them, the best first.
MOST_PLANS: Final = 3
IN_PLACE: Final = "words behind this configuration reach nobody: change these keys in it"
FAR_OFF: Final = (
    "a step took {}, and by sheets 19 of 20 sites lie between {} and {}: is it the log of this configuration, and are its "
    "figures in seconds?"
)
OF_A_FILE: Final = "not weighed, since it changes a file and no word behind the configuration does: {}; a step would take {}"
# Fields of a job that say how its step is done, not what is learnt in it.
OF_HOW: Final = ("framework", "engines", "weight_sync", "trainers", "devices")
# Fields of a configuration's run that say what is learnt: of which models, from what, by which loss. A job has other weights
# of the same shape under one name, and lengths as they were measured.
OF_WHAT: Final = (
    "algorithm", "models", "architectures", "work", "loss", "teacher", "scores", "dynamic_sampling", "adapter",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """Say how a log is followed.

    Attributes:
        window: Newest steps that medians are over, at most.
        warmup: First steps of a start that are left out.
        all_steps: Steps of the training; None where `steps_left` says it, or the configuration.
        steps_left: Behind the last step that the log has at first.
        restart_seconds: What a restart costs; None takes what the log's own start-up shows.
        search_seconds: When a search stops with the best plan so far; None searches to the end.
    """

    window: int = 20
    warmup: int = 1
    all_steps: int | None = None
    steps_left: int | None = None
    restart_seconds: float | None = None
    search_seconds: float | None = None


Proposal = tuple[tuple[Assignment, ...], tuple[str, ...]]


class TypedChange(NamedTuple):
    """Hold a change as its user types it, with the plan that comes of it."""

    keys: tuple[KeyChange, ...]
    arguments: tuple[str, ...]
    plan: Plan
    forecast: Forecast
    gain: Gain


class CurrentRun(NamedTuple):
    """Hold a configuration at the lengths of some steps, with its forecast."""

    typed: RetypedConfiguration
    plan: Plan
    forecast: Forecast
    verdict: Verdict
    site: Calibration
    measured_seconds: float | None

    def facts_of(self, job: Any) -> Facts:  # noqa: ANN401 -- a resolved job
        """Return what operations of a job cost, with the factors of this run."""
        return load_facts(job).with_calibration(self.site)


@dataclass(slots=True, kw_only=True)
class Advisor:
    """Advise a run of one configuration.

    Attributes:
        framework: Whose configuration it is.
        words: The configuration as it was typed.
        options: What it does not say; mean lengths are the log's where that has them.
        all_steps: Steps of the training; None where only those left are known.
        last_step: Number of the last one, as the log counts; None until there is a log.
    """

    framework: str
    words: tuple[str, ...]
    options: ImportOptions
    follow: FollowOptions
    settings: Settings
    run: Run
    all_steps: int | None
    last_step: int | None = None

    @classmethod
    def of(
        cls, framework: str, words: Sequence[str], options: ImportOptions, follow: FollowOptions
    ) -> "Advisor":
        """Return who advises a configuration.

        Raises:
            UserError: As of `importing.settings_of` and `importing.run_of`.
        """
        settings = settings_of(framework, words, options)
        run = run_of(settings)
        said, _ = training_steps(settings, run.work.prompts, run.work.updates * run.work.epochs)
        last = follow.all_steps
        if last is None and follow.steps_left is None:
            last = said
            if last is None:
                problem = (
                    "is missing: the configuration does not say how many steps the training has"
                )
                raise FileError("--steps", problem, allowed="a number of steps, or --steps-left")
        return cls(
            framework=framework,
            words=tuple(words),
            options=options,
            follow=follow,
            settings=settings,
            run=run,
            all_steps=last,
        )

    @property
    def updates(self) -> int:
        """Return the updates of an iteration, with which logs of updates are read."""
        return self.run.work.updates * self.run.work.epochs

    def ends_at(self, log: FollowedRun) -> int:
        """Return the number of the training's last step; it is settled with the first log."""
        if self.last_step is None:
            if self.all_steps is not None:
                self.last_step = self.all_steps - log.from_zero
            else:
                assert self.follow.steps_left is not None
                self.last_step = log.numbers[-1] + self.follow.steps_left
        return self.last_step

    def due(self, log: FollowedRun, decided: int | None, every: int) -> int | None:
        """Return of how many steps the next decision is; None where none is due.

        Args:
            decided: Steps of the last decision; None before the first, which is of all steps that are there.
            every: Steps between two decisions.
        """
        count = len(log.steps)
        if decided is None:
            return count if count >= self.follow.warmup + LEAST_STEPS else None
        passed = (count - decided) // every * every
        return decided + passed if passed > 0 else None

    def decide(self, log: FollowedRun, name: str) -> Decision:
        """Return what is to be advised after a log's last step.

        Args:
            name: Of the log's file.

        Raises:
            FileError: The log has too few steps, or does not say what a step takes or how long responses are.
            UserError: The configuration cannot be imported.
        """
        end, step = self.ends_at(log), log.numbers[-1]
        left = max(0, end - step)
        steps = self._medians(log, name)
        now = self.current(steps, name)
        _, lengths = own_steps(steps, now.plan.job.workload.mean_observations_tokens)
        best, notes = self._best(now)
        restart, told = self._restart(log)
        gain = None if best is None else best.gain
        answer, deadline = answer_of(gain, restart, step, left)
        if answer == "restart unknown" and gain is not None:
            most = show_seconds(most_restart_seconds(gain, left))
            told = (*told, f"with {left:,} steps left it pays where a restart costs up to {most}")
        if best is not None and not now.typed.hands_on(best.arguments):
            told = (*told, IN_PLACE)
        assert steps.step_seconds is not None
        return Decision(
            step=step,
            time_seconds=log.time_seconds,
            log=name,
            framework=self.framework,
            steps=steps.steps,
            response_tokens=steps.response_tokens or self.options.mean_response,
            measured_seconds=steps.step_seconds,
            forecast_seconds=now.forecast.iteration_seconds,
            answer=answer,
            changes=() if best is None else best.keys,
            arguments=() if best is None else best.arguments,
            changed_seconds=None if best is None else best.forecast.iteration_seconds,
            gain=gain,
            steps_left=left,
            restart_seconds=restart,
            deadline_step=deadline,
            departures=tuple(self.departures(log, name)),
            notes=(*self._doubts(steps, now), *lengths, *notes, *told),
        )

    def _doubts(self, steps: LoggedSteps, now: CurrentRun) -> Iterator[str]:
        """Yield what speaks against the log being one of this configuration, in seconds."""
        name = other_framework(steps.sheet, self.framework)
        if name:
            yield OF_ANOTHER.format(name, self.framework)
        bare = simulate(now.plan, load_facts(now.plan.job)).iteration_seconds
        width = exp(NORMAL_STDS * load_spreads().uncalibrated_step.value)
        assert steps.step_seconds is not None, "without it there is no advice"
        if not bare / width <= steps.step_seconds <= bare * width:
            low, high, took = map(show_seconds, (bare / width, bare * width, steps.step_seconds))
            yield FAR_OFF.format(took, low, high)

    def _medians(self, log: FollowedRun, name: str) -> LoggedSteps:
        steps = log.medians(self.follow.window, self.follow.warmup)
        if steps is None:
            problem = f"holds {len(log.steps)} steps since the run started, of which the first {self.follow.warmup} are left out"
            raise FileError(name, problem, allowed=f"a log of {LEAST_STEPS} more")
        if not steps.step_seconds:
            raise FileError(name, "does not say what a step takes", field=steps.sheet.step)
        return steps

    def current(self, steps: LoggedSteps, name: str) -> CurrentRun:
        """Return the configuration at the lengths of some steps, its forecast with factors fitted on them.

        Raises:
            UserError: The configuration cannot be imported.
        """
        means = options_at(self.options, self.settings, self.run, steps)
        found = imported_run(self.settings, self.run, means)
        bare = load_facts(found.resolved)
        plan = complete(found.draft, found.resolved, bare, self.settings.file, misfits=True)
        measured = measured_in_steps(name, steps, plan, bare)
        site = calibrate(
            measured.observations,
            site=SITE,
            rests_on=measured.rests_on,
            framework=measured.framework,
            sources=(name,),
        ).calibration
        facts = bare.with_calibration(site)
        checked = check_plan(plan, facts, self.settings.file, improves=False)
        assert checked.forecast is not None
        typed = RetypedConfiguration.of(self.words, means, found, plan, facts)
        return CurrentRun(typed, plan, checked.forecast, checked.verdict, site, steps.step_seconds)

    def _best(self, now: CurrentRun) -> tuple[TypedChange | None, tuple[str, ...]]:
        """Return the change that surely gains most, whether it repays a restart or not, and what hindered the search."""
        notes = list[str]()
        tried = dict[tuple[str, ...], TypedChange | None]()
        for said, words in self._proposals(now, notes):
            if words and words not in tried:
                tried[words] = self._typed(now, said, words)
        found = [each for each in tried.values() if each is not None and each.gain.p50_seconds > 0]
        return max(found, key=lambda each: each.gain.p10_seconds, default=None), tuple(notes)

    def _proposals(self, now: CurrentRun, notes: list[str]) -> Iterator[Proposal]:
        """Yield changes of keys: single ones, and those of the plans that a search finds.

        Args:
            notes: Takes what hindered the search.
        """
        facts = now.facts_of(now.plan.job)
        for each in improvements(now.plan, facts, now.forecast, now.typed):
            if each.arguments:
                yield _assigned(each.arguments, now.typed), each.arguments
            else:
                notes.append(OF_A_FILE.format(each.words, show_seconds(each.seconds)))
        if not has(self.framework, "keys") or not has(self.framework, "writing"):
            notes.append(f"single changes alone were tried: {absent(self.framework, 'writing')}")
            return
        try:
            result = plans_of(
                now.plan.job,
                now.facts_of,
                target=self.framework,
                seconds=self.follow.search_seconds,
                as_it_stands=now.plan,
            )
        except UserError as error:
            notes.append(f"the search found no plan: {error}")
            return
        for candidate in result.plans[:MOST_PLANS]:
            if candidate.forecast.iteration_seconds >= now.forecast.iteration_seconds:
                break
            for plan in (candidate.plan, *engine_alone(now.plan, candidate.plan)):
                said = self._retyped(now, plan)
                yield said, now.typed.arguments(said) or ()

    def _retyped(self, now: CurrentRun, plan: Plan) -> tuple[Assignment, ...]:
        """Return the keys in which a searched plan differs from the configuration, without those that change nothing.

        What is trained and on what stays as the configuration says it: a plan knows models by their shapes, which other weights
        have too, and lengths as they were measured, which are no limits.
        """
        settings = now.typed.found.settings
        try:
            wanted = exported(plan, self.framework, into=settings.start).decided
        except UserError:
            return ()
        said = tuple(
            (key, value)
            for key, value in wanted.items()
            if value is not None and settings.given(key) != value and argument(settings, key, value)
        )
        if not keeps_work(said, now.typed):
            said = tuple(each for each in said if keeps_work((each,), now.typed))
        return needed_assignments(said, now.typed)

    def _typed(
        self, now: CurrentRun, said: tuple[Assignment, ...], words: tuple[str, ...]
    ) -> TypedChange | None:
        """Return a change once it is typed; None where the framework refuses it, it may not fit, or other work is done."""
        found = now.typed.typed(words)
        if found is None:
            return None
        plan, facts = found[0], found[1].with_calibration(now.site)
        if plan == now.plan or not does_the_same(plan, now.plan):
            return None
        if not keeps_work(said, now.typed):
            return None
        checked = check_plan(plan, facts, self.settings.file, improves=False)
        if checked.forecast is None or checked.verdict not in {"fits", now.verdict}:
            return None
        if not checked.forecast.feasible and now.forecast.feasible:
            return None
        before, after = (now.plan, now.forecast), (plan, checked.forecast)
        gain = gain_of(before, after, now.measured_seconds)
        given = now.typed.found.settings.given
        keys = tuple(
            KeyChange(
                key=key,
                before=None if given(key) is None else typed_value(given(key)),
                after=typed_value(value),
            )
            for key, value in said
        )
        return TypedChange(keys, words, plan, checked.forecast, gain)

    def _restart(self, log: FollowedRun) -> tuple[float | None, tuple[str, ...]]:
        """Return the seconds of a restart, None if not known, with notes on where they come from."""
        if self.follow.restart_seconds is not None:
            return self.follow.restart_seconds, ()
        found = log.start_up_seconds()
        if found is None:
            return None, ("what a restart costs is not known: say it by --restart-seconds",)
        words = (
            f"a restart is taken to cost {show_seconds(found)}, what the log's first step took longer; starting processes and "
            "loading weights come before a log's first step, and steps since the last checkpoint are done again: "
            "--restart-seconds says it better"
        )
        return found, (words,)

    def departures(self, log: FollowedRun, name: str) -> Iterator[Departure]:
        """Yield what left its normal range: the newest steps beside those before, and beside the forecast that these give."""
        parts = newest_apart(log, self.follow.window, self.follow.warmup)
        if parts is None:
            return
        before, newest = parts
        yield from unlike_before(before, newest)
        earlier, latest = (each.medians(len(each.steps), 0) for each in parts)
        if earlier is None or latest is None or not latest.step_seconds:
            return
        now = self.current(earlier, name)
        own, _ = own_steps(latest, now.plan.job.workload.mean_observations_tokens)
        plan = at_lengths(now.plan, own.prompt_tokens, own.response_tokens)
        forecast = simulate(plan, now.facts_of(plan.job))
        low, high = forecast.iteration_seconds_interval
        if low <= latest.step_seconds <= high:
            return
        yield Departure(
            name="step",
            measured_seconds=latest.step_seconds,
            normal_seconds=(low, high),
            beside="forecast",
            stage=_furthest(latest, plan, forecast),
        )

    def outcome(self, decision: Decision, log: FollowedRun, name: str) -> Outcome | None:
        """Return what came of a change that was advised; None where this run does not have it, or has too few steps with it."""
        if decision.gain is None or not self.has_changed(decision):
            return None
        after = (
            log
            if name != decision.log or log.numbers[-1] <= decision.step
            else log.after(decision.step)
        )
        steps = after.medians(self.follow.window, self.follow.warmup)
        if steps is None or not steps.step_seconds:
            return None
        return Outcome(
            step=after.numbers[-1],
            time_seconds=after.time_seconds,
            decision_step=decision.step,
            steps=steps.steps,
            before_seconds=decision.measured_seconds,
            after_seconds=steps.step_seconds,
            gain=decision.gain,
            response_tokens=(decision.response_tokens, steps.response_tokens),
        )

    def has_changed(self, decision: Decision) -> bool:
        """Tell whether the configuration has all values that were advised."""
        given = self.settings.given
        return bool(decision.changes) and all(
            given(each.key) is not None and typed_value(given(each.key)) == each.after
            for each in decision.changes
        )


def does_the_same(plan: Plan, now: Plan) -> bool:
    """Tell whether a step of a plan does the work of another's, on the same GPUs and with weights as new."""
    how = {name: getattr(now.job, name) for name in OF_HOW}
    return (
        replace(plan.job, **how) == now.job
        and _learns(plan) == _learns(now)
        and plan.mode == now.mode
        and plan.staleness <= now.staleness
    )


def keeps_work(said: Iterable[Assignment], typed: RetypedConfiguration) -> bool:
    """Tell whether a configuration with more assignments says the same of what is trained, on what, for how long and by which loss."""
    words = typed.arguments(said)
    settings, now = laid_over(typed.found.settings, words or ()), typed.found
    try:
        run = run_of(settings)
        as_long = _said_steps(settings) == _said_steps(now.settings)
    except UserError:
        return False
    return as_long and all(getattr(run, name) == getattr(now.run, name) for name in OF_WHAT)


def _said_steps(settings: Settings) -> int | None:
    """Return how many steps a configuration says itself; None where it does not."""
    return settings.optional_whole("steps") if "steps" in settings.sheet.settings else None


def _learns(plan: Plan) -> list[tuple[object, ...]]:
    """Return what of trainers' options is no matter of how a step is done: formats, and how often experts are chosen."""
    options = (plan.job.trainer(role) for role in plan.job.models)
    return [(each.weights, each.optimizer, each.popularity_spread) for each in options]


def engine_alone(plan: Plan, found: Plan) -> Iterator[Plan]:
    """Yield a plan whose engine alone is as in one that was found, on the same pools.

    Words behind a configuration leave nothing out, so that it may not be told the whole of what was found (micro-batches in the place
    of a budget of tokens).
    """
    own, other = plan.tasks["actor.generate"], found.tasks["actor.generate"]
    if [each.gpus for each in found.pools] == [each.gpus for each in plan.pools]:
        yield plan.with_layout("actor.generate", replace(other, pool=own.pool))


def _assigned(words: Sequence[str], typed: RetypedConfiguration) -> tuple[Assignment, ...]:
    """Return what words behind a configuration say, by its keys."""
    flat = laid_over(replace(typed.found.settings, flat={}), words).flat
    return tuple((key, given.value) for key, given in flat.items())


def _furthest(steps: LoggedSteps, plan: Plan, forecast: Forecast) -> str:
    """Return the stage whose seconds are furthest from its forecast; empty where none is logged."""
    stages = row_of_log("", steps, plan, forecast).stages
    off = {
        name: abs(each.measured_seconds - each.forecast_seconds)
        for name, each in stages.items()
        if each.measured_seconds
    }
    return max(off, key=off.__getitem__, default="")
