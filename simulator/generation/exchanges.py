"""What collectives take in the steps of a generation engine, whose own kernels replace the library's inside a node."""

from rlplan.dispatchers import dispatcher_over
from rlplan.estimate import Estimate, Source
from rlplan.models import Collective
from rlplan.sheets import StepCosts
from rlplan.simulator.costs.pricing import exchange_seconds
from rlplan.simulator.costs.setting import Setting

NVLINK = "nvlink"  # by which all GPUs of a node reach one another, as engines' own kernels ask for
NEXT_TO_NO_BYTES = 1.0  # a message so small that its time is the collective's fixed cost


def exchanged(costs: StepCosts, family: str, setting: Setting, operator: Collective) -> Estimate:
    """Price a collective; the engine's own kernel replaces the library's, or its fixed time, inside a node, but of tokens that all gather.

    Args:
        costs: Of the engine.
        family: Of the model.
    """
    whole = exchange_seconds(setting, operator)
    site, shard = setting.site, setting.shard
    reduces = operator.kind == "all_reduce" and operator.group == "tp"
    ranks = shard.tp if reduces else max(shard.tp, shard.ep)
    # A kernel that maps the others' memory needs one host, wherever else the fast link leads.
    host = setting.device.sheet.gpus_per_node or site.gpus_per_node
    inside = site.ranks_per_node(min(ranks, host), 1) == ranks
    gathers = operator.group == "ep" and _gathers_tokens(setting)
    own = costs.all_reduce_seconds
    if not own or not (reduces or operator.group == "ep") or not inside or gathers:
        return whole
    if reduces and whole.source > Source.MEASURED:
        known = _own_reduce(costs, family, setting, operator.num_bytes, whole)
        if known is not None:
            return known
    least = setting.collective(operator.kind, NEXT_TO_NO_BYTES, shard.tp if reduces else shard.ep)
    moving = max(0.0, whole.seconds - least.seconds)
    return Estimate(own + moving, whole.spread_seconds, Source.FITTED)


def _gathers_tokens(setting: Setting) -> bool:
    """Tell whether all ranks gather all tokens for their experts, and add up, by the library's collectives."""
    return dispatcher_over(setting.dispatcher, setting.site.network).copies == "all"


def _own_reduce(
    costs: StepCosts, family: str, setting: Setting, num_bytes: float, whole: Estimate
) -> Estimate | None:
    """Return what the engine's own all-reduce takes among linked ranks; None where that was not measured.

    Larger tensors than were measured add what the library's take more of them.

    Args:
        num_bytes: Of the tensor.
        whole: What the library's takes.
    """
    sheet, ranks = setting.device.sheet, setting.shard.tp
    table = costs.own_all_reduces(family, sheet.architecture, ranks, num_bytes)
    if table is None or sheet.intra_node != NVLINK:
        return None
    most = table.most_bytes(ranks)
    seconds = table.seconds_of(ranks, num_bytes, sheet.intra_node_bytes_per_second)
    seconds *= setting.device.link_factor("intra-node")
    if num_bytes > most:
        largest = setting.collective("all_reduce", most, ranks)
        seconds += max(0.0, whole.seconds - largest.seconds)
    return Estimate(seconds, whole.spread_seconds, Source.FITTED)
