"""A configuration typed again with more words behind: what its framework would then run."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Self

from rlplan.errors import UserError
from rlplan.plan import Plan
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.importing import (
    Imported,
    ImportOptions,
    imported_run,
    run_of,
    settings_of,
)
from rlplan.planner.configs.reading.configuration import laid_over
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.run import draft_of
from rlplan.profiles.facts import Facts, load_facts

Assignment = tuple[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetypedConfiguration:
    """Hold a configuration with the words that gave it, to try more words behind them.

    Attributes:
        words: A script or YAML file and its arguments, or a command line.
        found: The configuration as it is.
        plan: Its plan.
        broken: Rules of its framework that it breaks as it is.
    """

    words: tuple[str, ...]
    options: ImportOptions
    found: Imported
    plan: Plan
    facts: Facts
    broken: frozenset[str]

    @classmethod
    def of(
        cls, words: Iterable[str], options: ImportOptions, found: Imported, plan: Plan, facts: Facts
    ) -> Self:
        """Return a configuration that was read from some words."""
        return cls(
            words=tuple(words),
            options=options,
            found=found,
            plan=plan,
            facts=facts,
            broken=broken_rules(found.settings),
        )

    def arguments(self, assignments: Iterable[Assignment]) -> tuple[str, ...] | None:
        """Return the words that give keys their values; None where no word can: a switch has none for off."""
        found: list[str] = []
        for key, value in assignments:
            words = argument(self.found.settings, key, value)
            if words is None:
                return None
            found += words
        return tuple(found)

    def sketched(self, more: Iterable[str]) -> Plan | None:
        """Return the plan with more words, laid over the values as they were read; None where there is none.

        Files and scripts are not read again, and rules of the framework not asked: a first look, in a tenth of the
        time of `typed`.
        """
        settings = laid_over(self.found.settings, more)
        try:
            return self._plan(settings)[0]
        except UserError:
            return None

    def typed(self, more: Iterable[str]) -> tuple[Plan, Facts] | None:
        """Return the plan that its user gets who types more words behind, with the facts for it.

        Where a script hands no words on, the values are changed in it. None where there is no plan, or where it
        breaks a rule of the framework that the configuration keeps.
        """
        added = tuple(more)
        settings = laid_over(self.found.settings, added)
        keys = laid_over(replace(self.found.settings, flat={}), added).flat
        read = self._read(added)
        if read is not None and all(read.given(key) == settings.given(key) for key in keys):
            settings = read
        try:
            plan, facts, found = self._plan(settings, anew=True)
        except UserError:
            return None
        known = found is not None and not set(keys) & set(found.keys.unknown)
        return (plan, facts) if known and broken_rules(settings) <= self.broken else None

    def _read(self, added: tuple[str, ...]) -> Settings | None:
        try:
            return settings_of(self.found.settings.sheet.name, (*self.words, *added), self.options)
        except UserError:
            return None

    def _plan(
        self, settings: Settings, *, anew: bool = False
    ) -> tuple[Plan, Facts, Imported | None]:
        """Return a plan; the job is imported again only where more than layouts has changed, or where asked for."""
        run, old = run_of(settings), self.found.run
        alike = replace(run, generate=old.generate, trainers=old.trainers, notes=old.notes) == old
        if alike and not anew:
            draft = draft_of(run, self.found.resolved, self.options.job_path)
            job = self.found.resolved
            return complete(draft, job, self.facts, settings.file), self.facts, None
        found = imported_run(settings, run, self.options)
        facts = load_facts(found.resolved)
        return complete(found.draft, found.resolved, facts, settings.file), facts, found


def broken_rules(settings: Settings) -> frozenset[str]:
    """Return the rules of its framework that a configuration breaks, each with the key that does."""
    rules = rules_of(settings.sheet.name)
    return frozenset(f"{rule.name} {each.key}" for rule in rules for each in rule.broken(settings))


def argument(settings: Settings, key: str, value: object) -> tuple[str, ...] | None:
    """Return the words by which a command line gives a key a value; None where it has none for it.

    Names are those of the version whose names the configuration has.
    """
    sheet, given = settings.sheet, settings.flat.get(key)
    older = next((old for old, new in sheet.older.items() if new == key), "")
    flags = sheet.arguments == "flags"
    has_older = flags and any(each.older for each in settings.flat.values())
    name = (given.older if given is not None else older if has_older else "") or key
    if flags:
        if isinstance(value, bool):
            return (f"--{name}",) if value else None
        return f"--{name}", str(value)
    adds = any(fnmatchcase(key, each) for each in sheet.added)
    adds = adds or (sheet.files_are_whole and given is None)
    shown = "null" if value is None else str(value)
    return (f"{'++' if adds else ''}{name}={shown.lower() if isinstance(value, bool) else shown}",)
