"""What a framework's log says of its steps, and by which names. The sheets `profiles/logs/`."""

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
        sources: Where the names are from.
    """

    name: str
    step: str
    stages: FrozenDict[str, str]
    holds: FrozenDict[str, tuple[str, ...]] = FrozenDict()
    states_in: str = ""
    prompt_tokens: str = ""
    response_tokens: str = ""
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
    """

    sheet: LogSheet
    steps: int
    step_seconds: float | None
    stage_seconds: FrozenDict[str, float]
    prompt_tokens: float | None
    response_tokens: float | None
