"""Iterations of Megatron-DeepSpeed on A100 (Bang et al. 2024, vTrain, arXiv:2312.12391; MIT)."""

from rlplan.evals.settings.pretraining import (
    NODE_GPUS,
    Iteration,
    Pretraining,
    gpt,
    is_fitted,
    training_row,
)
from rlplan.planner.measured.rows import Record, TableReader
from rlplan.units import bytes_per_second_from_gbps, seconds_from_ms

SETTINGS = (
    "# GPUs",
    "global batch",
    "micro batch",
    "hidden size",
    "attention heads",
    "# layers",
    "sequence length",
    "tensor parallelism",
    "data parallelism",
    "pipeline parallelism",
)
SECONDS = "iteration time (ms)"
# Both tables ran the same software; the cluster's constants are its own.
ONE_NODE, MANY_NODES = "megatron-deepspeed-2022", "megatron-deepspeed-2022-cluster"
VOCABULARY = 51200  # Megatron's usual padding of GPT-2's 50,257
# Iterations of one node are not clock times: within a hidden size, TP and micro-batch they are exact
# sums, to the nanosecond, of a layer's and an iteration's other times. They hold no time to compute
# layers again and an output matrix of 50,257 columns, as the authors' own model has them
# (github.com/VIA-Research/vTrain, src/model/gpt_model.py).
ONE_NODE_VOCABULARY = 50257
NETWORK_GBPS = 4 * 200.0  # four HDR cards a node


def iteration_of(record: Record) -> Iteration:
    """Return the settings of a record."""
    number = {column: int(float(record[column])) for column in SETTINGS}
    one_node, tp = number["# GPUs"] <= NODE_GPUS, number["tensor parallelism"]
    vocabulary = ONE_NODE_VOCABULARY // tp * tp if one_node else VOCABULARY
    run = Pretraining(
        model=gpt(number["hidden size"], number["attention heads"], number["# layers"], vocabulary),
        engine=ONE_NODE if one_node else MANY_NODES,
        device="a100-80gb-sxm",
        precision="fp16",
        gpus=number["# GPUs"],
        network_bytes_per_second=bytes_per_second_from_gbps(NETWORK_GBPS),
        tp=tp,
        pp=number["pipeline parallelism"],
        dp=number["data parallelism"],
        micro_batch=number["micro batch"],
        global_batch=number["global batch"],
        sequence_tokens=number["sequence length"],
        recompute="none" if one_node else "full",
    )
    return Iteration(
        run=run,
        seconds=seconds_from_ms(float(record[SECONDS])),
        kind="one node" if one_node else "many nodes",
        fitted=is_fitted(record, SETTINGS),
    )


READER = TableReader(
    about=(
        "Seconds of a training iteration of Megatron-DeepSpeed on A100-80GB. Given: all parallel "
        "sizes, full recomputation (on one node none, see the rows), fp16, 4 x HDR200 a node, a "
        "vocabulary of 51,200 (on one node 50,257)."
    ),
    columns=frozenset({*SETTINGS, SECONDS}),
    rows_of=lambda record: (training_row(iteration_of(record)),),
)
