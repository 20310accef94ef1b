"""Settings against kinds of tasks: what a kind does not use is not set."""

from dataclasses import fields
from typing import Final

from rlplan.plan import TaskPlan
from rlplan.rules.rule import SIZES, Problem, TaskContext, rule

# What every kind of task may be given: a number of sequences at a time, which plans give to all their tasks at once,
# promises nothing where a task takes them otherwise.
ALWAYS_TAKEN: Final = frozenset({"pool", "engine", "micro_batch", "max_running", *SIZES})


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
