"""What operators take in one setting: seconds by the facts of the device, remembered per layer."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from rlplan.dispatchers import DISPATCHERS, Dispatcher, Reach, dispatcher_over
from rlplan.estimate import ZERO, Estimate, Source, total
from rlplan.models import (
    GROUPED_ATTENTION,
    NO_PART,
    PRECISIONS,
    WIDE,
    Attention,
    Batch,
    Collective,
    Elementwise,
    Gemm,
    Group,
    Head,
    ModelArchitecture,
    Operator,
    Operators,
    Precision,
    Scan,
)
from rlplan.parts import expert_parameters
from rlplan.parts.experts import has_shared
from rlplan.plan import Recompute
from rlplan.profiles.facts import DeviceFacts
from rlplan.sheets import KernelRates
from rlplan.simulator.costs.scans import scan_seconds
from rlplan.simulator.costs.setting import Setting
from rlplan.simulator.model import (
    ADAPTER_IN,
    BACKWARD_BYTES_RATIO,
    backward_operators,
    embedding_operators,
    frozen,
    gradient_accumulation,
    head_operators,
    kernels_of,
    layer_operators,
    recomputed_operators,
    with_casts,
)
from rlplan.trainers import WHOLE_STEP

# Dropout's and softmax's passes per score in each direction, in bytes of 16-bit values and 8-bit masks: forward reads and writes
# the softmax's row, reads and writes the dropout's and its mask (9); backward reads and writes the dropout's gradient and mask,
# and reads two and writes one for the softmax (11).
BACKWARD_SCORE_SHARE = 11 / 9

# Score matrices of a block of Megatron's fused softmax kernel for rows of more than 128 values (get_batch_per_block): whole blocks only.
SOFTMAX_MATRICES = 4

# Launches of latent attention over those of grouped: five products and two norms where that has two (Megatron-Core, MLA).
LATENT_LAUNCHES, LATENT_ATTENTION = 2, "latent-attention"

MESSAGE_BYTES = 1  # of what goes beside an exchange of rows: next to nothing

# Relative spread of exchanges by a dispatcher's own kernels: calls of HybridEP take 1.2 to 1.4 times their kernels.
DISPATCH_SPREAD = 0.2

# Relative spread of what a host takes to launch a layer, one sigma: machines differ, and what else runs on their cores. Of 20
# passes that were launched more slowly than computed, 18 on a virtual machine with an H200 (gpu_layers_h200.csv) and two of
# 64 H100 in pods (megatron_moe_efa_training.csv), eleven lie within this of their forecast; eight took 2 to 5.7 times it, and one less than half.
HOST_SPREAD = 0.5


def fused_attention_seconds(
    device: DeviceFacts,
    rates: KernelRates,
    operator: Attention,
    precision: Precision,
    backward: bool,
) -> Estimate:
    """Return the seconds of an attention kernel that never writes its scores.

    Half of the rate at h keys is h / 2 more keys for each query, which sees half of its sequence on average. Measured
    seconds are those of their lengths.
    """
    half = rates.attention_half_tokens
    if half and not device.measures_attention(operator, precision, backward=backward):
        more = round(half / 2)
        operator = replace(operator, cached_tokens=operator.cached_tokens + more)
    seconds = device.attention(operator, precision, backward=backward)
    rate = rates.attention_backward_rate if backward else rates.attention_rate
    return seconds if rate == 1 else seconds * (1 / rate)


def unfused_attention_seconds(
    device: DeviceFacts,
    rates: KernelRates,
    operator: Attention,
    precision: Precision,
    backward: bool,
) -> Estimate:
    """Return the seconds of an attention made of batched products, softmax, mask and dropout.

    A batched product is priced as one tall product: its many heads' rows follow one another. The
    forward pass has two, of queries with keys and of probabilities with values; the backward pass
    has two for each of them. The masked half is computed too.
    """
    rows = operator.batch * operator.q_heads * operator.query_tokens
    seen, size = operator.cached_tokens + operator.query_tokens, operator.head_dim
    products = device.gemm(rows, size, seen, precision) + device.gemm(rows, seen, size, precision)
    num_bytes = rates.score_bytes * rows * seen
    if backward:
        return products * 2 + device.memory_bound(num_bytes * BACKWARD_SCORE_SHARE, kernels=3)
    return products + device.memory_bound(num_bytes, kernels=2)


def launch_seconds(
    rates: KernelRates,
    whole_seconds: float,
    forward: Operators,
    operators: Operators,
    host_factor: float = 1.0,
) -> float:
    """Return the host's seconds to launch a layer's pass in one direction.

    Args:
        whole_seconds: Of its forward pass.
        operators: Of this direction. A softmax that is not fused takes its own time.
        host_factor: Times as long as that takes on this host.
    """
    seconds = whole_seconds * kernels_of(operators) / kernels_of(forward)
    for operator in operators:
        if isinstance(operator, Attention):
            matrices = operator.batch * operator.q_heads
            odd = matrices % SOFTMAX_MATRICES
            seconds += rates.softmax_fallback_seconds * host_factor if odd else 0.0
    return seconds


Part = Literal["layer", "embedding", "head", "sampling head"]
Direction = Literal["forward", "backward"] | Recompute


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """Hold what one device spends on a pass: its own work, and exchanging with its group."""

    compute: Estimate = ZERO
    collectives: Estimate = ZERO

    def __add__(self, other: "PassSeconds") -> "PassSeconds":
        """Return both passes, one after the other."""
        return PassSeconds(self.compute + other.compute, self.collectives + other.collectives)

    def __mul__(self, factor: float) -> "PassSeconds":
        """Return the pass repeated `factor` times."""
        return PassSeconds(self.compute * factor, self.collectives * factor)

    @property
    def total(self) -> Estimate:
        """Return the whole pass in seconds."""
        return self.compute + self.collectives


NOTHING = PassSeconds()


@lru_cache(maxsize=8192)
def pass_seconds(
    setting: Setting,
    model: ModelArchitecture,
    part: Part,
    batch: Batch,
    direction: Direction = "forward",
    head: Head = "lm",
) -> PassSeconds:
    """Return what one device spends on one part of the model in one direction.

    Args:
        direction: `forward`, `backward`, or what a recomputation mode repeats of the forward pass.
    """
    adapter = setting.adapter
    if part == "layer":
        forward = layer_operators(model, setting.shard, batch, adapter)
        if setting.casts:
            size = setting.shard.value_bytes
            forward = with_casts(forward, size, experts=not setting.fuses_casts)
    elif part == "embedding":
        forward = embedding_operators(model, setting.shard, batch)
    else:
        sampling = part == "sampling head"
        forward = head_operators(model, setting.shard, batch, head, sampling=sampling)
        forward = forward if adapter is None else frozen(forward)
    if part == "embedding" and direction == "backward" and setting.adapter is not None:
        return NOTHING  # nothing below a frozen embedding has a gradient
    is_backward = direction == "backward"
    biases = () if setting.expert_biases is None else _biases(setting, model, forward, is_backward)
    if direction == "forward":
        operators = forward + biases
    elif direction == "backward":
        operators = backward_operators(forward) + _accumulated(setting, model, part, forward)
        operators += _slice_gradients(setting, model, forward)
        operators += biases
    else:
        fused = setting.fused_attention
        operators = recomputed_operators(forward + biases, direction, fused_attention=fused)
    priced = price(setting, operators, backward=direction == "backward", part=part)
    if part != "layer":
        return priced
    launch = _turn_seconds(setting, forward, operators) * setting.device.sheet.host_times
    launch += _gathering_seconds(setting, forward, operators, direction)
    launch += _launching_seconds(setting, model, forward, operators)
    if launch:
        beside = priced.collectives.seconds - _posted_seconds(setting, operators)
        priced = _launched(priced, launch, max(0.0, beside) if setting.launches_hide else 0.0)
    return _rotated(setting, model, priced, batch.sequences, direction)


def _rotated(
    setting: Setting,
    model: ModelArchitecture,
    priced: PassSeconds,
    sequences: float,
    direction: Direction,
) -> PassSeconds:
    """Return a pass of a layer whose sequences are rotated one by one, each time that it goes forwards, recomputing included.

    The host has to know their lengths, and so waits for the device; then that waits for the host. Backwards nothing waits.
    """
    forwards = direction in ("forward", "full")
    if not forwards or not setting.rope_seconds or model.attention != GROUPED_ATTENTION:
        return priced
    host = sequences * setting.rope_seconds
    waiting = Estimate(host, host * HOST_SPREAD, Source.DATASHEET)
    return PassSeconds(priced.compute + waiting, priced.collectives)


def _posted_seconds(setting: Setting, operators: Operators) -> float:
    """Return the seconds of exchanges between experts whose rows processors post: no kernels are launched beside them.

    DeepEP's host waits in a dispatch until counts of tokens have come (csrc/deep_ep.cpp, internode_dispatch), which are sent
    behind the exchanges before it; threads that post rows wait for theirs on the same processors.
    """
    found = 0.0
    for each in operators:
        if isinstance(each, Collective) and each.group == "ep" and each.kind == "all_to_all":
            dispatcher = dispatcher_over(setting.dispatcher, setting.site.network)
            ranks, per_node = _group(setting, each.group)
            if setting.device.sheet.architecture in dispatcher.row_seconds and per_node < ranks:
                found += exchange_seconds(setting, each).seconds
    return found


def _gathering_seconds(
    setting: Setting, forward: Operators, operators: Operators, direction: Direction
) -> float:
    """Return the host's seconds to gather a layer, and adapters that are gathered apart; what is computed again lies there."""
    is_backward = direction == "backward"
    units = _units(setting, forward if is_backward else operators)
    own = setting.layer_seconds[is_backward] if direction in ("forward", "backward") else 0.0
    gathering = units * setting.unit_seconds[is_backward] + own
    return gathering * setting.device.sheet.host_times


def _launching_seconds(
    setting: Setting, model: ModelArchitecture, forward: Operators, operators: Operators
) -> float:
    """Return the host's seconds to launch a layer's kernels; nothing where the device hides them."""
    each, slower = _layer_launch(setting, model), setting.device.sheet.host_times
    if setting.launches_hidden or not each:
        return 0.0
    return launch_seconds(setting.kernels, each, forward, operators, slower)


def _layer_launch(setting: Setting, model: ModelArchitecture) -> float:
    """Return its host's seconds to launch the forward pass of a layer of a kind, but for what graphs capture.

    Each of its two parts takes half of a layer without experts, as does a network beside experts; latent attention takes a whole.
    """
    if WHOLE_STEP in setting.graphs:
        return 0.0
    half = setting.layer_launch_seconds / 2
    mixes, behind = model.attention, model.feed_forward_part
    mixing = half * (LATENT_LAUNCHES if mixes.endswith(LATENT_ATTENTION) else mixes != NO_PART)
    if mixes == GROUPED_ATTENTION and setting.shard.cp > 1:
        mixing += setting.context_launch_seconds * setting.shard.cp
    if ("mamba" if mixes == "state-space" else "attention") in setting.graphs:
        mixing = 0.0
    if behind == NO_PART:
        return mixing
    if behind != "experts":
        return mixing if "mlp" in setting.graphs else mixing + half
    experts = max(half, setting.expert_layer_launch_seconds - half) + half * has_shared(model)
    if "experts" in setting.graphs:
        return mixing
    return mixing + experts * (1 - setting.router_share * ("router" in setting.graphs))


def _turns(forward: Operators) -> int:
    """Return the experts that a layer's tokens reach; 1 where it has none."""
    return max((each.count for each in forward if isinstance(each, Gemm)), default=1)


def _turn_seconds(setting: Setting, forward: Operators, operators: Operators) -> float:
    """Return the host's seconds for experts that are computed one by one, in proportion to their products."""
    loop = setting.expert_loop
    if loop is None or (turns := _turns(forward)) == 1:
        return 0.0
    products, all_forward = (
        sum(isinstance(each, Gemm) and each.count == turns for each in some)
        for some in (operators, forward)
    )
    return turns * loop.turn_seconds * products / all_forward


def _units(setting: Setting, operators: Operators) -> int:
    """Return the matrices of adapters of a layer's products forwards: two beside each of its own that has them."""
    if setting.adapter is None:
        return 0
    first = (
        each for each in operators if isinstance(each, Gemm) and each.name.endswith(ADAPTER_IN)
    )
    return sum(2 * each.count * (each.n // setting.adapter.rank) for each in first)


def _biases(
    setting: Setting, model: ModelArchitecture, forward: Operators, is_backward: bool
) -> Operators:
    """Return what moves for experts' biases beside products that do not add them."""
    own, details = setting.expert_biases, model.expert_details
    if own is None or setting.expert_loop or details is None or not details.expert_bias:
        return ()
    each = (
        {"mlp up": own.up_backward_bytes, "mlp down": own.down_backward_bytes}
        if is_backward
        else {"mlp up": own.up_bytes, "mlp down": own.down_bytes}
    )
    num_bytes = sum(
        each.get(product.name, 0.0) * product.m * product.n * product.count
        for product in forward
        if isinstance(product, Gemm)
    )
    return (Elementwise("biases of experts", num_bytes),) if num_bytes else ()


def _slice_gradients(setting: Setting, model: ModelArchitecture, forward: Operators) -> Operators:
    """Return what gradients of experts move that are slices of one tensor, beside their products."""
    loop = setting.expert_loop
    if loop is None or setting.adapter or model.family not in loop.stacked:
        return ()
    if (turns := _turns(forward)) == 1:
        return ()
    num_bytes = expert_parameters(model) * setting.shard.value_bytes
    return (Elementwise("gradients of slices", turns * loop.slice_passes * num_bytes),)


def _launched(priced: PassSeconds, launch_seconds: float, beside_seconds: float) -> PassSeconds:
    """Return a pass that lasts at least as long as the host takes to launch it.

    Args:
        beside_seconds: Of exchanges, beside which it launches on.
    """
    waiting = launch_seconds - beside_seconds
    host = Estimate(max(0.0, waiting), max(0.0, waiting) * HOST_SPREAD, Source.FITTED)
    return PassSeconds(priced.compute.at_least(host), priced.collectives)


def _accumulated(
    setting: Setting, model: ModelArchitecture, part: Part, forward: Operators
) -> Operators:
    """Return what adds a micro-batch's gradients to those before it, where products do not."""
    passes = setting.kernels.accumulation_passes
    if not passes:
        return ()
    num_bytes = passes * PRECISIONS[setting.precision].gradient_bytes
    if part == "embedding":
        table = -(-model.embedding_parameters // setting.shard.tp)
        return (Elementwise("gradient accumulation", table * num_bytes),)
    return gradient_accumulation(forward, num_bytes)


def price(
    setting: Setting, operators: Operators, *, backward: bool = False, part: Part = "layer"
) -> PassSeconds:
    """Return what the operators take one after another, in seconds.

    Where launches do not hide, the host that launches kernel after kernel is a second, parallel
    resource: the pass takes as long as the slower of both.
    """
    own = [each for each in operators if not isinstance(each, Collective)]
    rates = setting.kernels
    if part in ("head", "sampling head"):
        setting = in_wide_format(setting)
    small = rates.logits_rate if part == "head" else rates.elementwise_rate
    compute = total(_seconds(setting, own, backward, small))
    if part == "layer" and rates.layer_gap_seconds and own and WHOLE_STEP not in setting.graphs:
        halves = 2 if backward else 1
        compute = compute + Estimate(halves * rates.layer_gap_seconds, 0.0, Source.FITTED)
    if not setting.launches_hidden and not setting.layer_launch_seconds:
        launches = kernels_of(tuple(own)) * setting.device.sheet.launch_seconds
        host = Estimate(launches, launches * HOST_SPREAD, Source.DATASHEET)
        compute = compute.at_least(host)
    return PassSeconds(compute, _exposed_exchanges(setting, operators, compute))


def _exposed_exchanges(setting: Setting, operators: Operators, compute: Estimate) -> Estimate:
    """Return what a pass's exchanges take, but for those between experts that hide behind computing."""
    shared = [each for each in operators if isinstance(each, Collective)]
    exchanges = [exchange_seconds(setting, each) for each in shared]
    exchanged = total(exchanges)
    if not exchanged.seconds or not (setting.hidden_exchange or setting.overlaps_products):
        return exchanged
    pairs = zip(shared, exchanges, strict=True)
    hidden = sum(exchange.seconds * _hidden_share(setting, each) for each, exchange in pairs)
    return exchanged * (1 - min(hidden, compute.seconds) / exchanged.seconds)


def _hidden_share(setting: Setting, operator: Collective) -> float:
    """Return the share of a layer's exchange which hides behind computing.

    Beside products of shared tensors it goes in as many parts as there are ranks. Of a gather each part arrives while
    the product of the one before it runs, the first lies there; of a sum the last part is left when products end (Wang
    et al. 2023, "Overlap Communication with Dependent Computation via Decomposition", section 4).
    """
    if operator.group == "ep":
        return setting.hidden_exchange
    if operator.group != "tp" or not setting.overlaps_products:
        return 0.0
    return {"all_gather": 1.0, "reduce_scatter": 1 - 1 / setting.shard.tp}.get(operator.kind, 0.0)


def operator_seconds(setting: Setting, operator: Operator) -> Estimate:
    """Return what one operator of no layer takes alone in a forward pass, as `price` says it."""
    alone = not isinstance(operator, Collective)
    if alone and (setting.launches_hidden or setting.layer_launch_seconds):
        (own,) = _seconds(setting, (operator,), False, setting.kernels.elementwise_rate)
        return own
    return price(setting, (operator,), part="embedding").total


def in_wide_format(setting: Setting) -> Setting:
    """Return the setting of what is not quantised beside products of a narrow format."""
    precision = WIDE[setting.precision]
    return setting if precision == setting.precision else replace(setting, precision=precision)


def _seconds(
    setting: Setting, operators: Iterable[Operator], backward: bool, small_rate: float
) -> list[Estimate]:
    """Return the seconds of each operator, none of which is an exchange."""
    found = list[Estimate]()
    device, rates, wide = setting.device, setting.kernels, WIDE[setting.precision]
    for operator in operators:
        if isinstance(operator, Gemm):
            sizes = (operator.m, operator.k, operator.n)
            rate = rates.gemm_rate
            if operator.count > 1:
                whole = device.grouped_gemm(
                    *sizes, operator.count, setting.precision, rates.grouped_compute_rate
                )
                rate *= rates.grouped_rate
            else:
                whole = device.gemm(*sizes, setting.precision)
            odd = operator.k % 2 or operator.n % 2
            factor = 1 / rate / (rates.odd_rate if odd else 1.0)
            found.append(whole if factor == 1 else whole * factor)
        elif isinstance(operator, Elementwise):
            moved = device.memory_bound(operator.num_bytes, kernels=operator.kernels)
            rate = small_rate * (_permutation_rate(setting, backward) if operator.permutes else 1)
            found.append(moved if rate == 1 else moved * (1 / rate))
        elif isinstance(operator, Scan):
            found.append(scan_seconds(device, operator, wide, backward))
        else:
            assert isinstance(operator, Attention)
            by = fused_attention_seconds if setting.fused_attention else unfused_attention_seconds
            found.append(by(device, rates, operator, wide, backward))
    return found


def _permutation_rate(setting: Setting, backward: bool) -> float:
    """Return the rate of bringing tokens to experts; slow kernels take as long backward, of more bytes counted.

    The gradient of a gather adds up, that of adding up gathers.
    """
    own = DISPATCHERS.load(setting.dispatcher).permutation_rate if setting.shard.ep > 1 else None
    if own is not None:
        return own * BACKWARD_BYTES_RATIO if backward else own
    rate = setting.kernels.permutation_rate
    if not backward:
        return rate
    return max(rate, min(1.0, rate * BACKWARD_BYTES_RATIO))


def _group(setting: Setting, group: Group) -> tuple[int, int]:
    """Return the ranks of a group, and how many of them lie on one node.

    TP ranks are consecutive; EP and CP ranks lie a model block apart. Where experts are cut over fewer ranks than all else, an
    expert-parallel group has several ranks of every tensor-parallel one. Where stages are outermost, or there are none, ranks are
    consecutive, over which experts are shared out before copies are, whatever lies between (Megatron-Core, parallel_state:
    tp-cp-ep-dp-pp, and ep in place of cp for experts; prime-rl, parallel_dims: dp_replicate-dp_shard-cp, the inner ones for experts).
    """
    shard = setting.shard
    apart = shard.tp * setting.block_stages
    copies = 1 if setting.stages_outermost or setting.pp == 1 else shard.cp
    ranks, inside, block = {
        "tp": (shard.tp, 1, 1),
        "cp": (shard.cp, 1, apart),
        "ep": (shard.ep, shard.tp // shard.expert_width, apart * copies),
    }[group]
    inside = min(inside, ranks)
    near = setting.site.ranks_per_node(inside, shard.expert_width) if inside > 1 else 1
    per_node = near * (setting.site.ranks_per_node(ranks // inside, block) if near == inside else 1)
    return ranks, per_node


def exchange_seconds(setting: Setting, operator: Collective) -> Estimate:
    """Return the seconds of a collective among the ranks of its group."""
    ranks, per_node = _group(setting, operator.group)
    kind, num_bytes = operator.kind, operator.num_bytes
    if operator.group == "ep" and kind == "all_to_all":
        # All wait for the rank that gets most; whose tokens are gathered by all, each gets them all.
        dispatcher = dispatcher_over(setting.dispatcher, setting.site.network)
        row_bytes = num_bytes / operator.copies
        if dispatcher.copies == "node":
            reach = Reach(ranks, per_node, operator.copies, operator.among)
            rows = operator.rows * operator.uneven
            return _copied(setting, dispatcher, row_bytes, rows, reach)
        if dispatcher.copies == "all":
            kind, num_bytes = "all_gather", row_bytes / operator.uneven * ranks
    seconds = setting.collective(kind, num_bytes, ranks, per_node=per_node)
    rate = setting.kernels.link_rate
    if rate != 1 and per_node >= ranks:
        seconds = seconds * (1 / rate)
    if operator.group == "ep" and kind == "all_to_all" and setting.exchange_messages:
        message = setting.collective(kind, MESSAGE_BYTES, ranks, per_node=per_node)
        seconds = seconds + message * setting.exchange_messages
    return seconds


def _copied(
    setting: Setting, dispatcher: Dispatcher, row_bytes: float, rows: float, reach: Reach
) -> Estimate:
    """Price a dispatch of a copy for each node, with a site's factor on the link that takes longer."""
    device = setting.device
    links = device.sheet.intra_node_bytes_per_second * setting.kernels.link_rate
    network = setting.site.inter_node_bytes_per_second * setting.kernels.network_rate
    posted = rows * dispatcher.row_seconds.get(device.sheet.architecture, 0.0)
    seconds = dispatcher.seconds(row_bytes, reach, links, network, posted)
    seconds *= device.link_factor("inter-node" if reach.nodes > 1 else "intra-node")
    return Estimate(seconds, seconds * DISPATCH_SPREAD, Source.FITTED)
