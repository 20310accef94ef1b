"""A node on which workers were placed and that is not there any more is noticed."""

from rlplan.executor.control.cluster import Cluster, JoinedCluster, SharedPaths
from rlplan.executor.workers.cluster.nodes import RayNode
from tests.executor.plans import ALL_ROLES, make_job, make_plan


def test_a_node_that_workers_were_placed_on_is_missed_and_no_other(monkeypatch):
    first, second, other = (RayNode(id=name, address=name, total={}, free={}) for name in "abc")
    plan = make_plan(make_job(), {"p0": (1, ALL_ROLES)})
    joined = JoinedCluster(plan, Cluster(address="127.0.0.1:6379"), SharedPaths())
    joined._nodes = (first, second)
    for there, is_lost in (((first, second), False), ((first, other), True)):
        monkeypatch.setattr("rlplan.executor.control.cluster.ray_nodes", lambda found=there: found)
        assert joined.has_lost_nodes == is_lost
