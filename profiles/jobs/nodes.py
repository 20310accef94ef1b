"""What a job leaves open about its nodes: the figures of its device's usual node."""

from dataclasses import replace

from rlplan.job import Job, NodeGroup
from rlplan.profiles.sheets import load_framework, sheet_of
from rlplan.sheets import DeviceSheet


def on_usual_nodes(
    group: NodeGroup, sheet: DeviceSheet, *, keeps_domains: bool = True
) -> NodeGroup:
    """Return a group with the figures of its device's usual node where the job says nothing.

    A node with more or fewer GPUs than the sheet's has its network, cores and memory in proportion.

    Args:
        keeps_domains: Whether the job's framework places ranks by domains of nodes on a fast link.
    """
    share = group.gpus_per_node / sheet.gpus_per_node
    return replace(
        group,
        gpu=sheet.name,
        nvlink_domain_gpus=group.nvlink_domain_gpus or _domain_gpus(group, sheet, keeps_domains),
        inter_node_gbps=group.inter_node_gbps or sheet.inter_node_gbps * share,
        cpu_cores=group.cpu_cores or max(1, int(sheet.cpu_cores * share)),
        host_memory_bytes=group.host_memory_bytes or int(sheet.host_memory_bytes * share),
    )


def taken_from_sheet(
    group: NodeGroup, sheet: DeviceSheet, *, keeps_domains: bool = True
) -> tuple[str, ...]:
    """Return the fields of a resolved group that are as its device's sheet has them."""
    bare = NodeGroup(gpu=group.gpu, gpus_per_node=group.gpus_per_node, nodes=group.nodes)
    usual = on_usual_nodes(bare, sheet, keeps_domains=keeps_domains)
    fields = ("nvlink_domain_gpus", "inter_node_gbps", "cpu_cores", "host_memory_bytes")
    return tuple(name for name in fields if getattr(group, name) == getattr(usual, name))


def left_to_framework(job: Job) -> tuple[NodeGroup, ...]:
    """Return a resolved job's groups without the domains of a fast link that its framework decided on."""
    kept = load_framework(job.framework).keeps_domains
    return tuple(
        replace(group, nvlink_domain_gpus=None)
        if group.nvlink_domain_gpus == _domain_gpus(group, sheet_of(job, group.gpu), kept)
        else group
        for group in job.cluster
    )


def _domain_gpus(group: NodeGroup, sheet: DeviceSheet, keeps_domains: bool) -> int | None:
    """Return the GPUs of a domain, so that the group takes equal parts of as few as it needs.

    Where ranks are placed without regard to domains, two nodes of any group may be of different ones.
    """
    if sheet.nvlink_domain_gpus is None:
        return None
    most = sheet.nvlink_domain_gpus // group.gpus_per_node
    if group.nodes > most and not keeps_domains:
        return group.gpus_per_node
    sizes = (nodes for nodes in range(most, 0, -1) if group.nodes % nodes == 0)
    nodes = next(sizes, None)
    return nodes and nodes * group.gpus_per_node
