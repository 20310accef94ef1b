"""`rlplan` in a Ray of several nodes on one machine, which the caller runs: `python -m tests.hard.several_nodes ARGS`.

The first node has the control server, a slot of a device and what judges; each other one has a slot as well, one more
in all than the plans of `tests.hard.faults` take: what a lost node had can go on elsewhere.
"""

import logging
import os
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from rlplan.executor.workers.processes.ray_session import (
    DEVICE,
    ENVIRONMENT,
    HOST,
    OBJECT_STORE_BYTES,
)
from rlplan_cli.main import main

SPARE_NODES = 2


def run():
    """Start the nodes, run the command line in them, and end them."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["RAY_AUTH_MODE"] = "disabled"
    each: dict[str, Any] = {
        "num_cpus": 1,
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    folder = os.environ["TMPDIR"]
    Path(folder, "ray").mkdir(exist_ok=True)  # where a node writes down how it is reached
    cluster = Cluster(
        initialize_head=True,
        head_node_args={**each, "resources": {DEVICE: 1, HOST: 8}, "temp_dir": folder},
    )
    try:
        for _ in range(SPARE_NODES):
            cluster.add_node(**each, resources={DEVICE: 1})
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        main()
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    run()
