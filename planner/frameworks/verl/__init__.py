"""verl: its trainers on FSDP and Megatron, one pool or several, synchronous and asynchronous."""
