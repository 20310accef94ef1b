"""A Ray cluster of several nodes on this machine, each with an address of its own: `python -m tests.executor.raylets`.

Prints its address and waits for commands, one a line: `add ADDRESS CORES [RESOURCE ...]`, `kill ADDRESS`. The end of the
input ends it.
"""

import os
import sys
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

STORE_BYTES = 100 * 2**20


def say(words):
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def serve(folder):
    each = {"object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster: Any = None
    nodes: dict[str, Any] = {}
    say("up")
    for line in sys.stdin:
        command, address, *rest = line.split()
        if command == "kill":
            cluster.remove_node(nodes.pop(address), allow_graceful=False)
            say("killed")
            continue
        cores, *resources = rest
        given: dict[str, Any] = {
            **each,
            "num_cpus": int(cores),
            "node_ip_address": address,
            "resources": dict.fromkeys(resources, 1),
        }
        if cluster is None:
            cluster = Cluster(initialize_head=True, head_node_args={**given, "temp_dir": folder})
            nodes[address] = cluster.head_node
        else:
            nodes[address] = cluster.add_node(**given)
        say(cluster.address)
    if cluster is not None:
        cluster.shutdown()


if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    folder = os.environ[
        "TMPDIR"
    ]  # short, for sockets lie in it; not that of a Ray which others run
    Path(folder, "ray").mkdir(exist_ok=True)  # where a node writes down how it is reached
    serve(folder)
