"""The rules of a plan: what every reader may count on, one file per subject.

It holds what any planner, simulator and executor asks of a plan; what one of them cannot do is said there.
"""

from collections.abc import Iterator
from typing import Any

from rlplan.errors import FileError
from rlplan.job import Job
from rlplan.plan import Plan, PlanDraft
from rlplan.rules import batches, engines, flow, kinds, layouts, pools
from rlplan.rules.rule import Engines, Refusal, Rule, contexts_of

__all__ = ["RULES", "Refusal", "Rule", "check_draft", "check_plan", "refusals"]

# In the order of these subjects, and of the rules in each. `kinds` is last: a wrong value is reported before the remark that
# a kind of task does not use the setting.
RULES: tuple[Rule[Any], ...] = tuple(
    each
    for subject in (pools, layouts, batches, engines, flow, kinds)
    for each in vars(subject).values()
    if isinstance(each, Rule)
)


def refusals(plan: Plan | PlanDraft, job: Job, engines: Engines | None = None) -> Iterator[Refusal]:
    """Yield what the rules refuse of a plan, or of what a draft gives.

    Args:
        job: The plan's, resolved.
        engines: Sheets by name; None leaves out the rules that need them.
    """
    contexts = contexts_of(plan, job, engines)
    for rule in RULES:
        yield from rule.refusals(contexts)


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
