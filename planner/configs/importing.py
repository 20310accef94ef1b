"""Import a framework's configuration: a job, and a plan with all its layouts."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any

from rlplan.errors import FileError, MissingValueError, nearest_names
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import plain
from rlplan.job import Job, Role
from rlplan.models import ModelArchitecture
from rlplan.plan import PlanDraft
from rlplan.planner.configs.beside import beside_of
from rlplan.planner.configs.engine_keys import offload_of, speculation_of
from rlplan.planner.configs.environments import (
    NOTHING_GIVEN,
    GivenEnvironments,
    environments_of,
    played,
    with_turns_said,
)
from rlplan.planner.configs.frameworks import load_part
from rlplan.planner.configs.megatron.over_flags import lay_files_over
from rlplan.planner.configs.missing import missing_beside, missing_values
from rlplan.planner.configs.models import model_of
from rlplan.planner.configs.named_models import (
    models_written_as,
    replace_models,
    taken_for,
    tell_model,
)
from rlplan.planner.configs.nodes import with_nodes_of_slurm
from rlplan.planner.configs.notes import notes_of
from rlplan.planner.configs.prefilling import prefill_of
from rlplan.planner.configs.reading.composed import CONFIG_FLAGS, INHERITS, NOT_FOUND, OF_MISSING
from rlplan.planner.configs.reading.configuration import read_configuration
from rlplan.planner.configs.reading.given import GivenValue, scalar
from rlplan.planner.configs.reading.launched import with_files, without_file
from rlplan.planner.configs.reading.mirrored import lay_mirrors
from rlplan.planner.configs.reading.scripts import OF_MODULES
from rlplan.planner.configs.reading.settings import (
    EXAMPLE_MODEL,
    MODEL,
    Keys,
    Settings,
    fits_any,
    keys_of,
)
from rlplan.planner.configs.reading.sheet import load_config_sheet, of_start
from rlplan.planner.configs.reading.toml_files import with_flags
from rlplan.planner.configs.reading.versions import set_version
from rlplan.planner.configs.run import Means, Run, draft_of, job_of, unusual
from rlplan.planner.configs.shell.commands import Evaluated
from rlplan.profiles.catalog import load_model, model_names, resolve_job
from rlplan.trainers import USUAL_TRAINER, TrainerOptions
from rlplan.workload import Logged, longest

CONFIG_NAME = "--config-name"
# Keys that name files of all others.
READ_BEFORE = frozenset({"config", INHERITS, *CONFIG_FLAGS, *CONFIG_FLAGS.values()})
# verl's own, whose defaults are known: verl 0.9.1, trainer/config/.
OWN_CONFIGS = (
    "ppo_trainer",
    "ppo_trainer.yaml",
    "ppo_megatron_trainer",
    "ppo_megatron_trainer.yaml",
)
JOB_FILE = "job.yaml"
# Longer words name no program (limits.h, NAME_MAX).
LONGEST_PATH = 255
# Values that are looked for in one configuration before it is given up.
MOST_MISSING = 20
# Numbers that an example may be where the framework's default does not go with what is said.
OTHER_EXAMPLES = (8, 4, 2, 1, 16, 6, 3)
# So many keys of a framework in a section of a file tell that they are meant as its.
TELLING_KEYS = 2
# Which settings give a field of a job, the first that a configuration has.
FIELD_SETTINGS = {
    "workload.response_tokens": ("max_response", "max_response_apart", "max_total", "max_session"),
    "workload.prompt_tokens": ("max_prompt", "max_total"),
    "teacher.top_tokens": ("teacher", "teacher_model"),
    "workload.max_total_tokens": ("max_session", "max_total", "max_response", "max_response_apart"),
    "workload.prompts": ("prompts",),
    "workload.samples_per_prompt": ("samples",),
    "workload.updates": ("mini_prompts", "update_sequences"),
}
# Settings that limit what all turns of an episode hold, the first that a framework has.
OF_ALL_TURNS = ("max_session", "max_total", "max_input", "max_tokens")
# How alike a key that is not understood and a known one are, from 0 to 1, of which one is taken for a slip.
MISSPELT = 0.85
# Of a value that is shown, in characters.
MOST_SHOWN = 60
TURNS_NOTE = (
    "one turn a response: say what tools and environments take by --environment FILE (rlplan fit-environment writes it), or by "
    "--turns, --observation-tokens and --tool-seconds"
)
TEXT_NOTE = (
    "prompts of text alone, though {model} reads images too: where they hold some, --mean-prompt has their tokens, and "
    "passes of the tower are not counted ({remedy})"
)
JOB_IMAGES = "workload.images of an imported job counts them"
NO_SIZES = "the sizes of this one are not known"
IMAGES_NOTE = (
    "prompts hold an image of {tokens:,} tokens each, as of 512 x 512 pixels where limits allow it, whose tokens and passes of the tower are counted; what workers "
    "take to open and resize images in every stage is not"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Say what no configuration does.

    Attributes:
        gpu: Name of a device sheet, or a sheet's file.
        gpu_by: Where a configuration asks for that type, which nobody says beside it; empty where somebody does.
        mean_response: Mean response in tokens.
        mean_prompt: Mean prompt in tokens; None takes the usual of mathematics.
        model: Takes the place of the actor's model (and of all that are the same).
        models: Take the place of other roles' models.
        job_path: What the plan calls the job's file.
        environment: Variables of a script; None takes the process's own.
        evaluated: What a script does, if it was run already.
        taken_as: A module or script that is taken as what starts the framework's training; the framework's name takes
            whatever Python program is started.
        version: Of the framework; None takes what the configuration says.
        host_memory_bytes: Of a node; None is the usual node's of its GPUs.
        environments: What plays episodes of several turns.
        values: Of keys, as words of a command line; they count before all that a configuration says.
    """

    gpu: str
    gpu_by: str = ""
    mean_response: float | None = None
    mean_prompt: float | None = None
    model: str | None = None
    models: FrozenDict[Role, str] = FrozenDict()
    job_path: str = JOB_FILE
    environment: Mapping[str, str] | None = None
    evaluated: Evaluated | None = None
    taken_as: str = ""
    version: str | None = None
    host_memory_bytes: int | None = None
    environments: GivenEnvironments = NOTHING_GIVEN
    values: FrozenDict[str, str] = FrozenDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Hold a configuration as a job and a plan.

    Attributes:
        job: With names for models and devices, as `job.yaml` has it.
        resolved: The same with all that names stand for.
        draft: The plan, every layout pinned.
        keys: What became of each key.
        notes: What was assumed.
        settings: The configuration's values by what they mean.
        run: What a framework's plug-in made of it.
        guesses: What of `notes` is about how much is done in a step.
    """

    job: Job
    resolved: Job
    draft: PlanDraft
    keys: Keys
    settings: Settings
    run: Run
    notes: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()

    def doubts(self) -> Iterator[str]:
        """Yield, in words, which model is assumed, and which keys change how much is done in a step and are not counted."""
        yield from self.taken()
        by_what: dict[str, list[str]] = {}
        for key, what in self.keys.changes_work.items():
            by_what.setdefault(what, []).append(self._shown(key))
        for what, keys in by_what.items():
            one = len(keys) == 1
            words = (
                f"{', '.join(keys)} {'changes' if one else 'change'} the amount of work ({what})"
            )
            yield f"{words} and {'is' if one else 'are'} not counted"

    def taken(self) -> Iterator[str]:
        """Yield, in words, for which model the actor's is taken by words beside its own path."""
        if self.settings.told is not None and "actor" not in self.run.architectures:
            yield from filter(None, [taken_for(self.settings, self.run.models["actor"])])

    def unknown(self) -> Iterator[str]:
        """Yield the keys that are not understood, with their values and places, and what may have been meant."""
        known = tuple(self.settings.sheet.named())
        for key in self.keys.unknown:
            meant = get_close_matches(key, known, n=1, cutoff=MISSPELT)
            hint = (
                f"; did you mean {meant[0]}?"
                if meant and meant[0] not in self.settings.flat
                else ""
            )
            yield f"{self._shown(key)} ({self.settings.flat[key].where}){hint}"

    def _shown(self, key: str) -> str:
        """Return a key with its value, cut where that is long."""
        if key.startswith(OF_MISSING):
            return key
        value = str(self.settings.flat[key].value)
        return f"{key}={value[:MOST_SHOWN]}{'...' if len(value) > MOST_SHOWN else ''}"

    def document(self) -> dict[str, Any]:
        """Return all of it as plain values, for JSON."""
        settings, flat = self.settings, self.settings.flat
        return {
            "framework": settings.sheet.name,
            "version": settings.sheet.version,
            "file": settings.file,
            "job": plain(self.job, drop_defaults=True),
            "plan": plain(self.draft, drop_defaults=True),
            "keys": {
                "mapped": {key: plain(flat[key].value) for key in self.keys.mapped},
                "without_influence": list(self.keys.without_influence),
                "not_counted": self.keys.not_modelled,
                "changes_work": self.keys.changes_work,
                "not_understood": {key: flat[key].where for key in self.keys.unknown},
                "not_evaluated": self.keys.unevaluated,
            },
            "not_evaluated": list(dict.fromkeys(map(str, settings.gaps))),
            "assumptions": list(self.notes),
            "guesses": list(self.guesses),
        }


def imported(framework: str, words: Iterable[str], options: ImportOptions) -> Imported:
    """Return a framework's configuration as a job and a plan.

    Args:
        framework: Name of a framework that is read (`rlplan.planner.configs.frameworks`).
        words: A script or YAML file and its arguments, or a command line.

    Raises:
        UnknownNameError: No such framework is known.
        MissingPartError: Its configurations are not read.
        FileError: The configuration cannot be read, or a key that matters cannot be imported; it is named.
    """
    settings = settings_of(framework, words, options)
    return imported_run(settings, run_of(settings, options), options)


def run_of(settings: Settings, options: ImportOptions | None = None) -> Run:
    """Return what a configuration trains, and how, as its framework reads it.

    Args:
        options: With them, models that no sheet is of and a missing mean response are named beside the values that
            nothing says; None where nobody asks for a job.

    Raises:
        MissingPartError: Its configurations are not read.
        MissingValuesError: Nothing at hand says some values that matter; all of them are named.
        FileError: A key that matters cannot be imported; it is named.
    """
    try:
        return _run_of(settings)
    except MissingValueError as first:
        missing, others = _all_missing(settings, first)
        if options is not None and others is not None:
            sheets = _sheets_of(others, settings, options)
            missing += missing_beside(others, settings, options.mean_response, sheets)
        raise missing_values(missing, settings) from None


def _run_of(settings: Settings) -> Run:
    settings.check_amounts()
    run: Run = load_part(settings.sheet.name, "reading").run_of(settings)
    return with_nodes_of_slurm(run, Path(settings.file))


def _all_missing(
    settings: Settings, first: MissingValueError
) -> tuple[list[MissingValueError], Run | None]:
    """Return all values that nothing at hand says, and what is trained where examples stand for them.

    Each is looked for with examples in place of those before. The run is None where something else is wrong, which is
    said when they are known.
    """
    missing, flat, others = [first], dict(settings.flat), iter(OTHER_EXAMPLES)
    while len(missing) <= MOST_MISSING:
        last = missing[-1]
        given = flat.get(last.key)
        same = [] if given is None else [key for key, _ in models_written_as(settings, given)]
        for key in (last.key, *(same if last.example == EXAMPLE_MODEL else ())):
            flat[key] = GivenValue(value=last.example, where="an example")
        tried = replace(settings, flat=dict(flat), used=set(), left_out={}, doubts={})
        try:
            return missing, _run_of(tried)
        except MissingValueError as error:
            if any(each.key == error.key for each in missing):
                break
            missing.append(error)
        except FileError as error:
            # An example that others do not go with: another one, as long as there are some.
            place = next((at for at, each in enumerate(missing) if each.key == error.field), None)
            example = next(others, None)
            if place is None or example is None or not _is_number(missing[place].example):
                break
            missing[place] = missing[place].with_example(example)
            flat[missing[place].key] = GivenValue(value=example, where="an example")
    return missing, None


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _started_file(words: Sequence[str]) -> Path:
    """Return the file that a command line starts, where it is at hand; else what stands first, as a script does.

    Behind a module that is started no file is: those are of rewards, and of other things.
    """
    before = takewhile(lambda word: word not in OF_MODULES, words)
    programs = (Path(word) for word in before if word.endswith(".py") and len(word) <= LONGEST_PATH)
    first = Path(words[0])
    return first if first.is_file() else next((each for each in programs if each.is_file()), first)


def settings_of(framework: str, words: Iterable[str], options: ImportOptions) -> Settings:
    """Return a configuration's settings.

    Raises:
        UnknownNameError: No such framework is known.
        MissingPartError: Its keys are not known.
        FileError: It cannot be read, starts no training with RL, or its version is not known.
    """
    sheet = load_config_sheet(framework)
    environment = os.environ if options.environment is None else options.environment
    given = list(words)
    settings = read_configuration(
        sheet, given, environment, evaluated=options.evaluated, taken_as=options.taken_as
    )
    set_version(settings, options.version, _started_file(given))
    settings.sheet = of_start(settings.sheet, settings.start)
    if "config" in settings.sheet.settings:
        settings.sheet = of_start(settings.sheet, str(settings.unmapped("config")))
    settings.model = options.model
    if options.gpu_by:
        asked = f"GPUs are {options.gpu}, as asked for at {options.gpu_by}; --gpu says others"
        settings.guesses += (asked,)
    folder = Path(given[0]).parent
    lay_files_over(settings, folder)
    _set_values(settings, options.values, folder)
    lay_mirrors(settings)
    replace_models(settings, options.model, options.models)
    tell_model(settings)
    if CONFIG_NAME not in settings.doubts:
        settings.doubts |= dict.fromkeys(settings.has(f"{OF_MISSING}*"), NOT_FOUND)
    _check_fork(settings)
    _check_section(settings)
    return settings


def _set_values(settings: Settings, values: Mapping[str, str], folder: Path) -> None:
    """Put values that an option says in the place of what a configuration gives their keys.

    Raises:
        FileError: The framework has no such key, nor has the configuration; one names a file of all keys, or a broken one.
    """
    sheet = settings.sheet
    for named, value in values.items():
        key = sheet.name_of(named)
        if key in READ_BEFORE:
            problem = "names a file of keys, which are read before those that --set says"
            allowed = "that file behind the script, or the keys that it is to have"
            raise FileError("--set", problem, field=key, value=value, allowed=allowed)
        if key not in {*settings.flat, *sheet.named()} and not fits_any(
            key, sheet.named_patterns()
        ):
            nearest = nearest_names(key, sheet.named(), 1)
            problem = f"is no key of {sheet.title}"
            raise FileError("--set", problem, value=key, nearest=next(iter(nearest), None))
        if key in sheet.launch.files:
            settings.flat = without_file(sheet, settings.flat, key, folder)
        older = named if named != key else ""
        given = GivenValue(value=scalar(value), where="--set", older=older)
        if sheet.arguments == "toml":
            settings.flat = with_flags(settings.flat, {key: given})
        else:
            settings.flat[key] = given
    if values.keys() & sheet.launch.files.keys():
        settings.flat, notes = with_files(sheet, settings.flat, folder)
        settings.notes += notes


def _check_section(settings: Settings) -> None:
    """Refuse a file whose keys stand in a section of somebody's own, which only the program that reads it knows.

    Raises:
        FileError: Names one of them.
    """
    sheet = settings.sheet
    if sheet.arguments != "flags" or settings.start or not sheet.start_keys:
        return
    if any(fits_any(key, sheet.start_keys) for key in settings.flat):
        return
    inner = [key for key in settings.flat if fits_any(key.partition(".")[2], sheet.start_keys)]
    if len(inner) < TELLING_KEYS:
        return
    section = inner[0].partition(".")[0]
    problem = f"stands in a section of its own ({section}), as a program of one's own may read it"
    allowed = f"the program that reads the file, or {sheet.title}'s keys at its top"
    raise settings.refused_key(inner[0], problem, allowed)


def _check_fork(settings: Settings) -> None:
    """Refuse a fork's start that leaves to its own defaults, which are not known, what decides the work.

    Raises:
        FileError: Its YAML file, its model, or its algorithm is not known.
    """
    if not settings.taken_as:
        return
    flat, sheet = settings.flat, settings.sheet
    named = flat.get(CONFIG_NAME)
    of_files = any(re.search(r"\.ya?ml\b", given.where) for given in flat.values())
    if named is not None and not of_files and named.value not in OWN_CONFIGS:
        problem = (
            f"is a configuration of {settings.start} that is not at hand: its values are not known"
        )
        allowed = "its folder by --config-path, or the composed YAML file in place of the script"
        raise settings.refused_key(CONFIG_NAME, problem, allowed)
    model, critic = sheet.settings.get("model"), sheet.settings.get("critic_model")
    telling: tuple[str, ...] = ("model",) if model is not None and model.default is not None else ()
    # Where a critic has a model of its own by default, which algorithm it is decides whether there is one.
    if critic is not None and critic.default is not None:
        telling = ("model", "estimator")
    for name in telling:
        key = settings.key_of(name)
        by_critic = name == "estimator" and settings.is_given("critic_model")
        if key not in flat and not by_critic:
            problem = f"is not given, and what {settings.start} takes then is not known"
            if name == "model":
                raise settings.missing(
                    sheet.settings[name], key, problem, "the model that it trains"
                )
            allowed = f"a value: {key}=... in the script"
            raise settings.refused_key(key, problem, allowed)


def imported_run(
    settings: Settings, run: Run, options: ImportOptions, *, least_positions: int = 0
) -> Imported:
    """Return a configured run as a job and a plan.

    Args:
        least_positions: Tokens of a sequence that models are taken to have positions for, whatever their sheets say.

    Raises:
        FileError: A model or device is not known, or the mean response is missing.
    """
    _check_roles(run, options)
    sheets = _sheets_of(run, settings, options)
    missing = missing_beside(run, settings, options.mean_response, sheets)
    if missing and (len(missing) > 1 or options.mean_response is not None):
        raise missing_values(missing, settings)
    models = {role: sheet for role, (_, sheet) in sheets.items() if sheet is not None}
    _check_lengths(run, settings)
    if options.mean_response is None:
        raise missing[0]
    _check_means(run, options.mean_response, options.mean_prompt)
    means = Means(response=options.mean_response, prompt=options.mean_prompt)
    file = Path(settings.file)
    name = file.stem if file.suffix else settings.sheet.name
    job = job_of(replace(run, models=models), name, options.gpu, means, options.host_memory_bytes)
    known = {**job.models, **_positions(models, settings), **_written_out(run, models)}
    for role, model in known.items() if least_positions else ():
        whole = _architecture(model)
        known[role] = replace(whole, max_positions=max(whole.max_positions, least_positions))
    beside = beside_of(settings, run.work.updates * run.work.epochs)
    job = beside.in_job(replace(job, models=FrozenDict(known), trainers=_of_experts(job, known)))
    cores = None
    if options.environments != NOTHING_GIVEN:
        cores = _resolved(job, settings, run).host_cores
    environments, assumed = environments_of(options.environments, settings, run.work, cores)
    if environments:
        job = replace(job, workload=played(job.workload, environments, run.work))
    ranks = run.generate.tp * run.generate.pp
    offload = offload_of(settings, ranks, plays=bool(job.workload.environments))
    job = replace(
        job,
        speculation=speculation_of(settings),
        kv_offload=offload,
        prefill=prefill_of(settings, run, offloads=offload is not None),
    )
    resolved = _resolved(job, settings, run)
    keys = with_turns_said(keys_of(settings)) if environments else keys_of(settings)
    guesses = (*settings.guesses, *_guesses(run, settings, options, job, resolved), *assumed)
    return Imported(
        job=job,
        resolved=resolved,
        draft=draft_of(run, resolved, options.job_path),
        keys=keys,
        settings=settings,
        run=run,
        notes=(*notes_of(run, settings, keys, sheets, resolved), *beside.notes, *guesses),
        guesses=guesses,
    )


def _check_roles(run: Run, options: ImportOptions) -> None:
    """Refuse a model of a role that a configuration does not have, where it would change nothing.

    Raises:
        FileError: Names the role.
    """
    role = next((each for each in options.models if each not in run.models), None)
    if role is not None:
        problem = "is no role of this configuration, in which its model would change nothing"
        raise FileError("--model", problem, value=role, allowed=", ".join(run.models))


def _check_means(run: Run, mean_response: float, mean_prompt: float | None) -> None:
    """Refuse mean lengths beyond the longest that the configuration allows.

    Raises:
        FileError: One is.
    """
    most = run.work.max_response or run.work.max_total or 0
    if not 0 < mean_response <= most:
        problem = "is not the mean of responses that the configuration allows"
        allowed = f"above 0, at most {most:,}"
        raise FileError("--mean-response", problem, value=mean_response, allowed=allowed)
    longest_prompt = run.work.max_prompt
    if mean_prompt is not None and 0 < (longest_prompt or 0) < mean_prompt:
        problem = "is not the mean of prompts that the configuration allows"
        allowed = f"at most {longest_prompt:,}"
        raise FileError("--mean-prompt", problem, value=mean_prompt, allowed=allowed)
    both = run.work.max_total
    if mean_prompt is not None and both is not None and mean_prompt + mean_response > both:
        problem = f"is above what {both:,} tokens of a prompt and its response leave beside the mean response"
        allowed = f"at most {both - mean_response:,.0f}"
        raise FileError("--mean-prompt", problem, value=mean_prompt, allowed=allowed)


def _resolved(job: Job, settings: Settings, run: Run) -> Job:
    """Return an imported job whose names are looked up.

    Raises:
        FileError: It cannot be, in the words of the configuration's keys.
    """
    try:
        return resolve_job(job, Path(), file=settings.file)
    except FileError as error:
        raise in_keys(error, settings, run) from None


def _of_experts(
    job: Job, models: Mapping[Role, str | ModelArchitecture]
) -> FrozenDict[Role, TrainerOptions] | None:
    """Return a job's options of trainers, without the order of experts where a model has none."""
    return unusual(
        {
            role: options
            if _architecture(models[role]).num_experts
            else replace(options, experts=USUAL_TRAINER.experts)
            for role, options in (job.trainers or {}).items()
        }
    )


def _architecture(model: str | ModelArchitecture) -> ModelArchitecture:
    """Return a model, that of a sheet by its name."""
    return load_model(model) if isinstance(model, str) else model


def in_keys(error: FileError, settings: Settings, run: Run) -> FileError:
    """Return the error of a field of a job or plan as an error of the configuration's key, where a key gives the field."""
    if error.field == "cluster.0.gpu":
        return FileError(
            "--gpu",
            error.problem,
            value=error.value,
            allowed=error.allowed,
            nearest=error.nearest,
        )
    key = _key_of_field(error.field or "", settings, run)
    if key is None:
        return error
    return settings.refused_key(key, error.problem, error.allowed or "another value")


def _key_of_field(field: str, settings: Settings, run: Run) -> str | None:
    """Return the key of a field of a job's workload, or of a task's layout."""
    known = settings.sheet.settings
    of_all = run.work.max_total is not None and run.work.max_response is None
    whole = next((name for name in OF_ALL_TURNS if name in known), None)
    if field == "workload.response_tokens" and of_all and whole is not None:
        return settings.key_of(whole)
    for name in FIELD_SETTINGS.get(field, ()):
        if name in known and (settings.is_given(name) or known[name].default is not None):
            return settings.key_of(name)
    start, _, rest = field.partition(".")
    role, _, setting = rest.partition(".")
    if start != "tasks" or rest.startswith("actor.generate") or role not in settings.sheet.roles:
        return None
    own, size = settings.of(run.trainer, role), setting.rpartition(".")[2]
    return own.key_of(size) if size in own.names else None


def _check_lengths(run: Run, settings: Settings) -> None:
    """Refuse limits that leave a prompt or response no token.

    Raises:
        FileError: One does; its key is named.
    """
    given = (("prompt", run.work.max_prompt), ("response", run.work.max_response))
    for field, most in given:
        if (run.work.max_total if most is None else most) not in (None, 0):
            continue
        key = _key_of_field(f"workload.{field}_tokens", settings, run)
        if key is not None:
            raise settings.refused_key(key, f"leaves a {field} no token", "at least 1")


def _sheets_of(
    run: Run, settings: Settings, options: ImportOptions
) -> dict[Role, tuple[str, str | None]]:
    """Return by role what its model is called, and its sheet or the path of its configuration; None where none is of it."""
    found: dict[Role, tuple[str, str | None]] = {}
    for role, named in run.models.items():
        replaced = options.model if named == run.models["actor"] and options.model else named
        if role in run.architectures and replaced == named:
            found[role] = replaced, run.architectures[role].name
        else:
            sheet = model_of(settings.sheet.models.get(replaced, replaced))
            if sheet is None and settings.told is not None and replaced == run.models["actor"]:
                sheet = settings.told.sheet
            found[role] = replaced, sheet
    return found


def _written_out(run: Run, models: Mapping[Role, str]) -> dict[Role, ModelArchitecture]:
    """Return the models that a configuration writes out itself, but for those that an option replaces."""
    own = run.architectures.items()
    return {role: model for role, model in own if models[role] == model.name}


def _positions(models: Mapping[Role, str], settings: Settings) -> dict[Role, ModelArchitecture]:
    """Return the models whose longest sequence the configuration sets; it is counted as theirs."""
    if "positions" not in settings.sheet.settings:
        return {}
    most = settings.positions()
    if most is None:
        return {}
    return {
        role: replace(load_model(name), max_positions=most)
        for role, name in models.items()
        if name == models["actor"] and name in model_names()
    }


def _guesses(
    run: Run, settings: Settings, options: ImportOptions, job: Job, resolved: Job
) -> Iterator[str]:
    """Yield what was assumed of the amount of work of a job, which no configuration says."""
    yield from run.guesses
    model = settings.sheet.settings.get(MODEL)
    if model is not None and model.default is not None and not settings.is_given(MODEL):
        yield f"no key names the model: {model.default}, {settings.sheet.title}'s usual; say --model"
    if run.work.turns != 1 and options.environments == NOTHING_GIVEN:
        yield TURNS_NOTE
    if options.mean_prompt is None:
        image = run.work.image_tokens
        prompts = job.workload.prompt_tokens
        mean = round(prompts.mean) if isinstance(prompts, Logged) else longest(prompts)
        held = f", with an image of {image} tokens" if 0 < image <= mean else ""
        yield f"prompts of {mean} tokens on average, as in mathematics{held}; say --mean-prompt"
    yield from _image_guesses(resolved)


def _image_guesses(job: Job) -> Iterator[str]:
    """Yield what was assumed of images that prompts of a resolved job may hold."""
    model = job.models.get("actor")
    if not isinstance(model, ModelArchitecture) or not model.vision_parameters:
        return
    if job.workload.images is not None:
        yield IMAGES_NOTE.format(tokens=job.workload.images.tokens)
        return
    yield TEXT_NOTE.format(model=model.name, remedy=JOB_IMAGES if model.tower else NO_SIZES)
