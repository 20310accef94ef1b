"""Sheets: what is known of devices and engines, as files say it."""

import math
from dataclasses import dataclass
from typing import Literal

from rlplan.all_reduces import AllReduces
from rlplan.attention_kernels import AttentionTiles, LatentKernels, PromptAttention, SparseKernels
from rlplan.dispatchers import DEFAULT_DISPATCHER, DispatcherName
from rlplan.expert_kernels import ExpertKernels
from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import AtLeastOne, NonNegative, NonNegativeInt, Positive, Share
from rlplan.models import (
    ContextExchange,
    LayerKernels,
    ModelArchitecture,
    Precision,
    TrainingPrecision,
)
from rlplan.state_pools import StatePool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSheet:
    """Hold a device's datasheet, SI inside; every field's origin stands in `sources`.

    Attributes:
        peak_flops_per_second: Dense peak rate by precision.
        memory_bytes: What the device has; `reserved_bytes` of it belong to context and drivers.
        intra_node_bytes_per_second: Link to the devices of the same node, one direction, per GPU.
        host_bytes_per_second: Link to host memory, one direction.
        launch_seconds: Host time to launch one kernel (or to dispatch one operation on CPU).
        architecture: Family whose fitted efficiencies apply ("ampere", "hopper", "ada", "cpu").
        multiprocessors: Units that each work on one tile of an operation at a time.
        gpus_per_node: The usual node; the figures of a node below are of one with so many.
        nvlink_domain_gpus: GPUs, of several nodes, that the intra-node link connects; None where it ends at the node.
        extends_host: Whether its memory is a node of its host's too, in which the host's allocations may come to lie; None where
            nobody says so.
        inter_node_gbps: Network of the usual node, all its cards together, one direction.
        cpu_cores: Host cores of the usual node.
        host_memory_bytes: Memory of the usual node's host.
        host_factor: How many times as long the usual node's host takes to dispatch an operation as hosts of
            H100 nodes, which constants of software are of; None where nobody says it: as long.
        stages_spread: Least relative spread of frameworks' stages on it where no site was calibrated, one sigma: nobody has laid
            steps on it beside forecasts, or they were that far off. None where it is as elsewhere.
        aliases: Other names that users type for it, in small letters.
    """

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    kind: Literal["gpu", "cpu"]
    architecture: str
    multiprocessors: AtLeastOne = 1
    peak_flops_per_second: FrozenDict[Precision, Positive]
    memory_bytes: AtLeastOne
    reserved_bytes: NonNegativeInt = 0
    memory_bytes_per_second: Positive
    intra_node: str
    intra_node_bytes_per_second: Positive
    intra_node_latency_seconds: NonNegative
    inter_node_latency_seconds: NonNegative
    host_bytes_per_second: Positive
    launch_seconds: NonNegative
    gpus_per_node: AtLeastOne
    nvlink_domain_gpus: AtLeastOne | None = None
    extends_host: bool | None = None
    inter_node_gbps: Positive
    cpu_cores: AtLeastOne
    host_memory_bytes: AtLeastOne
    host_factor: Positive | None = None
    stages_spread: NonNegative | None = None
    power_watts: Positive
    idle_watts: NonNegative
    usd_per_hour: NonNegative
    default_precision: TrainingPrecision = "bf16"
    sources: FrozenDict[str, str]

    @property
    def shares_host_memory(self) -> bool:
        """Tell whether its memory is the host's: nothing that moves there leaves it."""
        return self.kind == "cpu"

    @property
    def host_times(self) -> float:
        """Return how many times as long dispatching takes as on hosts of H100 nodes."""
        return self.host_factor or 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRates:
    """Say how an engine's kernels differ from those that the device's facts are of; 1 is not at all.

    Attributes:
        gemm_rate: Rate of matrix products over the device's.
        grouped_rate: The same for products of experts, beside `gemm_rate`.
        grouped_compute_rate: Rate of their computing alone, which reading weights may hide.
        attention_rate: Rate of a fused attention's forward kernel over the device's.
        attention_backward_rate: The same for the backward kernel.
        attention_half_tokens: Keys of a query at which both kernels reach half of these rates; the rates themselves
            hold for the longest sequences. Short rows lose more to whole tiles on the diagonal, and to filling and
            draining. 0: the rates hold for all lengths.
        score_bytes: Bytes that an unfused attention's softmax, mask and dropout move per score, the
            products' own traffic aside; 0 takes the roofline's few passes.
        elementwise_rate: Rate of norms, activations, residuals over the device's: below 1 where
            they are not fused as `simulator/model.py` lists them.
        permutation_rate: The same for bringing tokens to their experts and back, beside `elementwise_rate`: below 1
            where they are sorted again on the way, or added up by atomic operations.
        logits_rate: The same for the loss over the vocabulary.
        layer_gap_seconds: Time per layer and forward pass in which the device waits between
            kernels; the backward pass has as much for each of its two halves.
        accumulation_passes: Times that a micro-batch's backward pass reads or writes every weight's
            gradient to add it up; 0 where the products do so themselves.
        optimizer_rate: Rate of the optimizer step over the device's.
        softmax_fallback_seconds: Host time that a layer's pass takes longer where sequences times
            local heads is no multiple of 4, so that Megatron's fused softmax kernel refuses.
        odd_rate: Rate of matrix products with an odd row of 16-bit values over others': Ampere's
            asynchronous copies move 4 bytes or more.
        send_bytes_per_second: Rate at which a pipeline stage hands activations on, where the engine
            does not reach the device's; 0 is the device's.
        link_rate: Rate of a layer's exchanges inside a node over the device's; gradients and
            weights, which are larger, are exchanged at the device's.
        network_rate: Share that collectives across nodes reach of what the device's facts say.
        gradient_wire_bytes: Bytes of a gradient value that data-parallel ranks exchange; 0 takes those that it is accumulated in.
    """

    gemm_rate: Positive = 1.0
    grouped_rate: Positive = 1.0
    grouped_compute_rate: Positive = 1.0
    attention_rate: Positive = 1.0
    attention_backward_rate: Positive = 1.0
    attention_half_tokens: NonNegative = 0.0
    score_bytes: NonNegative = 0.0
    elementwise_rate: Positive = 1.0
    permutation_rate: Positive = 1.0
    logits_rate: Positive = 1.0
    layer_gap_seconds: NonNegative = 0.0
    accumulation_passes: NonNegative = 0.0
    optimizer_rate: Positive = 1.0
    softmax_fallback_seconds: NonNegative = 0.0
    odd_rate: Positive = 1.0
    send_bytes_per_second: NonNegative = 0.0
    link_rate: Positive = 1.0
    network_rate: Positive = 1.0
    gradient_wire_bytes: NonNegativeInt = 0


USUAL_KERNELS = KernelRates()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Say what the steps of a generation engine take beside its operators.

    Attributes:
        seconds_per_sequence: Host time for every running sequence, beside `step_seconds`.
        worker_seconds: Host time of passing a step on to the other processes of a replica that spans several GPUs.
        dispatch_seconds: Part of `step_seconds` in which the host dispatches operations one by one, beside a graph; it alone
            grows with a device's `host_factor`, since the rest is Python. None: all of it, and `worker_seconds`.
        host_spread: Relative spread (one sigma) of what the device waits for the host, beside `forecast_spread` of all:
            hosts and their versions of software differ.
        host_overlap: Whether the host prepares a step while the device computes the one before, so that a step takes the longer of both.
        overlap_gpus: Most GPUs of a replica whose steps are prepared so; 0 is any number.
        all_reduce_seconds: Time of a tensor-parallel all-reduce, or of an exchange between experts, of next
            to no bytes by the engine's own kernel; 0 takes the device's collectives as they are.
        all_reduces: What such all-reduces take by a device's architecture, whatever their bytes; on those not named, and in larger
            groups, `all_reduce_seconds` and the links' rate.
        fused_all_reduces: The same of all-reduces that go in one kernel with the norm behind them, up to the bytes that were measured.
        fuses_all_reduces_of: Families of models whose all-reduces do.
        captured_batches: Sequences of the graphs of steps that only decode, to the next of which a step is filled up; none: to its own.
        captured_tokens: Most tokens of a step for which CUDA graphs were captured; larger ones are launched
            layer by layer. 0 is no limit.
        prompt_launch_seconds: Host time of a layer with experts in a step with prompts, where graphs hold steps that only
            decode: its kernels are launched however few tokens it has; other layers have `layer_launch_seconds`. 0: such steps are
            as others.
        prompt_captured_tokens: Most tokens of a step with prompts for which graphs hold the pieces between attentions, by the kind of
            attention (`rlplan/parts/`); steps of models with layers of others, or with more tokens, are launched.
        prompt_mixer_seconds: What a layer takes more in such a step whose attention is of a kind (`rlplan/parts/`); nothing for others.
        sampling_bytes: Bytes that sampling and log-probabilities of the engine's answer move for every entry of the vocabulary and sequence, beside a softmax.
        launch_skew_seconds: Time that each all-reduce of a layer waits for the last of its ranks, for
            every doubling of their number, where steps are launched kernel by kernel.
        adapter_launch_seconds: Host time to launch a layer's kernels for adapters beside its own, where no graph holds them.
        norm_launch_seconds: Host time to launch the norm of all heads' queries, or keys, of a layer that has it, where no graph holds it.
        mixer_launch_seconds: Host time to launch what attention of a kind (`rlplan/parts/`) has in the place of another layer's, beside
            that, where no graph holds it; nothing for others.
        adapter_token_seconds: Device time of a sequence in each layer of a decode step by kernels that compute adapters token by
            token, whatever their rank; 0 where all tokens of an adapter are computed together.
        cast_bytes: Bytes that a kernel of its own moves for each input value of a product with narrow weights; 0 for none.
        cast_seconds: Device time that a product with weights in fp8 takes more by a device's architecture, but of experts: scales are packed.
        narrow_expert_times: Times as long as experts' products with weights in fp8 take by a device's architecture, where Triton computes them.
        triton_experts_of: Families of models whose experts it does on such a device; on those that are not named all kernels are alike.
        experts: How kernels in 16 bits compute experts, by a device's architecture; on those not named, tokens are brought to them.
        tuned_experts: Columns of the experts for which tiles are tuned, by device and by the experts that a rank has.
        beside_seconds: Device time of a layer's kernels beside those that are counted, by a device's architecture and the kind of
            its attention (`rlplan/parts/`); nothing for those not named.
        latent: What latent attention takes beside its products by a device's architecture; nothing on those not named.
        prompt_attention: How fast attention computes prompts by a device's architecture; as the device's on those not named.
        sparse: What latent attention takes to chosen tokens by a device's architecture; a roofline's seconds on those not named.
        tiles: How decode attention with grouped heads computes queries, by a device's architecture; on those not named, reading its
            cache is all that counts.
        cache_read_efficiency: Share of the memory's rate at which decode attention reads keys and values; 0 takes the device's attention as it is.
        narrow_cache_rates: Bytes a second that decode attention with grouped heads reads at most where keys and values
            have 8 bits, by a device's architecture and the size of a head; others are read as fast as 16 bits.
        narrow_cache_seconds: Time in each layer of a step of kernels that quantise what such a cache is read by and holds.
    """

    seconds_per_sequence: NonNegative = 0.0
    worker_seconds: NonNegative = 0.0
    dispatch_seconds: NonNegative | None = None
    host_spread: NonNegative = 0.0
    host_overlap: bool = False
    overlap_gpus: NonNegativeInt = 0
    all_reduce_seconds: NonNegative = 0.0
    all_reduces: FrozenDict[str, AllReduces] = FrozenDict()
    fused_all_reduces: FrozenDict[str, AllReduces] = FrozenDict()
    fuses_all_reduces_of: tuple[str, ...] = ()
    captured_batches: tuple[int, ...] = ()
    captured_tokens: NonNegativeInt = 0
    prompt_launch_seconds: NonNegative = 0.0
    prompt_captured_tokens: FrozenDict[str, NonNegativeInt] = FrozenDict()
    prompt_mixer_seconds: FrozenDict[str, NonNegative] = FrozenDict()
    sampling_bytes: NonNegative = 0.0
    launch_skew_seconds: NonNegative = 0.0
    adapter_launch_seconds: NonNegative = 0.0
    norm_launch_seconds: NonNegative = 0.0
    mixer_launch_seconds: FrozenDict[str, NonNegative] = FrozenDict()
    adapter_token_seconds: NonNegative = 0.0
    cast_bytes: NonNegative = 0.0
    cast_seconds: FrozenDict[str, NonNegative] = FrozenDict()
    narrow_expert_times: FrozenDict[str, Positive] = FrozenDict()
    triton_experts_of: tuple[str, ...] = ()
    experts: FrozenDict[str, ExpertKernels] = FrozenDict()
    tuned_experts: FrozenDict[str, FrozenDict[int, tuple[int, ...]]] = FrozenDict()
    beside_seconds: FrozenDict[str, FrozenDict[str, NonNegative]] = FrozenDict()
    latent: FrozenDict[str, LatentKernels] = FrozenDict()
    prompt_attention: FrozenDict[str, PromptAttention] = FrozenDict()
    sparse: FrozenDict[str, SparseKernels] = FrozenDict()
    cache_read_efficiency: NonNegative = 0.0
    tiles: FrozenDict[str, AttentionTiles] = FrozenDict()
    narrow_cache_rates: FrozenDict[str, FrozenDict[int, Positive]] = FrozenDict()
    narrow_cache_seconds: NonNegative = 0.0

    def filled(self, sequences: int) -> int:
        """Return the sequences for which a step that only decodes computes: those of the next graph that was captured."""
        return next((size for size in self.captured_batches if size >= sequences), sequences)

    def own_all_reduces(
        self, family: str, architecture: str, ranks: int, num_bytes: float
    ) -> AllReduces | None:
        """Return what its own all-reduces of a tensor take in a family of models; None where that was not measured for so many ranks."""
        table = self.all_reduces.get(architecture)
        fused = self.fused_all_reduces.get(architecture)
        if fused is not None and family in self.fuses_all_reduces_of:
            table = fused if fused.holds(ranks, num_bytes) else table
        return table if table is not None and ranks <= table.most_ranks else None

    def narrow_cache_rate(self, architecture: str, head_size: int) -> float:
        """Return the bytes a second that a cache in 8 bits is read at, at most: of the nearest size of a head."""
        rates = self.narrow_cache_rates.get(architecture)
        if not rates:
            return math.inf
        return rates[min(rates, key=lambda size: (abs(math.log(size / head_size)), size))]

    def tiled_cache_rate(
        self, device: DeviceSheet, value_bytes: int, *, mixed: bool = False
    ) -> float:
        """Return the bytes a second that decode attention's tiles take of a cache at most, in a step with prompts or without."""
        tiles = self.tiles.get(device.architecture)
        peak = device.peak_flops_per_second.get("bf16")
        if tiles is None or peak is None:
            return math.inf
        return tiles.cache_rate(peak, value_bytes, mixed=mixed)


USUAL_STEPS = StepCosts()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitTensors:
    """Say what one way of making log-probabilities and entropies holds of logits at its fullest moment.

    Attributes:
        infer_bytes: For every logit of a micro-batch on a GPU, in a pass without gradients.
        train_bytes: The same in a loss and its backward pass.
        chunk_tokens: Tokens whose logits it works on at a time, beside what it holds of all; 0 has no chunks.
        chunk_infer_bytes, chunk_train_bytes: What it holds for every logit of a chunk.
        of_responses: Whether it makes logits of responses alone, not of their prompts; counted in memory only.
        of_all_ranks: Whether it gathers those of all context-parallel ranks, so that each has logits of whole sequences;
            counted in memory only.
        forward_bytes, backward_bytes: What a loss that compares whole distributions reads and writes for every logit,
            beside the softmax of one of them.
    """

    infer_bytes: NonNegative
    train_bytes: NonNegative
    chunk_tokens: NonNegativeInt = 0
    chunk_infer_bytes: NonNegative = 0.0
    chunk_train_bytes: NonNegative = 0.0
    of_responses: bool = False
    of_all_ranks: bool = False
    forward_bytes: NonNegative = 0.0
    backward_bytes: NonNegative = 0.0

    def logits_bytes(self, tokens: int, width: int, *, trains: bool) -> int:
        """Return the bytes that it holds for the logits of a micro-batch.

        Args:
            tokens: Of the micro-batch, on one GPU.
            width: Entries of the vocabulary on it.
        """
        all_bytes, chunk_bytes = (
            (self.train_bytes, self.chunk_train_bytes)
            if trains
            else (self.infer_bytes, self.chunk_infer_bytes)
        )
        chunk = min(tokens, self.chunk_tokens)
        return round(width * (tokens * all_bytes + chunk * chunk_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerMemory:
    """Say what a training engine's software holds beside what its layout says.

    Attributes:
        fp32_weights: Whether weights are kept and stepped in fp32, without another master copy, and
            gathered in the format of the products.
        root_stays_whole: Whether embedding and head, in the module that wraps the layers, stay gathered
            until its backward pass is done, and so do their gradients.
        logit_copies: Tensors of the logits' size, in the format of the products, that are alive at a
            time in the loss and its gradient.
        fp32_logit_copies: The same in fp32.
        head_entries: Vocabulary entries whose logits are held at a time; 0 is all of them.
        logit_ways: Other ways in which the software can make log-probabilities and entropies, by name.
        usual_way: That of them which it takes where a job says nothing; None counts by the copies above.
        step_bytes: What the optimizer's step allocates for each parameter that a GPU steps.
        layers_under_way: Layers whose inputs are on the GPU at a time where they are off-loaded.
        slack_fraction: Share of activations and logits that is lost between the allocator's blocks.
        layers: How layers are computed, which says what they keep (`rlplan.models.KeptBatch`).
        groups: Which groups of ranks meet: one for each way in which a model is cut (`plain`), or those of Megatron-Core as well.
    """

    fp32_weights: bool = False
    root_stays_whole: bool = False
    logit_copies: AtLeastOne = 1
    fp32_logit_copies: AtLeastOne = 2
    head_entries: NonNegativeInt = 0
    logit_ways: FrozenDict[str, LogitTensors] = FrozenDict()
    usual_way: str | None = None
    step_bytes: NonNegativeInt = 0
    layers_under_way: AtLeastOne = 1
    slack_fraction: NonNegative = 0.10
    layers: LayerKernels = "fused"
    groups: Literal["plain", "megatron"] = "plain"


USUAL_MEMORY = TrainerMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShare:
    """Say what a generation engine's `memory_fraction` is a share of, and what it does with it.

    Attributes:
        of: The whole memory of the GPU (`card`); the memory that weights and working memory leave `free`; or the memory
            that was free when the engine started, of which weights and cache together take the share (`static`).
        counts_others: Which memory of other processes is subtracted from the share: `everything` that they hold during
            generation, what they held when the engine `started` (weights; optimizer states come with the first update),
            or `nothing`.
        fills: Whether the KV cache takes all of the share when the engine starts, even if less would do.
        beside_bytes: Memory on each GPU outside of the share while the engine's process lives, asleep or awake: CUDA
            graphs, workspaces of libraries, the context of a separate process.
        group_bytes: The same for communicators and buffers of a replica that spans several GPUs.
        awake_bytes: Further memory outside of the share, only while the engine is awake.
        wakes_whole: Whether the KV cache is allocated before new weights are loaded; else after them.
    """

    of: Literal["card", "free", "static"] = "card"
    counts_others: Literal["everything", "started", "nothing"] = "everything"
    fills: bool = False
    beside_bytes: NonNegativeInt = 0
    group_bytes: NonNegativeInt = 0
    awake_bytes: NonNegativeInt = 0
    wakes_whole: bool = False

    def lasting_bytes(self, gpus: int) -> int:
        """Return the bytes that the engine holds outside of its share on each GPU of a replica, asleep or awake.

        Args:
            gpus: Of the replica.
        """
        return self.beside_bytes + (self.group_bytes if gpus > 1 else 0)


USUAL_SHARE = EngineShare()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoop:
    """Hold the costs of a trainer that computes experts one after another.

    Attributes:
        turn_seconds: Host time of one expert in a layer's forward pass: it asks the device which tokens are the
            expert's, waits for the answer, and launches a handful of kernels; other directions in proportion to theirs.
        stacked: Families of models whose experts are slices of one tensor. The gradient of a slice is a tensor of all
            experts, zeros but for one, and is added to what there is: `slice_passes` over them for every expert. Passes
            without gradients compute all experts on all tokens.
        slice_passes: Times that the gradients of all experts are read or written for the gradient of a slice.
    """

    turn_seconds: Positive
    stacked: tuple[str, ...] = ()
    slice_passes: NonNegative = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasBytes:
    """Say what a trainer moves to add experts' biases, where grouped products do not add them.

    A row of a bias for every token is made, weighted with the token's probability where it is of an output, and added, in
    kernels of their own; their gradients are summed up expert by expert.

    Attributes:
        up_bytes, up_backward_bytes: For each value that leaves the products before the activation, in either direction.
        down_bytes, down_backward_bytes: The same for each value that leaves an expert.
    """

    up_bytes: NonNegative = 0.0
    up_backward_bytes: NonNegative = 0.0
    down_bytes: NonNegative = 0.0
    down_backward_bytes: NonNegative = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedLogits:
    """Say what a trainer moves for each logit of responses that it pads to the longest before the loss.

    Attributes:
        infer_bytes: In a pass without gradients.
        forward_bytes, backward_bytes: In training.
        prompts: Whether logits of prompts are padded and read as those of responses are.
    """

    infer_bytes: NonNegative
    forward_bytes: NonNegative
    backward_bytes: NonNegative
    prompts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSheet:
    """Hold what a training or generation engine can do, and its few named constants.

    Attributes:
        role: Whether it trains (and infers) or generates.
        batching: How a generation engine forms batches (see `rlplan.simulator.generation.replica`).
        chunked_prefill: Whether mixed batching splits prompts to use a step's token budget up.
        reserves_whole: Whether a sequence gets all KV blocks that it may need on admission.
        max_pp: Largest pipeline size that it runs (0: no limit).
        max_cp: Largest context-parallel size (0: no limit).
        context_exchange: How its context-parallel ranks attend, where its attention has heads to share.
        max_ep: Largest expert-parallel size (0: no limit).
        equal_parts: Whether data-parallel ranks need equally many prompts, with all their samples, and
            stages of a pipeline equally many layers; others pad batches, and let stages differ.
        replicates_kv_heads: Whether tensor-parallel ranks beyond the KV heads share copies of them.
        whole_experts: Whether experts may be cut over fewer ranks than tensor parallelism cuts all else.
        tp_leaves_nodes: Whether tensor parallelism may span nodes.
        zero_stages: ZeRO stages that it offers.
        recompute_modes: Recomputation modes that it offers.
        recompute_besides: Modes that it offers besides, which searches do not try.
        dispatcher: How tokens reach experts on other ranks where a job does not say it (`rlplan/dispatchers/`).
        exchange_overlap_fraction: Share of exchanges between experts that hides behind computing where a job says that
            they overlap; None where nobody knows.
        exchange_messages: Messages of a few bytes that go with each of the two exchanges of a pass where a row is sent for
            each expert: counts of tokens, probabilities, gradients of those.
        router_launch_share: Share of the host's time to launch a layer's experts which a CUDA graph of what stands before
            them saves.
        fuses_expert_casts: Whether products of experts quantise what comes after them in the same kernel.
        narrow_launch_factor: Times as long as the host takes to launch a layer whose products are in a narrow format.
        expert_narrow_factors: The same of what is not Python of a layer of experts, by format, where it differs.
        copies_inputs_in_turn: Whether kernels wait while inputs of layers are copied to host memory and back; else copies run beside them.
        sequence_parallel: Whether TP regions shard norms and residuals over the sequence.
        step_seconds: Host time of one decode step or one micro-batch, beside the model's own work.
        launches_hidden: Whether kernel launches hide behind the device (CUDA graphs, or large kernels).
        layer_launch_seconds: Host time to launch one layer of a forward pass, kernel by kernel, where launches are not hidden,
            or not captured in a graph; other directions in proportion to their kernels. 0 counts kernels by the device's
            `launch_seconds`, and so does a CPU, which launches nothing ahead.
        expert_layer_launch_seconds: The same for a layer of experts; 0 is that of any other.
        context_launch_seconds: Host time to launch a layer's attention in a forward pass for each part that context-parallel
            ranks hand round, beside the rest of the layer; where `layer_launch_seconds` is told, and heads are not shared.
        rope_kernels: Kernels of a forward pass that rotate a packed sequence's queries and keys by themselves in each layer, for
            whose lengths the host waits first, so that the device waits for their launches; 0 where one rotates all.
        expert_python_seconds: Part of that which is Python, as long on every host and in every format; only the rest grows
            with a device's `host_factor`.
        launches_hide: Whether the host launches on while ranks exchange, so that waiting for it and exchanging overlap.
        overlap_fraction: Share of gradient communication hidden behind the backward pass.
        padding: What sequences of a training engine are padded to: nothing (they are packed), the
            longest of their micro-batch, of what a data-parallel rank has of an update or a whole pass (`rank`), of a step's
            batch (`longest`), the longest prompt and response of that (`batch`), or the longest that may be (`limits`).
        attention_plan_seconds: Host time to plan attention, in each direction, for rows of a width that its process has not had
            (cuDNN builds a graph for each); 0 where kernels take any width.
        shares_prompts: Whether a prompt's tokens are computed once for all of its samples. A generation engine of static waves
            prefills each prompt of a wave once, one of mixed steps whole blocks of it. A training engine that packs holds all
            but the last token of a prompt once in a micro-batch: linear layers, norms and head compute them once, attention
            still sees every sample with a prompt of its own.
        shares_attention: Whether a training engine that shares prompts attends among a prompt's tokens once for all of
            its samples too.
        waits_each_micro_batch: Whether data-parallel ranks wait for one another in every micro-batch: they gather weights together.
        keeps_gradients: Whether gradient buffers stay allocated while other tasks run.
        offloads: What it can keep in host memory between uses: weights of models that only infer,
            optimizer states of models that train.
        reshards_in_buckets: Whether its transition writes the generate shard from received buckets, and
            lends the train shard in place where both are cut alike; what is not lent has to move.
        interleaves: Whether its pipeline schedule runs several chunks of layers on a stage.
        kernels: How its kernels differ from those that the device's facts are of.
        kernels_on: The same where it differs from device to device, by a device's name or an architecture's.
        splits_sends: Whether tensor-parallel ranks each send their share of activations to the next stage, which gathers them.
        stages_outermost: Whether pipeline stages are the outermost groups of ranks, each on consecutive
            ranks; else the stages of a copy of the model are consecutive, and copies lie a block apart.
        steps: What the steps of a generation engine take beside its operators.
        memory: What a training engine's software holds beside what its layout says.
        padded_logits: What it moves where it pads logits, though it packs sequences; None does not.
        narrow_products: Whether its kernels' rates, over the device's for 16 bits, are those of products
            in fp8 that it quantises for itself.
        gathers_weights: Whether its weights stay sharded over all GPUs of its pool, and each pass
            gathers every layer before computing it (ZeRO stage 3 without pinned parameters).
        share: What `memory_fraction` is a share of, and what the engine does with it.
        states: In what it holds states of sequences; None: among the blocks of tokens.
        expert_loop: What experts take in a trainer that computes them one by one (`rlplan.trainers.TrainerOptions`);
            None where its software never does.
        unit_gather_seconds: Host time to gather a layer whose weights are spread over ranks, and to free it.
        unit_reduce_seconds: The same in a backward pass, with the reduction of its gradients.
        adapter_gather_seconds: Host time to gather and free a matrix of adapters that is a unit of its own (`rlplan.trainers.TrainerOptions`).
        adapter_reduce_seconds: The same in a backward pass, with the reduction of its gradient.
        expert_biases: What it moves for biases of experts that are computed in one product; None where products add them.
        forecast_spread: Relative spread (one sigma) of forecasts around measured generations or
            training iterations, where the constants were fitted; 0 takes the operators' own.
        experts_spread: The same of models with experts, which generate or train; 0 is `forecast_spread`.
        experts_spread_on: That by a device's architecture, where forecasts were further off.
        sources: Origin of every constant.
    """

    name: str
    role: Literal["train", "generate"]
    batching: Literal["continuous", "mixed", "calls", "static", "none"] = "none"
    chunked_prefill: bool = False
    reserves_whole: bool = False
    kv_block_tokens: AtLeastOne = 16
    max_batched_tokens: AtLeastOne = 8192
    max_pp: NonNegativeInt = 0
    max_cp: NonNegativeInt = 0
    context_exchange: ContextExchange = "gather"
    max_ep: NonNegativeInt = 0
    equal_parts: bool = False
    replicates_kv_heads: bool = False
    whole_experts: bool = False
    tp_leaves_nodes: bool = False
    zero_stages: tuple[Literal[0, 1, 2, 3], ...] = (0,)
    recompute_modes: tuple[
        Literal["none", "attention", "selective", "alternate", "full", "full-offload", "experts"],
        ...,
    ] = ("none",)
    recompute_besides: tuple[Literal["attention", "selective", "experts"], ...] = ()
    dispatcher: DispatcherName = DEFAULT_DISPATCHER
    exchange_overlap_fraction: Share | None = None
    exchange_messages: NonNegative = 0.0
    router_launch_share: Share = 0.0
    narrow_launch_factor: Positive = 1.0
    expert_narrow_factors: FrozenDict[str, Positive] = FrozenDict()
    fuses_expert_casts: bool = False
    copies_inputs_in_turn: bool = False
    sequence_parallel: bool = False
    fused_attention: bool = True
    step_seconds: NonNegative = 0.0
    launches_hidden: bool = True
    layer_launch_seconds: NonNegative = 0.0
    expert_layer_launch_seconds: NonNegative = 0.0
    context_launch_seconds: NonNegative = 0.0
    rope_kernels: NonNegativeInt = 0
    expert_python_seconds: NonNegative = 0.0
    launches_hide: bool = True
    overlap_fraction: NonNegative = 0.0
    padding: Literal["none", "micro_batch", "rank", "longest", "batch", "limits"] = "micro_batch"
    attention_plan_seconds: NonNegative = 0.0
    shares_prompts: bool = False
    shares_attention: bool = False
    waits_each_micro_batch: bool = False
    keeps_gradients: bool = False
    offloads: tuple[Literal["weights", "optimizer"], ...] = ()
    reshards_in_buckets: bool = False
    interleaves: bool = False
    memory_fraction: Positive = 0.9
    kernels: KernelRates = USUAL_KERNELS
    kernels_on: FrozenDict[str, KernelRates] = FrozenDict()
    splits_sends: bool = False
    stages_outermost: bool = False
    steps: StepCosts = USUAL_STEPS
    memory: TrainerMemory = USUAL_MEMORY
    padded_logits: PaddedLogits | None = None
    narrow_products: bool = False
    gathers_weights: bool = False
    share: EngineShare = USUAL_SHARE
    states: StatePool | None = None
    expert_loop: ExpertLoop | None = None
    unit_gather_seconds: NonNegative = 0.0
    unit_reduce_seconds: NonNegative = 0.0
    adapter_gather_seconds: NonNegative = 0.0
    adapter_reduce_seconds: NonNegative = 0.0
    expert_biases: BiasBytes | None = None
    forecast_spread: NonNegative = 0.0
    experts_spread: NonNegative = 0.0
    experts_spread_on: FrozenDict[str, NonNegative] = FrozenDict()
    sources: FrozenDict[str, str]

    def generation_spread(self, model: ModelArchitecture, architecture: str) -> float:
        """Return the relative spread of forecasts of a model's generation, one sigma; 0 takes the operators' own."""
        own = self.experts_spread_on.get(architecture, self.experts_spread)
        return (own if model.num_experts else 0.0) or self.forecast_spread

    def passes_spread(self, model: ModelArchitecture) -> float:
        """Return the relative spread of forecasts of a model's passes and updates, one sigma; 0 takes the operators' own."""
        return (self.experts_spread if model.num_experts else 0.0) or self.forecast_spread

    def launch_seconds_on(self, sheet: DeviceSheet, *, experts: bool = False) -> float:
        """Return the host's seconds to launch one layer's forward pass on a device; 0 counts its kernels."""
        told = self.expert_layer_launch_seconds if experts else 0.0
        return 0.0 if sheet.kind == "cpu" else told or self.layer_launch_seconds

    def expert_launch_seconds_on(
        self, host_factor: float, precision: Precision, *, narrow: bool
    ) -> float:
        """Return the seconds of a device's host to launch the forward pass of a layer of experts; 0 is that of any other.

        Args:
            host_factor: `DeviceSheet.host_times` of the device.
            narrow: Whether the precision is narrower than bf16.
        """
        python, factor = self.expert_python_seconds, 1.0
        if narrow:
            factor = self.expert_narrow_factors.get(precision, self.narrow_launch_factor)
        launches = max(0.0, self.expert_layer_launch_seconds - python) * factor
        return launches * host_factor + python

    def kernels_of(self, device: DeviceSheet) -> KernelRates:
        """Return how its kernels differ from a device's facts."""
        if not self.kernels_on:
            return self.kernels
        of_architecture = self.kernels_on.get(device.architecture, self.kernels)
        return self.kernels_on.get(device.name, of_architecture)
