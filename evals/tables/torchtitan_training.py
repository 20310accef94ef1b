"""Iterations of torchtitan (pytorch/torchtitan, docs/performance.md and benchmarks/)."""

from rlplan.evals.settings.pretraining import Iteration, Pretraining, is_fitted, training_row
from rlplan.models import ModelArchitecture
from rlplan.plan import Recompute
from rlplan.planner.measured.rows import Record, TableReader
from rlplan.units import bytes_per_second_from_gbps

SHAPE = ("hidden", "heads", "kv_heads", "layers", "ffn", "seq_len", "num_gpus", "dp_shard")
SIZES = ("tp", "pp", "local_batch", "global_batch")
SETTINGS = (*SHAPE, *SIZES, "act_ckpt", "precision", "gpu", "options")
SECONDS = "iter_time_s_derived"
DEVICES = {
    "A100-80GB": ("a100-80gb-sxm", 1600.0),
    "H100-96GB-HBM2e-500W": ("grand-teton-h100-96gb", 3200.0),
    "H100-80GB": ("h100-80gb-sxm", 3200.0),
}
MODES: dict[str, Recompute] = {
    "none": "none",
    "full": "full",
    "selective layer": "alternate",
    "selective op": "alternate",
    "selective": "alternate",
}
OPERATORS_KEPT = (
    "selective by operator, which keeps every other product: priced as every other layer"
)
# Stages a rank that torchtitan makes for schedules that loop, unless told otherwise
# (torchtitan/distributed/pipeline.py).
LOOPED_CHUNKS = 2
VOCABULARIES = {"Llama2": 32000, "Llama3": 128256}


def iteration_of(record: Record) -> Iteration:
    """Return the settings of a record."""
    number = {column: int(float(record[column])) for column in (*SHAPE, *SIZES)}
    kind = f"{record['gpu'].split('-')[0]} {record['precision']}"
    seconds = float(record[SECONDS])
    label = f"{record['model']} on {record['num_gpus']} x {record['gpu']}, {record['scheme']}"
    if record["gpu"] not in DEVICES:
        reason = f"devices known: {', '.join(DEVICES)}"
        return Iteration(seconds=seconds, kind=kind, label=label, reason=reason)
    device, network = DEVICES[record["gpu"]]
    dp, pp, sequences = number["dp_shard"], number["pp"], number["local_batch"]
    accumulated = max(1, number["global_batch"] // (dp * sequences))
    run = Pretraining(
        model=_model(record, number),
        engine=_engine(record),
        device=device,
        precision="bf16",
        gpus=number["num_gpus"],
        network_bytes_per_second=bytes_per_second_from_gbps(network),
        tp=number["tp"],
        pp=pp,
        dp=dp,
        chunks=LOOPED_CHUNKS if "interleaved" in record["scheme"].lower() else 1,
        zero=3 if pp == 1 else 2,
        micro_batch=max(1, sequences // pp) if pp > 1 else sequences,
        global_batch=dp * sequences * accumulated,
        sequence_tokens=number["seq_len"],
        recompute=MODES[record["act_ckpt"]],
    )
    return Iteration(
        run=run,
        seconds=seconds,
        kind=kind,
        label=label,
        fitted=is_fitted(record, SETTINGS),
        note=OPERATORS_KEPT if record["act_ckpt"] in ("selective", "selective op") else "",
    )


def _engine(record: Record) -> str:
    if record["precision"] == "fp8":
        return "fsdp2-float8-async" if "asyncTP" in record["options"] else "fsdp2-float8"
    if record["gpu"].startswith("A100"):
        return "fsdp2"
    return "fsdp2-compiled" if "compile" in record["options"] else "fsdp2-hopper"


def _model(record: Record, number: dict[str, int]) -> ModelArchitecture:
    hidden, heads, name = number["hidden"], number["heads"], record["model"]
    return ModelArchitecture(
        name=name.lower(),
        family="llama",
        hidden_size=hidden,
        num_layers=number["layers"],
        num_heads=heads,
        num_kv_heads=number["kv_heads"],
        head_dim=hidden // heads,
        ffn_size=number["ffn"],
        vocab_size=VOCABULARIES[
            next((each for each in VOCABULARIES if name.startswith(each)), name)
        ],
        max_positions=number["seq_len"],
    )


READER = TableReader(
    about=(
        "Seconds of a training iteration of torchtitan on A100 and H100. Given: all parallel sizes "
        "and checkpointing; the network is taken as one card of 200 (A100) or 400 Gbps a GPU."
    ),
    columns=frozenset({*SETTINGS, "model", SECONDS}),
    rows_of=lambda record: (training_row(iteration_of(record)),),
)
