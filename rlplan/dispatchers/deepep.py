"""DeepEP's kernels: a copy for each node over the network, handed on over NVLink (deepseek-ai/DeepEP).

Its docs/legacy.md, H800 (200 GB/s of NVLink, 50 GB/s of network a GPU), 4,096 tokens of 7,168: 153 GB/s arrive in a node of
8 GPUs, a seventh of it own, which is 0.67 of the link; 51 and 50 GB/s between 8 nodes, an eighth of it own, which is 0.89 of
the network where links take 0.3 of the time beside it. Kernels that bring tokens into order reach 0.8 of the memory's rate
(TileOPs pull requests 603 and 2125), in units of fused elementwise kernels (0.92). What a call takes beside its bytes: the
difference of HybridEP's calls and kernels, whose metadata pass as here. AWS's EFA has no writes that a GPU posts, which its own
kernels need; NVSHMEM has them posted by a processor there.
"""

from rlplan.dispatchers import Dispatcher
from rlplan.files.frozen import FrozenDict

DISPATCHER = Dispatcher(
    words="sends a copy for each node, and hands it on to ranks over NVLink",
    copies="node",
    network_efficiency=0.94,
    link_efficiency=0.67,
    fixed_seconds=1.5e-4,
    instead=FrozenDict({"efa": "deepep-efa"}),
    permutation_rate=0.87,
)
