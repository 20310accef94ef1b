"""DeepEP's kernels over NVSHMEM's libfabric transport on AWS's EFA, where a processor posts every row.

Source and rows as `uccl`: 44 and 46 GB/s on 4 nodes of p5, 40 and 39 on 8, and 97 and 95, 84 and 73 on p6-b300: 0.64 to 0.73 of the
network. Not fitted on: low-latency kernels take 0.7 to 0.8 microseconds a row on H100, 0.6 on B300.
"""

from rlplan.dispatchers import Dispatcher
from rlplan.files.frozen import FrozenDict

DISPATCHER = Dispatcher(
    words="sends a copy for each node, each posted by a processor, and hands it on to ranks over NVLink",
    copies="node",
    network_efficiency=0.69,
    link_efficiency=0.67,
    fixed_seconds=1.5e-4,
    row_seconds=FrozenDict({"hopper": 7.0e-7, "blackwell": 4.9e-7}),
    permutation_rate=0.87,
)
