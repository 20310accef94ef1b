"""How weights get from where they train to where they generate, with what that takes."""

from collections.abc import Hashable
from functools import cached_property

from rlplan.dataflow import Task
from rlplan.plan import TaskPlan
from rlplan.planner.exact.generation.options import Replicas, UnpricedMove, cut_of
from rlplan.planner.layouts.layout_space import LayoutSpace
from rlplan.planner.layouts.role_options import WeightSharding
from rlplan.rules.transition import transitions
from rlplan.simulator.costs.syncs.transition import least_sync_seconds, transition_cost
from rlplan.simulator.memory.transition_memory import bucket_terms, train_shard_bytes
from rlplan.simulator.placed.plan import PlacedTransition
from rlplan.simulator.placed.site import Site
from rlplan.simulator.placed.task import PlacedTask
from rlplan.transfers import TRANSFERS, TWO_COPIES, TransitionName

ACTOR = "actor"


class WeightMoves:
    """List the transitions that bring weights to layouts of generation.

    Args:
        transition: The only one where it serves, on one pool or between two, if the user pinned it; else
            the job's framework says it.

    Attributes:
        transition: The only one on one pool; None tries all that are nobody's own.
        copied: How weights get to a copy on another pool.
    """

    def __init__(self, space: LayoutSpace, transition: TransitionName | None = None) -> None:
        self.space, sync = space, space.job.weight_sync
        self.transition: TransitionName | None = sync.shared_pool
        self.copied: TransitionName = sync.between_pools or TWO_COPIES
        if transition is not None and TRANSFERS.load(transition).on_one_pool:
            self.transition = transition
        if transition is not None and TRANSFERS.load(transition).between_pools:
            self.copied = transition
        self._updates: dict[tuple[WeightSharding, Site], PlacedTask] = {}
        self._shards: dict[tuple[WeightSharding, Site], int] = {}
        self._copies: dict[Hashable, PlacedTask] = {}
        self._transitions: dict[tuple[int, ...], tuple[TransitionName, ...]] = {}

    def bringing(
        self, sharding: WeightSharding, layout: TaskPlan, site: Site
    ) -> list[UnpricedMove]:
        """Return the ways from a sharding on a site to a layout there, with what they hold."""
        trained = self._trained(sharding, site)
        train = trained.layout
        cuts = (train.tp, train.pp, layout.tp, layout.pp)
        if cuts not in self._transitions:  # found by looking into a folder
            named = () if self.transition is None else (self.transition,)
            self._transitions[cuts] = transitions(train, layout, named)
        names = self._transitions[cuts]
        if self.transition is not None:
            names = tuple(name for name in names if name == self.transition)
        placed = self._generating(layout, site)
        every = (PlacedTransition(name, trained, placed, same_pool=True) for name in names)
        return [UnpricedMove.of(each) for each in every]

    def sync_seconds(self, generate: TaskPlan, train_site: Site, site: Site) -> float:
        """Return the seconds of bringing weights to a copy on another pool; by a method, the least of any cut."""
        transition = self._copying(generate, train_site, site)
        if transition.sheet.method is not None:
            return least_sync_seconds(transition).seconds
        return transition_cost(transition).total.seconds

    def copied_peak_bytes(self, replicas: Replicas) -> int:
        """Return what a copy on a pool of its own takes of each GPU when weights come."""
        moved = self._copying(replicas.layout, replicas.site, replicas.site)
        buckets = bucket_terms(moved).values() if moved.streams else ()
        return replicas.weight_bytes + sum(buckets)

    def _trained(self, sharding: WeightSharding, site: Site) -> PlacedTask:
        """Return the update that leaves weights in a sharding on a site."""
        key = (sharding, site)
        if key not in self._updates:
            layout = TaskPlan(
                pool="",
                engine=self.space.engine_of(self._update),
                tp=sharding.tp,
                pp=sharding.pp,
                cp=sharding.cp,
                ep=sharding.ep,
                expert_tp=sharding.expert_tp or None,
                dp=site.gpus // (sharding.tp * sharding.pp * sharding.cp),
                zero=sharding.sharded,
                offload=sharding.away,
            )
            self._updates[key] = PlacedTask(
                self._update, layout, site, self.space.job, self.space.facts
            )
        return self._updates[key]

    def trained_bytes(self, sharding: WeightSharding, site: Site) -> int:
        """Return the weights of a GPU's shard in training, in bytes."""
        key = (sharding, site)
        if key not in self._shards:
            self._shards[key] = train_shard_bytes(self._trained(sharding, site))
        return self._shards[key]

    def _generating(self, layout: TaskPlan, site: Site) -> PlacedTask:
        """Return a generating task in a layout's cut on a site: it knows its weights for all transitions."""
        key = (cut_of(layout), site)
        if key not in self._copies:
            self._copies[key] = self._placed(layout, site)
        return self._copies[key]

    @cached_property
    def _update(self) -> Task:
        """Return the task whose weights generate."""
        tasks = self.space.tasks
        return next(task for task in tasks if task.kind == "train" and task.role == ACTOR)

    def _copying(self, generate: TaskPlan, train_site: Site, site: Site) -> PlacedTransition:
        """Return how weights come to a copy from where they train uncut."""
        train = TaskPlan(pool="", engine=self.space.engine_of(self._update))
        trained = PlacedTask(self._update, train, train_site, self.space.job, self.space.facts)
        return PlacedTransition(self.copied, trained, self._placed(generate, site), same_pool=False)

    def _placed(self, layout: TaskPlan, site: Site) -> PlacedTask:
        space = self.space
        return PlacedTask(space.generate_task(), layout, site, space.job, space.facts)
