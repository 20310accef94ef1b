"""Results of measurements: runs, logged steps and their checks, watched steps, episodes of trajectories."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import NonNegative, NonNegativeInt, Positive
from rlplan.plan import Plan
from rlplan.trace import Trace

RUN_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseLengths:
    """Hold the lengths of an iteration's responses, in tokens: each the median over a run's iterations.

    Attributes:
        longest: Tokens of the longest response.
    """

    mean: float
    std: float
    longest: float

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, float]]) -> "ResponseLengths | None":
        """Return the lengths of the usual iteration's responses; None where not all iterations noted them.

        Args:
            rows: Metrics of iterations.
        """
        if not all("longest_response" in row for row in rows):
            return None
        return cls(
            mean=median(row["response_tokens"] for row in rows),
            std=median(row["response_tokens_std"] for row in rows),
            longest=median(row["longest_response"] for row in rows),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """Say where a run went on with another plan.

    Attributes:
        iteration: The first one that the other plan did, unless yet another followed.
        reason: Why, as it was said while it ran.
        before: File of the plan until then, in the run's folder.
    """

    iteration: NonNegativeInt
    reason: str
    before: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Hold what a run measured.

    Attributes:
        trace: Every task of every iteration as a span.
        warmup_iterations: First iterations, named and left out of comparisons.
        memory_peak_bytes: Largest measured peak of a device's process, by pool.
        machine: Fingerprint of the machine that ran it.
        response_tokens: Mean tokens of a response after the warm-up; None in runs that did not note it.
        response_lengths: After the warm-up; None in runs that did not note it.
        loop_flops_per_second: What the slowest device does in a fixed loop (`rlplan.executor.probing`), all of them
            busy: before the first iteration and after the last. Empty in runs that did not note it.
        replanned: Where plans followed one another; `plan` is the last one, of which alone the trace is.
        evaluation_seconds: For which training waited in each evaluation.
        stopped: Why it stopped before the last iteration that it was to do; empty where it did not.
        replicas: Of the generating pool at the end of each iteration of the trace, where they come and go; else empty.
        replica_tokens: Mean tokens of the responses of these iterations; empty in runs that did not note them.
    """

    version: int = RUN_VERSION
    plan: Plan
    trace: Trace
    warmup_iterations: int
    memory_peak_bytes: FrozenDict[str, int]
    machine: FrozenDict[str, str]
    response_tokens: float | None = None
    response_lengths: ResponseLengths | None = None
    loop_flops_per_second: tuple[Positive, ...] = ()
    replanned: tuple[Replanned, ...] = ()
    evaluation_seconds: tuple[Positive, ...] = ()
    stopped: str = ""
    replicas: tuple[NonNegativeInt, ...] = ()
    replica_tokens: tuple[NonNegative, ...] = ()

    @property
    def mean_response_tokens(self) -> float | None:
        """Return the mean tokens of the usual iteration's responses, else of all; None where neither is noted."""
        return self.response_lengths.mean if self.response_lengths else self.response_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """Hold forecast against measurement for one task, or for the iteration.

    Attributes:
        as_run_seconds: Forecast at the lengths that the run had; None where those are the plan's, or not known.
        error_fraction: (forecast - median measured) / median measured.
        measured_interval_seconds: (p10, p90) of the measured iterations.
        source: Source of the forecast.
    """

    name: str
    pool: str
    forecast_seconds: float
    measured_median_seconds: float
    measured_interval_seconds: tuple[float, float]
    error_fraction: float
    source: str
    as_run_seconds: float | None = None

    def error_at(self, slowdown: float = 1.0) -> float | None:
        """Return the error of the forecast at the run's lengths on a machine that is slower by a factor.

        None where nothing was measured.
        """
        seconds = self.forecast_seconds if self.as_run_seconds is None else self.as_run_seconds
        median = self.measured_median_seconds
        return seconds * slowdown / median - 1 if median else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """Hold the forecast of an iteration with a number of replicas against those that were measured with as many.

    Attributes:
        replicas: Of the generating pool.
        iterations: Measured ones that the median is over: after the warm-up, and with as many replicas as the one before.
        forecast_interval_seconds: (p10, p90).
        measured_interval_seconds: (p10, p90) of the measured iterations.
        error_fraction: (forecast - median measured) / median measured.
        response_tokens: Mean tokens of the responses of these iterations; None in runs that did not note them.
        as_run_seconds: Forecast of an iteration at these lengths; None where they are not known.
        measured_seconds: Of these iterations together; None in comparisons that did not note it.
    """

    replicas: int
    iterations: int
    forecast_seconds: float
    forecast_interval_seconds: tuple[float, float]
    measured_median_seconds: float
    measured_interval_seconds: tuple[float, float]
    error_fraction: float
    response_tokens: float | None = None
    as_run_seconds: float | None = None
    measured_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Hold the table of forecast against measurement, task by task, and the iteration last.

    Attributes:
        warmup_iterations: Iterations left out, from the first.
        compared_iterations: Iterations that the medians are over.
        response_tokens: (forecast, measured) mean tokens of a response, where the run noted them and learnt
            from all that it began.
        as_run_response_tokens: Mean tokens of a response in the forecast as it ran; None where that has the
            lengths of the plan.
        machine_slowdown: How many times as long the machine took for a fixed loop during the run as when its
            profile was measured; None where profile or run did not note it.
        replicas: By number of replicas, where they come and go: all else is then of the number that most iterations had.
    """

    rows: tuple[ComparisonRow, ...]
    iteration: ComparisonRow
    warmup_iterations: int
    compared_iterations: int
    response_tokens: tuple[float, float] | None = None
    as_run_response_tokens: float | None = None
    machine_slowdown: float | None = None
    replicas: tuple[ReplicaRow, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSheet:
    """Say what a framework's log calls the figures of a step.

    Attributes:
        step: Key of the seconds of the whole step.
        mean_until: Keys, the first that a step has, of the number of steps so far, where the step's own key is of the mean of
            all of them; none where it is of the step alone.
        tells: Keys that each of its steps has, which tell its log from another with the same key of a step.
        stages: Stages of a step (`rlplan.calibration.STEP_STAGES`) by the keys of their seconds.
        holds: Stages that a stage's seconds hold where they have no key of their own.
        states_in: Stage whose seconds hold the trainer's states on their way to the host, whose way back none
            holds; empty where those of the updates hold both.
        states_timer: Key of the seconds of that way alone, which are part of that stage's; empty where none is.
        prompt_tokens: Key of the mean length of prompts.
        response_tokens: Key of the mean length of responses, after the cut at the maximum.
        with_observations: Whether lengths of responses are of all behind the prompt, what environments add among it.
        total_tokens: Key of the mean length of both together, for logs that do not print the prompts'.
        step_tokens: Key of the tokens of all sequences of a step together.
        longest_response: Key of the longest response of a step.
        clip_ratio: Key of the share of responses that were cut at the maximum.
        generated_batches: Key of how many batches a step generated until enough groups differed in reward.
        prefixes: What trackers put before these keys.
        console_timers: A timer's line, or a figure's, of a console that prints each as it ends: name and number, in as many
            pairs of groups as there are kinds of lines.
        console_step: What stands on the console's line that begins a step (a regular expression), for logs
            whose figures stand on lines of their own.
        console_nested: Whether they stand below it as a YAML document whose mappings make a key together, with slashes.
        console_quoted: Whether they stand below it as lines of a Python dict; the line's group is then the step's number.
        console_cells: Whether they stand below it in a table's cells, names and numbers by turns, with the number as above.
        console_prefix: What is put before names of seconds on such lines to make keys of them.
        console_names: Keys of what is printed on such lines under other names.
        else_from: Keys whose figure a step has under this other key where it lacks its own, such as one of a line that was left out.
        of_updates: Whether its steps are updates, of which an iteration has several where its job says so.
        of_syncs: Whether a step of an endless stream is what lies between two syncs of weights, which may be several iterations.
        console_dict: What stands before a Python dict of figures on a line of the console (a regular expression whose
            group is the step's number), where one step has several.
        merged_by: Key of that number among a row's figures: rows of one number are one step; empty where each row is.
        timers: Which keys are of seconds (a regular expression); empty where all of `step`'s group are.
        outer: Keys of seconds that hold those of stages, and are none.
        inside: Keys of seconds that lie inside those of stages.
        trainer_idle: Key of the share of a step in which training waits for samples, where generation goes on beside it.
        trainer_idle_seconds: The same in seconds, where there is no share.
        generator_idle: Key of the share of a step in which generation stands still.
        tool_seconds: Key of the seconds that an episode waits for its environment, the mean.
        slowest_episode: Keys of the seconds that the episode which takes longest waits for its environment, and for the
            engine; None where they are not logged.
        beside: What is no part of every step, though its seconds may be in the step's, by the keys of its own.
        adds_up: Whether its steps have no seconds of their own: its timers, one after another, are all of a step.
        is_fork: Whether another framework, of which this one is a fork, logs alike.
        sources: Where the names are from.
    """

    name: str
    step: str
    mean_until: tuple[str, ...] = ()
    tells: tuple[str, ...] = ()
    stages: FrozenDict[str, str]
    holds: FrozenDict[str, tuple[str, ...]] = FrozenDict()
    states_in: str = ""
    states_timer: str = ""
    prompt_tokens: str = ""
    response_tokens: str = ""
    with_observations: bool = False
    total_tokens: str = ""
    step_tokens: str = ""
    longest_response: str = ""
    clip_ratio: str = ""
    generated_batches: str = ""
    prefixes: tuple[str, ...] = ()
    console_step: str = ""
    console_timers: str = ""
    console_nested: bool = False
    console_quoted: bool = False
    console_cells: bool = False
    console_prefix: str = ""
    console_names: FrozenDict[str, str] = FrozenDict()
    else_from: FrozenDict[str, str] = FrozenDict()
    of_updates: bool = False
    of_syncs: bool = False
    console_dict: str = ""
    merged_by: str = ""
    timers: str = ""
    outer: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    trainer_idle: str = ""
    trainer_idle_seconds: str = ""
    generator_idle: str = ""
    tool_seconds: str = ""
    slowest_episode: tuple[str, str] | None = None
    beside: FrozenDict[str, str] = FrozenDict()
    adds_up: bool = False
    is_fork: bool = False
    sources: FrozenDict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSteps:
    """Hold the medians of a log's steps.

    Attributes:
        steps: How many they are over; the first ones, the warm-up, are left out.
        step_seconds: Of the whole step, without what is `beside`; None where it is not logged.
        stage_seconds: By stage.
        prompt_tokens: Mean length of prompts; None where it is not logged.
        response_tokens: Mean length of responses; None where it is not logged.
        step_tokens: Of all sequences of a step together; None where they are not logged.
        longest_response: Median of the steps' longest responses, in tokens; None where it is not logged.
        clip_ratio: Share of responses that were cut at the maximum; None where it is not logged.
        generated_batches: Batches that a step generated until enough groups differed in reward; None where it is not logged.
        other_seconds: Of timers that the sheet does not name, by their names.
        beside_seconds: Of what is no part of every step, a step on average over the log.
        beside_each_seconds: Of one of each of these, where it took place: the median.
        trainer_idle_fraction: Share of a step in which training waits for samples; None where it is not logged.
        generator_idle_fraction: Share in which generation stands still; None where it is not logged.
        tool_seconds: That an episode waits for its environment, the mean; None where it is not logged.
        states_seconds: That the trainer's states take to the host, of a stage that holds more; None where they are not.
        slowest_episode: Seconds of the longest episode for its environment and for the engine; None where they are not.
        growth: How many times as long a stage took in the last third of the steps as in the first, over how
            many times as many response tokens there were; by stage.
    """

    sheet: LogSheet
    steps: int
    step_seconds: float | None
    stage_seconds: FrozenDict[str, float]
    prompt_tokens: float | None
    response_tokens: float | None
    step_tokens: float | None = None
    longest_response: float | None = None
    clip_ratio: float | None = None
    generated_batches: float | None = None
    other_seconds: FrozenDict[str, float] = FrozenDict()
    beside_seconds: FrozenDict[str, float] = FrozenDict()
    beside_each_seconds: FrozenDict[str, float] = FrozenDict()
    growth: FrozenDict[str, float] = FrozenDict()
    trainer_idle_fraction: float | None = None
    generator_idle_fraction: float | None = None
    tool_seconds: float | None = None
    slowest_episode: tuple[float, float] | None = None
    states_seconds: float | None = None


Verdict = Literal["normal", "slow", "fast"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedStage:
    """Hold a measured stage beside its forecast at the same lengths."""

    name: str
    measured_seconds: float
    forecast_seconds: float

    @property
    def times(self) -> float:
        """Return measured over forecast seconds."""
        return self.measured_seconds / self.forecast_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCheck(WatchedStage):
    """Hold a stage's measured seconds beside its forecast, with a verdict.

    Attributes:
        forecast_seconds: At the lengths that were measured.
        normal_seconds: (low, high), between which such a stage lies at 19 of 20 sites.
        causes: Why it is not normal, as far as log and plan show.
        tries: Changes to try, with their forecasts.
    """

    normal_seconds: tuple[float, float]
    verdict: Verdict
    causes: tuple[str, ...] = ()
    tries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCheck:
    """Hold the check of a log's (or run's) steps.

    Attributes:
        source: Whose log it is: a framework's, or `rlplan` for a run of its own.
        steps: How many steps the medians are over.
        prompt_tokens: Mean length of prompts; None where it is not logged.
        response_tokens: Mean length of responses; None where it is not logged.
        step: The whole step; None where it is not logged.
        others: Seconds of the step in timers that no forecast is made of, and in none (`no timer`).
        beside: Seconds of validation and checkpoints, a step on average over the log; in no step that is judged.
        beside_forecast: The same by forecast, at the lengths that were measured, as far as the job says what they are.
        notes: What else a reader should know.
    """

    source: str
    steps: int
    prompt_tokens: float | None
    response_tokens: float | None
    step: StageCheck | None
    stages: tuple[StageCheck, ...]
    others: FrozenDict[str, float] = FrozenDict()
    beside: FrozenDict[str, float] = FrozenDict()
    beside_forecast: FrozenDict[str, float] = FrozenDict()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Return `slow` where a stage or the step is, `fast` where only that, else `normal`."""
        found = {each.verdict for each in (*self.stages, *((self.step,) if self.step else ()))}
        return "slow" if "slow" in found else "fast" if "fast" in found else "normal"


# Where a measured step lies: below p10 of its forecast, above p90, or between.
Place = Literal["below", "within", "above"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedStep:
    """Hold a measured step beside its forecast at the same lengths.

    Attributes:
        step: Its number in the log.
        starts: Whether it is the first after a start, in which engines compile and caches fill.
        measured_seconds: Without validation and checkpoints.
        interval_seconds: (p10, p90) of the forecast.
        prompt_tokens, response_tokens: Mean lengths; None where they are not logged.
        stages: The stages that are logged and forecast.
    """

    step: int
    starts: bool
    measured_seconds: float
    forecast_seconds: float
    interval_seconds: tuple[float, float]
    prompt_tokens: float | None
    response_tokens: float | None
    stages: tuple[WatchedStage, ...]

    @property
    def place(self) -> Place:
        """Return where it lies beside the forecast's interval."""
        low, high = self.interval_seconds
        if self.measured_seconds < low:
            return "below"
        return "above" if self.measured_seconds > high else "within"

    @property
    def furthest(self) -> WatchedStage | None:
        """Return the stage that is the most seconds away from its forecast; None where none is known."""
        return max(
            self.stages,
            key=lambda each: abs(each.measured_seconds - each.forecast_seconds),
            default=None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEpisodes:
    """Hold means and maxima of one environment's episodes in recorded trajectories.

    Attributes:
        turns: Mean number of answers of the model.
        response_tokens: Mean tokens of all answers of an episode.
        observation_tokens: Mean tokens that a step adds.
        seconds: Mean of a step; None where no trajectory gives it.
        longest_tokens: Tokens of the longest context at the end of an episode.
    """

    name: str
    episodes: int
    turns: float
    most_turns: int
    response_tokens: float
    observation_tokens: float
    most_observation_tokens: int
    seconds: float | None
    most_seconds: float | None
    longest_tokens: int
