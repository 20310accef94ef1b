"""Tables of microsoft/vidur (`data/profiling/`): operators, attention, collectives, host times.

Times are milliseconds. A profile holds products, norms, embedding, attention, collectives inside a
node and the host's parts of a step; rotations, activations and additions have no table of their own
and are left out, as are collectives across nodes, which are of a network that is not described.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rlplan.errors import FileError
from rlplan.profiles.imports import Imported, Source, read_csv
from rlplan.units import seconds_from_ms

ORIGIN: Final = "imported from microsoft/vidur's profiling tables (MIT)"
PRECISION: Final = "fp16"
ACROSS: Final = "collective: across nodes, of a network that is not described"
NO_TABLE: Final = "rotations, activations and additions: profiles have no table for them"
HOST_PARTS: Final = {
    "schedule": "schedule_median",
    "prepare_inputs": "prepare_inputs_e2e_median",
    "sample": "sampler_e2e_median",
    "process_outputs": "process_model_outputs_median",
    "worker_call": "ray_comm_time_mean",
}

Row = Mapping[str, Any]
Keys = Mapping[str, str | int]
Reader = Callable[[Imported, Path, Row], None]


def read(source: Source) -> Imported:
    """Return the points of a table, or of all tables below a folder.

    Raises:
        FileError: There is no table, or one that is not vidur's.
    """
    path = source.require_path("vidur")
    found = Imported(origin=ORIGIN)
    paths = sorted(path.rglob("*.csv")) if path.is_dir() else [path]
    if not paths:
        raise FileError(str(path), "has no CSV tables in it")
    for each in paths:
        for reader, row in _rows(each):
            try:
                reader(found, each, row)
            except (KeyError, ValueError, TypeError, ZeroDivisionError) as error:
                raise FileError(
                    str(each), f"has a row that cannot be read: {type(error).__name__}: {error}"
                ) from None
    return found


def _rows(path: Path) -> Iterator[tuple[Reader, Row]]:
    table = read_csv(path)
    table = table.rename(columns=lambda name: str(name).removeprefix("time_stats."))
    for column, reader in READERS.items():
        if column in table.columns:
            return ((reader, row) for row in table.to_dict("records"))
    raise FileError(
        str(path),
        "is no table of vidur",
        field="header",
        allowed=f"one of the columns {', '.join(READERS)}",
    )


def _add(found: Imported, path: Path, table: str, keys: Keys, row: Row, name: str) -> None:
    found.add(
        path,
        table,
        keys,
        seconds=seconds_from_ms(float(row[f"{name}.median"])),
        mean_seconds=seconds_from_ms(float(row[f"{name}.mean"])),
        deviation_seconds=seconds_from_ms(float(row[f"{name}.std"])),
    )


def _layer(found: Imported, path: Path, row: Row) -> None:
    tokens, tp = int(row["num_tokens"]), int(row["num_tensor_parallel_workers"])
    hidden, ffn = int(row["n_embd"]), int(row["n_expanded_embd"]) // tp
    query = hidden // tp
    kv = max(1, int(row["n_kv_head"]) // tp) * (hidden // int(row["n_head"]))
    gates = 2 if row["use_gated_mlp"] else 1
    products = {
        "attn_pre_proj": (hidden, query + 2 * kv),
        "attn_post_proj": (query, hidden),
        "mlp_up_proj": (hidden, gates * ffn),
        "mlp_down_proj": (ffn, hidden),
    }
    for name, (k, n) in products.items():
        keys: Keys = {"precision": PRECISION, "m": tokens, "k": k, "n": n}
        _add(found, path, "gemm", keys, row, name)
    norm: Keys = {
        "direction": "forward",
        "precision": PRECISION,
        "tokens": tokens,
        "hidden": hidden,
    }
    for name in ("input_layernorm", "post_attention_layernorm"):
        if f"{name}.median" in row:
            _add(found, path, "norm", norm, row, name)
    vocab = int(row["vocab_size"]) // tp
    _add(found, path, "embedding", {**norm, "vocab": vocab}, row, "emb")
    found.leave_out(NO_TABLE, 3)


def _attention(found: Imported, path: Path, row: Row) -> None:
    tp, heads = int(row["num_tensor_parallel_workers"]), int(row["n_q_head"])
    name = "attn_prefill" if row["is_prefill"] else "attn_decode"
    keys: Keys = {
        "direction": "forward",
        "precision": PRECISION,
        "batch": int(row["batch_size"]),
        "query_tokens": int(row["prefill_chunk_size"]) if row["is_prefill"] else 1,
        "cached_tokens": int(row["kv_cache_size"]),
        "q_heads": heads // tp,
        "kv_heads": max(1, int(row["n_kv_head"]) // tp),
        "head_dim": int(row["n_embd"]) // heads,
    }
    _add(found, path, "attention", keys, row, name)


def _collective(found: Imported, path: Path, row: Row) -> None:
    ranks, per_node = int(row["num_workers"]), int(row["devices_per_node"])
    if per_node < ranks:
        found.leave_out(ACROSS)
        return
    name = str(row["collective"])
    keys: Keys = {
        "kind": name,
        "ranks": ranks,
        "ranks_per_node": per_node,
        "num_bytes": int(row["size"]),
    }
    _add(found, path, "collective", keys, row, name)


def _host(found: Imported, path: Path, row: Row) -> None:
    tp, sequences = int(row["tensor_parallel_degree"]), int(row["batch_size"])
    for part, column in HOST_PARTS.items():
        keys: Keys = {"part": part, "tp": tp, "sequences": sequences}
        found.add(path, "host_step", keys, seconds=seconds_from_ms(float(row[column])))


# By the column that only these tables have.
READERS: Final[dict[str, Reader]] = {
    "mlp_up_proj.median": _layer,
    "attn_decode.median": _attention,
    "collective": _collective,
    "schedule_median": _host,
}
