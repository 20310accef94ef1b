"""Times of NCCL's collectives by size and ranks on nodes with NVSwitch (microsoft/vidur, MIT)."""

from collections.abc import Iterator
from typing import Final

from rlplan.evals.rows import NO_DEVICE, fitted_on, row_key
from rlplan.evals.settings.serving import device_facts
from rlplan.models import CollectiveKind
from rlplan.planner.measured.rows import Record, TableReader, forecast_row, skipped_row
from rlplan.results.accuracy import Row
from rlplan.units import seconds_from_ms

ACROSS: Final = "the rate of the network between its nodes is not given"
KINDS: Final[dict[str, CollectiveKind]] = {"all_reduce": "all_reduce", "send_recv": "send_recv"}

# The all-reduces that `benchmarks/fit_kernels.py` fits on.
FITTED_RANKS: Final = (2, 4, 8)
FITTED_DEVICES: Final = ("a100-80gb-sxm", "h100-80gb-sxm")


def rows_of(record: Record) -> Iterator[Row]:
    """Yield a forecast for a record inside a node."""
    collective = record["collective"]
    ranks, per_node = int(record["num_workers"]), int(record["devices_per_node"])
    size = int(record["size"])
    label = f"{collective}, {ranks} ranks, {per_node} a node, {size} bytes"
    measured = seconds_from_ms(float(record[f"time_stats.{collective}.median"]))
    reason = _reason(record, ranks, per_node, measured)
    if reason:
        yield skipped_row(label, reason, kind=collective)
        return
    forecast = device_facts(record["device"]).collective(
        KINDS[collective],
        size,
        ranks,
        ranks_per_node=per_node,
        inter_node_bytes_per_second=1.0,
    )
    yield forecast_row(
        label, measured, forecast, kind=collective,
        fitted=is_fitted_on(record),
    )  # fmt: skip


def _reason(record: Record, ranks: int, per_node: int, measured: float) -> str | None:
    if not record["device"]:
        return NO_DEVICE
    if record["collective"] not in KINDS:
        return f"collectives known: {', '.join(KINDS)}"
    if per_node < ranks:
        return ACROSS
    return None if measured > 0 else "shorter than the profiler's resolution"


def is_fitted_on(record: Record) -> bool:
    """Tell whether the links' constants were fitted on a record."""
    if record["collective"] == "all_reduce":
        return int(record["num_workers"]) in FITTED_RANKS
    return fitted_on(row_key(record, ("num_workers", "size")))


def is_known(record: Record) -> bool:
    """Tell whether a record is of a device whose table the fit had."""
    return record["device"] in FITTED_DEVICES


READER = TableReader(
    about=(
        "Times of single collectives. Given: ranks and bytes. All-reduces of 2, 4 and 8 ranks and "
        "half of the sends are fitted on."
    ),
    columns=frozenset({"collective", "num_workers", "devices_per_node", "size"}),
    rows_of=rows_of,
    is_known=is_known,
)
