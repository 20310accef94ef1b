"""Transports: a plan names one; another is a file for each reader, and brings the same weights."""

from dataclasses import replace

import numpy as np
import pytest

import rlplan.executor.workers.transports
import rlplan.transports
from rlplan.errors import CapabilityError, FileError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.workers.transports import TRANSPORTS
from rlplan.files.decoding import decode
from rlplan.files.writing import plain
from rlplan.plan import Plan
from rlplan.transports import KNOWN_TRANSPORTS
from tests.executor.plans import ALL_ROLES, make_job, make_plan
from tests.house.test_ten_changes import one_file

PLAN = make_plan(
    make_job(),
    {"p0": (1, ALL_ROLES), "generator": (1, ("actor",))},
    transition="two-copies",
)
POST = """
from rlplan.transports import Transport


def lacks(train_device, generate_device):
    return None if {train_device, generate_device} == {"cpu"} else "is for pools of CPU cores"


TRANSPORT = Transport(words="by post", probed=False, lacks=lacks)
"""
CARRIES = """
from dataclasses import replace

from rlplan.executor.workers.transports import object_store
from rlplan.executor.workers.transports.object_store import send


class Endpoint(object_store.Endpoint):
    def receive(self, request):
        report = super().receive(request)
        return replace(report, metrics={**report.metrics, "letters": 1.0})
"""


@pytest.fixture
def known(tmp_path):
    with one_file(rlplan.transports, KNOWN_TRANSPORTS, tmp_path / "kinds", "post", POST):
        yield replace(PLAN, transport="post")


@pytest.fixture
def post(tmp_path, known):
    with one_file(
        rlplan.executor.workers.transports, TRANSPORTS, tmp_path / "runs", "post", CARRIES
    ):
        yield known


def test_a_name_that_no_file_has_is_refused_when_a_plan_is_read():
    written = {**plain(PLAN), "transport": "object-stor"}
    with pytest.raises(FileError, match=r"transport.*object-store"):
        decode(Plan, written, "plan.yaml")


def test_every_transport_of_plans_is_carried_out():
    assert TRANSPORTS.names() == KNOWN_TRANSPORTS.names()


def test_one_that_no_file_carries_out_is_refused_by_its_name(known):
    with pytest.raises(CapabilityError, match="transport is post: this executor cannot") as caught:
        check_runnable(known)
    assert caught.value.capability == "this transport of weights between pools"
    assert "it has object-store" in str(caught.value)


def test_one_is_refused_where_it_does_not_serve(post):
    elsewhere = replace(
        post, pools=tuple(replace(p, device=p.device.replace("cpu", "h20")) for p in post.pools)
    )
    group = replace(post.job.cluster[0], gpu="h20")
    elsewhere = replace(elsewhere, job=replace(post.job, cluster=(group,)))
    with pytest.raises(
        FileError, match=r"transport: is for pools of CPU cores.*allowed: object-store"
    ):
        check_runnable(elsewhere)


def test_one_is_refused_where_weights_stay_on_their_pool(post):
    plan = make_plan(post.job, {"p0": (1, ALL_ROLES)})
    with pytest.raises(FileError, match="transport: means nothing where the actor generates on"):
        check_runnable(replace(plan, transport="post"))


@pytest.mark.ray
def test_another_carries_the_same_weights(tmp_path, post, worker_pool):
    folder = str(tmp_path / "runs")

    def find_it(rank, ranks):
        import rlplan.executor.workers.transports as there

        there.__path__.append(folder)

    def forget_it(rank, ranks):
        import rlplan.executor.workers.transports as there

        there.__path__.remove(folder)

    usual = worker_pool.run(PLAN)
    worker_pool.on_ranks(2, find_it)
    try:
        other = worker_pool.carry_out(post)
    finally:
        worker_pool.on_ranks(2, forget_it)
    letters = [metrics.get("letters") for metrics in other.moved]
    assert letters == [None, 1.0]
    assert all("letters" not in metrics for metrics in usual.moved)
    for one, two in zip(usual.generator, other.generator, strict=True):
        assert one.keys() == two.keys()
        assert all(np.array_equal(one[name], two[name]) for name in one)
