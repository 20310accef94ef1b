"""`rlplan fit-environment TRAJECTORIES...`: environments of a job from a run's own trajectories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlplan_cli.terminal import JsonOption, echo_json, print_table, say, say_written

if TYPE_CHECKING:
    from rlplan.planner.measured.fitted_environments import FittedEnvironments

EXAMPLE = "Example: rlplan fit-environment rollouts/ --name sandbox --out environment.yaml"


def command(  # noqa: PLR0917 -- one parameter an option
    trajectories: Annotated[
        list[Path],
        typer.Argument(
            help="Files of trajectories (.jsonl, .json), or folders with them: messages in OpenAI's form, results of "
            "verifiers and prime-rl, rollout dumps of verl."
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the environment.  [default: the first file's]")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Key of a row by which it is of one of several environments, such as task."
        ),
    ] = None,
    tool_seconds: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds of a step, where trajectories do not say them."),
    ] = None,
    cpu_cores: Annotated[
        float | None,
        typer.Option(min=0.0, help="Host cores that a running step holds.  [default: 1]"),
    ] = None,
    instances: Annotated[
        int | None, typer.Option(min=1, help="Episodes (sandboxes) under way at a time at most.")
    ] = None,
    characters_per_token: Annotated[
        float,
        typer.Option(min=0.1, help="Characters of a token, where trajectories do not count them."),
    ] = 4.0,
    into: Annotated[
        Path | None,
        typer.Option(help="A job's file (YAML) of which --out gets a copy with the environments."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the environments (YAML) here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit environments (turns, observations, seconds of tools) to trajectories that a run wrote."""
    from rlplan.errors import FileError
    from rlplan.files.writing import check_files, to_yaml, write_text
    from rlplan.planner.measured.fitted_environments import FitOptions, fit_environments
    from rlplan.planner.measured.trajectories import read_trajectories

    check_files({"--out": out}, inputs=[*trajectories, into])
    if into is not None and out is None:
        raise FileError("--into", "writes no file", allowed="--out with it")
    options = FitOptions(
        name=name or trajectories[0].stem or "environment",
        by=by,
        tool_seconds=tool_seconds,
        cpu_cores=cpu_cores,
        instances=instances,
        characters_per_token=characters_per_token,
    )
    episodes = read_trajectories(trajectories, characters_per_token)
    found = fit_environments(episodes, options, str(trajectories[0]))
    if out is not None:
        write_text(out, to_yaml(_document(found, into), flat=True))
    if as_json:
        echo_json(found)
    else:
        _print(found)
    say_written(out)


def _document(found: FittedEnvironments, into: Path | None) -> dict[str, Any]:
    """Return what is written: the environments alone, or a job with them.

    Raises:
        FileError: The file is no job.
    """
    from rlplan.errors import FileError
    from rlplan.files.decoding import load_yaml
    from rlplan.files.writing import plain

    environments = [plain(each, drop_defaults=True) for each in found.environments]
    if into is None:
        return {"environments": environments}
    job = load_yaml(into)
    if not isinstance(job, dict) or not isinstance(job.get("workload"), dict):
        raise FileError(str(into), "is no job: it has no workload", allowed="a job's file")
    return {**job, "workload": {**job["workload"], "environments": environments}}


def _print(found: FittedEnvironments) -> None:
    from rlplan.reports.tables.environments import seen_table

    print_table("Environments", seen_table(found.seen))
    say(
        f"of an episode: prompt {found.prompt_tokens:,.0f} and responses {found.response_tokens:,.0f} tokens on average "
        f"(--mean-prompt, --mean-response), at most {found.longest_tokens:,} tokens with observations "
        "(workload.max_total_tokens)"
    )
    for note in found.notes:
        say(f"assumed: {note}")
