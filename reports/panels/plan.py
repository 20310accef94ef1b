"""The plan on its devices: pools, tasks and their layouts."""

from rlplan.reports.panels import Part, Section, Subject
from rlplan.reports.pictures.plan_drawing import plan_picture
from rlplan.reports.tables.plans import layout_table, pool_table
from rlplan.reports.tables.wording import transition_words

ORDER = 10


def section(subject: Subject) -> Section:
    """Return the drawing of the plan with its pools and layouts."""
    plan = subject.plan
    return Section(
        key="plan",
        title="The plan on its devices",
        short="Plan",
        words=("Every box is a node, every cell a device, every colour a pool.",),
        picture=plan_picture(plan),
        parts=(
            Part(table=pool_table(plan), heading="Pools"),
            Part(table=layout_table(plan), heading="Tasks"),
        ),
        points=(
            transition_words(plan),
            f"Mode: {plan.mode}"
            + (f", samples up to {plan.staleness} updates old." if plan.staleness else "."),
        ),
    )
