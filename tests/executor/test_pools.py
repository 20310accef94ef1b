"""The private Ray of a run."""

import pytest
import ray

from executor.workers.host_worker import HostWorker
from executor.workers.pools import fetched, start_group
from executor.workers.ray_session import HOST, _init_ray
from rlplan.errors import RlplanError

pytestmark = pytest.mark.ray

# Many more than a worker answers before it is gone.
CALLS = 20_000


def test_nobody_outside_this_machine_reaches_the_cluster(ray_slots):
    assert ray.util.get_node_ip_address() == "127.0.0.1"
    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}


def test_a_worker_that_dies_ends_the_wait_with_an_error(ray_slots):
    group = start_group(HostWorker, 2, HOST)
    group.call("peak")
    ray.kill(group._actors[1])  # which Ray does in its own time
    with pytest.raises(RlplanError, match="a worker died"):
        call_on(group)
    group.stop()


def call_on(group):
    for _ in range(CALLS):
        fetched(group.start("peak"))


def test_a_ray_that_does_not_start_is_one_message(monkeypatch, tmp_path):
    def late(**_):
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", late)
    with pytest.raises(RlplanError, match=r"Ray did not start: .*timed out.* less to do"):
        _init_ray(str(tmp_path), devices=2, hosts=1)
