"""Import a framework's configuration: a job, and a plan with all its layouts."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from planner.configs.frameworks import FRAMEWORKS
from planner.configs.models import model_of
from planner.configs.reading.configuration import read_configuration
from planner.configs.reading.given import Given
from planner.configs.reading.settings import Keys, Settings, keys_of
from planner.configs.reading.sheet import load_config_sheet
from planner.configs.reading.versions import set_version
from planner.configs.run import Means, Run, draft_of, job_of, usual_prompt_tokens
from planner.configs.shell.commands import Evaluated
from profiles.catalog import load_model, model_names, resolve_job
from rlplan.errors import FileError, nearest_name
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import plain
from rlplan.job import Job, Role
from rlplan.models.model import ModelArchitecture
from rlplan.plan import PlanDraft

JOB_FILE = "job.yaml"
# Of a value that is shown, in characters.
MOST_SHOWN = 60
TURNS_NOTE = "one turn a response: say what tools and environments take under workload.environments of the job"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Say what no configuration does.

    Attributes:
        gpu: Name of a device sheet, or a sheet's file.
        mean_response: Mean response in tokens.
        mean_prompt: Mean prompt in tokens; None takes the usual of mathematics.
        model: Takes the place of the actor's model (and of all that are the same).
        models: Take the place of other roles' models.
        job_path: What the plan calls the job's file.
        environment: Variables of a script; None takes the process's own.
        evaluated: What a script does, if it was run already.
        version: Of the framework; None takes what the configuration says.
    """

    gpu: str
    mean_response: float | None = None
    mean_prompt: float | None = None
    model: str | None = None
    models: FrozenDict[Role, str] = FrozenDict()
    job_path: str = JOB_FILE
    environment: Mapping[str, str] | None = None
    evaluated: Evaluated | None = None
    version: str | None = None


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
        """Yield, in words, which keys change how much is done in a step and are not counted."""
        by_what: dict[str, list[str]] = {}
        for key, what in self.keys.changes_work.items():
            by_what.setdefault(what, []).append(self._shown(key))
        for what, keys in by_what.items():
            one = len(keys) == 1
            words = (
                f"{', '.join(keys)} {'changes' if one else 'change'} the amount of work ({what})"
            )
            yield f"{words} and {'is' if one else 'are'} not counted"

    def unknown(self) -> Iterator[str]:
        """Yield the keys that are not understood, with their values and places."""
        for key in self.keys.unknown:
            yield f"{self._shown(key)} ({self.settings.flat[key].where})"

    def _shown(self, key: str) -> str:
        """Return a key with its value, cut where that is long."""
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
            "not_evaluated": list(map(str, settings.gaps)),
            "assumptions": list(self.notes),
            "guesses": list(self.guesses),
        }


def imported(framework: str, words: Iterable[str], options: ImportOptions) -> Imported:
    """Return a framework's configuration as a job and a plan.

    Args:
        framework: Name of a file in `planner/configs/frameworks/`.
        words: A script or YAML file and its arguments, or a command line.

    Raises:
        UnknownNameError: No such framework is known.
        FileError: The configuration cannot be read, or a key that matters cannot be imported; it is named.
    """
    settings = settings_of(framework, words, options)
    return imported_run(settings, FRAMEWORKS.load(framework).run_of(settings), options)


def settings_of(framework: str, words: Iterable[str], options: ImportOptions) -> Settings:
    """Return a configuration's settings.

    Raises:
        UnknownNameError: No such framework is known.
        FileError: It cannot be read, starts no training with RL, or its version is not known.
    """
    sheet = load_config_sheet(framework)
    environment = os.environ if options.environment is None else options.environment
    given = list(words)
    settings = read_configuration(sheet, given, environment, evaluated=options.evaluated)
    set_version(settings, options.version, Path(given[0]))
    settings.model = options.model
    _replace_models(settings, options)
    return settings


def _replace_models(settings: Settings, options: ImportOptions) -> None:
    """Put models that an option names in the place of those of other roles, and of an actor's that is not known.

    Raises:
        FileError: The framework has no such role.
    """
    flat = settings.flat
    if options.model is not None:
        key = settings.key_of("model")
        given = flat.get(key)
        if given is None or given.gaps or given.value is None:
            flat[key] = Given(value=options.model, where="--model")
    for role, name in options.models.items():
        setting = f"{role}_model"
        if setting not in settings.sheet.settings:
            known = ", ".join(
                each for each in get_args(Role) if f"{each}_model" in settings.sheet.settings
            )
            problem = f"is no role whose model {settings.sheet.title} names"
            raise FileError("--model", problem, value=role, allowed=known)
        flat[settings.key_of(setting)] = Given(value=name, where="--model")


def imported_run(settings: Settings, run: Run, options: ImportOptions) -> Imported:
    """Return a configured run as a job and a plan.

    Raises:
        FileError: A model or device is not known, or the mean response is missing.
    """
    models = _models(run, settings, options)
    most = run.work.max_response or run.work.max_total or 0
    if options.mean_response is None:
        raise FileError(
            "--mean-response",
            "is missing: no configuration says how long responses are on average",
            allowed=f"tokens, at most {most:,}",
        )
    if not 0 < options.mean_response <= most:
        problem = "is not the mean of responses that the configuration allows"
        allowed = f"above 0, at most {most:,}"
        raise FileError("--mean-response", problem, value=options.mean_response, allowed=allowed)
    means = Means(response=options.mean_response, prompt=options.mean_prompt)
    file = Path(settings.file)
    name = file.stem if file.suffix else settings.sheet.name
    job = job_of(replace(run, models=models), name, options.gpu, means)
    job = replace(job, models=FrozenDict({**job.models, **_positions(models, settings)}))
    resolved = resolve_job(job, Path(), file=settings.file)
    guesses = tuple(_guesses(run, options))
    return Imported(
        job=job,
        resolved=resolved,
        draft=draft_of(run, resolved, options.job_path),
        keys=keys_of(settings),
        settings=settings,
        run=run,
        notes=(*_notes(run, settings), *guesses),
        guesses=guesses,
    )


def _models(run: Run, settings: Settings, options: ImportOptions) -> dict[Role, str]:
    """Return the models' sheets, or paths of their configurations, by role.

    Raises:
        FileError: A model is not known; its key is named.
    """
    found: dict[Role, str] = {}
    for role, named in run.models.items():
        replaced = options.model if named == run.models["actor"] and options.model else named
        sheet = model_of(settings.sheet.models.get(replaced, replaced))
        if sheet is None:
            known = nearest_name(Path(replaced).name.lower(), model_names())
            raise settings.refused_key(
                run.model_keys[role],
                f"no sheet is of the model {replaced}; name a known one by --model",
                "a Hugging Face id of a known model, or a folder with its config.json",
                known,
            )
        found[role] = sheet
    return found


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


def _notes(run: Run, settings: Settings) -> Iterator[str]:
    for key in settings.has("defaults: *"):
        yield from (f"{gap.source} {gap.reason}" for gap in settings.flat[key].gaps)
    if settings.version_reason:
        yield f"{settings.sheet.title} {settings.sheet.version}, {settings.version_reason}"
    yield from run.notes
    yield from _older_names(settings)


def _guesses(run: Run, options: ImportOptions) -> Iterator[str]:
    """Yield what was assumed of the amount of work, which no configuration says."""
    yield from run.guesses
    if run.work.turns != 1:
        yield TURNS_NOTE
    if options.mean_prompt is None:
        mean = usual_prompt_tokens(run.work.max_prompt or run.work.max_total or 1)
        yield f"prompts of {mean} tokens on average, as in mathematics; say --mean-prompt"


def _older_names(settings: Settings) -> Iterator[str]:
    """Yield a note where keys have names of an earlier version, whose steps are taken to be today's."""
    older = [(given.older, key) for key, given in settings.flat.items() if given.older]
    if older:
        first, *others = (f"{name} is now {key}" for name, key in older)
        rest = f", and {len(others)} more are renamed" if others else ""
        sheet = settings.sheet
        yield f"written for an older {sheet.title}, forecast as {sheet.version} runs it: {first}{rest}"
