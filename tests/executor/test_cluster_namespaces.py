"""Two Ray nodes with addresses and disks of their own: network namespaces of this machine, one of which hides folders."""

import os
import shutil
import subprocess
import sys
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

from rlplan.executor.control.checkpoints import find_checkpoint
from rlplan.executor.workers.processes.ray_session import ENVIRONMENT, TOKEN, TOKEN_MODE
from tests.executor.test_checkpoints import assert_same, stored_weights
from tests.executor.test_joined_cluster import COMMAND, ITERATIONS, SEED, two_nodes
from tests.house.tree import ROOT

pytestmark = [
    pytest.mark.full,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("mount") is None,
        reason="makes network namespaces",
    ),
]

NODES = {"1": "10.214.7.1", "2": "10.214.7.2"}
ADDRESS = f"{NODES['1']}:6390"
RAY = Path(sys.executable).with_name("ray")


def shell(*words, **options):
    return subprocess.run(
        list(map(str, words)), check=True, capture_output=True, text=True, timeout=200, **options
    )


class Namespaces:
    """Two namespaces on one bridge, and a Ray node in each; the second one does not see a folder."""

    def __init__(self, folder, stack):
        self._mark, self.folder = uuid.uuid4().hex[:6], folder
        bridge = f"rlb{self._mark}"
        shell("ip", "link", "add", bridge, "type", "bridge")
        stack.callback(shell, "ip", "link", "del", bridge)
        shell("ip", "link", "set", bridge, "up")
        for number, address in NODES.items():
            name, link = self.name(number), f"rlv{self._mark}{number}"
            shell("ip", "netns", "add", name)
            stack.callback(shell, "ip", "netns", "del", name)
            stack.callback(self._end, name)
            shell("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            shell("ip", "link", "set", link, "master", bridge, "up")
            shell("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for each in ("eth0", "lo"):
                shell("ip", "-n", name, "link", "set", each, "up")

    def name(self, number):
        return f"rl{self._mark}{number}"

    @staticmethod
    def _end(name):
        for pid in shell("ip", "netns", "pids", name).stdout.split():
            subprocess.run(["kill", "-9", pid], check=False)

    def start(self, number, temporary, hidden=None):
        head = ("--head", "--port", "6390", "--include-dashboard=false", "--temp-dir", temporary)
        given = head if number == "1" else ("--address", ADDRESS)
        sizes = ("--num-cpus", "2", "--object-store-memory", "100000000")
        ray = [RAY, "start", *given, *sizes, "--node-ip-address", NODES[number]]
        hide = f'mount -t tmpfs none "{hidden}" && ' if hidden else ""
        self.inside(number, "sh", "-c", f'{hide}exec "$@"', "sh", *ray)

    def inside(self, number, *words, check=True, **options):
        # What a private Ray of this process set for itself is not these nodes'.
        own = {name for name, value in ENVIRONMENT.items() if os.environ.get(name) == value}
        kept = {k: v for k, v in os.environ.items() if k not in {*own, TOKEN, "RAY_ADDRESS"}}
        environment = {**kept, "PYTHONPATH": str(ROOT), TOKEN_MODE: "disabled"}
        return subprocess.run(
            ["ip", "netns", "exec", self.name(number), *map(str, words)],
            check=check,
            capture_output=True,
            text=True,
            timeout=400,
            env=environment,
            **options,
        )

    def run(self, plan, out, *options):
        given = ("execute", plan, "--out", out, "--seed", SEED, "--iterations", ITERATIONS)
        words = (*given, "--warmup", 0, "--address", ADDRESS, *options)
        return self.inside("1", sys.executable, "-c", COMMAND, *words, check=False)


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory):
    temporary = Path("/tmp", f"rl{uuid.uuid4().hex[:8]}")
    hidden = tmp_path_factory.mktemp("hidden")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        try:
            made = Namespaces(hidden, stack)
            # A disk of its own, which some surroundings do not allow either.
            made.inside("2", "sh", "-c", f'mount -t tmpfs none "{hidden}"')
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr}")
        made.start("1", temporary)
        made.start("2", temporary, hidden)
        yield made


def test_a_rule_travels_to_a_node_that_does_not_see_it(namespaces):
    two_nodes(namespaces.folder)
    ended = namespaces.run(namespaces.folder / "plan.yaml", namespaces.folder / "out")
    assert ended.returncode == 0, ended.stderr[-3000:]


def test_a_run_with_checkpoints_is_refused_where_a_node_does_not_share_their_folder(namespaces):
    two_nodes(namespaces.folder)
    out = namespaces.folder / "new" / "out"
    ended = namespaces.run(namespaces.folder / "plan.yaml", out, "--checkpoint-every", 1)
    assert ended.returncode == 2, ended.stderr[-3000:]
    words = f"{out}: --out: is not shared with node {NODES['2']}: No such file or directory"
    assert words in ended.stderr
    assert not out.parent.exists()


def test_nodes_of_unlike_addresses_end_with_the_weights_of_one_machine(namespaces, tmp_path):
    two_nodes(tmp_path)
    plan, found = tmp_path / "plan.yaml", []
    for name, options in (("two", ()), ("one", ("--address", "local", "--simulate-nodes"))):
        ended = namespaces.run(plan, tmp_path / name, "--checkpoint-every", ITERATIONS, *options)
        assert ended.returncode == 0, ended.stderr[-3000:]
        found.append(find_checkpoint(tmp_path / name))
    for role in ("actor", "critic"):
        assert_same(*(stored_weights(each, role) for each in found))
