"""The setting in which operators run: device, links, shards, and what the engine's and the trainer's options change of them."""

from dataclasses import dataclass, replace
from typing import TypeVar

from rlplan.dispatchers import DEFAULT_DISPATCHER
from rlplan.errors import MissingFactError
from rlplan.estimate import ZERO, Estimate, Source
from rlplan.models import (
    SCALE_BYTES,
    WIDE,
    Adapter,
    CollectiveKind,
    Precision,
    Shard,
    quantises_inputs,
)
from rlplan.plan import TaskPlan
from rlplan.profiles.facts import DeviceFacts
from rlplan.rules.layouts import FULLY_SHARDED
from rlplan.sheets import USUAL_KERNELS, BiasBytes, EngineSheet, ExpertLoop, KernelRates
from rlplan.simulator.columns import Ints
from rlplan.simulator.model import shard_of
from rlplan.simulator.placed import PlacedTask, Site
from rlplan.trainers import USUAL_TRAINER, Captured


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Hold everything beside the model and the batch that decides what an operator takes.

    Attributes:
        site: Its GPUs are those of a node, or more where whether the pool spans nodes matters.
        pp: Pipeline stages; with tp and cp they decide which groups cross nodes.
        launches_hidden: Whether the host's kernel launches never hold up the device.
        layer_launch_seconds: Time of the device's host to launch a layer's forward pass (see `EngineSheet`).
        expert_layer_launch_seconds: The same of a layer of experts; 0 is that of any other.
        context_launch_seconds: Time of the host to launch a layer's attention for each part that context-parallel ranks hand round.
        rope_seconds: Time of the host to launch what rotates one sequence of a layer, which the device waits for.
        launches_hide: Whether the host launches on while ranks exchange.
        kernels: How the engine's kernels differ from the device's facts.
        splits_sends: Whether tensor-parallel ranks each send a share of the activations.
        stages_outermost: Whether each pipeline stage is on consecutive ranks (see `EngineSheet`).
        adapter: What is trained in place of the model's own weights, which are frozen.
        casts: Whether kernels of their own quantise the inputs of a layer's products.
        cache_value_bytes: Bytes of one value in the KV cache; 0 is those of `precision`.
        expert_loop: Costs of computing experts one after another; None where they are computed together.
        dispatcher: How tokens reach experts on other ranks (`rlplan/dispatchers/`).
        hidden_exchange: Share of the exchange of tokens between experts that hides behind computing.
        graphs: What of a step is captured in CUDA graphs (`rlplan.trainers.Captured`).
        overlaps_products: Whether tensor-parallel ranks exchange in parts beside the products of these tensors.
        exchange_messages: Messages of a few bytes beside each exchange of rows for experts (see `EngineSheet`).
        router_share: Share of the launches of a layer's experts which a graph of what stands before them saves.
        fuses_casts: Whether experts' inputs are quantised by the kernels before them.
        expert_biases: What moves for experts' biases; None where their products add them.
        unit_seconds: Host's seconds for one matrix of adapters that is gathered by itself, forwards and backwards.
        layer_seconds: Host's seconds to gather and free a layer, forwards and backwards.
    """

    device: DeviceFacts
    site: Site
    precision: Precision
    shard: Shard
    pp: int = 1
    fused_attention: bool = True
    launches_hidden: bool = True
    layer_launch_seconds: float = 0.0
    expert_layer_launch_seconds: float = 0.0
    context_launch_seconds: float = 0.0
    rope_seconds: float = 0.0
    launches_hide: bool = True
    kernels: KernelRates = USUAL_KERNELS
    splits_sends: bool = False
    stages_outermost: bool = False
    adapter: Adapter | None = None
    casts: bool = False
    cache_value_bytes: int = 0
    expert_loop: ExpertLoop | None = None
    dispatcher: str = DEFAULT_DISPATCHER
    hidden_exchange: float = 0.0
    graphs: tuple[Captured, ...] = ()
    overlaps_products: bool = False
    exchange_messages: float = 0.0
    router_share: float = 0.0
    fuses_casts: bool = False
    expert_biases: BiasBytes | None = None
    unit_seconds: tuple[float, float] = (0.0, 0.0)
    layer_seconds: tuple[float, float] = (0.0, 0.0)

    @property
    def block_stages(self) -> int:
        """Return the stages that lie between a rank and the next one of its context-parallel group."""
        return 1 if self.stages_outermost else self.pp

    def collective(
        self,
        kind: CollectiveKind,
        num_bytes: float,
        ranks: int,
        stride: int = 1,
        *,
        per_node: int | None = None,
    ) -> Estimate:
        """Return seconds of a collective among ranks.

        Args:
            stride: How many ranks apart they are.
            per_node: How many of them share a node, where one stride does not say it.
        """
        if ranks == 1 or num_bytes == 0:
            return ZERO
        if per_node is None:
            per_node = self.site.ranks_per_node(ranks, stride)
        network = self.site.inter_node_bytes_per_second * self.kernels.network_rate
        return self.device.collective(
            kind,
            num_bytes,
            ranks,
            ranks_per_node=per_node,
            inter_node_bytes_per_second=network,
            network=self.site.network,
        )

    def send(self, num_bytes: float) -> Estimate:
        """Return seconds of handing activations to the next pipeline stage.

        The slowest boundary decides: where a block of tp * pp ranks exceeds a node, some stages
        talk across nodes; outermost stages do wherever the pool exceeds a node.
        """
        if self.pp == 1:
            return ZERO
        if self.kernels.send_bytes_per_second:
            return Estimate(num_bytes / self.kernels.send_bytes_per_second, 0.0, Source.FITTED)
        crosses = self.shard.tp * self.pp > self.site.gpus_per_node
        if self.stages_outermost:
            crosses = self.site.spans_nodes
        return self.collective("send_recv", num_bytes, 2, per_node=1 if crosses else 2)


def setting_of(placed: PlacedTask) -> Setting:
    """Return the setting in which a task's operators run."""
    sizes = (placed.layout, placed.engine, placed.device, placed.site, placed.precision)
    kept = placed.cache_value_bytes if placed.task.kind == "generate" else 0
    setting = setting_on(*sizes, adapter=placed.adapter, cache_value_bytes=kept)
    if placed.task.kind != "generate":
        setting = _as_trained(setting, placed)
        own = _layer_seconds(placed)
        setting = replace(setting, layer_seconds=own) if any(own) else setting
    if placed.expert_loop is None or placed.computed_model is not placed.model:
        return setting  # no loop, or all experts at once
    return replace(setting, expert_loop=placed.expert_loop)


def _as_trained(setting: Setting, placed: PlacedTask) -> Setting:
    """Return a setting with what a role's trainer says of exchanges of experts and of CUDA graphs.

    Graphs, and the overlap of one micro-batch with another, are of training: passes without gradients have neither.

    Raises:
        MissingFactError: Exchanges overlap, and the engine's sheet does not say how much of them hides.
    """
    options, engine = placed.options, placed.engine
    if options == USUAL_TRAINER:
        return setting
    hidden = engine.exchange_overlap_fraction
    if options.overlaps_exchange and hidden is None:
        said = f"as trainers.{placed.task.role}.overlaps_exchange says"
        raise MissingFactError(f"{engine.name} knows of no exchanges of experts that hide, {said}")
    return replace(
        setting,
        shard=replace(
            setting.shard,
            popularity_spread=options.popularity_spread,
            experts_in_turn=options.experts_in_turn,
        ),
        dispatcher=options.dispatcher or engine.dispatcher,
        hidden_exchange=(hidden or 0.0) if options.overlaps_exchange and placed.trains else 0.0,
        overlaps_products=options.overlaps_products and placed.trains,
        unit_seconds=_unit_seconds(placed),
        graphs=options.graphs if placed.trains else (),
    )


def _unit_seconds(placed: PlacedTask) -> tuple[float, float]:
    """Return the host's seconds for a matrix of adapters forwards and backwards; nothing where it goes with its layer."""
    if not placed.options.adapters_apart or placed.layout.zero < FULLY_SHARDED:
        return 0.0, 0.0
    return placed.engine.adapter_gather_seconds, placed.engine.adapter_reduce_seconds


def _layer_seconds(placed: PlacedTask) -> tuple[float, float]:
    """Return the host's seconds to gather a layer forwards and backwards; those of adapters apart hold their layer's."""
    if placed.options.adapters_apart or placed.layout.zero < FULLY_SHARDED:
        return 0.0, 0.0
    return placed.engine.unit_gather_seconds, placed.engine.unit_reduce_seconds


def setting_on(
    layout: TaskPlan,
    engine: EngineSheet,
    device: DeviceFacts,
    site: Site,
    precision: Precision,
    *,
    adapter: Adapter | None = None,
    cache_value_bytes: int = 0,
) -> Setting:
    """Return the setting in which operators run.

    It leaves out what decides no operator's time (the pool's size, dp), so that layouts share
    what is remembered of their layers.
    """
    outermost, per_node = engine.stages_outermost and layout.pp > 1, site.gpus_per_node
    gpus = 2 * per_node if outermost and site.spans_nodes else per_node
    narrow, host_times = quantises_inputs(precision), device.sheet.host_times
    slower = engine.narrow_launch_factor * host_times if narrow else host_times
    launches_experts = engine.expert_launch_seconds_on(host_times, precision, narrow=narrow)
    if engine.narrow_products:
        precision = WIDE[precision]  # its rates are those of products in fp8 already
    return Setting(
        device=device,
        site=Site(site.device, gpus, per_node, site.inter_node_bytes_per_second, site.network),
        precision=precision,
        shard=shard_of(layout, precision, engine),
        pp=layout.pp,
        fused_attention=engine.fused_attention,
        launches_hidden=engine.launches_hidden,
        layer_launch_seconds=engine.launch_seconds_on(device.sheet) * slower,
        expert_layer_launch_seconds=launches_experts,
        context_launch_seconds=engine.context_launch_seconds * slower,
        rope_seconds=engine.rope_kernels * device.sheet.launch_seconds * host_times,
        launches_hide=engine.launches_hide,
        kernels=engine.kernels_of(device.sheet),
        splits_sends=engine.splits_sends,
        stages_outermost=outermost,
        adapter=adapter,
        casts=precision in SCALE_BYTES and engine.role == "train",
        cache_value_bytes=cache_value_bytes,
        dispatcher=engine.dispatcher,
        exchange_messages=engine.exchange_messages,
        router_share=engine.router_launch_share,
        fuses_casts=engine.fuses_expert_casts,
        expert_biases=engine.expert_biases,
    )


Number = TypeVar("Number", int, Ints)  # one, or one for each layout


def in_fewest_stages(setting: Setting) -> Setting:
    """Return the setting of fewest stages in which one layer's operators take the same."""
    shard = setting.shard
    stages = 1
    if shard.cp * shard.ep > 1 and not setting.stages_outermost:
        stages = min(setting.pp, stages_apart(shard.tp, setting.site.gpus_per_node))
    return setting if stages == setting.pp else replace(setting, pp=stages)


def stages_apart(tp: Number, gpus_per_node: int) -> Number:
    """Return stages from which on blocks of them leave no two ranks of a group beyond TP in a node."""
    return -(-gpus_per_node // tp)
