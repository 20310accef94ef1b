"""UCCL-EP: DeepEP's calls where the network has no writes that a GPU posts, such as AWS's EFA: a processor posts every row.

awslabs/awsome-distributed-ai@95b939cd, micro-benchmarks/expert-parallelism/ep-backend-comparison, 4,096 tokens of 7,168, bf16, a
quarter and an eighth of which stay on their node: 38 and 30 GB/s on 4 nodes of p5 (50 GB/s of network a GPU), 30 and 27 on 8, and 102
and 95, 94 and 91 on p6-b300 (100 GB/s): 0.45 to 0.57 and 0.71 to 0.82 of the network. `row_seconds` are what a step takes more than
with NCCL's all-to-all in one run on each device (Qwen3-30B-A3B on 64 H100, Qwen3-235B-A22B on 64 B300, 16 ranks of experts,
micro-batches of 4; evals/held/megatron_moe_efa_dispatchers.csv), which are forecast 6 to 10 % long since nothing is launched beside
exchanges (`rlplan.simulator.costs.pricing`). Not fitted on: low-latency kernels, which send every row alone,
take 1.5 and 2.9 microseconds a row on H100 and 0.3 on B300 there.
"""

from rlplan.dispatchers import Dispatcher
from rlplan.files.frozen import FrozenDict

DISPATCHER = Dispatcher(
    words="sends a copy for each node, each posted by a processor, and hands it on to ranks over NVLink",
    copies="node",
    network_efficiency=0.65,
    link_efficiency=0.67,
    fixed_seconds=1.5e-4,
    row_seconds=FrozenDict({"hopper": 1.8e-6, "blackwell": 7.1e-7}),
    permutation_rate=0.87,
)
