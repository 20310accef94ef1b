"""The rules of a plan: what every reader may count on, one file per subject.

It holds what any planner, simulator and executor asks of a plan; what one of them cannot do is said there.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

from rlplan.errors import FileError
from rlplan.job import Job
from rlplan.plan import SIZES, Plan, PlanDraft, TaskPlan
from rlplan.rules import batches, engines, flow, layouts, pools
from rlplan.rules.rule import Engines, Problem, Refusal, Rule, TaskContext, contexts_of, rule

__all__ = ["RULES", "Refusal", "Rule", "check_draft", "check_plan", "refusals"]

# What every kind of task may be given: a micro-batch, which plans give to all their tasks at once, promises nothing where a task
# takes its sequences otherwise.
ALWAYS_TAKEN: Final = frozenset({"pool", "engine", "micro_batch", *SIZES})


@rule(TaskContext)
def settings_are_used(given: TaskContext) -> Problem | None:
    """Set what a task of this kind uses: anything else would be dropped without a word."""
    task, layout = given.task, given.layout
    if layout is None:
        return None
    for each in fields(TaskPlan):
        value = getattr(layout, each.name)
        open_too = value is None or value == each.default
        if open_too or each.name in ALWAYS_TAKEN or each.name in task.stage_kind.layout_fields:
            continue
        words = f"means nothing for {task.name}, whose kind is {task.kind}"
        return Problem(each.name, words, value, f"{each.default}, or leave it out")
    return None


# In the order of these subjects, and of the rules in each. A wrong value is reported before the remark that a kind of task
# does not use the setting.
RULES: tuple[Rule[Any], ...] = (
    *(
        each
        for subject in (pools, layouts, batches, engines, flow)
        for each in vars(subject).values()
        if isinstance(each, Rule)
    ),
    settings_are_used,
)


def refusals(plan: Plan | PlanDraft, job: Job, engines: Engines | None = None) -> Iterator[Refusal]:
    """Yield what the rules refuse of a plan, or of what a draft gives.

    Args:
        job: The plan's, resolved.
        engines: Sheets by name; None leaves out the rules that need them.
    """
    contexts = contexts_of(plan, job, engines)
    # Many rules look at few kinds of parts.
    parts = {
        kind: tuple(each for each in contexts if isinstance(each, kind))
        for kind in {each.looks_at for each in RULES}
    }
    for each in RULES:
        yield from each.refusals(parts[each.looks_at])


def check_plan(plan: Plan, engines: Engines | None = None, file: str = "plan") -> None:
    """Refuse a plan whose parts contradict each other, its job, its models or its engines.

    One that passes may still not fit the memory; that is the forecast's to say.

    Args:
        plan: A plan of a resolved job.
        engines: Sheets by name; None leaves out the rules that need them.
        file: What to call the plan in messages.

    Raises:
        FileError: Names the field, the value, what is allowed and the nearest fix.
    """
    _raise_first(refusals(plan, plan.job, engines), file)


def check_draft(draft: PlanDraft, job: Job, engines: Engines, file: str = "plan") -> None:
    """Refuse what a user fixed where no plan can have it; `check_plan` with the rest left open.

    Raises:
        FileError: Names the field, the value, what is allowed and the nearest fix.
    """
    _raise_first(refusals(draft, job, engines), file)


def _raise_first(found: Iterator[Refusal], file: str) -> None:
    for refusal in found:
        problem = refusal.problem
        raise FileError(
            file,
            problem.words,
            field=refusal.field,
            value=problem.value,
            allowed=problem.allowed,
            nearest=problem.nearest,
        )
