"""Options of commands that read a framework's configuration, and how they read it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from rlplan.files.decoding import OF_SCRIPTS, OF_YAML
from rlplan.planner.configs.frameworks import check_parts, frameworks_with, names_in_words
from rlplan_cli.amounts import tokens_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlplan.errors import MissingValueError, MissingValuesError
    from rlplan.files.frozen import FrozenDict
    from rlplan.planner.configs.importing import ImportOptions

# A device that an example names.
EXAMPLE_GPU = "h100-80gb-sxm"
# Frameworks whose configurations are read, as help texts list them.
READ = names_in_words("keys", "reading")

GpuOption = Annotated[
    str | None, typer.Option(help="Type of the GPUs: a device sheet's name or file.")
]
ResponseOption = Annotated[
    float | None,
    typer.Option(
        metavar="TOKENS",
        parser=tokens_of,
        help="Mean response in tokens: 600, or 2k; beside a log, where that does not say it.",
    ),
]
PromptOption = Annotated[
    float | None,
    typer.Option(
        metavar="TOKENS",
        parser=tokens_of,
        help="Mean prompt in tokens, 256 unless they are limited to less.",
    ),
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="[ROLE=]MODEL",
        help="Take this model for the actor's, or for another role's (reward=llama-3-8b): a known name or Hugging "
        "Face id, or a folder with config.json. May be given several times.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Take this value of a framework's key, whatever the configuration says or leaves open: "
        "per_device_train_batch_size=4. May be given several times.",
    ),
]
RunOption = Annotated[
    bool,
    typer.Option(
        "--run",
        help="Run the script, with python3, ray, torchrun and other launchers replaced by a recorder.",
    ),
]
VersionOption = Annotated[
    str | None,
    typer.Option(
        "--framework-version",
        help="Version of the framework, such as 0.7.  [default: what the configuration says, else the newest known]",
    ),
]


def _host_bytes(given: str) -> int:
    """Return the bytes of so many GB."""
    from rlplan.units import GB

    try:
        size = float(given)
    except ValueError:
        size = 0.0
    if not 1 <= size < math.inf:
        raise typer.BadParameter("allowed: GB, 1 or more")
    return round(size * GB)


HostMemoryOption = Annotated[
    int | None,
    typer.Option(
        "--host-memory-gb",
        metavar="GB",
        parser=_host_bytes,
        help="Host memory of a node.  [default: that of the usual node of its GPUs]",
    ),
]

EPISODES = "Episodes of several turns"
# Keys that every configuration of accelerate has, and none of a training or a job.
OF_ACCELERATE = frozenset({"compute_environment", "distributed_type"})
# Keys of which every job or plan has one.
OF_JOBS_AND_PLANS = frozenset(
    {"version", "algorithm", "models", "workload", "cluster", "job", "tasks", "pools"}
)
EnvironmentOption = Annotated[
    Path | None,
    typer.Option(
        help="File (YAML) of the environments that play episodes, as rlplan fit-environment writes it.",
        rich_help_panel=EPISODES,
    ),
]
TurnsOption = Annotated[
    float | None,
    typer.Option(help="Mean turns of an episode.", rich_help_panel=EPISODES),
]
ObservationOption = Annotated[
    float | None,
    typer.Option(
        min=1.0, help="Mean tokens that a tool or environment adds.", rich_help_panel=EPISODES
    ),
]
ToolOption = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="Mean seconds of a tool's call or an environment's step.",
        rich_help_panel=EPISODES,
    ),
]

AsOption = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="MODULE",
        help="Take this module or script for what starts the framework's training (my_trainer.run); the framework's "
        "name takes whatever Python program the script starts.",
    ),
]


def complete_read(incomplete: str) -> list[str]:
    """Return the frameworks whose configurations are read and whose names begin so, for shells."""
    return [name for name in frameworks_with("keys", "reading") if name.startswith(incomplete)]


def complete_written(incomplete: str) -> list[str]:
    """Return the frameworks that plans are exported to and whose names begin so, for shells."""
    return [name for name in frameworks_with("keys", "writing") if name.startswith(incomplete)]


def framework_of(words: list[str], taken_as: str | None = None) -> tuple[str | None, list[str]]:
    """Return the framework whose configuration is meant, and what stands behind its name.

    None where the words are a job's or plan's file.

    Args:
        taken_as: What `--as` says, which may be the framework's name.

    Raises:
        FileError: Neither a framework is named, nor does the file start training of one.
        MissingPartError: Configurations of the framework that is named are not read.
    """
    from rlplan.errors import FileError
    from rlplan.files.decoding import read_text
    from rlplan.planner.configs.reading.otherwise import trained_otherwise
    from rlplan.planner.configs.reading.sheet import is_library
    from rlplan.planner.configs.reading.skypilot import script_of_task
    from rlplan.planner.configs.reading.telling import most_named, names_start, starts_of

    names = frameworks_with("keys", "reading")
    if words[0] in frameworks_with():
        check_parts(words[0], "keys", "reading")
        return words[0], words[1:]
    if taken_as in names:
        return taken_as, words
    path = Path(words[0])
    if path.suffix in OF_YAML and (len(words) == 1 or path.is_file()):
        name = _of_yaml(path)
        if name is not None or (len(words) == 1 and script_of_task(read_text(path)) is None):
            return name, words
    _check_there(path, alone=len(words) == 1)
    fitting = [name for name in names if starts_of(name, words)]
    if len(fitting) > 1:
        started = [name for name in fitting if names_start(name, words)]
        # A program of a project's own is of a library's, which has no other start.
        fitting = started or list(filter(is_library, fitting)) or fitting
        fitting = list(most_named(fitting, words))
    if len(fitting) == 1:
        return fitting[0], words
    problem = "is of no framework that is known by its words; name it first, or by --as"
    told = (trained_otherwise(name, words) for name in names if not fitting)
    what = next((each for each in told if each is not None), None)
    if what is not None:
        allowed = f"a script of RL or distillation by {READ}"
        raise FileError(words[0], f"{what}; rlplan reads training with RL", allowed=allowed)
    if fitting:
        problem = f"may be of {' or of '.join(fitting)} by its words; name it first, or by --as"
    raise FileError(words[0], problem, allowed=", ".join(fitting or names))


def _check_there(path: Path, *, alone: bool) -> None:
    """Refuse a script that is not there or holds nothing.

    Args:
        alone: Whether it is all that was named: a program may be a word of a command line, and be elsewhere.

    Raises:
        FileError: It is missing, a folder, or empty.
    """
    from rlplan.errors import FileError, nearest_name

    if alone and path.is_dir():
        raise FileError(str(path), "is a folder, not a file")
    if path.is_file():
        if not path.stat().st_size:
            raise FileError(str(path), "is empty", allowed=f"a script or recipe of {READ}")
    elif path.suffix == ".sh" or (alone and path.suffix in OF_SCRIPTS):
        if path.is_symlink():
            raise FileError(str(path), "is a link to a file that is not there")
        near = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        raise FileError(str(path), "no such file", nearest=nearest_name(path.name, near))


def _of_yaml(path: Path) -> str | None:
    """Return the framework of a YAML file by its keys; None for a job or plan.

    Raises:
        FileError: It is empty, or of what starts a training's processes, and says nothing of the training.
    """
    from rlplan.errors import FileError
    from rlplan.files.decoding import is_of_a_job, load_yaml
    from rlplan.planner.configs.reading.settings import fits_any
    from rlplan.planner.configs.reading.sheet import load_config_sheet

    data = load_yaml(path, repeats=True)
    if data is None:
        allowed = f"a job, a plan, or a configuration of {READ}"
        raise FileError(str(path), "is empty", allowed=allowed)
    keys = set(data) if isinstance(data, dict) else set()
    if isinstance(data, dict) and is_of_a_job(data):
        return None  # without a look at every framework's keys
    if keys >= OF_ACCELERATE:
        problem = "says how accelerate starts processes, and not what they train"
        raise FileError(
            str(path),
            problem,
            allowed="the training's script or file, and --config_file with this one",
        )
    fitting = list[tuple[int, int, str]]()
    for name in frameworks_with("keys", "reading"):
        sheet = load_config_sheet(name)
        own = {key for each in sheet.settings.values() for key in each.keys if "." in key}
        sections = keys & {key.split(".")[0] for key in own}
        shared, held = len(sections | (keys & {"defaults"})), sum(_holds(data, key) for key in own)
        # Sections of such names alone, as `reward` and `model`, are of any program that composes its configuration.
        told = held > 0 or len(sections) > 1
        if sheet.arguments == "hydra" and told and shared >= min(2, len(keys)):
            fitting.append((shared, held, name))
        telling = sum(fits_any(str(key), sheet.start_keys) for key in keys)
        if sheet.launch.files and telling > 1:
            fitting.append((telling, 0, name))
    if not fitting:
        _refuse_otherwise(path, data if isinstance(data, dict) else {})
        return None
    return max(fitting, key=lambda each: each[:2])[2]


def _refuse_otherwise(path: Path, data: dict[object, object]) -> None:
    """Refuse a file of a framework's own by whose keys it trains without rewards.

    Raises:
        FileError: It is one.
    """
    from rlplan.errors import FileError
    from rlplan.planner.configs.reading.settings import fits_any
    from rlplan.planner.configs.reading.sheet import load_config_sheet

    keys = [f"{each}." for each, under in data.items() if isinstance(under, dict)]
    if data.keys() & OF_JOBS_AND_PLANS:
        return
    for name in frameworks_with("keys", "reading"):
        sheet = load_config_sheet(name)
        for pattern, what in sheet.refused_keys.items():
            if pattern.endswith(".*") and any(fits_any(key, (pattern,)) for key in keys):
                allowed = f"a configuration of RL or distillation by {READ}"
                problem = f"{what} ({sheet.title}); rlplan reads training with RL"
                raise FileError(str(path), problem, allowed=allowed)


def _holds(data: object, key: str) -> bool:
    """Tell whether nested mappings have a dotted key."""
    for part in key.split("."):
        if not isinstance(data, dict) or part not in data:
            return False
        data = data[part]
    return True


class GivenOptions(NamedTuple):
    """Hold what is said beside a configuration, by the options above: a parameter of each command that reads one."""

    gpu: GpuOption = None
    mean_response: ResponseOption = None
    mean_prompt: PromptOption = None
    model: ModelOption = None
    run: RunOption = False
    taken_as: AsOption = None
    version: VersionOption = None
    host_memory_bytes: HostMemoryOption = None
    environment: EnvironmentOption = None
    turns: TurnsOption = None
    observation_tokens: ObservationOption = None
    tool_seconds: ToolOption = None
    values: SetOption = None


# Options of commands whose values have other names here.
NAMED_OTHERWISE = {
    "taken_as": "--as",
    "version": "--framework-version",
    "host_memory_bytes": "--host-memory-gb",
    "values": "--set",
}


def refuse_given(given: GivenOptions, file: str) -> None:
    """Refuse what is said beside a job or a plan, which say it themselves.

    Raises:
        FileError: Names the option.
    """
    from rlplan.errors import FileError

    for option, value in said_beside(given).items():
        problem = f"is said of frameworks' configurations, and {file} is a job or a plan"
        shown = value if isinstance(value, str | int | float) and value is not True else None
        raise FileError(option, problem, value=shown, allowed="without it")


def said_beside(given: GivenOptions) -> dict[str, object]:
    """Return what is said beside a configuration, by the options that say it."""
    return {
        NAMED_OTHERWISE.get(name, f"--{name.replace('_', '-')}"): value
        for name, value in given._asdict().items()
        if value is not None and value is not False
    }


def import_options(
    framework: str,
    words: list[str],
    given: GivenOptions,
    job_path: str = "job.yaml",
    *,
    logged: bool = False,
) -> ImportOptions:
    """Return the options of an import; with `run`, the script is run.

    Args:
        logged: Whether a log says how long responses are.

    Raises:
        UnknownNameError: No such framework is known.
        MissingPartError: Its configurations are not read.
        FileError: `--gpu` is missing or names no device, or the script cannot be run.
    """
    from rlplan.errors import FileError
    from rlplan.files.frozen import FrozenDict
    from rlplan.planner.configs.environments import GivenEnvironments
    from rlplan.planner.configs.importing import ImportOptions
    from rlplan.planner.configs.nodes import asked_gpu
    from rlplan.planner.configs.shell.recorder import run_recorded

    check_parts(framework, "keys", "reading")
    _refuse_number(given.gpu)
    evaluated = None
    if given.run:
        if not words or not Path(words[0]).is_file():
            raise FileError("--run", "runs a script's file", value=words[0] if words else None)
        evaluated = run_recorded(Path(words[0]), words[1:])
    models = given.model or ()
    pairs = (each.partition("=") for each in models if "=" in each)
    asked = asked_gpu(Path(words[0])) if words and given.gpu is None else None
    options = ImportOptions(
        gpu=given.gpu or (asked[0] if asked else EXAMPLE_GPU),
        gpu_by=asked[1] if asked else "",
        mean_response=given.mean_response,
        mean_prompt=given.mean_prompt,
        model=next((each for each in models if "=" not in each), None),
        models=FrozenDict({role: name for role, _, name in pairs}),
        job_path=job_path,
        evaluated=evaluated,
        taken_as=given.taken_as or "",
        version=given.version,
        host_memory_bytes=given.host_memory_bytes,
        environments=GivenEnvironments(
            file=given.environment,
            turns=given.turns,
            observation_tokens=given.observation_tokens,
            tool_seconds=given.tool_seconds,
        ),
        values=values_of(given.values or ()),
    )
    if given.gpu is None and asked is None:
        raise _without_gpu(framework, words, options, logged=logged)
    return options


def _refuse_number(gpu: str | None) -> None:
    """Refuse a number of GPUs (`2x8xh100`) where their type is asked for.

    Raises:
        FileError: It is one.
    """
    from rlplan.errors import FileError
    from rlplan.profiles.catalog import device_names
    from rlplan.profiles.sheets import canonical_name
    from rlplan_cli.amounts import gpus_of

    if gpu is None or Path(gpu).exists():
        return
    try:
        device = gpus_of(gpu).device
    except FileError:
        return  # whoever looks the name up says what is wrong
    if canonical_name("devices", device) in device_names():
        problem = "says how many GPUs, which the configuration itself does"
        raise FileError("--gpu", problem, value=gpu, allowed=f"their type: --gpu {device}")


def _without_gpu(
    framework: str, words: list[str], options: ImportOptions, *, logged: bool
) -> MissingValueError | MissingValuesError:
    """Return the error of a missing `--gpu`, with whatever else is missing."""
    from rlplan.errors import MissingValueError, MissingValuesError, UserError
    from rlplan.planner.configs.importing import imported
    from rlplan.profiles.catalog import device_names

    gpu = MissingValueError(
        "--gpu",
        "is missing: no configuration says the type of its GPUs",
        options=("--gpu", EXAMPLE_GPU),
        allowed=", ".join(device_names()),
    )
    try:
        imported(framework, words, options)
    except (MissingValueError, MissingValuesError) as error:
        told_by_log = "--mean-response" if logged else ""
        others = [each for each in error.missing if each.file != told_by_log]
        return MissingValuesError((gpu, *others), error.hint, error.lead) if others else gpu
    except UserError:
        return gpu  # what else is wrong is said when the device is known
    return gpu


def values_of(words: Iterable[str]) -> FrozenDict[str, str]:
    """Return the values of keys that words of `--set` say.

    Raises:
        FileError: One says none.
    """
    from rlplan.errors import FileError
    from rlplan.files.frozen import FrozenDict

    found = dict[str, str]()
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise FileError("--set", "says no value", value=word, allowed="KEY=VALUE")
        found[key] = value
    return FrozenDict(found)
