"""Which Ray a run joins, as options and the environment say, and with what it goes on where nodes are lost."""

from dataclasses import replace

import pytest

from rlplan.errors import FileError, InfeasibleError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.control.cluster import Cluster
from rlplan.executor.control.run import Saving
from rlplan.job import Specs
from rlplan.planner.answers.completion import load_plan
from rlplan.results.stored import write_plan
from rlplan_cli.running import cluster_of, replanning
from tests.executor.plans import ALL_ROLES, make_job, make_plan


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


def test_a_run_goes_on_with_fewer_nodes_where_it_waits_for_them_and_has_checkpoints(tmp_path):
    job = replace(make_job(), cluster=(replace(make_job().cluster[0], gpus_per_node=1),))
    write_plan(tmp_path / "plan.yaml", make_plan(job, {"p0": (2, ALL_ROLES)}))
    plan, facts = load_plan(tmp_path / "plan.yaml")
    job = plan.job
    waits, saves = Cluster(address="auto", node_wait_seconds=30.0), Saving(every=5)
    assert replanning(None, facts, saves) is None
    assert replanning(waits, facts, Saving()) == waits
    assert replanning(Cluster(address="auto"), facts, saves) == Cluster(address="auto")
    found = replanning(waits, facts, saves)
    assert found == replace(waits, replan=found.replan)
    left = (replace(job.cluster[0], nodes=1),)
    after = found.replan(plan, left)
    check_runnable(after)
    assert [group.nodes for group in after.job.cluster] == [1]
    assert replace(after.job, cluster=(), engines=job.engines) == replace(job, cluster=())
    small = replace(job, specs=Specs(iteration_seconds=1e-9))
    with pytest.raises(InfeasibleError, match=r"specs\.iteration_seconds"):
        found.replan(replace(plan, job=small), left)
