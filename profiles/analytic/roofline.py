"""What an operation costs by the device's sheet alone: the roofline with its architecture's shares.

An operation takes as long as its arithmetic or its memory traffic, whichever is longer
(Williams, Waterman and Patterson 2009, "Roofline"). Shares of the rates come from
`profiles/fits/`; every formula here grows with its work.
"""

import math
from dataclasses import replace
from typing import Final, Literal

from rlplan.errors import MissingFactError
from rlplan.estimate import ZERO, Estimate, Source
from rlplan.models import OF_PRODUCTS, PRECISIONS, Attention, CollectiveKind, Precision
from rlplan.networks import NetworkSheet
from rlplan.profiles.analytic.efficiencies import Constant, Efficiencies, load_efficiencies
from rlplan.profiles.kernels.kernel_time import (
    GemmTime,
    GroupedShape,
    Kernels,
    PagedAttentionTime,
    RowKind,
    RowTime,
    load_kernels,
)
from rlplan.sheets import DeviceSheet

CopyDirection = Literal["host_to_device", "device_to_host", "device_to_device"]

# The backward pass has four products for the forward's two, and computes the scores again
# (Dao 2023, FlashAttention-2, section 4.1: 2.5 times the forward's operations).
BACKWARD_FLOPS_FACTOR: Final = 2.5
# The backward pass reads Q, K, V, O, dO and writes dQ, dK, dV: twice the forward's tensors.
BACKWARD_BYTES_FACTOR: Final = 2.0


class Roofline:
    """Estimate operations on one device from its sheet and its architecture's constants."""

    def __init__(
        self,
        sheet: DeviceSheet,
        efficiencies: Efficiencies | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        self.sheet = sheet
        self.shares = efficiencies or load_efficiencies(sheet.architecture)
        self.kernels = kernels or load_kernels(self.shares.kernels)
        self._gemm_time = GemmTime(
            self.kernels.gemm, sheet.multiprocessors, sheet.memory_bytes_per_second
        )
        # Of the peak rate, by which the kernels' shares of it hold on this device.
        borrowed = self.shares.borrowed_rate
        self._borrowed_rate = borrowed.value if borrowed is not None else 1.0
        self._row_time = RowTime(sheet.multiprocessors, sheet.memory_bytes_per_second)
        self._paged_attention = _paged_attention(self.kernels, sheet)
        # A processor dispatches and computes by turns; a GPU's host launches ahead of the device.
        self.dispatch_seconds = sheet.launch_seconds if sheet.kind == "cpu" else 0.0
        self.kernel_seconds = self.shares.kernel_seconds.value + self.dispatch_seconds

    def peak(self, precision: Precision) -> float:
        """Return the peak rate in flops per second.

        Raises:
            MissingFactError: The sheet names no rate for this precision.
        """
        rate = self.sheet.peak_flops_per_second.get(OF_PRODUCTS.get(precision, precision))
        if rate is None:
            known = ", ".join(sorted(self.sheet.peak_flops_per_second))
            raise MissingFactError(
                f"device {self.sheet.name!r} has no peak rate for {precision}; known: {known}; "
                f"choose one of them as the job's `precision`"
            )
        return rate

    def _feeding(self, precision: Precision) -> float:
        """Return how much faster a multiprocessor of the kernels' own device is, if this one is of their architecture; else 1."""
        if self.shares.architecture != self.kernels.architecture:
            return 1.0
        return self._gemm_time.feeding(OF_PRODUCTS.get(precision, precision), self.peak(precision))

    def gemm(self, m: int, k: int, n: int, precision: Precision) -> Estimate:
        """Estimate the seconds of an m x k times k x n matrix product."""
        value_bytes = PRECISIONS[precision].weight_bytes
        peak = self.peak(precision) * self._borrowed_rate
        seconds = self._gemm_time.seconds(
            m, k, n, value_bytes=value_bytes, peak=peak, feeding=self._feeding(precision)
        )
        return self._by_kernels(seconds + self.dispatch_seconds, self.kernels.gemm.spread)

    def grouped_gemm(
        self, m: float, k: int, n: int, count: int, precision: Precision, rate: float = 1.0
    ) -> Estimate | None:
        """Estimate the seconds of many products in one kernel; None where there is no such kernel.

        Args:
            rate: Of computing, over that of the kernels, on the device that they are of; a multiprocessor that computes more slowly
                is fed as fast, and loses less by poor tiles.
        """
        grouped = self.kernels.grouped
        if grouped is None:
            return None
        feeding = self._feeding(precision)
        rate = min(max(1.0, rate), rate * feeding)
        if rate != 1:
            grouped = replace(grouped, rate=grouped.rate * rate)
        value_bytes = PRECISIONS[precision].weight_bytes
        peak = self.peak(precision) * self._borrowed_rate
        seconds = self._gemm_time.grouped_seconds(
            GroupedShape(m, k, n, count),
            grouped,
            value_bytes=value_bytes,
            peak=peak,
            feeding=feeding,
        )
        return self._by_kernels(seconds + self.dispatch_seconds, grouped.spread)

    def rowwise(
        self, kind: RowKind, rows: int, width: int, precision: Precision, second_width: int = 0
    ) -> Estimate:
        """Estimate the seconds of a norm, rotation, activation, addition or embedding of rows.

        Widths are those of `DeviceFacts.rowwise`.
        """
        kernel = self.kernels.rows[kind]
        value_bytes = PRECISIONS[precision].weight_bytes
        seconds = self._row_time.seconds(kernel, kind, rows, width, second_width, value_bytes)
        return self._by_kernels(seconds + self.dispatch_seconds, kernel.spread)

    def attention(
        self,
        shape: Attention,
        precision: Precision,
        *,
        backward: bool = False,
        paged: bool = False,
        table_tokens: int = 0,
    ) -> Estimate:
        """Estimate the seconds of a causal attention in one kernel: two products and a softmax for every query head.

        A query sees the cached tokens and, on average, half of the new ones.

        Args:
            paged: Whether it is the kernel of 2024's engines over a paged cache, for forward passes.
            table_tokens: Tokens for which a paged cache's block table has room, if they are more than
                the cached ones.
        """
        if paged and self._paged_attention is not None and not backward:
            return self._paged(shape, table_tokens, precision)
        shares = self.shares
        value_bytes = PRECISIONS[precision].weight_bytes
        tokens, all_tokens = shape.query_tokens, shape.cached_tokens + shape.query_tokens
        seen = shape.cached_tokens + tokens * 0.5
        flops = 4 * shape.batch * shape.q_heads * shape.head_dim * tokens * seen
        keys = shape.batch * shape.kv_heads * shape.head_dim * all_tokens
        queries = shape.batch * shape.q_heads * shape.head_dim * tokens
        num_bytes = 2 * value_bytes * (queries + keys)
        share = shares.attention_efficiency
        if backward:
            share = shares.attention_backward_efficiency
            flops *= BACKWARD_FLOPS_FACTOR
            num_bytes = int(num_bytes * BACKWARD_BYTES_FACTOR)
        compute = flops / (self.peak(precision) * share.value)
        memory = num_bytes / (
            self.sheet.memory_bytes_per_second * shares.attention_memory_efficiency.value
        )
        fixed = shares.attention_fixed_seconds.value + self.kernel_seconds
        return _estimate(max(compute, memory) + fixed, shares.attention_spread, share)

    def _paged(self, shape: Attention, table_tokens: int, precision: Precision) -> Estimate:
        paged = self._paged_attention
        assert paged is not None
        value_bytes = PRECISIONS[precision].weight_bytes
        borrowed = self.kernels.attention is None
        least_spread = self.shares.attention_spread.value if borrowed else 0.0
        if shape.query_tokens == 1:
            seconds = paged.decode_seconds(
                shape, value_bytes=value_bytes, table_tokens=table_tokens
            )
            spread = max(paged.kernels.decode_spread, least_spread)
            return self._by_kernels(seconds, spread, borrowed=borrowed)
        seconds = paged.prefill_seconds(
            shape, value_bytes=value_bytes, peak=self.peak(precision) * self._borrowed_rate
        )
        spread = max(paged.kernels.prefill_spread, least_spread)
        return self._by_kernels(seconds, spread, borrowed=borrowed)

    def memory_bound(self, num_bytes: float, kernels: float = 1) -> Estimate:
        """Estimate the seconds of kernels that together move `num_bytes` through memory."""
        share = self.shares.memory_efficiency
        seconds = num_bytes / (self.sheet.memory_bytes_per_second * share.value)
        return _estimate(seconds + kernels * self.kernel_seconds, self.shares.memory_spread, share)

    def optimizer_step(self, parameters: int, precision: Precision) -> Estimate:
        """Estimate the seconds of one Adam step over `parameters`.

        It reads gradients and states, and writes states and weights.
        """
        sizes = PRECISIONS[precision]
        # Without a master copy among the states the weights are read as well.
        weight_passes = 2 if precision == "fp32" else 1
        per_parameter = (
            sizes.gradient_bytes + 2 * sizes.optimizer_bytes + weight_passes * sizes.weight_bytes
        )
        factor = self.shares.optimizer_traffic_factor.value
        return self.memory_bound(parameters * per_parameter * factor)

    def copy(self, num_bytes: float, direction: CopyDirection) -> Estimate:
        """Estimate the seconds of a copy between host and device, or inside the device."""
        if direction == "device_to_device":
            return self.memory_bound(2 * num_bytes)
        share = self.shares.host_link_efficiency
        seconds = num_bytes / (self.sheet.host_bytes_per_second * share.value)
        return _estimate(seconds + self.kernel_seconds, self.shares.copy_spread, share)

    def collective(
        self,
        kind: CollectiveKind,
        num_bytes: float,
        ranks: int,
        *,
        ranks_per_node: int,
        inter_node_bytes_per_second: float,
        network: NetworkSheet | None = None,
    ) -> Estimate:
        """Estimate the seconds of a collective over a tensor of `num_bytes` in all.

        Inside a node the protocol is used that is fastest for the size, as NCCL chooses.

        Args:
            inter_node_bytes_per_second: Each GPU's share of its node's network cards.
            network: The sheet of that network's kind, where all-to-alls over it were measured.
        """
        if ranks <= 1:
            return ZERO
        if ranks <= ranks_per_node:
            return self._inside_node(kind, num_bytes, ranks)
        if kind == "all_to_all" and network is not None:
            rate = inter_node_bytes_per_second
            return self._exchange(num_bytes, ranks, ranks_per_node, rate, network)
        return self._across_nodes(
            kind, num_bytes, ranks, ranks_per_node, inter_node_bytes_per_second
        )

    def _exchange(
        self,
        num_bytes: float,
        ranks: int,
        ranks_per_node: int,
        inter_node_bytes_per_second: float,
        network: NetworkSheet,
    ) -> Estimate:
        """Estimate an all-to-all over a network whose all-to-alls were measured, links inside nodes hidden behind it.

        On nodes of GPUs of another architecture than those measured it is no fit, and as uncertain as any collective, unless it
        was found within steps.
        """
        inside = math.ceil(ranks / math.ceil(ranks / ranks_per_node))
        leaving = num_bytes * (ranks - inside) / ranks
        own = network.within_steps.get(self.sheet.name)
        share = own.efficiency if own is not None else network.exchange_efficiency
        seconds = leaving / (inter_node_bytes_per_second * share)
        fixed = network.exchange_seconds + network.peer_seconds * (ranks - inside)
        if own is not None:
            nodes = math.ceil(ranks / ranks_per_node)
            factor, spread = own.slowed(nodes)
            whole, unsure = seconds * factor + fixed, seconds * spread + fixed * own.spread
            return Estimate(whole, unsure, Source.FITTED, outside_range=nodes > own.most_nodes)
        seconds += fixed
        if self.sheet.architecture in network.measured_on:
            return Estimate(seconds, seconds * network.exchange_spread, Source.FITTED)
        spread = max(network.exchange_spread, self.shares.collective_spread.value)
        return Estimate(seconds, seconds * spread, Source.DATASHEET)

    def _inside_node(self, kind: CollectiveKind, num_bytes: float, ranks: int) -> Estimate:
        links, link = self.kernels.links, self.sheet.intra_node_bytes_per_second
        if kind == "send_recv":
            beyond = max(0.0, num_bytes - links.send_cached_bytes)
            seconds = links.send.start_seconds + links.send.step_seconds
            seconds += (num_bytes - beyond) / (link * links.send.link_efficiency)
            seconds += beyond / (link * links.send_memory_efficiency)
            return self._by_kernels(seconds, links.send_spread)
        wire = num_bytes * (_wire_factor(kind, ranks) + links.own_share / ranks) / link
        steps, _ = _latency_steps(kind, ranks, 1)
        seconds = min(
            each.start_seconds + steps * each.step_seconds + wire / each.link_efficiency
            for each in links.reduce
        )
        return self._by_kernels(seconds, links.reduce_spread)

    def _across_nodes(
        self,
        kind: CollectiveKind,
        num_bytes: float,
        ranks: int,
        ranks_per_node: int,
        inter_node_bytes_per_second: float,
    ) -> Estimate:
        """Estimate a collective whose slowest link is the node's own or the network's.

        The ranks of a node share their cards. All-reduces and broadcasts across nodes go by trees
        of nodes (Sanders, Speck and Traff 2009), as NCCL chooses by itself: two trees with half of
        the tensor each, up and down, so that a node sends 2 (nodes - 1) / nodes of it; chunks follow one
        another through the levels, and `_filling` is what the levels wait for their first. An all-to-all
        sends every other rank its part directly: what leaves the node goes over each rank's own share of
        its cards. The others go by rings of ranks.
        """
        shares, sheet = self.shares, self.sheet
        nodes = math.ceil(ranks / ranks_per_node)
        inside = math.ceil(ranks / nodes)
        network = inside * inter_node_bytes_per_second * shares.nic_efficiency.value
        link = sheet.intra_node_bytes_per_second * shares.link_efficiency.value
        between = _wire_factor(kind, nodes if kind == "all_reduce" else ranks) / network
        within = _wire_factor(kind, ranks) / link if inside > 1 else 0.0
        if kind == "all_to_all":
            between = (ranks - inside) / ranks * inside / network
            within = (inside - 1) / ranks / link
        share = shares.nic_efficiency if between > within else shares.link_efficiency
        seconds = num_bytes * max(between, within)
        if kind == "all_reduce":
            seconds += self._filling(seconds, nodes)
        intra_steps, inter_steps = _latency_steps(kind, inside, nodes)
        seconds += intra_steps * sheet.intra_node_latency_seconds
        seconds += inter_steps * sheet.inter_node_latency_seconds
        seconds += shares.collective_fixed_seconds.value
        return _estimate(seconds, shares.collective_spread, share)

    def _filling(self, wire_seconds: float, nodes: int) -> float:
        """Return what the levels of a tree of nodes wait for their first chunks, in seconds.

        A tensor of w seconds on the wire passes d levels in k chunks within (d + k) (w / k + c), c being
        what a chunk takes beside its bytes; with the best k that is w + 2 sqrt(d c w) + d c (Sanders,
        Speck and Traff 2009). Chunks have a largest size, so the root grows no further then.
        """
        levels, shares = _tree_levels(nodes), self.shares
        best = 2 * math.sqrt(levels * shares.tree_chunk_seconds.value * wire_seconds)
        return min(best, levels * shares.tree_fill_seconds.value)

    def _by_kernels(self, seconds: float, spread: float, *, borrowed: bool = False) -> Estimate:
        """Return seconds by this architecture's kernels; another's are no fit for this device."""
        same = self.kernels.architecture == self.shares.architecture
        if self.kernels.fitted and same and not borrowed:
            return Estimate(seconds, seconds * spread, Source.FITTED)
        least = self.shares.borrowed_spread
        spread = max(spread, least.value if least is not None else 0.0)
        return Estimate(seconds, seconds * spread, Source.DATASHEET)


def _paged_attention(kernels: Kernels, sheet: DeviceSheet) -> PagedAttentionTime | None:
    """Return the paged attention of a device by its own or the nearest architecture's kernels."""
    found = kernels.attention
    if found is None and kernels.attention_of:
        found = load_kernels(kernels.attention_of).attention
        if found is not None:
            share = found.prefill_efficiency * kernels.attention_prefill_factor
            found = replace(found, prefill_efficiency=share)
    if found is None:
        return None
    return PagedAttentionTime(found, sheet.multiprocessors, sheet.memory_bytes_per_second)


def _wire_factor(kind: CollectiveKind, ranks: int) -> float:
    """Return the bytes that pass each rank's link, as a share of the tensor's."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0


def _latency_steps(kind: CollectiveKind, inside: int, nodes: int) -> tuple[int, int]:
    """Return how many hops inside and between nodes follow one another."""
    if kind == "send_recv":
        return (1, 0) if nodes == 1 else (0, 1)
    if kind == "all_to_all" and nodes > 1:
        return 1, 1  # all parts are under way at once
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (inside - 1) * nodes, nodes - 1
    tree = _tree_levels(nodes)
    return (2 * (inside - 1), 2 * tree) if kind == "all_reduce" else (inside - 1, tree)


def _tree_levels(nodes: int) -> int:
    return math.ceil(math.log2(nodes))


def _estimate(seconds: float, spread: Constant, share: Constant) -> Estimate:
    source = Source.FITTED if share.fitted else Source.DATASHEET
    return Estimate(seconds, seconds * spread.value, source)
