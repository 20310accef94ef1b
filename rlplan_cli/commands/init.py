"""`rlplan init`: a job file to start from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlplan_cli.amounts import GPUS_ALLOWED, gpus_with_type
from rlplan_cli.commands.fit import (
    BatchOption,
    MeanPromptOption,
    MeanResponseOption,
    PromptTokensOption,
    ResponseTokensOption,
    SamplesOption,
)
from rlplan_cli.terminal import JsonOption, echo_json, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlplan.job import PromptData
    from rlplan.planner.requests.starter import StarterPrompts

# In worked solutions of GSM8K's form, ahead of the number (Cobbe et al. 2021, arXiv:2110.14168, section 2).
MARK = "####"

EXAMPLE = (
    "Example: rlplan init job.yaml --algorithm grpo --model qwen2.5-7b --gpu h100-80gb-sxm --gpus 8"
)


def command(  # noqa: PLR0917 -- one parameter an option
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("job.yaml"),
    algorithm: Annotated[
        str,
        typer.Option(help="RL algorithm: a file of rlplan/algorithms, such as ppo or safe-rlhf."),
    ] = "ppo",
    model: Annotated[
        str,
        typer.Option(
            help="Preset, path of a Hugging Face config, or folder with a model's weights, which training starts from."
        ),
    ] = "tiny",
    gpu: Annotated[str | None, typer.Option(help="Device of the cluster.  [default: cpu]")] = None,
    gpus: Annotated[
        str, typer.Option(help=f"GPUs of the cluster: 16, or with their type {GPUS_ALLOWED}.")
    ] = "2",
    framework: Annotated[
        str | None, typer.Option(help="Whose step it is, such as verl.  [default: rlplan]")
    ] = None,
    prompt: PromptTokensOption = None,
    response: ResponseTokensOption = None,
    mean_prompt: MeanPromptOption = None,
    mean_response: MeanResponseOption = None,
    batch: BatchOption = None,
    samples: SamplesOption = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="File of prompts to train on, whose lengths the job takes."),
    ] = None,
    prompt_column: Annotated[
        str | None,
        typer.Option(
            help="With --prompts: what their rows call the prompt, such as question.  [default: prompt]"
        ),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat",
            help="With --prompts: put texts into the chat template of the model's tokenizer, as a user's message.",
        ),
    ] = False,
    held_out: Annotated[
        Path | None,
        typer.Option(help="With --prompts: file of prompts on which the actor is evaluated."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a job file with every part that a user usually changes, checked before it is written."""
    from rlplan.algorithms import algorithm_names
    from rlplan.errors import FileError, nearest_name
    from rlplan.files.writing import check_files, write_text
    from rlplan.job import PromptData
    from rlplan.planner.requests.starter import StarterWork, starter_job, starter_text

    if algorithm not in algorithm_names():
        raise FileError(
            "--algorithm",
            "unknown algorithm",
            value=algorithm,
            allowed=", ".join(algorithm_names()),
            nearest=nearest_name(algorithm, algorithm_names()),
        )
    check_files({"the file to write": path})
    if path.exists() and not force:
        raise FileError(str(path), "exists already", allowed="another path, or --force")
    options = {"--held-out": held_out, "--prompt-column": prompt_column, "--chat": chat or None}
    _check_prompts(prompts, options, mean_prompt)
    measured = None
    if prompts is not None:
        data = PromptData(column=prompt_column or "prompt", chat=chat)
        measured = _measured(prompts, held_out, model, path.parent, data)
    given = gpus_with_type(gpus, gpu, alone=True)
    work = StarterWork(
        framework=framework,
        prompts=batch,
        samples=samples,
        prompt_tokens=prompt,
        response_tokens=response,
        mean_prompt_tokens=mean_prompt,
        mean_response_tokens=mean_response,
        gpus_per_node=given.per_node,
    )
    device = given.device or "cpu"
    job = starter_job(algorithm, model, device, given.number, path.parent, measured, work)
    write_text(path, starter_text(job))
    if as_json:
        echo_json(job)
        return
    if measured is not None:
        shortest, longest = min(measured.tokens), max(measured.tokens)
        count = len(measured.tokens)
        say(f"{prompts}: {count:,} prompts of {shortest:,} to {longest:,} tokens")
    say(f"job written to {path}; next: rlplan search {shlex.quote(str(path))}")


def _check_prompts(
    prompts: Path | None, options: Mapping[str, object], mean_prompt: float | None
) -> None:
    """Refuse what is said of prompts where none are named, and what contradicts those that are.

    Args:
        options: By name; None of those that are not given.

    Raises:
        FileError: Names the option.
    """
    from rlplan.errors import FileError

    if prompts is None:
        for option in (name for name, given in options.items() if given is not None):
            problem = "is for an actor that learns from prompts"
            raise FileError(option, problem, allowed="together with --prompts")
        return
    held_out = options["--held-out"]
    if isinstance(held_out, Path) and held_out.resolve() == prompts.resolve():
        problem = "is what --prompts names, whose rows are learnt from"
        allowed = "another file, such as that of another split in a folder"
        raise FileError("--held-out", problem, value=str(held_out), allowed=allowed)
    if mean_prompt is not None:
        problem = "is measured in the file that --prompts names, and would have no effect"
        raise FileError("--mean-prompt", problem, value=mean_prompt, allowed="one of both")


def _measured(
    prompts: Path, held_out: Path | None, model: str, folder: Path, data: PromptData
) -> StarterPrompts:
    """Return what a first job takes of files of prompts, their lengths by the model's own tokenizer.

    Raises:
        UserError: All mistakes in the file at once.
    """
    from os.path import relpath

    from rlplan.executor.data.workload import read_prompts
    from rlplan.job import PromptData
    from rlplan.planner.requests.starter import BYTES, StarterPrompts, tokenizer_of
    from rlplan_cli.running import require_tokenizers

    tokenizer = tokenizer_of(model, folder)
    if tokenizer != BYTES:
        require_tokenizers()
    found = read_prompts(prompts, tokenizer, folder, data)
    judged = None if held_out is None else read_prompts(held_out, tokenizer, folder, data)
    rows = [*found.rows, *(judged.rows if judged is not None else [])]
    return StarterPrompts(
        file=relpath(prompts, folder),
        tokens=[len(each) for each in found.tokens],
        rule=_rule_of([row.get("answer") for row in rows]),
        data=None if data == PromptData() else data,
        held_out_file=None if held_out is None else relpath(held_out, folder),
        held_out_longest=0 if judged is None else max(map(len, judged.tokens)),
        held_out_count=0 if judged is None else len(judged.tokens),
    )


def _rule_of(answers: Sequence[object]) -> str | None:
    """Return the rule that compares with answers: of worked solutions in GSM8K's form the last numbers, of others the texts."""
    from rlplan.executor.learning.answers import last_number

    if None in answers:
        return None
    marked = [str(each).rpartition(MARK) for each in answers]
    is_solved = all(mark and last_number(behind) is not None for _, mark, behind in marked)
    return "numeric_match" if is_solved else "exact_match"
