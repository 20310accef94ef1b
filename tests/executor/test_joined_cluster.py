"""Runs that join a Ray cluster of two nodes: same weights as on one machine, and the cluster as it was."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.control.checkpoints import CheckpointFolder, CheckpointState, find_checkpoint
from rlplan.executor.control.controller import Controller
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.control.start import prepare_groups
from rlplan.executor.data.workload import PromptBatches
from rlplan.files.frozen import FrozenDict
from rlplan.job import NodeGroup, Rewards
from rlplan.results.stored import write_plan
from tests.executor.plans import ALL_ROLES, make_job, make_plan
from tests.executor.test_checkpoints import assert_same, stored_weights
from tests.house.tree import ROOT

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="takes addresses of Linux"),
]

SEED, ITERATIONS = 3, 2
TOKEN = "0123456789abcdef" * 4
HEAD, SECOND, THIRD = "127.0.0.2", "127.0.0.3", "127.0.0.4"
COMMAND = "from rlplan_cli.main import main; main()"
RULE = """
from pathlib import Path

THREE = int(Path(__file__).with_name("three.py").read_text())


def judge(prompt, response, row):
    return float(len(response) % THREE)
"""
# The 20th response of eight an iteration waits for the loss of a node.
WAITING_RULE = """
import time
from pathlib import Path

HERE, CALLS = Path(__file__).parent, []


def judge(prompt, response, row):
    CALLS.append(1)
    if len(CALLS) == 20:
        (HERE / "waits").write_text("")
        while not (HERE / "killed").exists():
            time.sleep(0.1)
    return float(len(response) % 3)
"""
# What others have in the cluster: an actor that outlives who started it.
NEIGHBOUR = """
import logging, sys, ray
ray.init(address=sys.argv[1], logging_level=logging.ERROR, log_to_driver=False, namespace="others")


@ray.remote(num_cpus=0)
class Neighbour:
    def answer(self):
        return 7


# On the first node, which no test ends.
here = {"node:" + sys.argv[1].split(":")[0]: 0.001}
actor = Neighbour.options(
    name="neighbour", lifetime="detached", get_if_exists=True, resources=here
).remote()
print(ray.get(actor.answer.remote()))
"""
STATE = """
import json, logging, sys, time, ray
from ray._private import state
ray.init(address=sys.argv[1], logging_level=logging.ERROR, log_to_driver=False, namespace="others")
assert ray.get(ray.get_actor("neighbour").answer.remote()) == 7
nodes = sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])
for _ in range(300):  # what ran has given back its cores when all of Ray has heard of it
    free, total = ray.available_resources().get("CPU"), ray.cluster_resources()["CPU"]
    alive = [each["Name"] for each in state.actors().values() if each["State"] == "ALIVE"]
    table = ray.util.placement_group_table().values()
    groups = [each["bundles"] for each in table if each["state"] != "REMOVED"]
    if free == total and alive == ["neighbour"] and not groups:
        break
    time.sleep(0.1)
print(json.dumps({"alive": alive, "groups": groups, "free": free, "total": total, "nodes": nodes}))
"""


class Raylets:
    """Start and end nodes of a cluster in a process of its own."""

    def __init__(self, folder):
        environment = {
            **os.environ,
            "TMPDIR": str(folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
            "PYTHONPATH": str(ROOT),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.executor.raylets"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._process.stdout.readline()
        self.pid, self.address = self._process.pid, ""

    def add(self, address, cores, *resources):
        self.address = self._say("add", address, str(cores), *resources)

    def kill(self, address):
        assert self._say("kill", address) == "killed"

    def _say(self, *words):
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def stop(self):
        self._process.stdin.close()
        self._process.wait(60)


def program(text, *arguments, token=TOKEN, **options):
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
        "PYTHONPATH": str(ROOT),
        **({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {}),
    }
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def answer(text, *arguments, **options):
    process = program(text, *arguments, **options)
    printed, said = process.communicate(timeout=400)
    return process.returncode, printed, said


def two_nodes(folder, *, marks=(None, None), cores=2, nodes=2):
    """Write a plan of two devices a node, whose rule imports a file beside it."""
    (folder / "rule.py").write_text(RULE)
    (folder / "three.py").write_text("3")
    groups = tuple(
        NodeGroup(
            gpu="cpu", gpus_per_node=cores, inter_node_gbps=200.0, cpu_cores=4, ray_resource=mark
        )
        for mark in (*marks, *[None] * nodes)[:nodes]
    )
    job = replace(make_job(), cluster=groups, rewards=Rewards(function="rule.py:judge"))
    plan = make_plan(job, {"p0": (cores * nodes, ALL_ROLES)}, tp=min(2, cores))
    write_plan(folder / "plan.yaml", plan)
    return plan


def run(folder, *options, token=TOKEN):
    given = ("execute", folder / "plan.yaml", "--out", folder / "out", "--warmup", 0)
    numbers = ("--seed", SEED, "--iterations", ITERATIONS)
    return answer(COMMAND, *given, *numbers, *options, token=token, cwd=folder)


@pytest.mark.full
def test_a_plan_on_two_nodes_ends_with_the_weights_of_one_machine_and_leaves_the_cluster_as_it_was(
    raylets, worker_pool, tmp_path
):
    assert answer(NEIGHBOUR, raylets.address)[1].strip() == "7"
    plan = two_nodes(tmp_path, cores=1)
    code, _, said = run(tmp_path, "--address", raylets.address, "--checkpoint-every", ITERATIONS)
    assert code == 0, said[-3000:]
    assert not list((tmp_path / "out").glob(".rlplan*"))
    last = find_checkpoint(tmp_path / "out")
    assert last.state.iteration == ITERATIONS
    alone = on_one_machine(worker_pool, plan, tmp_path)
    for role in ("actor", "critic"):
        assert_same(stored_weights(last, role), stored_weights(alone, role))
    state = json.loads(answer(STATE, raylets.address)[1])
    assert state == {
        "alive": ["neighbour"],
        "groups": [],
        "free": 4.0,
        "total": 4.0,
        "nodes": [HEAD, SECOND],
    }


def on_one_machine(worker_pool, plan, folder):
    """Run the plan with the suite's shared workers, and write what it ends with."""
    tasks, groups = check_runnable(plan), worker_pool.groups_of(plan)
    prompts = PromptBatches(plan.job, folder)
    prepare_groups(plan, tasks, prompts, SEED, groups)
    controller = Controller(plan, tasks, groups, prompts.columns)
    for iteration in range(ITERATIONS):
        controller.finish(controller.send(iteration))
    state = CheckpointState(
        iteration=ITERATIONS, next_prompt=16, seed=SEED, algorithm_state=FrozenDict()
    )
    return CheckpointFolder(folder / "alone", 1).save(plan, groups, state)


REFUSED = [
    (
        {"nodes": 4},
        (),
        r"the plan wants 4 nodes with 2 CPU; missing: 2 nodes with 2 CPU; there: 127",
    ),
    ({"cores": 4, "nodes": 1}, (), r"missing: 1 node with 4 CPU; there: .*: 2 CPU.*: 2 CPU, big"),
    ({"marks": ("big", "huge")}, (), r"missing: 1 node with 2 CPU \(huge\); there: "),
    ({}, ("--simulate-nodes",), "--simulate-nodes: is for a Ray of the run's own"),
]


@pytest.mark.full
@pytest.mark.parametrize(("plan", "options", "words"), REFUSED)
def test_what_a_cluster_lacks_is_said_before_anything_starts(
    raylets, tmp_path, plan, options, words
):
    two_nodes(tmp_path, **plan)
    code, _, said = run(tmp_path, "--address", raylets.address, *options)
    assert code == 2, said[-2000:]
    assert len(said.strip().splitlines()) == 1
    assert re.search(words, said), said
    assert not (tmp_path / "out").exists()


@pytest.mark.full
@pytest.mark.parametrize("token", [None, "f" * 64])
def test_who_has_not_the_clusters_token_is_refused(raylets, token):
    code, _, said = answer(COMMAND, "doctor", "--address", raylets.address, token=token)
    assert code == 2, said[-2000:]
    words = "--address: the cluster cannot be joined: its token is missing here or another one (RAY_AUTH_MODE, "
    assert words in said
    assert len(said.splitlines()) == 1


@pytest.mark.full
def test_doctor_shows_the_nodes(raylets):
    code, printed, said = answer(COMMAND, "doctor", "--address", raylets.address, "--json")
    assert code == 0, said[-2000:]
    nodes = {node["address"]: node for node in json.loads(printed)}
    assert list(nodes) == [HEAD, SECOND]
    assert [node["resources"] for node in nodes.values()] == [[], ["big"]]
    assert {node["cores"] for node in nodes.values()} == {2.0}
    assert all({"python", "ray", "torch"} <= set(node["versions"]) for node in nodes.values())
    assert {node["to_do"] for node in nodes.values()} == {""}


@pytest.mark.full
def test_a_run_whose_node_is_killed_waits_for_another_one_and_goes_on(raylets, tmp_path):
    two_nodes(tmp_path)
    (tmp_path / "rule.py").write_text(WAITING_RULE)
    options = ("--out", tmp_path / "out", "--warmup", 0, "--seed", SEED, "--iterations", 5)
    more = ("--checkpoint-every", 1, "--address", raylets.address, "--node-wait", 200)
    lost = program(COMMAND, "execute", tmp_path / "plan.yaml", *options, *more, cwd=tmp_path)
    wait_for(tmp_path / "waits", lost)
    raylets.kill(SECOND)
    (tmp_path / "killed").write_text("")
    raylets.add(THIRD, 2)
    _, said = lost.communicate(timeout=500)
    raylets.kill(THIRD)
    raylets.add(SECOND, 2, "big")
    assert lost.returncode == 0, said[-3000:]
    words = (
        rf"pool p0: worker 2, worker 3 on node {SECOND} ended: .*; goes on after [1-4] iterations"
    )
    assert re.search(words, said), said
    assert [row["iteration"] for row in read_metrics(tmp_path / "out")] == list(range(5))
    code, _, said = run(
        tmp_path,
        "--simulate-nodes",
        "--out",
        tmp_path / "calm",
        *options[2:],
        "--checkpoint-every",
        12,
    )
    assert code == 0, said[-3000:]
    last, calm = (find_checkpoint(tmp_path / name) for name in ("out", "calm"))
    for role in ("actor", "critic"):
        assert_same(stored_weights(last, role), stored_weights(calm, role))


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_the_cluster_as_it_was(raylets, tmp_path, number):
    assert answer(NEIGHBOUR, raylets.address)[1].strip() == "7"
    two_nodes(tmp_path, cores=1)
    (tmp_path / "rule.py").write_text(WAITING_RULE)
    given = ("--out", tmp_path / "out", "--iterations", 5, "--address", raylets.address)
    ended = program(COMMAND, "execute", tmp_path / "plan.yaml", *given, cwd=tmp_path)
    wait_for(tmp_path / "waits", ended)
    ended.send_signal(number)
    ended.communicate(timeout=100)
    assert ended.returncode == (128 + number if number == signal.SIGTERM else -number)
    state = json.loads(answer(STATE, raylets.address)[1])
    assert (state["alive"], state["groups"]) == (["neighbour"], [])
    assert state["free"] == state["total"]


def wait_for(path, process):
    deadline = time.monotonic() + 200
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    assert path.exists(), process.communicate(timeout=60)
