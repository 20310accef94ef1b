"""Tables of aiconfigurator (NVIDIA, Apache-2.0): products, attention and NCCL collectives.

They lie in its package `aiconfigurator_core`, in `systems/data/<system>/<operation>/<framework>/
<version>/*_perf.parquet` (or `.txt`, as CSV); latencies are milliseconds without a spread. NCCL's
`message_size` counts elements. Of several frameworks and versions of an operation, the newest of
the first framework in FRAMEWORKS is taken, since a point has one value.
"""

import importlib.util
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd

from rlplan.errors import FileError
from rlplan.files.decoding import check_regular
from rlplan.profiles.imports import Imported, Source
from rlplan.units import seconds_from_ms

ORIGIN: Final = "imported from aiconfigurator's tables (NVIDIA, Apache-2.0)"
PACKAGE: Final = "aiconfigurator_core"
FRAMEWORKS: Final = ("vllm", "trtllm", "sglang", "nccl")
SYSTEMS: Final = {
    "a100-80gb-sxm": "a100_sxm",
    "h100-80gb-sxm": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "gb200": "gb200",
    "b300": "b300_sxm",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
PRECISIONS: Final = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}
ELEMENT_BYTES: Final = {"half": 2, "bfloat16": 2, "float16": 2, "float32": 4, "int8": 1}
SUFFIXES: Final = (".parquet", ".txt", ".csv")

Row = Mapping[str, Any]
Keys = Mapping[str, str | int]
Reader = Callable[[Imported, Path, Row], None]


def read(source: Source) -> Imported:
    """Return the points of the installed package's tables, or of those in a given folder.

    Raises:
        FileError: The package or the device's tables are not there, or a table cannot be read.
    """
    folder = _system_folder(source)
    found = Imported(origin=f"{ORIGIN}, system {folder.name}")
    versions = {}
    for name, reader in READERS.items():
        path = _newest(folder, name)
        if path is None:
            found.leave_out(f"{name}: no table in {folder.name}")
            continue
        versions[name] = "/".join(path.relative_to(folder).parts[-3:-1])
        for row in _table(path).to_dict("records"):
            try:
                reader(found, path, {str(key): value for key, value in row.items()})
            except (KeyError, ValueError, TypeError) as error:
                raise FileError(
                    str(path), f"has a row that cannot be read: {type(error).__name__}: {error}"
                ) from None
    found.software = versions
    return found


def _system_folder(source: Source) -> Path:
    """Return the folder of the device's tables, inside what was given or what is installed."""
    if source.path is None:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            raise FileError(
                "PATH", f"is needed: the package {PACKAGE} is not installed in this environment"
            )
        root = Path(spec.submodule_search_locations[0])
    else:
        root = source.require_path("aiconfigurator")
    system = SYSTEMS.get(source.device)
    inside: list[Path] = [*(root.glob(f"**/data/{system}") if system else ())]
    if inside:
        return inside[0]
    if any(_newest(root, name) for name in READERS):
        return root
    raise FileError(
        str(root),
        f"has no tables for {source.device}",
        allowed=f"a folder of one system's tables, or one that holds data/{system or '<system>'}",
    )


def _newest(folder: Path, name: str) -> Path | None:
    """Return the newest table of that name of the first framework that has one."""
    paths = [path for suffix in SUFFIXES for path in folder.rglob(f"{name}{suffix}")]

    def rank(path: Path) -> tuple[int, list[int], str]:
        framework, version = path.parts[-3:-1]
        known = FRAMEWORKS.index(framework) if framework in FRAMEWORKS else len(FRAMEWORKS)
        return -known, [int(number) for number in re.findall(r"\d+", version)], str(path)

    best: Path | None = max(paths, key=rank, default=None)
    return best


def _table(path: Path) -> pd.DataFrame:
    check_regular(path)
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except ImportError:
        raise FileError(str(path), "needs the package pyarrow to be read") from None
    except (OSError, ValueError) as error:
        raise FileError(str(path), f"cannot be read as a table: {error}") from None


def _precision(dtype: object) -> str:
    return PRECISIONS.get(str(dtype), str(dtype))


def _gemm(found: Imported, path: Path, row: Row) -> None:
    sides = {side: int(row[side]) for side in ("m", "k", "n")}
    keys: Keys = {"precision": _precision(row["gemm_dtype"]), **sides}
    found.add(path, "gemm", keys, seconds=seconds_from_ms(float(row["latency"])))


def _attention(found: Imported, path: Path, row: Row, *, query: int, cached: int) -> None:
    if row.get("kv_cache_dtype", row["attn_dtype"]) != row["attn_dtype"]:
        found.leave_out("attention: the cache has another precision than the queries")
        return
    if int(row.get("window_size", 0) or 0) > 0:
        found.leave_out("attention: over a window of tokens only")
        return
    heads = int(row["num_heads"])
    keys: Keys = {
        "direction": "forward",
        "precision": _precision(row["attn_dtype"]),
        "batch": int(row["batch_size"]),
        "query_tokens": query,
        "cached_tokens": cached,
        "q_heads": heads,
        "kv_heads": int(row["num_key_value_heads"]) or heads,
        "head_dim": int(row["head_dim"]),
    }
    found.add(path, "attention", keys, seconds=seconds_from_ms(float(row["latency"])))


def _context(found: Imported, path: Path, row: Row) -> None:
    _attention(found, path, row, query=int(row["isl"]), cached=int(row["step"]))


def _generation(found: Imported, path: Path, row: Row) -> None:
    _attention(found, path, row, query=1, cached=int(row["step"]))


def _nccl(found: Imported, path: Path, row: Row) -> None:
    size = ELEMENT_BYTES.get(row["nccl_dtype"])
    ranks = int(row["num_gpus"])
    if size is None or size == 1:
        found.leave_out(f"collective: elements of type {row['nccl_dtype']}")
        return
    keys: Keys = {
        "kind": row["op_name"],
        "ranks": ranks,
        "ranks_per_node": ranks,
        "num_bytes": int(row["message_size"]) * size,
    }
    found.add(path, "collective", keys, seconds=seconds_from_ms(float(row["latency"])))


READERS: Final[dict[str, Reader]] = {
    "gemm_perf": _gemm,
    "context_attention_perf": _context,
    "generation_attention_perf": _generation,
    "nccl_perf": _nccl,
}
