"""`rlplan init`: a job file to start from."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlplan_cli.terminal import JsonOption, echo_json, say

EXAMPLE = (
    "Example: rlplan init job.yaml --algorithm grpo --model qwen2.5-7b --gpu h100-80gb-sxm --gpus 8"
)


class AlgorithmName(StrEnum):
    """Name the algorithms that a job can be made for."""

    PPO = "ppo"
    GRPO = "grpo"


def command(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("job.yaml"),
    algorithm: Annotated[AlgorithmName, typer.Option(help="RL algorithm.")] = AlgorithmName.PPO,
    model: Annotated[str, typer.Option(help="Preset, or path of a Hugging Face config.")] = "tiny",
    gpu: Annotated[str, typer.Option(help="Device of the cluster.")] = "cpu",
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the cluster.")] = 2,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a job file with every part that a user usually changes, checked before it is written."""
    from planner.starter import starter_job
    from rlplan.errors import FileError
    from rlplan.writing import write_yaml
    from rlplan_cli.outputs import check_files

    check_files({"the file to write": path})
    if path.exists() and not force:
        raise FileError(str(path), "exists already", allowed="another path, or --force")
    job = starter_job(algorithm.value, model, gpu, gpus, path.parent)
    write_yaml(path, job)
    if as_json:
        echo_json(job)
        return
    say(f"job written to {path}; next: rlplan search {path}")
