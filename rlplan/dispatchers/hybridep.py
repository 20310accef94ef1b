"""HybridEP: a copy for each node or NVLink domain, and inside a copy for each rank, by few multiprocessors.

NVIDIA's part of DeepEP (deepseek-ai/DeepEP, branch hybrid-ep, docs/README_Hybrid-EP.md): 4,096 tokens of 7,168, bf16. Kernels
take 1.64, 3.66 and 6.16 ms on 2, 4 and 8 nodes of H100: their differences are 0.94 of the network; on 8 GB200 they bring 764
and 737 GB/s, an eighth of it own: 0.73 of the link. Calls take 0.15 ms more than kernels there, beside copies that are counted
as permutation; 16 H100 exchange Qwen3-30B-A3B's tokens in 0.67 ms a call (Megatron-Bridge, skill on expert-parallel overlap,
8.25 s of kernels a step), of which bytes are 0.48.
"""

from rlplan.dispatchers import Dispatcher

DISPATCHER = Dispatcher(
    words="sends a copy for each node or NVLink domain, and there one for each rank",
    copies="node",
    network_efficiency=0.94,
    link_efficiency=0.73,
    fixed_seconds=1.5e-4,
    permutation_rate=0.87,
)
