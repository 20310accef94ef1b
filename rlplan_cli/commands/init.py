"""`rlplan init`: a job file to start from."""

from pathlib import Path
from typing import Annotated

import typer

from rlplan_cli.terminal import JsonOption, echo_json, say

EXAMPLE = (
    "Example: rlplan init job.yaml --algorithm grpo --model qwen2.5-7b --gpu h100-80gb-sxm --gpus 8"
)


def command(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("job.yaml"),
    algorithm: Annotated[
        str,
        typer.Option(help="RL algorithm: a file of rlplan/algorithms, such as ppo or safe-rlhf."),
    ] = "ppo",
    model: Annotated[str, typer.Option(help="Preset, or path of a Hugging Face config.")] = "tiny",
    gpu: Annotated[str, typer.Option(help="Device of the cluster.")] = "cpu",
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the cluster.")] = 2,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a job file with every part that a user usually changes, checked before it is written."""
    from planner.requests.starter import starter_job
    from rlplan.algorithms import algorithm_names
    from rlplan.errors import FileError, nearest_name
    from rlplan.files.writing import write_yaml
    from rlplan_cli.outputs import check_files

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
    job = starter_job(algorithm, model, gpu, gpus, path.parent)
    write_yaml(path, job)
    if as_json:
        echo_json(job)
        return
    say(f"job written to {path}; next: rlplan search {path}")
