"""The tables of a profile: their key columns, what those may hold, and one point.

`docs/profile-format.md` describes the files.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from rlplan.files.writing import plain
from rlplan.models import ModelArchitecture
from rlplan.probing import ModelPass

Key = tuple[str | int, ...]
PointSource = Literal["measured", "fitted"]

# Key columns by table, in the order of the files; `str` columns group, `int` columns interpolate.
TABLES: Final[Mapping[str, Mapping[str, type]]] = {
    "gemm": {"precision": str, "m": int, "k": int, "n": int},
    "attention": {
        "direction": str,
        "precision": str,
        "batch": int,
        "query_tokens": int,
        "cached_tokens": int,
        "q_heads": int,
        "kv_heads": int,
        "head_dim": int,
    },
    "norm": {"direction": str, "precision": str, "tokens": int, "hidden": int},
    "embedding": {"direction": str, "precision": str, "tokens": int, "hidden": int, "vocab": int},
    "optimizer": {"precision": str, "parameters": int},
    "collective": {"kind": str, "ranks": int, "ranks_per_node": int, "num_bytes": int},
    "copy": {"direction": str, "num_bytes": int},
    "call": {"kind": str, "num_bytes": int},
    "host_step": {"part": str, "tp": int, "sequences": int},
    "model_pass": {
        "name": str,
        "model": str,
        "num_layers": int,
        "head": str,
        "precision": str,
        "tp": int,
        "dp": int,
        "sequences": int,
        "tokens": int,
    },
}
# The kind of calls of storage actors.
QUEUE_CALL: Final = "queue_call"
VALUE_COLUMNS: Final = (
    "seconds_median",
    "seconds_p10",
    "seconds_p90",
    "seconds_mean",
    "repeats",
    "source",
)

# What a text column may hold, by (table, column); columns that are not here take any text.
_PASSES = ("forward", "backward")
_PRECISIONS = ("fp32", "bf16", "fp16")
ALLOWED_TEXT: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("gemm", "precision"): _PRECISIONS,
    ("attention", "precision"): _PRECISIONS,
    ("norm", "precision"): _PRECISIONS,
    ("embedding", "precision"): _PRECISIONS,
    ("optimizer", "precision"): _PRECISIONS,
    ("model_pass", "precision"): _PRECISIONS,
    ("model_pass", "head"): ("lm", "scalar"),
    ("attention", "direction"): _PASSES,
    ("norm", "direction"): _PASSES,
    ("embedding", "direction"): _PASSES,
    ("copy", "direction"): ("host_to_device", "device_to_host", "device_to_device"),
    ("collective", "kind"): (
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "send_recv",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Hold the seconds of one operation over its repeats.

    Attributes:
        seconds_mean: The mean, repeats beyond the 90th percentile counted as that. Look-ups answer
            with it: a task is a sum of many operations, the expected sum is the sum of the means,
            and on a machine whose speed changes medians add up to less.
    """

    seconds_median: float
    seconds_p10: float
    seconds_p90: float
    seconds_mean: float
    repeats: int
    source: PointSource = "measured"

    @property
    def spread_seconds(self) -> float:
        """Return one standard deviation in seconds, as if the repeats were normal.

        A normal distribution has 2.563 standard deviations between its 10th and 90th percentile.
        """
        return (self.seconds_p90 - self.seconds_p10) / 2.563


def key_of(table: str, keys: Mapping[str, str | int]) -> Key:
    """Return a point's keys in the order of the table's columns."""
    columns = TABLES[table]
    assert set(keys) == set(columns), f"{table} is keyed by {list(columns)}, not {list(keys)}"
    return tuple(kind(keys[column]) for column, kind in columns.items())


def model_pass_keys(model_pass: ModelPass) -> dict[str, str | int]:
    """Return the keys under which a pass of a model is stored in `model_pass`."""
    return {
        "name": model_pass.name,
        "model": architecture_digest(model_pass.model),
        "num_layers": model_pass.model.num_layers,
        "head": model_pass.head,
        "precision": model_pass.precision,
        "tp": model_pass.tp,
        "dp": model_pass.dp,
        "sequences": model_pass.sequences,
        "tokens": model_pass.tokens,
    }


@cache
def architecture_digest(model: ModelArchitecture) -> str:
    """Return a short digest of an architecture without its name, source and number of layers."""
    left_out = ("name", "source", "num_layers")
    content = {key: value for key, value in plain(model).items() if key not in left_out}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
