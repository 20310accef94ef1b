"""What a framework's log says of its steps, and by which names. The sheets `profiles/frameworks/NAME/log.yaml`."""

from dataclasses import dataclass

from rlplan.files.frozen import FrozenDict


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSheet:
    """Say what a framework's log calls the figures of a step.

    Attributes:
        step: Key of the seconds of the whole step.
        stages: Stages of a step (`rlplan.calibration.STEP_STAGES`) by the keys of their seconds.
        holds: Stages that a stage's seconds hold where they have no key of their own.
        states_in: Stage whose seconds hold the trainer's states on their way to the host, whose way back none
            holds; empty where those of the updates hold both.
        prompt_tokens: Key of the mean length of prompts.
        response_tokens: Key of the mean length of responses, after the cut at the maximum.
        total_tokens: Key of the mean length of both together, for logs that do not print the prompts'.
        longest_response: Key of the longest response of a step.
        clip_ratio: Key of the share of responses that were cut at the maximum.
        prefixes: What trackers put before these keys.
        console_step: What stands on the console's line that begins a step (a regular expression), for logs
            whose figures stand on lines of their own.
        console_prefix: What is put before names of seconds on such lines to make keys of them.
        console_names: Keys of what is printed on such lines under other names.
        console_dict: What stands before a Python dict of figures on a line of the console (a regular expression whose
            group is the step's number), where one step has several.
        merged_by: Key of that number among a row's figures: rows of one number are one step; empty where each row is.
        timers: Which keys are of seconds (a regular expression); empty where all of `step`'s group are.
        outer: Keys of seconds that hold those of stages, and are none.
        is_fork: Whether another framework, of which this one is a fork, logs alike.
        sources: Where the names are from.
    """

    name: str
    step: str
    stages: FrozenDict[str, str]
    holds: FrozenDict[str, tuple[str, ...]] = FrozenDict()
    states_in: str = ""
    prompt_tokens: str = ""
    response_tokens: str = ""
    total_tokens: str = ""
    longest_response: str = ""
    clip_ratio: str = ""
    prefixes: tuple[str, ...] = ()
    console_step: str = ""
    console_prefix: str = ""
    console_names: FrozenDict[str, str] = FrozenDict()
    console_dict: str = ""
    merged_by: str = ""
    timers: str = ""
    outer: tuple[str, ...] = ()
    is_fork: bool = False
    sources: FrozenDict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSteps:
    """Hold the medians of a log's steps.

    Attributes:
        steps: How many they are over; the first ones, the warm-up, are left out.
        step_seconds: Of the whole step; None where it is not logged.
        stage_seconds: By stage.
        prompt_tokens: Mean length of prompts; None where it is not logged.
        response_tokens: Mean length of responses; None where it is not logged.
        longest_response: Median of the steps' longest responses, in tokens; None where it is not logged.
        clip_ratio: Share of responses that were cut at the maximum; None where it is not logged.
        other_seconds: Of timers that the sheet does not name, by their names.
        growth: How many times as long a stage took in the last third of the steps as in the first, over how
            many times as many response tokens there were; by stage.
    """

    sheet: LogSheet
    steps: int
    step_seconds: float | None
    stage_seconds: FrozenDict[str, float]
    prompt_tokens: float | None
    response_tokens: float | None
    longest_response: float | None = None
    clip_ratio: float | None = None
    other_seconds: FrozenDict[str, float] = FrozenDict()
    growth: FrozenDict[str, float] = FrozenDict()
