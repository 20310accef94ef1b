"""What the page asks: a job by its controls, or a framework's script with what is changed of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import AtLeastOne, Fraction, NonNegative, Positive, Updates
from rlplan.models import Precision
from rlplan.plan import FLOWS, USUAL_MODE, Mode

if TYPE_CHECKING:
    from rlplan.workload import Lengths

# Of a script, log or plan that is handed over, in bytes.
LARGEST_BYTES = 2**20
# What messages call what the controls say.
PAGE = "page"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenFile:
    """Hold a file that was dropped or pasted: data, which is read and never run.

    Attributes:
        name: As its owner calls it; the last part of it counts, and its ending says what it is.
    """

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Hold the state of the page's controls.

    Attributes:
        script: A framework's configuration; without one the controls describe a job.
        framework: Whose script it is (None is told by its words), or whose step is forecast of a job.
        prompt_tokens: Longest prompt.
        response_tokens: Longest response.
        mean_response_tokens: Mean response; None where all are as long as the longest. Of a script it has to be said.
        mean_response_share: In its place, of a script: as a share of the longest response.
        mean_prompt_tokens: Mean prompt of a script; None takes the usual.
        prompts: Of a step.
        staleness: Updates that generating weights may be old (mode async).
        changes: Of a script: what controls change, by their names here.
        taken: Of a script: words of proposals that its user takes, as they would be typed behind it; later ones count more.
    """

    script: GivenFile | None = None
    framework: str | None = None
    model: str = "qwen2.5-7b"
    gpu: str = "h100-80gb-sxm"
    gpus: AtLeastOne = 8
    algorithm: str = "grpo"
    prompt_tokens: AtLeastOne = 1024
    response_tokens: AtLeastOne = 2048
    mean_response_tokens: Positive | None = None
    mean_response_share: Fraction | None = None
    mean_prompt_tokens: Positive | None = None
    prompts: AtLeastOne = 256
    samples_per_prompt: AtLeastOne = 8
    mode: Mode = USUAL_MODE
    staleness: Updates | None = None
    precision: Precision | None = None
    rollout_precision: Precision | None = None
    changes: FrozenDict[str, AtLeastOne] = FrozenDict()
    taken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAsked(Asked):
    """Say what is searched beside what the controls say.

    Attributes:
        seconds: When the search stops with the best plan so far; None searches to the end.
    """

    seconds: NonNegative | None = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportAsked(Asked):
    """Say which plan is written for which framework.

    Attributes:
        plan: As an answer has it.
        to: The framework's name.
    """

    plan: dict[str, Any]
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAsked:
    """Say whose steps are checked, beside which plan's forecast."""

    log: GivenFile
    plan: dict[str, Any]


def document_of(asked: Asked) -> dict[str, Any]:
    """Return the partial plan that the controls describe, as its file has it: the job, and the mode if it is not the usual one.

    Raises:
        UserError: A name is not known, or a number not allowed.
    """
    from rlplan.files.writing import plain

    document: dict[str, Any] = {"job": plain(job_of(asked), drop_defaults=True)}
    if asked.mode != USUAL_MODE:
        document["mode"] = asked.mode
        if asked.staleness is not None and FLOWS[asked.mode].is_endless:
            document["staleness"] = asked.staleness
    return document


def job_of(asked: Asked) -> Any:  # noqa: ANN401 -- a job, whose module is loaded late
    """Return the job that the controls describe, with the names that they say: a first job's, with their work.

    Raises:
        UserError: A name is not known, or a number not allowed.
    """
    from rlplan.planner.requests.starter import StarterWork, starter_job

    # A first job's own lengths may be more than the model has positions for.
    given = StarterWork(
        prompts=asked.prompts,
        samples=asked.samples_per_prompt,
        prompt_tokens=asked.prompt_tokens,
        response_tokens=asked.response_tokens,
    )
    job = starter_job(asked.algorithm, asked.model, asked.gpu, asked.gpus, Path(), work=given)
    work = replace(
        job.workload,
        prompts=asked.prompts,
        samples_per_prompt=asked.samples_per_prompt,
        prompt_tokens=asked.prompt_tokens,
        response_tokens=_responses(asked),
    )
    specs = job.specs
    if FLOWS[asked.mode].is_endless and asked.staleness is not None:
        specs = replace(specs, staleness=asked.staleness)
    return replace(
        job,
        workload=work,
        framework=asked.framework or job.framework,
        precision=asked.precision,
        rollout_precision=asked.rollout_precision,
        specs=specs,
    )


def _responses(asked: Asked) -> Lengths:
    """Return the responses' lengths: spread as in published runs where their mean is known, else all the longest."""
    from rlplan.workload import Logged

    mean, most = asked.mean_response_tokens, asked.response_tokens
    if mean is None or mean == most:
        return most
    if mean > most:
        raise FileError(
            PAGE,
            "is longer than the longest response",
            field="mean_response_tokens",
            value=mean,
            allowed=f"at most {most:,}",
        )
    return Logged(mean=mean, max=most)
