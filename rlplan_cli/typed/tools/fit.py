"""`fit`: whether a model can be trained on so many GPUs at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rlplan_cli.typed.forecasts import StepForecast, lines, memory_words, step_forecast, step_words
from rlplan_cli.typed.tool import Said

COUNTS = ("gpus", "prompts", "samples_per_prompt", "prompt_tokens", "response_tokens", "mean_response_tokens")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Say what is to fit where."""

    model: Annotated[
        str,
        Said("Preset, path of a Hugging Face config, or id in its cache, such as qwen2.5-7b."),
    ]
    gpus: Annotated[int, Said("How many GPUs.")]
    gpu: Annotated[str, Said("Their type: a device sheet's name or file, such as h100.")]
    algorithm: Annotated[str, Said("RL algorithm, such as grpo or ppo.")] = "grpo"
    framework: Annotated[
        str | None, Said("Whose step; rlplan's own executor where nothing is said.")
    ] = None
    prompts: Annotated[int | None, Said("Prompts of a step; those of a first job else.")] = None
    samples_per_prompt: Annotated[
        int | None, Said("Responses to a prompt; those of a first job else.")
    ] = None
    prompt_tokens: Annotated[int | None, Said("Longest prompt; 1,024 else.")] = None
    response_tokens: Annotated[int | None, Said("Longest response; 1,024 else.")] = None
    mean_response_tokens: Annotated[
        float | None, Said("Mean response, which seconds follow from; the longest else.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Hold whether it fits.

    Attributes:
        work: Of a step, in words: prompts, samples, lengths, updates.
        near_limit: Whether it fits by so little that a forecast does not tell: half of measured peaks are further off.
        longest_response_tokens: That fits on these GPUs; None where not even 1,024 do.
        fewest_gpus: On which the job fits; None where none of up to 64 nodes do.
        step: Of the plan that fits, else of the one that needs least beyond what there is.
    """

    work: str
    fits: bool
    near_limit: bool
    longest_response_tokens: int | None
    fewest_gpus: int | None
    step: StepForecast


def call(asked: Arguments) -> Answer:
    """Say whether a model can be trained by RL on so many GPUs, with the longest response and the smallest cluster that fit."""
    from rlplan.errors import FileError
    from rlplan.planner.answers.fitting import FitRequest, fit
    from rlplan.planner.answers.verdicts import verdict_of_plan
    from rlplan.planner.requests.starter import StarterWork
    from rlplan.reports.tables.wording import workload
    from rlplan_cli.typed.tool import ARGUMENTS

    for name in COUNTS:
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise FileError(ARGUMENTS, "is too small", field=name, value=value, allowed="1 or more")
    found = fit(
        FitRequest(
            algorithm=asked.algorithm,
            model=asked.model,
            gpu=asked.gpu,
            gpus=asked.gpus,
            work=StarterWork(
                framework=asked.framework,
                prompts=asked.prompts,
                samples=asked.samples_per_prompt,
                prompt_tokens=asked.prompt_tokens,
                response_tokens=asked.response_tokens,
                mean_response_tokens=asked.mean_response_tokens,
            ),
        )
    )
    return Answer(
        work=workload(found.job),
        fits=found.fits,
        near_limit=verdict_of_plan(found.forecast) == "may not fit",
        longest_response_tokens=found.longest_response_tokens,
        fewest_gpus=found.fewest_gpus,
        step=step_forecast(found.forecast),
    )


def words(answer: Answer) -> str:
    """Return the answer in a few lines."""
    most, fewest = answer.longest_response_tokens, answer.fewest_gpus
    fits = "may not fit" if answer.near_limit else "fits"
    return lines(
        f"{fits if answer.fits else 'does not fit'}: {memory_words(answer.step)}",
        f"longest response that fits there: {f'{most:,} tokens' if most else 'none of 1,024 tokens or more'}",
        f"smallest cluster that fits: {f'{fewest:,} GPUs' if fewest else 'none of up to 64 nodes'}",
        f"{step_words(answer.step)}, of {answer.work}" if answer.fits else "",
        answer.step.reasons,
    )
