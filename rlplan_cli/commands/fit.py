"""`rlplan fit`: whether a model can be trained on so many GPUs at all."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from rlplan.collecting import resting_collector
from rlplan.planner.configs.frameworks import steps_in_words
from rlplan_cli.amounts import gpus_with_type, tokens_of, whole_tokens_of
from rlplan_cli.terminal import JsonOption, WhyOption, echo_json, print_table, say, say_assumed

if TYPE_CHECKING:
    from rlplan.planner.answers.fitting import Fit

EXAMPLE = "Example: rlplan fit --model qwen2.5-32b --gpus 8xh100 --algorithm grpo"
FORECAST = steps_in_words()
# What a verdict answers to the question whether a model fits.
ANSWERS = {"fits": "yes", "may not fit": "perhaps", "does not fit": "no"}

PromptTokensOption = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS",
        parser=whole_tokens_of,
        help="Longest prompt, such as 2k.  [default: 1,024]",
    ),
]
ResponseTokensOption = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS",
        parser=whole_tokens_of,
        help="Longest response, such as 8k.  [default: 1,024]",
    ),
]
MeanPromptOption = Annotated[
    float | None,
    typer.Option(
        metavar="TOKENS", parser=tokens_of, help="Mean prompt.  [default: as long as the longest]"
    ),
]
MeanResponseOption = Annotated[
    float | None,
    typer.Option(
        metavar="TOKENS",
        parser=tokens_of,
        help="Mean response, such as 2k: what a step takes follows from it.  [default: as long as the longest]",
    ),
]
BatchOption = Annotated[
    int | None, typer.Option(min=1, help="Prompts of a step.  [default: those of a first job]")
]
SamplesOption = Annotated[
    int | None, typer.Option(min=1, help="Responses to a prompt.  [default: those of a first job]")
]


@resting_collector()  # imports, and an answer that the process ends with
def command(  # noqa: PLR0917 -- one parameter an option
    model: Annotated[
        str, typer.Option(help="Preset, path of a Hugging Face config, or id in its cache.")
    ],
    gpus: Annotated[
        str, typer.Option(help="How many of which, such as 8xh100, 2x8xh100 or h100:16.")
    ],
    gpu: Annotated[
        str | None, typer.Option(help="Their type, where --gpus has none: --gpus 8 --gpu h100.")
    ] = None,
    algorithm: Annotated[str, typer.Option(help="RL algorithm, such as grpo or ppo.")] = "grpo",
    framework: Annotated[
        str | None,
        typer.Option(help=f"Whose step: {FORECAST}.  [default: rlplan, this project's executor]"),
    ] = None,
    prompt: PromptTokensOption = None,
    response: ResponseTokensOption = None,
    mean_prompt: MeanPromptOption = None,
    mean_response: MeanResponseOption = None,
    batch: BatchOption = None,
    samples: SamplesOption = None,
    why: WhyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say whether a model fits, by term, with the longest response and the smallest cluster that do.

    The exit code is 2 where it does not. Perhaps: by less than forecasts are off.
    """
    from rlplan.errors import InfeasibleError
    from rlplan.files.writing import plain
    from rlplan.planner.answers.fitting import FitRequest, fit
    from rlplan.planner.requests.starter import StarterWork

    given = gpus_with_type(gpus, gpu)
    asked = FitRequest(
        algorithm=algorithm,
        model=model,
        gpu=given.device,
        gpus=given.number,
        work=StarterWork(
            framework=framework,
            prompts=batch,
            samples=samples,
            prompt_tokens=prompt,
            response_tokens=response,
            mean_prompt_tokens=mean_prompt,
            mean_response_tokens=mean_response,
            gpus_per_node=given.per_node,
        ),
    )
    found = fit(asked)
    if as_json:
        told = {name: getattr(found, name) for name in ("longest_response_tokens", "fewest_gpus")}
        echo_json(
            {"fits": found.fits, **told, "plan": found.plan, "forecast": plain(found.forecast)}
        )
    else:
        _print(found, model, why=why)
    if not found.fits:
        raise typer.Exit(InfeasibleError.exit_code)


def _print(found: Fit, model: str, *, why: bool) -> None:
    from rlplan.planner.answers.verdicts import NEAR, verdict_of_plan
    from rlplan.reports.tables.plans import (
        SPARE_COLUMNS,
        answer_table,
        fit_words,
        memory_terms_table,
    )
    from rlplan.reports.tables.wording import cluster, counted, workload

    job = found.job
    verdict = verdict_of_plan(found.forecast)
    most, fewest = found.longest_response_tokens, found.fewest_gpus
    lines = (
        f"{ANSWERS[verdict]}: {model}, {job.algorithm} ({workload(job)}) on {cluster(job)}",
        fit_words(found.forecast, verdict),
        f"longest response that fits there: {f'{most:,} tokens' if most else 'none of 1,024 tokens or more'}",
        f"smallest cluster that fits: {counted(fewest, 'GPU') if fewest else 'none of up to 64 nodes'}",
    )
    sys.stdout.write("\n".join(lines) + "\n\n")
    print_table("Memory of the fullest GPU", memory_terms_table(found.forecast))
    table = answer_table(found.plan, found.forecast, {})
    print_table("How each task runs", table, spare=SPARE_COLUMNS)
    if found.fits:
        say(
            "plan: the first good one that was found; rlplan search looks for the best, whose step may be shorter"
        )
    if verdict == "may not fit":
        say(f"may not fit: its peak {NEAR}")
    for reason in found.forecast.infeasible_reasons:
        say(f"does not fit: {reason}")
    say_assumed(found.forecast.assumptions, why=why)
