"""Which nodes of a cluster a profile is measured on, and what is refused before anything is."""

from dataclasses import replace

import pytest

from rlplan.errors import FileError, PlanError
from rlplan.executor.workers.cluster import node_calls
from rlplan.executor.workers.cluster.looking import NodeAnswer
from rlplan.executor.workers.cluster.node_calls import FirstGpu, check_alike
from rlplan.executor.workers.cluster.nodes import RayNode
from rlplan.files.frozen import FrozenDict
from rlplan.job import NodeGroup
from rlplan_cli.profiling.nodes import ProfileRequest, nodes_to_measure
from tests.executor.plans import make_job

MACHINE = {"system": "Linux", "cpu": "x", "cores": "8", "memory_bytes": "1", "gpus": "none"}
VERSIONS = {"python": "3.11", "ray": "2.60", "torch": "2.13"}
BOARDS = {
    "H100": FirstGpu("NVIDIA H100 80GB HBM3", 80 * 2**30),
    "L40S": FirstGpu("NVIDIA L40S", 45 * 2**30),
}


def node(address, free=None, **resources):
    total = {name.replace("type_", "accelerator_type:"): each for name, each in resources.items()}
    return RayNode(id=address, address=address, total=total, free=total if free is None else free)


CORES = [node("10.0.0.1", CPU=4.0), node("10.0.0.2", CPU=4.0), node("10.0.0.3", CPU=4.0)]
GPUS = [
    node("10.0.0.1", CPU=8.0),
    node("10.0.0.2", CPU=8.0, GPU=8.0, type_H100=1.0),
    node("10.0.0.3", CPU=8.0, GPU=8.0, type_H100=1.0),
    node("10.0.0.4", CPU=8.0, GPU=4.0, type_L40S=1.0),
]


@pytest.fixture(autouse=True)
def seen(monkeypatch):
    """Let nodes answer as machines of one kind, their GPUs by what Ray calls them."""
    found = NodeAnswer(versions=FrozenDict(VERSIONS), fingerprint=FrozenDict(MACHINE))
    answers = {f"10.0.0.{number}": found for number in range(1, 5)}
    monkeypatch.setattr(node_calls, "looked_at", lambda *_: answers)
    monkeypatch.setattr(
        node_calls,
        "first_gpus_of",
        lambda nodes: {n.id: BOARDS[n.kinds[0]] for n in nodes if n.kinds},
    )
    return answers


def measured(there, job=None, **wanted):
    found = nodes_to_measure(ProfileRequest(job=job, **wanted), there)
    return [(each.device, each.devices, [node.address for node in each.nodes]) for each in found]


@pytest.mark.parametrize(
    ("there", "wanted", "expected"),
    [
        (CORES, {}, [("cpu", 1, ["10.0.0.1", "10.0.0.2", "10.0.0.3"])]),
        (CORES, {"nodes": 2, "devices": 4}, [("cpu", 4, ["10.0.0.1", "10.0.0.2"])]),
        (
            GPUS,
            {},
            [("h100-80gb-sxm", 8, ["10.0.0.2", "10.0.0.3"]), ("l40s", 4, ["10.0.0.4"])],
        ),
        (GPUS, {"device": "l40s", "devices": 2}, [("l40s", 2, ["10.0.0.4"])]),
        (GPUS, {"device": "cpu", "nodes": 1}, [("cpu", 1, ["10.0.0.1"])]),
    ],
)
def test_without_a_job_each_type_of_gpu_is_measured_or_the_cores(there, wanted, expected):
    assert measured(there, **wanted) == expected


def test_a_job_says_which_devices_of_how_many_nodes():
    groups = (NodeGroup(gpu="cpu", gpus_per_node=2, nodes=2, inter_node_gbps=1.0),)
    job = replace(make_job(), cluster=groups)
    assert measured(CORES, job) == [("cpu", 2, ["10.0.0.1", "10.0.0.2"])]
    (found,) = nodes_to_measure(ProfileRequest(job=job), CORES)
    assert [each.workers for each in found.plan_nodes] == [
        (("profile", 0), ("profile", 1)),
        (("profile", 2), ("profile", 3)),
    ]
    with pytest.raises(FileError, match=r"^--device: the job's cluster has none; found 'l40s'"):
        measured(CORES, job, device="l40s")
    larger = replace(job, cluster=(replace(groups[0], nodes=4),))
    words = r"the profile wants 4 nodes with 2 CPU; missing: 1 node with 2 CPU; there: 10.0.0.1: "
    with pytest.raises(PlanError, match=words):
        measured(CORES, larger)


def test_devices_in_use_and_nodes_of_unlike_sizes_are_refused():
    busy = [*CORES[:1], node("10.0.0.2", {"CPU": 0.0}, CPU=4.0)]
    words = r"in use by others: 1 node with 1 CPU; there: .*10.0.0.2: 0 of 4 free CPU"
    with pytest.raises(PlanError, match=words):
        measured(busy)
    uneven = [*GPUS, node("10.0.0.4", CPU=8.0, GPU=4.0, type_H100=1.0)]
    words = (
        r"^--address: nodes have unlike numbers of h100-80gb-sxm: 8 on 10.0.0.2, 8 on .*--devices"
    )
    with pytest.raises(FileError, match=words):
        measured([*uneven[:3], uneven[4]])
    with pytest.raises(FileError, match=r"^--device: no node has one; found 'b200'"):
        measured(GPUS, device="b200")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"versions": {**VERSIONS, "torch": "2.11"}}, "torch is 2.13 on 10.0.0.1 and 2.11 on"),
        ({"fingerprint": {**MACHINE, "cpu": "y"}}, "cpu is x on 10.0.0.1 and y on 10.0.0.2"),
        ({"versions": {"python": "3.11", "ray": "2.60"}}, "torch .* and not there on 10.0.0.2"),
    ],
)
def test_nodes_of_which_one_does_not_stand_for_another_are_refused(seen, changed, words):
    parts = {name: FrozenDict(each) for name, each in changed.items()}
    seen["10.0.0.2"] = replace(seen["10.0.0.2"], **parts)
    with pytest.raises(PlanError, match=f"nodes with cpu are unlike: {words}"):
        check_alike(CORES[:2], "cpu")
    check_alike(CORES[:1], "cpu")
