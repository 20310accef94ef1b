"""What a configuration leaves out that nobody else can know: the errors that ask for it."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from rlplan.errors import MissingValueError, MissingValuesError
from rlplan.job import Role
from rlplan.planner.configs.models import example_for, own_name
from rlplan.planner.configs.reading.python.values import NOT_GIVEN
from rlplan.planner.configs.reading.scripts import scripts_that_start
from rlplan.planner.configs.reading.settings import EXAMPLE_MODEL, Settings
from rlplan.planner.configs.run import Run
from rlplan.profiles.sheets import nearest_models

# How alike the names of a model that is not known and of one that is are, of which one is an example for the other.
LIKELY = 0.75
# A mean response that an example names.
USUAL_RESPONSE = 256
_NOT_GIVEN: Final = re.compile(rf"is what (--[\w-]+) says, {NOT_GIVEN}")
# How many scripts a message names.
MOST_NAMED = 8


def missing_values(
    missing: Sequence[MissingValueError], settings: Settings
) -> MissingValueError | MissingValuesError:
    """Return the error of values that nothing says: all at once where they are several.

    It names the scripts beside a program which start it, and may say them.
    """
    scripts = scripts_that_start(Path(settings.file)) if any(each.key for each in missing) else ()
    shown, more = scripts[:MOST_NAMED], len(scripts) - MOST_NAMED
    are = "starts" if len(scripts) == 1 else "start"
    named = f"{', '.join(shown)}{f' and {more} more' if more > 0 else ''}"
    hint = f"; or read {named} in its place, which {are} it" if scripts else ""
    of_model = any("--model" in each.options for each in missing)
    if of_model and len(settings.tells) > 1:
        told = "; ".join(f"{each.by} tells {each.sheet}" for each in settings.tells)
        hint += f"; none is taken, since other words name several: {told}"
    lost = settings.lost
    if lost is not None and any(each.key for each in missing):
        hint += f"; {len(lost.words)} words below the end of the command of line {lost.line}, at line {lost.ends}, are no part of it"
    if len(missing) == 1:
        return missing[0].with_hint(hint) if hint else missing[0]
    return MissingValuesError(missing, hint, _lead(missing))


def _lead(missing: Sequence[MissingValueError]) -> str:
    """Return what is said first where one option of a program says several of the values, and is not given."""
    told = (_NOT_GIVEN.search(each.problem) for each in missing)
    counts = Counter(each[1] for each in told if each is not None)
    name, count = next(iter(counts.most_common(1)), ("", 0))
    behind = f"put it behind the program, after --, as -- {name} ..."
    return (
        f"{name} is not given, which says {count} values: {behind}; without it "
        if count > 1
        else ""
    )


def missing_beside(
    run: Run,
    settings: Settings,
    mean_response: float | None,
    sheets: Mapping[Role, tuple[str, str | None]],
) -> list[MissingValueError]:
    """Return what no configuration says, or says by names that nobody else knows: models, and the mean response.

    Args:
        mean_response: Tokens, as somebody says; None where nobody does.
        sheets: By role what its model is called, and the sheet that is of it.
    """
    found = dict[str, list[Role]]()
    for role, (named, sheet) in sheets.items():
        if sheet is None:
            found.setdefault(named, []).append(role)
    most = run.work.max_response or run.work.max_total or 0
    missing = [_unknown_model(roles, named, run, settings) for named, roles in found.items()]
    if mean_response is None:
        example = str(max(1, min(USUAL_RESPONSE, most // 2)))
        missing.append(
            MissingValueError(
                "--mean-response",
                "is missing: no configuration says how long responses are on average",
                options=("--mean-response", example),
                allowed=f"tokens, at most {most:,}",
            )
        )
    return missing


def _unknown_model(
    roles: Sequence[Role], named: str, run: Run, settings: Settings
) -> MissingValueError:
    """Return the error of a model that no sheet is of, and that has these roles."""
    folder = own_name(named).lower()
    nearest = nearest_models(folder)
    alike = get_close_matches(folder, nearest[:1], cutoff=LIKELY)
    work = run.work
    tokens = work.max_total or (work.max_prompt or 0) + (work.max_response or 0)
    example = example_for((*alike, EXAMPLE_MODEL, *nearest), tokens)
    key = run.model_keys[roles[0]]
    given = settings.flat.get(key)
    of_actor = "actor" in roles or named == run.models["actor"]
    prefixes = ("",) if of_actor else tuple(f"{role}=" for role in roles)
    return MissingValueError(
        settings.file if given is None else given.where,
        f"no sheet is of the model {named}; name a known one by --model",
        options=tuple(word for each in prefixes for word in ("--model", f"{each}{example}")),
        field=key if given is None else given.older or key,
        value=None if given is None else given.value,
        allowed="a Hugging Face id of a known model or of the local cache, or a folder with its config.json",
        nearest=nearest[0] if nearest else None,
        others=nearest[1:],
    )
