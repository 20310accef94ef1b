"""A user's own launch script with the keys of a plan: what the plan changes is changed in place, all else stays as it is."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlplan.errors import FileError
from rlplan.files.decoding import read_text
from rlplan.files.writing import write_text
from rlplan.plan import Plan
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.changes import (
    Assignment,
    RetypedConfiguration,
    argument,
    needed_assignments,
    typed_value,
)
from rlplan.planner.configs.importing import (
    Imported,
    ImportOptions,
    imported_run,
    run_of,
    settings_of,
)
from rlplan.profiles.facts import load_facts
from rlplan.workload import mean_length

# A value as shells have it: up to a blank, parts of it quoted.
VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s\\"'])+"""
# What hands a script's own arguments on, behind which nothing else is said.
HANDED_ON = re.compile(
    r'^(?P<before>[ \t]*|[^#\n]*=[^#\n]*[ \t])"?\$(?:@|\{@[^}\n]*\})"?', re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchedKey:
    """Hold one key that was changed or added; `before` is None where the script did not say it."""

    key: str
    before: object
    after: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Patched:
    """Hold a script with a plan's keys, and what of it is new."""

    text: str
    changes: tuple[PatchedKey, ...]


def patched(script: Path, framework: str, plan: Plan, values: Mapping[str, Any]) -> Patched:
    """Return a script whose framework runs a plan, changed in as few keys as do.

    Args:
        values: What the plan decides, by the framework's keys; None is left to the user.

    Raises:
        UserError: The script cannot be read as the framework's or has other models than the plan, or a change cannot be made
            in its text: what it says would not be what the plan does.
    """
    text = read_text(script)
    typed = _typed(script, framework, plan)
    _check_models(script, typed.found, plan)
    wanted = differing(typed, values)
    changes = []
    for assignment in wanted:
        before = typed.found.settings.given(assignment[0])
        text = _with(text, script, typed.found, assignment)
        changes.append(PatchedKey(key=assignment[0], before=before, after=assignment[1]))
    _check(script, text, framework, plan, wanted)
    return Patched(text=text, changes=tuple(changes))


def differing(typed: RetypedConfiguration, values: Mapping[str, Any]) -> tuple[Assignment, ...]:
    """Return the fewest assignments that make a configuration run a plan, among keys that the plan decides.

    Args:
        values: What the plan decides, by the framework's keys; None is left to the user.
    """
    settings = typed.found.settings
    differs = tuple(
        (key, value)
        for key, value in values.items()
        if value is not None
        and not _says(typed.found, (key, value))
        and (settings.given(key) is not None or argument(settings, key, value))
    )
    return needed_assignments(differs, typed)


def _options(plan: Plan) -> ImportOptions:
    """Return what no script says of a plan's job."""
    work = plan.job.workload
    device = next(pool.device for pool in plan.pools if not pool.is_host)
    return ImportOptions(
        gpu=device,
        mean_response=mean_length(work.response_tokens),
        mean_prompt=mean_length(work.prompt_tokens),
    )


def _imported(path: Path, framework: str, plan: Plan) -> Imported:
    options = _options(plan)
    settings = settings_of(framework, (str(path),), options)
    return imported_run(settings, run_of(settings), options)


def _typed(script: Path, framework: str, plan: Plan) -> RetypedConfiguration:
    found = _imported(script, framework, plan)
    facts = load_facts(found.resolved)
    own = complete(found.draft, found.resolved, facts, str(script), misfits=True)
    return RetypedConfiguration.of((str(script),), _options(plan), found, own, facts)


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


def _says(found: Imported, assignment: Assignment) -> bool:
    key, value = assignment
    given = found.settings.given(key)
    return given is not None and typed_value(given) == typed_value(value)


def in_place(text: str, name: str, value: str, *, apart: bool) -> tuple[str, int]:
    """Return a script with a value wherever it gives the key one, and in how many places that is.

    Args:
        apart: Whether a blank may stand between them, as behind flags; else `=` alone, with hydra's plus signs before the key.
    """
    bare = re.escape(name.lstrip("+"))
    before = rf"{bare}(?:[ \t]+|=)" if apart else rf"\+{{0,2}}{bare}="
    place = re.compile(rf"(?<![\w.\-])(?P<name>{before}){VALUE}")
    return place.subn(lambda match: f"{match['name']}{_quoted(value)}", text)


def _with(text: str, script: Path, found: Imported, assignment: Assignment) -> str:
    """Return a script with one key's value in place of its own, else added before the arguments that it hands on.

    Raises:
        FileError: Its text has no place for it.
    """
    key, value = assignment
    words = argument(found.settings, key, value)
    if words is None:
        allowed = "without it; or --out without --patch, a script of its own"
        raise FileError(
            str(script), "says a switch that has no word for off", field=key, allowed=allowed
        )
    name, joint = (words[0].partition("=")[0], "=") if len(words) == 1 else (words[0], None)
    given, own = " ".join(words), words[0].partition("=")[2] if joint else words[-1]
    changed, places = in_place(text, name, own, apart=joint is None)
    if places == 1:
        return changed
    handed = HANDED_ON.search(text)
    if handed is None:
        problem = "has no single place for it, and hands no arguments on"
        raise FileError(str(script), problem, field=given, allowed='a last line "$@"')
    place_of_words, before = handed.end("before"), handed["before"]
    new = f"{name}{joint or ' '}{_quoted(own)} "
    if not before.strip():
        new += f"\\\n{before}"
    return text[:place_of_words] + new + text[place_of_words:]


def _quoted(value: str) -> str:
    return value if re.fullmatch(r"[\w./:+-]*", value) else "'" + value.replace("'", "'\\''") + "'"


def _check(
    script: Path, text: str, framework: str, plan: Plan, wanted: tuple[Assignment, ...]
) -> None:
    """Read the new script and hold what it says against the plan.

    Raises:
        FileError: It says something else.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / script.name
        write_text(path, text)
        found = _imported(path, framework, plan)
    for assignment in wanted:
        if not _says(found, assignment):
            key, value = assignment
            problem = f"still says {found.settings.given(key)} where the plan has {value}"
            raise FileError(str(script), problem, field=key, allowed="export without --patch")
