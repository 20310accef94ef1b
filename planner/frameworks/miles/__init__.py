"""miles: forked from slime, with FSDP beside Megatron-Core, adapters and weights over RDMA."""
