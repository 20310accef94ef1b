"""Which node of a cluster a plan's nodes take, what of a job travels, and what is said where something is missing."""

import importlib
import os
import time
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError, PlanError
from rlplan.executor.control.cluster import check_one_machine
from rlplan.executor.workers.calls import now_seconds, set_clock
from rlplan.executor.workers.cluster import looking
from rlplan.executor.workers.cluster.looking import (
    carried_files,
    check_seen,
    clock_offsets,
    outside_paths,
    seen_job,
    signature,
)
from rlplan.executor.workers.cluster.nodes import (
    RayNode,
    matched,
    plan_nodes,
    ray_kind,
    ray_nodes,
    shortage,
)
from rlplan.executor.workers.processes.joined_ray import joined_ray, worker_environment
from rlplan.files.frozen import FrozenDict
from rlplan.job import NodeGroup, Rewards
from rlplan.plan import ResourcePool
from rlplan.profiles.sheets import device_names
from rlplan.workload import Evaluation
from tests.executor.plans import ALL_ROLES, make_job, make_plan


def plan_on(*groups, pools, hosts=1):
    """Return a plan of which only the cluster and the pools count."""
    job = replace(make_job(), cluster=groups)
    plan = make_plan(job, {"p0": (1, ALL_ROLES)})
    found = tuple(
        ResourcePool(name=f"p{number}", device=device, gpus=gpus, roles=("actor",))
        for number, (device, gpus) in enumerate(pools)
    )
    host = ResourcePool(name="host", device="host", gpus=hosts, roles=("rule",))
    return replace(plan, pools=(*found, host))


def group(gpu, gpus_per_node, nodes, mark=None):
    return NodeGroup(gpu=gpu, gpus_per_node=gpus_per_node, nodes=nodes, ray_resource=mark)


def node(address, free=None, **total):
    return RayNode(id=address, address=address, total=total, free=total if free is None else free)


@st.composite
def plans(draw):
    sizes = st.integers(1, 4)
    groups = [
        group(draw(st.sampled_from(["cpu", "h100-80gb-sxm"])), draw(sizes), draw(sizes))
        for _ in range(draw(st.integers(1, 3)))
    ]
    pools = []
    for device in ("cpu", "h100-80gb-sxm"):
        left = sum(each.gpus for each in groups if each.gpu == device)
        while left and draw(st.booleans()):
            pools.append((device, draw(st.integers(1, left))))
            left -= pools[-1][1]
    if not pools:
        pools = [(groups[0].gpu, 1)]
    return plan_on(*groups, pools=pools, hosts=draw(sizes))


@given(plans())
def test_every_worker_of_a_plan_stands_on_one_node_in_the_plans_order(plan):
    nodes = plan_nodes(plan)
    room = max(each.gpus_per_node for each in plan.job.cluster)
    assert all(1 <= len(each.workers) <= room for each in nodes)
    for device in {each.device for each in nodes}:
        stood = [worker for each in nodes if each.device == device for worker in each.workers]
        pools = [pool for pool in plan.pools if pool.device == device]
        assert stood == [(pool.name, rank) for pool in pools for rank in range(pool.gpus)]
    hosts = sorted(worker for each in nodes for worker in each.hosts)
    assert hosts == [("host", rank) for rank in range(plan.pool("host").gpus)]


def test_pools_take_devices_node_by_node_and_functions_go_round():
    plan = plan_on(group("cpu", 3, 1), group("cpu", 2, 2), pools=[("cpu", 4), ("cpu", 2)], hosts=4)
    found = [(each.workers, each.hosts) for each in plan_nodes(plan)]
    assert found == [
        ((("p0", 0), ("p0", 1), ("p0", 2)), (("host", 0), ("host", 3))),
        ((("p0", 3), ("p1", 0)), (("host", 1),)),
        ((("p1", 1),), (("host", 2),)),
    ]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.lists(st.integers(0, 4), max_size=4))
def test_as_many_nodes_as_possible_are_matched(wanted, cores):
    plan = plan_on(*(group("cpu", size, 1) for size in wanted), pools=[("cpu", sum(wanted))])
    there = [node(f"10.0.0.{number}", CPU=float(has)) for number, has in enumerate(cores)]
    found = matched(plan_nodes(plan), there)
    assert len({each.id for each in found if each}) == len([each for each in found if each])
    for needs, each in zip(wanted, found, strict=True):
        assert each is None or each.total["CPU"] >= needs
    padded = cores + [0] * len(wanted)
    most = max(
        sum(has >= needs for needs, has in zip(wanted, order, strict=False))
        for order in permutations(padded, len(wanted))
    )
    assert sum(each is not None for each in found) == most


def test_alike_nodes_are_taken_in_the_order_of_their_addresses():
    plan = plan_on(group("cpu", 2, 2), pools=[("cpu", 4)])
    there = [node(f"10.0.0.{number}", CPU=2.0) for number in (2, 10, 11)]
    found = matched(plan_nodes(plan), there)
    assert [each.address for each in found if each] == ["10.0.0.2", "10.0.0.10"]


H100 = {"GPU": 8.0, "CPU": 96.0, "accelerator_type:H100": 1.0}
MISSING = [
    (
        plan_on(group("cpu", 2, 2), pools=[("cpu", 4)]),
        [node("10.0.0.1", CPU=2.0)],
        "the plan wants 2 nodes with 2 CPU; missing: 1 node with 2 CPU; there: 10.0.0.1: 2 CPU",
    ),
    (
        plan_on(group("h100-80gb-sxm", 8, 2), pools=[("h100-80gb-sxm", 16)]),
        [
            node("10.0.0.1", **H100),
            node("10.0.0.2", **{"GPU": 8.0, "CPU": 64.0, "accelerator_type:A100": 1.0}),
        ],
        (
            "the plan wants 1 node with 8 GPU (H100) and 1 CPU and 1 node with 8 GPU (H100); "
            "missing: 1 node with 8 GPU (H100); "
            "there: 10.0.0.1: 8 GPU (H100), 96 CPU; 10.0.0.2: 8 GPU (A100), 64 CPU"
        ),
    ),
    (
        plan_on(group("h100-80gb-sxm", 8, 1), pools=[("h100-80gb-sxm", 8)]),
        [node("10.0.0.1", free={**H100, "GPU": 5.0}, **H100)],
        (
            "the plan wants 1 node with 8 GPU (H100) and 1 CPU; "
            "in use by others: 1 node with 8 GPU (H100) and 1 CPU; there: 10.0.0.1: 5 of 8 free GPU (H100), 96 CPU"
        ),
    ),
    (
        plan_on(group("cpu", 2, 1, mark="big"), pools=[("cpu", 2)]),
        [node("10.0.0.1", CPU=2.0, small=1.0)],
        (
            "the plan wants 1 node with 2 CPU (big); missing: 1 node with 2 CPU (big); "
            "there: 10.0.0.1: 2 CPU, small"
        ),
    ),
    (plan_on(group("cpu", 2, 1), pools=[("cpu", 2)]), [], "there: no node"),
]


@pytest.mark.parametrize(("plan", "there", "words"), MISSING)
def test_what_is_missing_is_said_with_what_is_there(plan, there, words):
    assert shortage(plan_nodes(plan), there).endswith(words)


def test_nothing_is_missing_where_all_is_there():
    plan = plan_on(group("h100-80gb-sxm", 8, 1), pools=[("h100-80gb-sxm", 8)])
    assert shortage(plan_nodes(plan), [node("10.0.0.1", **H100)]) == ""


def test_devices_of_the_catalog_have_rays_names():
    found = {name: ray_kind(name) for name in device_names() if name != "cpu"}
    assert all(found.values())
    expected = {
        "a100-80gb-sxm": "A100",
        "grand-teton-h100-96gb": "H100",
        "h20": "H20",
        "l40s": "L40S",
        "mi300x": "AMD-Instinct-MI300X-OAM",
        "mi355x": "AMD-Instinct-MI355X-OAM",
        "gb300": "GB300",
        "h20-3e": "H20",
        "rtx-pro-6000": "RTX-PRO-6000",
        "rtx-4090": "4090",  # as a board of it is called where there is one
    }
    assert {name: found[name] for name in expected} == expected
    assert ray_kind("rtx-4090", ["GeForce-RTX-4090"]) == "GeForce-RTX-4090"
    assert ray_kind("a100-80gb-sxm", ["A100", "A100-40G", "A100-80G"]) == "A100-80G"
    assert ray_kind("my-board") is None


def test_a_plan_of_several_nodes_is_refused_on_one_machine(monkeypatch):
    plan = plan_on(group("cpu", 2, 2), pools=[("cpu", 4)])
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    check_one_machine(plan)  # a Ray that the caller runs has nodes of its own
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    check_one_machine(plan_on(group("cpu", 4, 2), pools=[("cpu", 4)]))
    words = r"stands on 2 nodes, and this is one machine: .*--address .*--simulate-nodes"
    with pytest.raises(PlanError, match=words):
        check_one_machine(plan)


def test_workers_of_a_cluster_get_settings_and_no_loopback(monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = worker_environment()
    assert found["NCCL_SOCKET_IFNAME"] == "ib0"
    assert found["OMP_NUM_THREADS"] == "3"
    assert "GLOO_SOCKET_IFNAME" not in found
    submitted = '{"runtime_env": {"env_vars": {"NCCL_SOCKET_IFNAME": "ib0"}}, "metadata": {}}'
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", submitted)  # by `ray job submit`
    assert worker_environment() == {
        name: value for name, value in found.items() if name != "NCCL_SOCKET_IFNAME"
    }
    assert not {name for name in found if "AUTH" in name or name.startswith("RAY_TOKEN")}


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ray://10.0.0.1:10001", "is of Ray's client"),
        ("nowhere", "no Ray answers at nowhere"),
        ("127.0.0.9:1", "no Ray answers at 127.0.0.9:1: .*refused"),
    ],
)
def test_an_address_where_nobody_answers_is_refused_at_once(address, words):
    with pytest.raises(FileError, match=f"^--address: {words}"), joined_ray(address):
        pass


def job_with(**rewards):
    return replace(make_job(), rewards=Rewards(**rewards))


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_rule_goes_along_with_the_python_files_beside_it(tmp_path, is_whole):
    (tmp_path / "rules").mkdir()
    for name in ("rule.py", "helper.py", "data.csv"):
        (tmp_path / "rules" / name).write_text(name)
    (tmp_path / "other.py").write_text("")
    function = f"{tmp_path}/rules/rule.py:judge" if is_whole else "rules/rule.py:judge"
    job = job_with(function=function)
    with carried_files(job, tmp_path) as package:
        found = sorted(str(each.relative_to(package)) for each in package.rglob("*.*"))
    assert found == ["rules/helper.py", "rules/rule.py"]
    assert not package.exists()


@pytest.mark.parametrize("kept", ["as it is", "changed", "not there"])
def test_a_node_takes_what_went_along_where_it_does_not_see_the_folder_as_it_is(
    tmp_path, monkeypatch, kept
):
    folder, carried = tmp_path / "job", tmp_path / "package" / "rlplan_carried"
    for each in (folder, carried):
        (each / "rules").mkdir(parents=True)
        (each / "rules" / "rule.py").write_text("rule")
    if kept == "changed":
        (folder / "rules" / "rule.py").write_text("else")
    if kept == "not there":
        (folder / "rules" / "rule.py").unlink()
    whole = f"{folder}/rules/rule.py:judge"
    held_out = Evaluation(prompts_file="held-out.jsonl", function=whole)
    job = replace(job_with(function=whole, cost_function="digits"), evaluation=held_out)
    assert seen_job(job, folder) == (job, folder)  # where nothing went along
    monkeypatch.syspath_prepend(tmp_path / "package")
    importlib.invalidate_caches()
    found, where = seen_job(job, folder)
    assert where == (folder if kept == "as it is" else carried)
    expected = whole if kept == "as it is" else "rules/rule.py:judge"
    assert (found.rewards.function, found.rewards.cost_function) == (expected, "digits")
    assert found.evaluation.function == expected


def test_a_built_in_rule_needs_nothing_to_go_along(tmp_path):
    with carried_files(job_with(function="digits"), tmp_path) as package:
        assert package is None


def test_what_lies_outside_of_the_jobs_folder_has_to_be_seen(tmp_path):
    job = job_with(function="../rule.py:judge", cost_function="/shared/cost.py:judge")
    held_out = Evaluation(prompts_file="held-out.jsonl", function="/shared/judge.py:judge")
    job = replace(job, evaluation=held_out)
    assert outside_paths(job, tmp_path / "job") == {
        "rewards.function": tmp_path / "rule.py",
        "rewards.cost_function": Path("/shared/cost.py"),
        "evaluation.function": Path("/shared/judge.py"),
    }


def test_a_signature_is_of_contents_and_empty_for_what_is_not_there(tmp_path):
    folders = [tmp_path / name for name in ("first", "second")]
    for each in folders:
        (each / "inner").mkdir(parents=True)
        (each / "inner" / "file").write_text("same")
    assert signature(folders[0]) == signature(folders[1]) != ""
    (folders[1] / "inner" / "file").write_text("else")
    assert signature(folders[0]) != signature(folders[1])
    assert signature(tmp_path / "none") == ""


def test_a_private_ray_leaves_no_setting_of_its_own_behind(ray_slots):
    assert ray.is_initialized()
    assert "RAY_AUTH_TOKEN" in os.environ  # while it runs
    assert FrozenDict(worker_environment()).get("GLOO_SOCKET_IFNAME") is None


def test_a_workers_clock_is_that_of_the_controller(ray_slots):
    own = ray.get_runtime_context().get_node_id()
    set_clock({own: 100.0, "another": 7.0})
    try:
        before, shown, after = time.monotonic(), now_seconds(), time.monotonic()
    finally:
        set_clock({own: 0.0})
    assert before - 100 <= shown <= after - 100


@pytest.mark.full
def test_the_clock_of_another_machine_is_asked_for_and_this_ones_is_not(ray_slots, monkeypatch):
    nodes = ray_nodes()
    assert clock_offsets(nodes) == {}
    monkeypatch.setattr(looking, "BOOT_FILE", Path("/proc/sys/kernel/ostype"))  # here alone
    found = clock_offsets(nodes)
    assert list(found) == [each.id for each in nodes]
    assert abs(found[nodes[0].id]) < 100  # it is this machine's after all


def test_nodes_see_what_is_there_alike_and_what_is_not_is_refused_by_name(ray_slots, tmp_path):
    (tmp_path / "file").write_text("here")
    nodes = ray_nodes()
    seen = check_seen(nodes, {"weights.actor": tmp_path}, {"--out": tmp_path / "new" / "out"})
    assert seen[nodes[0].id].versions["torch"].startswith("2.")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file"]  # no token is left
    with pytest.raises(FileError, match=r"file/out: --out: cannot be written: Not a directory"):
        check_seen(nodes, {}, {"--out": tmp_path / "file" / "out"})
