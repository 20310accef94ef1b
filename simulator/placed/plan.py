"""A placed plan: its pools' sites and its tasks in their layouts, each resolved once."""

from dataclasses import dataclass
from functools import cached_property

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.models.precision import WIDE
from rlplan.plan import Plan, ResourcePool
from rlplan.profiles.facts import Facts
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.sheets.hardware import TransitionSheet
from rlplan.simulator.placed.site import Site, sites_of
from rlplan.simulator.placed.task import PlacedTask
from rlplan.simulator.workload.packing import packed_layout
from rlplan.transfers import TRANSFERS, TransitionName
from rlplan.transports import DEFAULT_TRANSPORT, TransportName


@dataclass(frozen=True, slots=True, eq=False)
class PlacedTransition:
    """Hold where a model's weights come from and where they generate.

    Attributes:
        name: How they get there, as the plan says it.
        same_pool: Whether they are trained on the pool that generates.
        transport: What carries them to another pool.
    """

    name: TransitionName
    train: PlacedTask
    generate: PlacedTask
    same_pool: bool
    transport: TransportName = DEFAULT_TRANSPORT

    @property
    def shares_weights(self) -> bool:
        """Tell whether generation reads the very weights that are trained: whole ones, cut alike."""
        train, generate = self.train.layout, self.generate.layout
        alike = (train.tp, train.pp) == (generate.tp, generate.pp) and self.expert_shares <= 1
        stays = train.zero < FULLY_SHARDED and not self.train_is_away
        return self.same_pool and alike and stays and not self._differ and not self.streams

    @property
    def train_is_away(self) -> bool:
        """Tell whether the weights that are trained are in host memory while the model generates."""
        return "weights" in self.train.leaves

    @property
    def sheet(self) -> TransitionSheet:
        """Return what is known of the transition's software on the generating device."""
        return self.generate.facts.transition(self.name, self.generate.site.device)

    @property
    def streams(self) -> bool:
        """Tell whether a framework's method writes weights into an engine that has its own."""
        return TRANSFERS.load(self.name).method

    @property
    def expert_shares(self) -> int:
        """Return how many ranks' experts in training a rank generates with, beyond what TP brings it."""
        train, generate = self.train.layout, self.generate.layout
        return train.expert_ranks * generate.tp // (generate.expert_ranks * train.tp)

    @property
    def keeps_own_weights(self) -> bool:
        """Tell whether the weights that generate are no part of those that are trained.

        Those are in host memory then; or they are quantised, have adapters merged into them, are written by a
        framework's method, or are frozen and stay with the engine, which puts them into host memory while
        others work (vLLM's sleep level 1, as verl has it with adapters).
        """
        own = self.train_is_away or self._differ or self.streams
        return own or (self.moves_adapter and not self.shares_weights)

    @property
    def moves_adapter(self) -> bool:
        """Tell whether generation gets adapters only."""
        return self.generate.adapter is not None

    @property
    def _differ(self) -> bool:
        merged = self.train.adapter is not None and self.generate.adapter is None
        return merged or WIDE[self.train.precision] != self.generate.precision


@dataclass(frozen=True, eq=False)
class PlacedPlan:
    """Hold a plan whose pools stand on the cluster's GPUs.

    Raises:
        PlanError: The pools want more GPUs than the cluster has.
    """

    plan: Plan
    facts: Facts

    @cached_property
    def sites(self) -> dict[str, Site]:
        """Return each pool's site by the pool's name."""
        return sites_of(self.plan, self.facts)

    @cached_property
    def known_tasks(self) -> tuple[Task, ...]:
        """Return all tasks of the job's algorithm, in the dataflow's order."""
        return tasks_of(load_algorithm(self.plan.job.algorithm), self.plan.job)

    @cached_property
    def tasks(self) -> dict[str, PlacedTask]:
        """Return the tasks that have a layout by their names, in the dataflow's order."""
        plan = self.plan
        return {
            task.name: PlacedTask(
                task,
                packed_layout(plan.tasks[task.name], plan.job.workload),
                self.sites[plan.tasks[task.name].pool],
                plan.job,
                self.facts,
            )
            for task in self.known_tasks
            if task.name in plan.tasks
        }

    @property
    def generate(self) -> PlacedTask:
        """Return the task that generates."""
        return next(placed for placed in self.tasks.values() if placed.task.generates)

    def tasks_on(self, pool: ResourcePool) -> list[PlacedTask]:
        """Return the tasks of a pool, in the dataflow's order."""
        return [placed for placed in self.tasks.values() if placed.layout.pool == pool.name]

    def transition_to(self, generate: PlacedTask) -> PlacedTransition | None:
        """Return how new weights get to a generating task; None if its model is not trained."""
        for placed in self.tasks.values():
            if placed.trains and placed.task.role == generate.task.role:
                same = placed.layout.pool == generate.layout.pool
                transport = self.plan.transport
                return PlacedTransition(self.plan.transition, placed, generate, same, transport)
        return None
