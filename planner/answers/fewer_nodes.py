"""Plans of a job that is under way, for the nodes that are left of its cluster."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rlplan.job import Job, NodeGroup
from rlplan.plan import Plan
from rlplan.planner.answers.best_plans import best_plans
from rlplan.planner.requests.pinned import Pinned
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.profiles.facts import Facts
from rlplan.profiles.jobs.nodes import left_to_framework, on_usual_nodes
from rlplan.profiles.sheets import load_framework, sheet_of

# The nodes wait meanwhile: then the best plan so far is taken.
SEARCH_SECONDS: Final = 60.0


def plans_on(plan: Plan, groups: tuple[NodeGroup, ...], facts: Facts) -> Iterator[Plan]:
    """Yield plans of the same job on other nodes, the best by its objective under its specs first.

    Iterations follow one another as they did, and the same engines train and generate: what a checkpoint of the
    run holds goes on in any of them.

    Args:
        groups: Those of the plan's job of which nodes are there, with how many.

    Raises:
        InfeasibleError: None fits, or keeps the specs.
    """
    asked = AskedSchedules(modes=(plan.mode,), in_flight=plan.in_flight)
    if plan.flow.is_endless:
        asked = replace(asked, staleness=plan.staleness, sync_every=plan.sync_every)
    found = best_plans(
        _job_on(plan, groups), facts, pinned=Pinned(asked=asked), seconds=SEARCH_SECONDS
    )
    for each in found.plans:
        yield each.plan


def _job_on(plan: Plan, groups: tuple[NodeGroup, ...]) -> Job:
    """Return the plan's job with other nodes; domains of a fast link that it did not name are found anew."""
    job = plan.job
    kept = load_framework(job.framework).keeps_domains
    left, cluster = list(groups), []
    for group, bare in zip(job.cluster, left_to_framework(job), strict=True):
        if left and replace(left[0], nodes=group.nodes) == group:
            there = replace(bare, nodes=left.pop(0).nodes)
            cluster.append(on_usual_nodes(there, sheet_of(job, group.gpu), keeps_domains=kept))
    assert not left, "groups of the job's cluster, in its order"
    engines = replace(
        job.engines,
        train=plan.tasks["actor.update"].engine,
        generate=plan.tasks["actor.generate"].engine,
    )
    return replace(job, cluster=tuple(cluster), engines=engines)
