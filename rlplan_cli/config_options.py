"""Options of commands that read a framework's configuration, and how they read it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from planner.configs.importing import ImportOptions

GpuOption = Annotated[
    str | None,
    typer.Option(
        "--gpu", help="Type of the GPUs: a device sheet's name or file.", show_default=False
    ),
]
ResponseOption = Annotated[
    float | None,
    typer.Option("--mean-response", help="Mean response in tokens.", show_default=False),
]
PromptOption = Annotated[
    float | None,
    typer.Option(
        "--mean-prompt",
        help="Mean prompt in tokens, 256 unless they are limited to less.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Take this model for the actor's: a known name or Hugging Face id, or a folder with config.json.",
        show_default=False,
    ),
]
RunOption = Annotated[
    bool,
    typer.Option(
        "--run",
        help="Run the script, with python3, ray, torchrun and other launchers replaced by a recorder.",
    ),
]


def import_options(
    framework: str,
    words: list[str],
    *,
    gpu: str | None,
    mean_response: float | None,
    mean_prompt: float | None,
    model: str | None,
    run: bool,
    job_path: str = "job.yaml",
) -> ImportOptions:
    """Return the options of an import; with `run`, the script is run.

    Raises:
        FileError: `--gpu` is missing or names no device, or the script cannot be run.
    """
    from planner.configs.importing import ImportOptions
    from planner.configs.sheet import load_config_sheet
    from planner.configs.shell.recorder import run_recorded
    from profiles.catalog import device_names
    from rlplan.errors import FileError

    load_config_sheet(framework)
    if gpu is None:
        names = ", ".join(device_names())
        raise FileError(
            "--gpu", "is missing: no configuration says the type of its GPUs", allowed=names
        )
    evaluated = None
    if run:
        if not words or not Path(words[0]).is_file():
            raise FileError("--run", "runs a script's file", value=words[0] if words else None)
        evaluated = run_recorded(Path(words[0]), words[1:])
    return ImportOptions(
        gpu=gpu,
        mean_response=mean_response,
        mean_prompt=mean_prompt,
        model=model,
        job_path=job_path,
        evaluated=evaluated,
    )
