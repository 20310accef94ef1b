"""Costs and memory of lending: replicas on the training pool, data-parallel ranks on the generating pool, and switches.

For replicas on the training pool, weight sync and cache are those of a plan that generates there: such a plan is made, and
its costs and memory are taken. Taking an engine off its GPUs costs the seconds of `profiles/fits/lending.yaml`. Generators'
GPUs that help training hold weights and gradients only: before each update they get weights over the network, and return
gradients; optimizer states stay on the training pool.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from rlplan.errors import CapabilityError
from rlplan.plan import Plan, ResourcePool, TaskPlan
from rlplan.profiles.analytic.efficiencies import load_switch_costs
from rlplan.profiles.catalog import load_engine
from rlplan.results.forecast import MemoryForecast
from rlplan.rules.flow import transition_for
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.rules.rule import Capability
from rlplan.simulator.asynchronous.lending import LentGenerators, LentTrainers
from rlplan.simulator.asynchronous.setting import StreamSetting
from rlplan.simulator.costs.syncs import transition_cost
from rlplan.simulator.costs.taskcost import host_seconds
from rlplan.simulator.generation.generating import clock_of, replica_limits, replica_of
from rlplan.simulator.generation.over_provisioning import begun
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.timeline.engine import Work
from rlplan.simulator.timeline.pool_memory import (
    kv_bytes_left,
    memory_fraction_left,
    pool_memory,
)

LENT = "lent"
LENT_WAVES = Capability("lending GPUs to an engine that takes its sequences in waves")
LENT_EPISODES = Capability("lending GPUs to episodes in environments")
LENT_SHARDS = Capability("lending GPUs to an update whose weights are fully sharded")
ONE_BY_ONE = ("continuous", "mixed")


def lent_layout(plan: Plan) -> TaskPlan:
    """Return the layout of replicas on the training pool of a plan that lends its GPUs to generation."""
    assert plan.lending is not None, "nothing is lent"
    lending, generate = plan.lending, plan.tasks["actor.generate"]
    pool = plan.pool_of("actor.update")
    tp, pp = lending.tp or generate.tp, lending.pp or generate.pp
    return replace(
        generate,
        pool=pool.name,
        tp=tp,
        pp=pp,
        dp=pool.gpus // (tp * pp),
        memory_fraction=lending.memory_fraction or generate.memory_fraction,
    )


def lent_fraction(placed: PlacedPlan, usable_fraction: float) -> float:
    """Return the share of each training GPU that replicas there may fill, beside the states that training keeps on it.

    Args:
        usable_fraction: Share of every GPU's memory that the plan may fill.
    """
    there = LentPlan(placed).with_fraction(None)
    return memory_fraction_left(there, there.generate, usable_fraction)


@dataclass(frozen=True, eq=False)
class LentPlan:
    """Hold a plan that lends GPUs, and the same plan with generation on its training pool."""

    placed: PlacedPlan

    @cached_property
    def layout(self) -> TaskPlan:
        """Return the layout of replicas on the training pool."""
        return lent_layout(self.placed.plan)

    @cached_property
    def there(self) -> PlacedPlan:
        """Return the plan with generation on its training pool, in the lent share of memory; by default in all that is free."""
        lending = self.placed.plan.lending
        assert lending is not None, "nothing is lent"
        if lending.memory_fraction is not None:
            return self.with_fraction(lending.memory_fraction)
        there = self.with_fraction(None)
        return self.with_fraction(memory_fraction_left(there, there.generate))

    def with_fraction(self, fraction: float | None) -> PlacedPlan:
        """Return the plan with generation on its training pool, in a share of each GPU; None is the generate task's."""
        plan, lending = self.placed.plan, self.placed.plan.lending
        assert lending is not None, "nothing is lent"
        way = lending.transition or plan.job.weight_sync.shared_pool
        way = way or transition_for(plan.tasks["actor.update"], self.layout)
        layout = self.layout
        if fraction is not None:
            layout = replace(layout, memory_fraction=fraction)
        tasks = plan.tasks.with_item("actor.generate", layout)
        return PlacedPlan(replace(plan, tasks=tasks, transition=way), self.placed.facts)

    @property
    def pool(self) -> ResourcePool:
        """Return the training pool."""
        return self.placed.plan.pool_of("actor.update")

    @cached_property
    def memory(self) -> MemoryForecast:
        """Return the training pool's fullest GPU at its peak, generation included."""
        return pool_memory(self.there, self.pool)

    def trainers(self, setting: StreamSetting) -> LentTrainers:
        """Return the training pool's GPUs as generators."""
        lending, there = self.placed.plan.lending, self.there
        assert lending is not None, "nothing is lent"
        task = there.generate
        steps, limits = replica_limits(
            begun(task, setting.staleness + 1), max(0.0, kv_bytes_left(there))
        )
        limits = replace(limits, prompt_samples=min(limits.prompt_samples, setting.bundle))
        transition = there.transition_to(task)
        assert transition is not None, "what trains the actor brings it to generation"
        name = task.task.name
        work = Work(key=f"{name} {LENT}", name=name, pool=self.pool.name, holds=(self.pool.name,))
        return LentTrainers(
            replica=replica_of(clock_of(steps), limits),
            count=self.layout.dp * setting.replicas // setting.whole_replicas,
            work=work,
            join_seconds=transition_cost(transition).total.seconds,
            leave_seconds=load_switch_costs().sleep_seconds.value,
            until=lending.until,
            adapts=lending.policy == "adaptive",
        )

    def generators(self, setting: StreamSetting) -> LentGenerators:
        """Return the generating pool's GPUs as ranks of the update."""
        update, generate = self.placed.tasks["actor.update"], self.placed.generate
        layout, played = update.layout, setting.whole_replicas / setting.replicas
        model_gpus = layout.tp * layout.pp * layout.cp
        rank_gpus = math.lcm(model_gpus, layout.expert_ranks * layout.pp)
        num_bytes = update.weight_bytes + update.trained_parameters * update.stored.gradient_bytes
        rate = min(
            update.site.inter_node_bytes_per_second, generate.site.inter_node_bytes_per_second
        )
        return LentGenerators(
            ranks=layout.dp,
            replica_gpus=generate.layout.gpus / generate.layout.dp * played,
            rank_gpus=rank_gpus,
            ranks_each=rank_gpus // model_gpus,
            pool=self.pool.name,
            update_seconds=num_bytes / rate,
            join_seconds=load_switch_costs().sleep_seconds.value,
            leave_seconds=host_seconds(generate.framework.call("transition"), generate).seconds,
        )


def lacks_of_lending(plan: Plan) -> Iterator[CapabilityError]:
    """Yield the forms of lending in a plan that are not simulated."""
    lending, who = plan.lending, "the simulator"
    if lending is None:
        return
    if plan.job.environments:
        yield LENT_EPISODES.lacked_by(who, "lending", "there", "a plan without lending")
    engine = load_engine(plan.tasks["actor.generate"].engine)
    if "generation" in lending.to and engine.batching not in ONE_BY_ONE:
        instead = f"an engine that batches {' or '.join(ONE_BY_ONE)}"
        yield LENT_WAVES.lacked_by(who, "lending.to", "generation", instead)
    if "training" in lending.to and plan.tasks["actor.update"].zero >= FULLY_SHARDED:
        yield LENT_SHARDS.lacked_by(who, "lending.to", "training", "zero below 3, or generation")
