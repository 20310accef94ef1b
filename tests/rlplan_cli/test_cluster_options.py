"""Which Ray a run joins, as options and the environment say."""

import pytest

from executor.control.cluster import Cluster
from rlplan.errors import FileError
from rlplan_cli.running import cluster_of


@pytest.mark.parametrize(
    ("option", "variable", "found"),
    [
        (None, None, None),
        (None, "10.0.0.1:6379", "10.0.0.1:6379"),
        ("auto", None, "auto"),
        ("10.0.0.2:6379", "10.0.0.1:6379", "10.0.0.2:6379"),
        ("local", "10.0.0.1:6379", None),
        (None, "local", None),
    ],
)
def test_the_option_decides_then_the_environment(monkeypatch, option, variable, found):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    expected = None if found is None else Cluster(address=found)
    assert cluster_of(option, None, simulate_nodes=False) == expected


def test_nodes_are_waited_for_in_a_cluster_alone(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    waiting = cluster_of("auto", 30.0, simulate_nodes=False)
    assert waiting == Cluster(address="auto", node_wait_seconds=30.0)
    with pytest.raises(FileError, match=r"^--node-wait: waits for nodes"):
        cluster_of(None, 30.0, simulate_nodes=False)
    with pytest.raises(FileError, match=r"^--simulate-nodes: is for a Ray"):
        cluster_of("auto", None, simulate_nodes=True)
