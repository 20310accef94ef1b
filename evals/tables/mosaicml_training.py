"""Iterations of MosaicML's llm-foundry with FSDP (mosaicml/llm-foundry, scripts/train/benchmarking)."""

from rlplan.evals.settings.pretraining import Iteration, Pretraining, is_fitted, training_row
from rlplan.models import ModelArchitecture
from rlplan.planner.measured.rows import Record, TableReader
from rlplan.units import bytes_per_second_from_gbps

SETTINGS = (
    "model",
    "seq_len",
    "num_gpus",
    "gpu",
    "micro_batch_per_gpu",
    "grad_accum",
    "global_batch_seqs",
    "precision",
    "fsdp_sharding",
    "act_ckpt",
)
SHAPE = ("d_model", "n_heads", "n_layers", "expansion_ratio", "vocab_size", "act_cpu_offload")
SECONDS = "iter_time_s_derived"
DEVICES = {
    "a100_80gb": ("a100-80gb-sxm", "llm-foundry-fsdp", 1600.0),
    "a100_40gb": ("a100-40gb-sxm", "llm-foundry-fsdp", 1600.0),
    "h100_80gb": ("h100-80gb-sxm", "llm-foundry-fsdp-hopper", 3200.0),
}
ZERO_STAGES = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2}


def iteration_of(record: Record) -> Iteration:
    """Return the settings of a record."""
    label = (
        f"{record['model']} on {record['num_gpus']} x {record['gpu']}, {record['seq_len']} tokens"
    )
    kind = f"{record['gpu'].split('_')[0]} {record['precision'].removeprefix('amp_')}"
    seconds, reason = float(record[SECONDS]), _reason(record)
    if reason:
        return Iteration(seconds=seconds, kind=kind, label=label, reason=reason)
    device, engine, network = DEVICES[record["gpu"]]
    if record["precision"] == "amp_fp8":
        engine = f"{engine}-fp8"
    gpus = int(record["num_gpus"])
    run = Pretraining(
        model=_model(record),
        engine=engine,
        device=device,
        precision="bf16",
        gpus=gpus,
        network_bytes_per_second=bytes_per_second_from_gbps(network),
        dp=gpus,
        zero=ZERO_STAGES[record["fsdp_sharding"]],
        micro_batch=int(record["micro_batch_per_gpu"]),
        global_batch=int(record["global_batch_seqs"]),
        sequence_tokens=int(record["seq_len"]),
        recompute="full" if record["act_ckpt"] == "True" else "none",
    )
    fitted = is_fitted(record, SETTINGS)
    return Iteration(run=run, seconds=seconds, kind=kind, label=label, fitted=fitted)


def _reason(record: Record) -> str:
    if record["act_cpu_offload"] == "True":
        return "activations in host memory are not modelled"
    if record["gpu"] not in DEVICES:
        return f"devices known: {', '.join(DEVICES)}"
    return ""


def _model(record: Record) -> ModelArchitecture:
    """Return an MPT: GELU layers, no biases, tied embeddings."""
    hidden, heads = int(record["d_model"]), int(record["n_heads"])
    return ModelArchitecture(
        name=f"mpt-{record['model']}",
        family="llama",
        hidden_size=hidden,
        num_layers=int(record["n_layers"]),
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        ffn_size=int(float(record["expansion_ratio"]) * hidden),
        vocab_size=int(record["vocab_size"]),
        max_positions=int(record["seq_len"]),
        tied_embeddings=True,
        gated_mlp=False,
    )


READER = TableReader(
    about=(
        "Seconds of a training iteration of llm-foundry's FSDP on A100 and H100. Given: batch, "
        "sharding, checkpointing. The H100 clusters' network is taken as 3,200 Gbps a node."
    ),
    columns=frozenset({*SETTINGS, *SHAPE, SECONDS}),
    rows_of=lambda record: (training_row(iteration_of(record)),),
)
