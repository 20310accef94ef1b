"""A user's own launch script with the keys of a plan: what the plan changes is changed in place, all else stays as it is."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

from rlplan.errors import FileError, MissingValueError, MissingValuesError, UserError
from rlplan.files.decoding import encoding_of, read_text
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_text, write_yaml
from rlplan.job import Job, Role
from rlplan.plan import Plan, TaskPlan
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.environments import as_given
from rlplan.planner.configs.importing import (
    Imported,
    ImportOptions,
    imported_run,
    run_of,
    settings_of,
)
from rlplan.planner.configs.proposing.changes import (
    Assignment,
    RetypedConfiguration,
    argument,
    needed_assignments,
    typed_value,
    what_breaks,
)
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.reading.sheet import LaunchSheet
from rlplan.planner.configs.reading.toml_files import NOTHING
from rlplan.planner.configs.writing.export import losses_of
from rlplan.planner.configs.writing.exporting import leaves_gpus, of_version, start_of_version
from rlplan.planner.configs.writing.in_place import followers, place_of, says, text_with
from rlplan.planner.configs.writing.texts import is_of_shell, texts_started, texts_without
from rlplan.profiles.facts import Facts, load_facts
from rlplan.sheets import DeviceSheet
from rlplan.simulator.simulate import simulate
from rlplan.units import show_seconds
from rlplan.workload import longest, mean_length

# Of a layout, what a configuration has otherwise by name or not at all.
NOT_SAID = frozenset({"pool", "engine"})
# A step of what is written takes at most so much of the plan's.
AS_LONG = 1.01
# What a plan's layouts do not decide of a job.
OF_WORK = (
    "algorithm",
    "models",
    "workload",
    "adapters",
    "precision",
    "rollout_precision",
    "kv_cache",
    "dynamic_sampling",
)
# Settings that say how groups are sampled again, in rounds or batches of so many prompts, and limit lengths.
SAMPLING = frozenset({"filter_rounds", "filter_batches"})
# How long a run goes on: no plan decides it, and whole scripts have a number that somebody sets.
LENGTHS_OF_RUNS = frozenset({"steps"})
LIMITS = frozenset(
    {"max_prompt", "max_input", "max_response", "max_total", "max_model_len", "server_model_len"}
)
# Begins the value of a key that another key says.
OF_ANOTHER = "${"
# What a change of the program that trains is called.
START = "what is started"
MODEL = "--model"
NOTHING_GIVEN = FrozenDict[str, str]()
NOTHING_IN_FRONT = FrozenDict[str, tuple[str, ...]]()


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchedKey:
    """Hold one key that was changed or added; `before` is None where the script did not say it."""

    key: str
    before: object
    after: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Patched:
    """Hold a script with a plan's keys, and what of it is new.

    Attributes:
        notes: What it has otherwise than the plan, and is as fast and fits as that does.
        front: Words of what launches it, and of servers beside it, that no such file holds, as `--num_processes 4`: by the
            command that takes them.
    """

    text: str
    changes: tuple[PatchedKey, ...]
    notes: tuple[str, ...] = ()
    front: Mapping[str, tuple[str, ...]] = NOTHING_IN_FRONT


def patched(
    script: Path,
    framework: str,
    plan: Plan,
    values: Mapping[str, Any],
    given: Mapping[str, str] = NOTHING_GIVEN,
    start: str = "",
    *,
    version: str | None = None,
) -> Patched:
    """Return a script whose framework runs a plan, changed in as few keys as do.

    Args:
        values: What the plan decides, by the framework's keys; None is left to the user.
        start: The command that an export of the plan is started by: another program where iterations follow each other otherwise
            than in the script.
        given: Values of keys beside the script, as `--set` says them, with which the plan was found.
        version: Of the framework, as it was said beside the script; None takes what the script says.

    Raises:
        UserError: The script cannot be read as the framework's or has other models than the plan, or a change cannot be made
            in its text: what it says would not be what the plan does.
    """
    text = read_text(script)
    with TemporaryDirectory() as sheets, place_of(script) as place:
        options = replace(_options(plan, Path(sheets)), values=FrozenDict(given), version=version)
        typed = _typed(script, framework, options, plan.job)
        _check_models(script, typed.found, plan)
        own = typed.found.settings
        values = of_version(values, own.sheet, own.flat)
        decided, changes = _decided(typed.found, plan, values), dict[str, PatchedKey]()
        started = _started(script, typed, decided)
        front = started.words[1:]

        def read(new: str) -> Settings:
            write_text(place, new)
            return settings_of(framework, (str(place), *front), started.options)

        def told(draft: _Draft) -> tuple[str, Settings]:
            now = replace(started, found=replace(started.found, settings=draft.settings))
            wanted = deque(differing(now, decided, has_off=not is_of_shell(script)))
            return _changed(draft, wanted, values, changes, (script, started.options))

        settings = read(text)  # in its place too a script may name what stands beside it
        if plan.mode != typed.plan.mode:
            text, settings = _restarted(_Draft(text, settings, read), start, changes)
        text, settings = told(_Draft(text, settings, read))
        typed = replace(typed, options=started.options)
        text, settings, left = _shortened(
            _Draft(text, settings, read), changes, values, decided, (script, typed, plan)
        )
        # What meant nothing beside a key that is gone may be needed now.
        if left is None or left.words:
            text, settings = told(_Draft(text, settings, read))
            left = _left(settings, typed, plan)
        beside = _said_beside(typed, changes.values(), settings) if left.stops else ""
    _check_is_as_good(script, left, plan, beside)
    text = text.replace("\n", _line_end(script))
    launched = _by_command(settings.sheet.launch, front)
    named = tuple(replace(each, key=own.called(each.key)) for each in changes.values())
    return Patched(text=text, changes=named, notes=left.words, front=launched)


def _by_command(launch: LaunchSheet, words: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Return words in front of a training by the command that takes them: its launcher, or a server."""
    found: dict[str, tuple[str, ...]] = {}
    taker = next(iter(launch.fronted), "the launcher")
    for word in words:
        own, starts = word, launch.services.items()
        if word.startswith("--"):
            served = ((start, each) for start, each in starts if word[2:].startswith(each))
            taker, prefix = next(served, (next(iter(launch.fronted), "the launcher"), ""))
            own = f"--{word[2:].removeprefix(prefix)}"
        found[taker] = (*found.get(taker, ()), own)
    return FrozenDict(found)


def own_text(script: Path) -> str:
    """Return a script's text with the ends of its lines as they are."""
    with script.open(encoding=encoding_of(script), newline="") as file:
        return file.read()


def _line_end(script: Path) -> str:
    """Return what ends the lines of a script: Windows' two characters where all of them have these."""
    own = own_text(script)
    return "\r\n" if 0 < own.count("\r\n") == own.count("\n") else "\n"


def seconds_as_written(framework: str, name: str, text: str, plan: Plan) -> float | None:
    """Return the seconds of a step of what was written for a plan, read as its user will have it read; None where it cannot be read.

    Args:
        name: Of the file that it may become, by whose ending it is read.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        write_text(path, text)
        try:
            played = as_given(plan.job.workload.environments, Path(folder))
            options = replace(_options(plan, Path(folder)), environments=played)
            own = _planned(_imported(settings_of(framework, (str(path),), options), options))
            return simulate(*own).iteration_seconds
        except UserError:
            return None


class _Shorter(NamedTuple):
    """Hold a script's text in which a key is left out, and what it says then.

    Attributes:
        more: What was set with it.
    """

    key: str
    text: str
    settings: Settings
    more: tuple[Assignment, ...] = ()


def runs_already(
    script: Path,
    framework: str,
    plan: Plan,
    given: Mapping[str, str] = NOTHING_GIVEN,
    *,
    version: str | None = None,
) -> Settings | None:
    """Return what a script says that runs a plan as it is; None of others. A search has the script's own as a candidate, which no export may know how to write.

    Args:
        given, version: As for `patched`.

    Raises:
        UserError: The script cannot be read as the framework's.
    """
    with TemporaryDirectory() as sheets:
        options = replace(_options(plan, Path(sheets)), values=FrozenDict(given), version=version)
        typed = _typed(script, framework, options, plan.job)
        left = _left(typed.found.settings, typed, plan)
        own, wanted = simulate(left.plan, left.facts), simulate(plan, left.facts)
        is_alike = math.isclose(own.iteration_seconds, wanted.iteration_seconds, rel_tol=1e-6)
        return typed.found.settings if is_alike and not left.words else None


class _Draft(NamedTuple):
    """Hold a script's new text, what it says, and how such a text is read."""

    text: str
    settings: Settings
    read: Callable[[str], Settings]


class _Left(NamedTuple):
    """Hold what a configuration has otherwise than a plan.

    Attributes:
        words: Each layout's field, part of the job, and rule of the framework that it breaks and the user's script does not.
        stops: Whether one of them keeps it from running, or from the same work.
        plan: What it runs.
    """

    words: tuple[str, ...]
    stops: bool
    plan: Plan
    facts: Facts


def _changed(
    draft: _Draft,
    wanted: deque[Assignment],
    values: Mapping[str, Any],
    changes: dict[str, PatchedKey],
    of: tuple[Path, ImportOptions],
) -> tuple[str, Settings]:
    """Return a text with assignments, and what it says; which keys are changed is put to the others.

    Args:
        values: What the plan decides: a key that follows another gets its own value again.
        of: The user's file, and how it is read.

    Raises:
        FileError: The text has no place for a key.
    """
    (text, settings, read), (script, options) = draft, of
    while wanted:
        key, value = assignment = wanted.popleft()
        before = settings
        new = text_with(text, script, before, assignment, read)
        if new is None and before.given(key) is None and _is_elsewhere(before.sheet.launch, key):
            continue  # its launcher's, which may be another than takes it: what is left is judged then
        if new is None:
            raise _without_place(script, before, (assignment, *wanted))
        changed, said = new
        if not _is_of_version(said, before, key, options):
            continue
        text, settings = changed, said
        first = changes.get(key, PatchedKey(key=key, before=before.given(key), after=value))
        changes[key] = replace(first, after=value)
        for follower in followers(settings, before, key):
            own = before.given(follower) if values.get(follower) is None else values[follower]
            if follower not in changes and not says(settings, (follower, own)):
                wanted.append((follower, own))
    return text, settings


def _restarted(draft: _Draft, start: str, changes: dict[str, PatchedKey]) -> tuple[str, Settings]:
    """Return a text that starts what a plan is started by, and what it says; as it is where nothing else would stay the same."""
    text, settings, read = draft
    for new in texts_started(text, settings, start_of_version(start, settings.sheet)):
        with suppress(UserError):
            said = read(new)
            if said.start != settings.start and said.flat.keys() == settings.flat.keys():
                changes[START] = PatchedKey(key=START, before=settings.start, after=said.start)
                return new, said
    return text, settings


def _shortened(
    draft: _Draft,
    changes: dict[str, PatchedKey],
    values: Mapping[str, Any],
    decided: Mapping[str, Any],
    of: tuple[Path, RetypedConfiguration, Plan],
) -> tuple[str, Settings, _Left | None]:
    """Return a text without keys that the plan leaves unsaid and that keep it from running so, what it says, and what is left.

    Changes are noted.

    Args:
        values: What the plan decides, by all its keys: they stay, as what was changed.
        decided: Those of them that the script is to say.
        of: The user's file, what it is, and the plan.
    """
    (text, settings, read), (script, typed, plan) = draft, of
    left = _left_if_read(settings, typed, plan)
    while _count(left):
        unsaid = sorted(settings.flat.keys() - values.keys() - changes.keys())
        tried = [_without(text, script, settings, key, read) for key in unsaid]
        best = _best(filter(None, tried), typed, plan)
        if best is None or _count(best[1]) >= _count(left):
            switches = [each for each in tried if each and settings.given(each.key) is True]
            filled = (more for each in switches for more in _filled(each, script, decided, read))
            best = _best(filled, typed, plan)
        if best is None or _count(best[1]) >= _count(left):
            break
        shorter, left = best
        for key, value in ((shorter.key, None), *shorter.more):
            changes[key] = PatchedKey(key=key, before=settings.given(key), after=value)
        text, settings = shorter.text, shorter.settings
    return text, settings, left


def _is_of_version(new: Settings, before: Settings, key: str, options: ImportOptions) -> bool:
    """Tell whether a script's version has a key: it is known there, and lets nobody take the script for one of another version."""
    if new.sheet.version != before.sheet.version:
        return False
    with suppress(UserError):
        return key not in _imported(new, options).keys.unknown
    return True


def _count(left: _Left | None) -> float:
    """Return how much is otherwise; more than anything where a configuration is no job."""
    return math.inf if left is None else len(left.words)


def _best(
    tried: Iterable[_Shorter], typed: RetypedConfiguration, plan: Plan
) -> tuple[_Shorter, _Left | None] | None:
    """Return the text that has least otherwise than a plan, of such the first, and what that is; None of none."""
    judged = ((each, _left_if_read(each.settings, typed, plan)) for each in tried)
    return min(judged, key=lambda each: _count(each[1]), default=None)


def _filled(
    shorter: _Shorter, script: Path, values: Mapping[str, Any], read: Callable[[str], Settings]
) -> Iterator[_Shorter]:
    """Yield a text that lacks a switch with one more of a plan's values: what the switch stood for may have to be said then."""
    own = shorter.settings
    for key, value in values.items():
        missing = own.given(key) is None and value is not None and not says(own, (key, value))
        if not missing or _is_elsewhere(own.sheet.launch, key):
            continue
        with suppress(UserError):
            new = text_with(shorter.text, script, own, (key, value), read)
            if new is not None and new[1].sheet.version == own.sheet.version:
                yield shorter._replace(text=new[0], settings=new[1], more=((key, value),))


def _left_if_read(settings: Settings, typed: RetypedConfiguration, plan: Plan) -> _Left | None:
    """Return what settings have otherwise than a plan; None where they are no job."""
    with suppress(UserError):
        return _left(settings, typed, plan)
    return None


def _left(settings: Settings, typed: RetypedConfiguration, plan: Plan) -> _Left:
    """Return what settings have otherwise than a plan.

    Raises:
        UserError: They are no job, or no plan keeps what they say.
    """
    found = _imported(settings, typed.options)
    own, facts = _planned(found)
    layouts = tuple(
        f"{task}: {name} is {given}, and {wanted} in the plan"
        for task in plan.tasks
        if task in own.tasks and not plan.pool_of(task).is_host
        for (name, wanted), given in zip(
            _of_task(plan, task).items(), _of_task(own, task).values(), strict=True
        )
        if wanted != given
    )
    work = tuple(_other_work(found.resolved, typed.found.resolved))
    broken = what_breaks(settings)
    ruled = (
        f"{broken[each].key}={typed_value(settings.given(broken[each].key))} {broken[each].problem}"
        for each in sorted(broken.keys() - typed.broken)
    )
    stops = (*work, *ruled)
    return _Left(words=(*stops, *layouts), stops=bool(stops), plan=own, facts=facts)


def _of_task(plan: Plan, task: str) -> Mapping[str, Any]:
    """Return what a plan says of a task: its layout, off-loading only where something leaves the GPUs, and what shares them with it."""
    layout, role = plan.tasks[task], cast(Role, task.partition(".")[0])
    said = dict(_said_of(replace(layout, offload=layout.offload and leaves_gpus(plan.job, role))))
    said["the tasks on its GPUs"] = tuple(
        sorted(name for name, each in plan.tasks.items() if each.pool == layout.pool)
    )
    return said


def _other_work(job: Job, own: Job) -> Iterator[str]:
    """Yield what of a job is other work than a script has, of the workload each number."""
    for name in OF_WORK:
        given, wanted = getattr(own, name), getattr(job, name)
        if given == wanted:
            continue
        if name != "workload":
            yield f"{name} of the plan is another than the script has"
            continue
        for each in fields(wanted):
            before, after = getattr(given, each.name), getattr(wanted, each.name)
            if before != after and isinstance(before, int | float):
                yield f"{each.name} of the plan is {after}, and {before} in the script"
            elif before != after:
                yield f"{each.name} of the plan is another than the script has"


def _said_beside(
    typed: RetypedConfiguration, changes: Iterable[PatchedKey], settings: Settings
) -> str:
    """Return the words beside a script with which it has the work of its new text; none where its own work is that."""
    wanted = _imported(settings, typed.options).resolved
    if not any(_other_work(wanted, typed.found.resolved)):
        return ""
    for each in changes:
        if each.after is None or each.key == START:
            continue
        said = typed_value(each.after)
        values = FrozenDict({**typed.options.values, each.key: said})
        options = replace(typed.options, values=values)
        with suppress(UserError):
            name = typed.found.settings.sheet.name
            job = _imported(settings_of(name, typed.words, options), options).resolved
            if not any(_other_work(wanted, job)):
                return f"--set {typed.found.settings.called(each.key)}={said}"
    return "--set KEY=VALUE"


def _check_is_as_good(script: Path, left: _Left, plan: Plan, beside: str = "") -> None:
    """Refuse what does not run a plan, fit as it does, and take as long: a framework may have one word for two layouts, none for an engine's options.

    Args:
        beside: Words that may have been said beside the script when the plan was found.

    Raises:
        FileError: Names the first that it has otherwise, or the memory or the seconds.
    """
    first = next(iter(left.words), "")
    if not left.stops:
        own, wanted = simulate(left.plan, left.facts), simulate(plan, left.facts)
        seconds, planned = own.iteration_seconds, wanted.iteration_seconds
        taken, given = _gpus(left.plan), _gpus(plan)
        if taken > given:
            first = f"it would take {taken} GPUs, and {given} in the plan"
        elif own.feasible < wanted.feasible:
            first = first or "it would not fit into the GPUs' memory"
        elif seconds > AS_LONG * planned:
            first = (
                first
                or f"a step would take {show_seconds(seconds)}, and {show_seconds(planned)} in the plan"
            )
        else:
            return
    problem, allowed = f"would not run the plan: {first}", "export without --patch"
    if beside:
        allowed = (
            f"{beside}, if that was said beside the script when the plan was found; or {allowed}"
        )
    raise FileError(str(script), problem, allowed=allowed)


def _started(
    script: Path, typed: RetypedConfiguration, decided: Mapping[str, Any]
) -> RetypedConfiguration:
    """Return a configuration as it will be started: a recipe or a program with what launches it for the plan.

    What was said beside it of keys that the plan decides is left out: these are to stand in its text. With the plan's launch alone it
    need not run yet.
    """
    framework, options = typed.found.settings.sheet.name, typed.options
    left = {key: value for key, value in options.values.items() if key not in decided}
    own = replace(options, values=FrozenDict(left))
    front: tuple[str, ...] = ()
    if not is_of_shell(script):
        front = _front(settings_of(framework, (str(script),), own), decided)
    if own == options and not front:
        return typed
    words = (str(script), *front)
    found = replace(typed.found, settings=settings_of(framework, words, own))
    return replace(typed, words=words, options=own, found=found)


def _is_elsewhere(launch: LaunchSheet, key: str) -> bool:
    """Tell whether what launches the training, or a server beside it, reads a key, and not the program that trains."""
    return key in launch.in_front or key.startswith(tuple(launch.services.values()))


def _front(settings: Settings, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of what launches a recipe or a program, and of servers beside it, which no such file holds.

    Keys that its own files say already as the plan has them are left out.
    """
    launch, words = settings.sheet.launch, list[str]()
    for key, value in values.items():
        if _is_elsewhere(launch, key) and value is not None and not says(settings, (key, value)):
            words += argument(settings, key, value) or ()
    return tuple(words)


def _said_of(layout: TaskPlan) -> dict[str, object]:
    """Return what configurations say of a layout: micro-batches of a token budget have no number of sequences."""
    said = {each.name: getattr(layout, each.name) for each in fields(layout)}
    by_tokens = layout.token_budget is not None
    filled = round(layout.memory_fraction, 2)
    said |= {"expert_tp": layout.expert_tp or layout.tp, "memory_fraction": filled}
    said |= {"micro_batch": None} if by_tokens else {}
    return {name: value for name, value in said.items() if name not in NOT_SAID}


def _gpus(plan: Plan) -> int:
    return sum(pool.gpus for pool in plan.pools if not pool.is_host)


def _without(
    text: str, script: Path, settings: Settings, key: str, read: Callable[[str], Settings]
) -> _Shorter | None:
    """Return a script's text in which a key is not said and all else is as it was, with what it says; None where there is none."""
    for new in texts_without(text, script, settings, key):
        try:
            found = read(new)
        except UserError:
            continue
        if (
            found.given(key) is None
            and found.sheet.version == settings.sheet.version  # some keys tell which it is
            and found.flat.keys() - {key} == settings.flat.keys() - {key}
            and not followers(found, settings, key)
        ):
            return _Shorter(key, new, found)
    return None


def _decided(found: Imported, plan: Plan, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a plan decides: not limits of lengths and of what is sampled again, or losses, where a script has those of the plan's job.

    Nor does it decide how long a run goes on.

    What is nothing is so in the words of TOML, which has no null; elsewhere it is left to the user.
    """
    alike = set(LENGTHS_OF_RUNS)
    if _limits(found.resolved) == _limits(plan.job):
        alike |= LIMITS
    if found.resolved.dynamic_sampling == plan.job.dynamic_sampling:
        alike |= SAMPLING
        if found.resolved.workload.over_provisioning == plan.job.workload.over_provisioning:
            alike |= {"begun_prompts"}
    sheet = found.settings.sheet
    keys = {key for name in alike & sheet.settings.keys() for key in sheet.settings[name].keys}
    if losses_of(found.resolved) == losses_of(plan.job):
        keys |= {key for each in sheet.losses.values() for key in each.keys}
    written = {
        key: value
        for key, value in values.items()
        if key not in keys and not str(value).startswith(OF_ANOTHER)
    }
    if found.settings.sheet.arguments != "toml":
        return written
    return {key: NOTHING[0] if value is None else value for key, value in written.items()}


def _limits(job: Job) -> tuple[float | None, ...]:
    """Return the longest prompt, response and sequence of a job in tokens."""
    work = job.workload
    return longest(work.prompt_tokens), longest(work.response_tokens), work.max_total_tokens


def differing(
    typed: RetypedConfiguration, values: Mapping[str, Any], *, has_off: bool = False
) -> tuple[Assignment, ...]:
    """Return the fewest assignments that make a configuration run a plan, among keys that the plan decides.

    Args:
        values: What the plan decides, by the framework's keys; None is left to the user.
        has_off: Whether its text has a word for a switch that is off, as TOML, YAML and Python do and flags do not.
    """
    settings = typed.found.settings
    can_add = has_off or settings.sheet.arguments == "toml"
    differs = tuple(
        (key, value)
        for key, value in values.items()
        if value is not None
        and (not says(settings, (key, value)) or (has_off and settings.given(key) is None))
        and (can_add or settings.given(key) is not None or argument(settings, key, value))
    )
    return needed_assignments(differs, typed)


def _options(plan: Plan, folder: Path) -> ImportOptions:
    """Return what no script says of a plan's job.

    Args:
        folder: For the sheet of a device that is in no catalogue.
    """
    work = plan.job.workload
    own: Mapping[str, DeviceSheet] = plan.job.devices or {}
    device = next(pool.device for pool in plan.pools if not pool.is_host)
    if device in own:
        write_yaml(folder / f"{device}.yaml", own[device])
    return ImportOptions(
        gpu=str(folder / f"{device}.yaml") if device in own else device,
        mean_response=mean_length(work.response_tokens),
        mean_prompt=mean_length(work.prompt_tokens),
    )


def _imported(settings: Settings, options: ImportOptions) -> Imported:
    return imported_run(settings, run_of(settings), options)


def _planned(found: Imported) -> tuple[Plan, Facts]:
    """Return the plan of a configuration, whether it fits or not, with the facts for it."""
    facts, file = load_facts(found.resolved), found.settings.file
    return complete(found.draft, found.resolved, facts, file, misfits=True), facts


def _typed(script: Path, framework: str, options: ImportOptions, job: Job) -> RetypedConfiguration:
    settings = settings_of(framework, (str(script),), options)
    try:
        found = _imported(settings, options)
    except (MissingValueError, MissingValuesError) as error:
        options = _with_models(options, error.options, job)
        settings = settings_of(framework, (str(script),), options)
        found = _imported(settings, options)
    return RetypedConfiguration.of((str(script),), options, found, *_planned(found))


def _with_models(options: ImportOptions, missing: Sequence[str], job: Job) -> ImportOptions:
    """Return options with the plan's own models for those that a script names and no sheet is of, as `--model` gave them."""
    named = [word.partition("=") for before, word in pairwise(missing) if before == MODEL]
    of_roles = [cast(Role, role) for role, is_of_role, _ in named if is_of_role]
    return replace(
        options,
        model=job.architecture("actor").name if len(of_roles) < len(named) else options.model,
        models=FrozenDict({role: job.architecture(role).name for role in of_roles}),
    )


def _check_models(script: Path, found: Imported, plan: Plan) -> None:
    """Refuse a plan of other models, which no key of a layout turns into those of the script.

    Raises:
        FileError: Names the role.
    """
    for role, model in found.resolved.models.items():
        if role in plan.job.models and plan.job.models[role] != model:
            name, other = (each.architecture(role).name for each in (found.resolved, plan.job))
            problem = f"has another model as {role} than the plan ({other})"
            raise FileError(str(script), problem, value=name, allowed="a plan of this script")


def _without_place(
    script: Path, settings: Settings, assignments: Sequence[Assignment]
) -> FileError:
    """Return what refuses a script whose text has no place for a key: it names all that are left to be set."""
    (key, value), whole = assignments[0], "--out without --patch, a file of its own"
    if not is_of_shell(script):
        problem = "has no place for it where nothing else would change"
        left = ", ".join(f"{each}={typed_value(given)}" for each, given in assignments)
        allowed = f"your own hand ({left}); or {whole}"
        return FileError(str(script), problem, field=f"{key}={typed_value(value)}", allowed=allowed)
    words = argument(settings, key, value)
    if words is None:
        problem = "says a switch that has no word for off, in no place of its own"
        return FileError(str(script), problem, field=key, allowed=whole)
    problem, allowed = (
        "has no place for it, and hands no arguments on",
        f'a last line "$@"; or {whole}',
    )
    return FileError(str(script), problem, field=" ".join(words), allowed=allowed)
