"""A plan (device mapping): which GPUs every task runs on, in what layout. The file `plan.yaml`.

The simulator plays a plan in simulated time, the executor carries it out; both answer with a
`rlplan.trace.Trace`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, make_dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import AtLeastOne, Fraction, Updates
from rlplan.job import Job, NodeGroup, Role
from rlplan.layout import ModelCut
from rlplan.transfers import TransitionName
from rlplan.transports import DEFAULT_TRANSPORT, TransportName
from rlplan.units import MIB

PLAN_VERSION = 1
HOST_DEVICE = "host"
# What people call the actor on a pool where it only generates.
GENERATION_ROLE: Final = "generation"
# A call to a worker takes about a millisecond, and this much crosses a link of 10 GB/s in seven; three
# of them fit into the object store of a run.
BUCKET_BYTES = 64 * MIB

# A plan's file that gives these fields of all tasks leaves nothing to choose: other fields take their defaults.
WHOLE_LAYOUT = ("pool", "tp", "pp", "dp", "engine")

Recompute = Literal[
    "none", "attention", "selective", "alternate", "full", "full-offload", "experts"
]
Mode = Literal["sync", "streaming", "one-step-off", "async"]
InFlight = Literal["drain", "keep", "recompute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Say how generation and training follow each other: all in which modes differ.

    Attributes:
        ahead: Batches that generation may be ahead of training. None: it never stops, and is ahead as far as the plan's
            staleness lets it; what becomes of responses under way when weights come is the plan's `in_flight`.
        by_sample: Whether samples are handed on as they end; else whole batches are.
    """

    ahead: int | None
    by_sample: bool

    @property
    def overlaps(self) -> bool:
        """Tell whether training and generation are at work at the same time."""
        return self.by_sample or self.ahead != 0

    @property
    def is_endless(self) -> bool:
        """Tell whether generation never stops for training."""
        return self.ahead is None

    @property
    def is_batch_ahead(self) -> bool:
        """Tell whether the next whole batch is generated while this one trains, with weights that are one update old."""
        return not self.by_sample and self.ahead == 1

    @property
    def usual_staleness(self) -> int:
        """Return the staleness of a plan that does not give it, in updates."""
        return 1 if self.ahead is None else self.ahead


FLOWS: Final[Mapping[Mode, Flow]] = {
    "sync": Flow(ahead=0, by_sample=False),
    "streaming": Flow(ahead=0, by_sample=True),
    "one-step-off": Flow(ahead=1, by_sample=False),
    "async": Flow(ahead=None, by_sample=True),
}


def batch_mode(ahead: int) -> Mode:
    """Return the mode that hands on whole batches, generated so many ahead."""
    return _mode_of(Flow(ahead=ahead, by_sample=False))


def _mode_of(wanted: Flow) -> Mode:
    return next(mode for mode, flow in FLOWS.items() if flow == wanted)


USUAL_MODE: Final = batch_mode(0)
BATCH_AHEAD_MODE: Final = batch_mode(1)
BY_SAMPLE_MODE: Final = _mode_of(Flow(ahead=0, by_sample=True))
ENDLESS_MODE: Final = _mode_of(Flow(ahead=None, by_sample=True))
WHOLE_BATCH_MODES: Final = tuple(mode for mode, flow in FLOWS.items() if not flow.by_sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePool:
    """Hold a set of GPUs and the colocated roles that share it by turns.

    Attributes:
        device: Device sheet of all its GPUs; `host` for a pool of CPU cores that runs reward
            functions, whose `gpus` then counts worker processes.
        gpus: GPUs of the pool. Pools take GPUs of the cluster one after another, in the order in
            which the plan lists them, node by node.
        roles: The colocated set.
    """

    name: str
    device: str
    gpus: AtLeastOne
    roles: tuple[Role, ...]

    @property
    def is_host(self) -> bool:
        """Tell whether the pool is made of CPU worker processes for reward functions."""
        return self.device == HOST_DEVICE


# Marks a field of a layout that is no column of searches: where a task runs, or a setting of generation only.
NO_COLUMN: Final = MappingProxyType({"column": False})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """Say how one task runs on its pool: tp * pp * dp * cp = the pool's GPUs.

    These fields are the only list of what a layout is: drafts have the same fields, optional (`TaskDraft`), and searches
    have them as columns (`rlplan.simulator.placed`).

    Attributes:
        tp: Tensor-parallel size.
        pp: Pipeline-parallel size.
        dp: Data-parallel size (for generation: the replicas of the engine).
        cp: Context-parallel size.
        ep: Expert-parallel size: the number of the tp * dp * cp ranks of a stage that experts are split over.
        expert_tp: Ranks that each expert's width is cut over; None is tp.
        first_stage_layers: Layers of the first pipeline stage; None shares layers out evenly.
        last_stage_layers: Layers of the last pipeline stage; None shares layers out evenly.
        engine: Engine sheet's name.
        micro_batch: Sequences of one micro-batch on one data-parallel rank (infer, train).
        token_budget: Most tokens of a micro-batch on one data-parallel rank, with its context-parallel ranks; sequences
            are packed up to it. None counts sequences: `micro_batch`.
        chunks: Chunks of layers of each pipeline stage, which interleave its schedule (train).
        recompute: What the backward pass recomputes (train); `alternate`: every other layer; `full-offload`: all layers,
            with their inputs kept in host memory; `experts`: as `selective`, and the layers' experts; `attention`: the core of
            attention alone, by whichever kernel.
        zero: ZeRO stage over the data-parallel ranks (train; 3 is fully sharded).
        shard_ranks: Ranks of each group that shards states among itself, where groups hold copies
            (hybrid sharding); None is all dp * cp.
        offload: Whether weights (infer) or optimizer states (train) live in host memory between uses.
        max_running: Limit on the running sequences of one replica (generate).
        memory_fraction: Share of the device that a generation engine may fill, weights included.
    """

    pool: str = field(metadata=NO_COLUMN)
    tp: AtLeastOne = 1
    pp: AtLeastOne = 1
    dp: AtLeastOne = 1
    cp: AtLeastOne = 1
    ep: AtLeastOne = 1
    expert_tp: AtLeastOne | None = None
    first_stage_layers: AtLeastOne | None = None
    last_stage_layers: AtLeastOne | None = None
    engine: str = field(default="", metadata=NO_COLUMN)
    micro_batch: AtLeastOne = 1
    token_budget: AtLeastOne | None = None
    chunks: AtLeastOne = 1
    recompute: Recompute = "none"
    zero: Literal[0, 1, 2, 3] = 0
    shard_ranks: AtLeastOne | None = None
    offload: bool = False
    max_running: AtLeastOne = field(default=256, metadata=NO_COLUMN)
    memory_fraction: Fraction = field(default=0.9, metadata=NO_COLUMN)

    @property
    def gpus(self) -> int:
        """Return the GPUs that the layout covers."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def is_fully_sharded(self) -> bool:
        """Tell whether a train task shards its weights over the data-parallel ranks too."""
        return self.zero > 1 and self.dp * self.cp > 1

    @property
    def meets_in_passes(self) -> bool:
        """Tell whether ranks gather weights or exchange tokens in every pass, so that each rank needs a part of every batch."""
        return self.is_fully_sharded or self.ep > 1

    def share_rows(self, samples_per_prompt: int) -> int:
        """Return the rows of a share of a batch: a micro-batch for every data-parallel rank, in whole prompts."""
        return self.dp * -(-self.micro_batch // samples_per_prompt) * samples_per_prompt

    @property
    def cut(self) -> ModelCut:
        """Return how the layout cuts a model's weights."""
        return ModelCut(
            tp=self.tp,
            pp=self.pp,
            ep=self.ep,
            expert_tp=self.expert_tp or 0,
            first_layers=self.first_stage_layers or 0,
            last_layers=self.last_stage_layers or 0,
        )

    @property
    def expert_ranks(self) -> int:
        """Return the ranks that a stage's experts are split over, by number and by width."""
        return self.ep * (self.expert_tp or self.tp)


LAYOUT_FIELDS: Final = fields(TaskPlan)
# Fields whose product is the GPUs that a layout covers (`TaskPlan.gpus`).
SIZES: Final = ("tp", "pp", "dp", "cp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lending:
    """Say how idle GPUs of the training pool or of the generating pool work for the other (modes that hand samples on one by one).

    To generation: after a weight sync, replicas on the training pool join generation, unless enough samples are ready, and
    the GPUs go back to training once enough are. To training: replicas that have no response under way, and may begin none
    before new weights come, compute gradients as additional data-parallel ranks of the update's layout.

    Attributes:
        to: The side that idle GPUs work for.
        policy: `threshold` keeps `until` constant; `adaptive` raises it after intervals in which training waited for samples
            all the same, and lowers it after others.
        until: Ready samples at which GPUs go back to training, as a share of the samples between two weight syncs.
        tp: Tensor-parallel size of replicas on the training pool; None is that of the generate task.
        pp: Pipeline-parallel size, likewise.
        memory_fraction: Share of each GPU of the training pool that they may fill; None is the generate task's.
        transition: Transition of their weights; None takes the job's on a shared pool, else the usual one.
    """

    to: tuple[Literal["generation", "training"], ...] = ("generation",)
    policy: Literal["threshold", "adaptive"] = "threshold"
    until: Fraction = 0.5
    tp: AtLeastOne | None = None
    pp: AtLeastOne | None = None
    memory_fraction: Fraction | None = None
    transition: TransitionName | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Hold a complete device mapping with the (resolved) job that it is for.

    Attributes:
        tasks: Layout by task name, such as `actor.generate`.
        order: By pool, task names in the order in which they get the pool when several wait.
        transition: Transition of the actor's weights from the train to the generate layout.
        mode: How iterations follow each other. `sync`: one after another. The other modes generate on a separate pool:
            `streaming` hands responses on as they end and syncs weights after each iteration; `one-step-off`
            generates a whole batch while the previous one is learnt from; `async` never stops generating, within the
            bound of `staleness`.
        staleness: Bound, in iterations, on how old the weights that began a response may be when it is learnt from (0
            when synchronous); responses are begun only if they will keep it.
        sync_every: Iterations between two syncs of weights (mode async; verl's `trigger_parameter_sync_step`).
        in_flight: Responses under way when new weights come (mode async): `drain` ends them first, `keep` continues them
            on their KV cache, `recompute` prefills them again.
        lending: How idle GPUs of one side work for the other; None without lending.
        transport: Transport of the weights where generation has a separate pool.
        bucket_bytes: Weights that are under way to a GPU at a time in a transition; None takes those of a framework's method,
            and 64 MiB where none moves them.
        made_by: What wrote the plan (a searcher, a baseline, a person), for reports.
    """

    version: Literal[1] = 1
    job: Job
    pools: tuple[ResourcePool, ...]
    tasks: FrozenDict[str, TaskPlan]
    order: FrozenDict[str, tuple[str, ...]]
    mode: Mode = USUAL_MODE
    transition: TransitionName = "hybridflow"
    staleness: Updates = 0
    sync_every: AtLeastOne = 1
    in_flight: InFlight = "drain"
    lending: Lending | None = None
    transport: TransportName = DEFAULT_TRANSPORT
    bucket_bytes: AtLeastOne | None = None
    made_by: str = "hand"

    @property
    def flow(self) -> Flow:
        """Return how generation and training follow each other."""
        return FLOWS[self.mode]

    @property
    def staleness_fraction(self) -> float:
        """Return the staleness as verl counts it: batches begun ahead, as a share of those between two syncs."""
        return (self.staleness - (self.sync_every - 1)) / self.sync_every

    @property
    def ends_generation_early(self) -> bool:
        """Tell whether generation ends, and drops the rest, once as many responses have ended as an iteration learns from."""
        return self.job.workload.drops_responses and not self.flow.by_sample

    @property
    def learns_in_order(self) -> bool:
        """Tell whether a streamed iteration learns from its own batch, in the order of its prompts, and from all of it.

        Other streamed ones learn from what ends first.
        """
        streams = self.flow.by_sample and not self.flow.is_endless
        return streams and not self.job.workload.drops_responses

    def pool(self, name: str) -> ResourcePool:
        """Return the pool of that name."""
        return next(pool for pool in self.pools if pool.name == name)

    def pool_of(self, task: str) -> ResourcePool:
        """Return the pool on which a task runs."""
        return self.pool(self.tasks[task].pool)

    def with_layout(self, task: str, layout: TaskPlan) -> "Plan":
        """Return the plan with another layout of one task."""
        return replace(self, tasks=self.tasks.with_item(task, layout))

    def shown_roles(self, pool: ResourcePool) -> tuple[str, ...]:
        """Return a pool's roles for people: an actor that only generates there is `generation`."""
        update, generate = self.tasks.get("actor.update"), self.tasks.get("actor.generate")
        copied = update is not None and generate is not None and update.pool != generate.pool
        if not copied or generate is None or generate.pool != pool.name:
            return pool.roles
        return tuple(GENERATION_ROLE if role == "actor" else role for role in pool.roles)

    @property
    def placement(self) -> str:
        """Return the colocated sets for people, such as `{actor, reference} {critic, reward}`."""
        sets = (
            "{" + ", ".join(self.shown_roles(pool)) + "}" for pool in self.pools if not pool.is_host
        )
        return " ".join(sets)


if TYPE_CHECKING:

    class TaskDraft:
        """Hold the part of a task's layout that the user fixed; None is for the planner to choose."""

        __dataclass_fields__: ClassVar[dict[str, Any]]

        def __init__(self, **fixed: object) -> None: ...

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- of each field's own type
            """Return what is fixed of a field of `TaskPlan`."""

else:
    TaskDraft = make_dataclass(
        "TaskDraft",
        [(each.name, each.type | None, None) for each in LAYOUT_FIELDS],
        namespace={
            "__module__": __name__,
            "__doc__": "Hold the part of a task's layout that the user fixed; None is for the planner to choose.",
        },
        frozen=True,
        slots=True,
        kw_only=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDraft:
    """Hold the part of a pool that the user fixed; None is for the planner to choose.

    Attributes:
        roles: The whole colocated set; `generation` is the actor where it only generates.
    """

    name: str | None = None
    device: str | None = None
    gpus: AtLeastOne | None = None
    roles: tuple[Role | Literal["generation"], ...]

    @property
    def models(self) -> tuple[Role, ...]:
        """Return the roles whose models the pool holds: what generates is an actor."""
        models: list[Role] = ["actor" if role == GENERATION_ROLE else role for role in self.roles]
        return tuple(dict.fromkeys(models))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDraft:
    """Hold a plan as a user writes it: what is missing is chosen by the planner and written out.

    Attributes:
        job: The job, or the path of its file, relative to the plan's.
        pools: Those that are fixed; roles of none of them are placed by the planner.
        mode: None takes synchronous iterations, or what a search finds better where it may.
        staleness: None takes the mode's own: 0 for sync and streaming, 1 for one-step-off; in mode async the
            planner chooses within the job's specs.
    """

    version: Literal[1] = 1
    job: Job | str
    pools: tuple[PoolDraft, ...] = ()
    tasks: FrozenDict[str, TaskDraft] = field(default_factory=FrozenDict)
    order: FrozenDict[str, tuple[str, ...]] = field(default_factory=FrozenDict)
    mode: Mode | None = None
    transition: TransitionName | None = None
    staleness: Updates | None = None
    sync_every: AtLeastOne | None = None
    in_flight: InFlight | None = None
    lending: Lending | None = None
    transport: TransportName = DEFAULT_TRANSPORT
    bucket_bytes: AtLeastOne | None = None
    made_by: str = "hand"


def first_gpus(plan: Plan) -> Iterator[tuple[ResourcePool, int]]:
    """Yield each pool with the place of its first GPU among all of its device.

    Pools take the GPUs of the node groups that have their device, one pool after another in the
    plan's order, node by node.
    """
    taken: Counter[str] = Counter()
    for pool in plan.pools:
        yield pool, taken[pool.device]
        taken[pool.device] += pool.gpus


def pieces_at(job: Job, device: str, first: int, gpus: int) -> list[tuple[NodeGroup, int]]:
    """Return the pool's share of every node, or domain of nodes on one link, that it touches."""
    pieces: list[tuple[NodeGroup, int]] = []
    position, end = 0, first + gpus
    for group in (group for group in job.cluster if group.gpu == device):
        low, high = max(first, position), min(end, position + group.gpus)
        at = low
        while at < high:
            link_end = position + ((at - position) // group.linked_gpus + 1) * group.linked_gpus
            size = min(link_end, high) - at
            pieces.append((group, size))
            at += size
        position += group.gpus
    return pieces
