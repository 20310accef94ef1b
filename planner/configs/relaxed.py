"""A configuration whose batches break a rule, with batches that do not: its layouts lie in memory as they would."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import lcm

from planner.answers.completion import complete
from planner.configs.importing import Imported, ImportOptions, imported_run
from planner.configs.reading.settings import Settings
from planner.configs.run import Run, Work
from planner.configs.sizes import nearest_divisor
from profiles.facts import Facts, load_facts
from rlplan.errors import UserError
from rlplan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """Hold what a configuration comes to once its batches divide.

    Attributes:
        words: What stands in place of what it says.
    """

    found: Imported
    plan: Plan
    facts: Facts
    words: str


def relaxed(settings: Settings, run: Run, options: ImportOptions) -> Relaxed | None:
    """Return a run with the nearest batches that divide, and positions for its sequences; None where that is not enough.

    What a micro-batch holds stays as it is, and with it what lies in memory.
    """
    work = run.work
    longest = work.max_total or (work.max_prompt or 0) + (work.max_response or 0)
    for changed in _nearest(run):
        try:
            found = imported_run(settings, changed, options, least_positions=longest)
            facts = load_facts(found.resolved)
            plan = complete(found.draft, found.resolved, facts, settings.file)
        except UserError:
            continue
        return Relaxed(found=found, plan=plan, facts=facts, words=_words(run, changed))
    return None


def _nearest(run: Run) -> Iterator[Run]:
    """Yield runs that are ever further from one: as many updates as divide, more prompts, no interleaved stages."""
    straight = {role: replace(sizes, chunks=1) for role, sizes in run.trainers.items()}
    for each in (run, replace(run, trainers=straight)):
        yield from (replace(each, work=work) for work in _works(each))


def _works(run: Run) -> Iterator[Work]:
    work = run.work
    yield work
    updates = nearest_divisor(max(1, work.prompts), work.updates)
    yield replace(work, updates=updates)
    copies = lcm(*(sizes.dp for sizes in run.trainers.values()))
    for parts in (copies * updates, copies * work.updates):
        yield replace(
            work, prompts=-(-max(1, work.prompts) // parts) * parts, updates=parts // copies
        )


def _words(run: Run, changed: Run) -> str:
    """Return what a run has in place of another's, for people."""
    work, new = run.work, changed.work
    said = (
        [f"{new.prompts:,} prompts in place of {work.prompts:,}"]
        if new.prompts != work.prompts
        else []
    )
    if new.updates != work.updates:
        said.append(f"{new.updates:,} updates in place of {work.updates:,}")
    if any(new_sizes != run.trainers[role] for role, new_sizes in changed.trainers.items()):
        said.append("stages that are not interleaved")
    return ", ".join(said) or "positions for its longest sequences"
