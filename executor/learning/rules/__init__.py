"""Reward rules, one file each; the name that a job uses is the file's name.

A rule is called as `RULE(prompt, response, row)`, where `row` is the prompt's line of the data
file, and returns a number. A job may also name a function of a file of its own, in this form, in
verl's or in TRL's. A built-in rule's `NEEDS` names the columns without which it cannot judge, its `CHECK` refuses rows
in which they hold what it cannot use; one that needs a package more has a `check_installed`.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rlplan.errors import FileError, UserError, cut, nearest_name
from rlplan.executor.data.finite import reward_of
from rlplan.executor.data.prompt_files import ORIGIN, NeededColumns, Row, RowCheck
from rlplan.executor.data.user_files import (
    FAILURES,
    in_words,
    is_in_a_file,
    load_from_file,
    shown,
)
from rlplan.executor.environments import check_sources
from rlplan.executor.learning.reward_forms import Rule, as_rule
from rlplan.job import Job
from rlplan.plug_ins import PlugIns

RULES = PlugIns[Rule](__name__, __path__, kind="reward rule", attribute="RULE", dashes=False)
_MODULES = PlugIns[Any](__name__, __path__, kind="reward rule", dashes=False)
rule_names = RULES.names


def load_rule(spec: str, folder: Path) -> Rule:
    """Return the rule that a job names; calling it checks that it returns a finite number.

    Load it in the process that calls it: a function of a user's file cannot be sent elsewhere.

    Args:
        spec: A built-in rule's name, or `path/to/file.py:name`.
        folder: What a relative path is relative to: the job file's folder.

    Raises:
        UnknownNameError: No built-in rule has that name.
        FileError: The file is missing or fails when it is imported, or has no such function, or one
            whose parameters are of no form that is known.
        CapabilityError: The rule needs a package that is not installed.
    """
    if is_in_a_file(spec):
        file, _, name = spec.rpartition(":")
        return _checked(as_rule(load_from_file(spec, folder), str(folder / file), name), spec)
    hint = "or name a function of your own as path/to/file.py:name"
    rule = RULES.load(spec, hint=hint)
    check_installed = getattr(rule, "check_installed", None)
    if check_installed is not None:
        check_installed()
    return _checked(rule, spec)


def rule_functions(job: Job, folder: Path) -> dict[str, Rule]:
    """Return the functions that judge a job's responses, by the names that the job has for them.

    Raises:
        UserError: There is no such function, or its file cannot be imported.
    """
    return {name: load_rule(name, folder) for _, name in _named(job)}


def check_rules(job: Job, folder: Path) -> None:
    """Refuse a job with a function, of rewards or of its evaluation, that cannot be loaded.

    Raises:
        UserError: There is no such function, or its file cannot be imported.
    """
    for _, name in (*_named(job), *_evaluating(job)):
        load_rule(name, folder)


def needed_columns(job: Job) -> NeededColumns:
    """Return the columns that every row of a job's data must have for its built-in rules."""
    held_out = evaluating_rule(job)
    prompts = _built_in(name for _, name in _named(job))
    judged = _built_in([] if held_out is None else [held_out])
    return NeededColumns(_needs(prompts), _needs(judged), _check(prompts), _check(judged))


def _built_in(names: Iterable[str]) -> list[Any]:
    """Return the modules of rules that are built in."""
    return [_MODULES.load(name) for name in names if not is_in_a_file(name)]


def _needs(modules: Sequence[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for module in modules for each in getattr(module, "NEEDS", ())))


def _check(modules: Sequence[Any]) -> RowCheck | None:
    """Return what refuses rows that one of these rules would refuse in the midst of a run; None where none does."""
    checks = [module.CHECK for module in modules if hasattr(module, "CHECK")]

    def check(row: Row) -> None:
        for each in checks:
            each(row)

    return check if checks else None


def evaluating_rule(job: Job) -> str | None:
    """Return the rule that judges responses to held-out prompts; None where nothing does."""
    if job.evaluation is None:
        return None
    return job.evaluation.function or (job.rewards.function if job.rewards else None)


def check_rule_names(job: Job, file: Path) -> None:
    """Refuse a job whose rules or environments are no built-in ones; those of the user's own are not imported.

    Raises:
        FileError: Names the job's file, and the built-in ones.
    """
    if job.environments:
        check_sources(job, str(file))
    for field, name in (*_named(job), *_evaluating(job)):
        if ":" not in name and name not in rule_names():
            raise FileError(
                str(file),
                "no such reward rule",
                field=field,
                value=name,
                allowed=", ".join(rule_names()) + ", or path/to/file.py:name",
                nearest=nearest_name(name, rule_names()),
            )


def _named(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the rules of a job with the fields that name them."""
    if job.rewards is not None:
        for field in ("function", "cost_function"):
            name = getattr(job.rewards, field)
            if name is not None:
                yield f"rewards.{field}", name


def _evaluating(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the rule of a job's evaluation with its field, if the evaluation names a rule."""
    if job.evaluation is not None and job.evaluation.function is not None:
        yield "evaluation.function", job.evaluation.function


def _prompt(prompt: str, row: dict[str, Any]) -> str:
    """Return a prompt for messages, and where it is from if it is one of a file."""
    origin = f" ({row[ORIGIN]})" if ORIGIN in row else ""
    return f"prompt {cut(prompt)!r}{origin}"


def _checked(rule: Rule, spec: str) -> Rule:
    def call(prompt: str, response: str, row: dict[str, Any]) -> float:
        try:
            reward = rule(prompt, response, row)
        except UserError:
            raise
        except FAILURES as error:
            raise UserError(
                f"rule {spec}: fails for {_prompt(prompt, row)}: {in_words(error)}"
            ) from error
        number = reward_of(reward)
        if number is None:
            found = f"found {shown(reward)} for {_prompt(prompt, row)}"
            raise UserError(f"rule {spec}: {found}; allowed: a finite number")
        return number

    return call
