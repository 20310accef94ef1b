"""Print what engines' own all-reduces take, by tables of aiconfigurator, and how far each is off other tables.

    python benchmarks/own_all_reduces.py PATH_TO_DATA

PATH_TO_DATA is `systems/data` of the package `aiconfigurator_core` (0.12, NVIDIA, Apache-2.0): all-reduces in bf16 inside CUDA
graphs, by ranks and bytes. Medians over repetitions stand as they are in `profiles/engines/` (`all_reduces`,
`fused_all_reduces`); nothing is fitted. It writes nothing.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlplan.units import seconds_from_ms

FILE = "{}/custom_allreduce_perf.parquet"
SIZES = [1024, *(2**power for power in (14, 16, 17, 18, 19, 20, 21, 22, 23))]
RANKS = [2, 4, 8]


class Printed(NamedTuple):
    """Name a table that a sheet has, and others that it is held to."""

    sheet: str
    architecture: str
    table: str
    others: tuple[str, ...]


TABLES = (
    Printed("vllm-0.11", "ampere", "a100_sxm/comm/vllm/0.14.0", ()),
    Printed("vllm-0.11", "hopper", "h100_sxm/comm/vllm/0.14.0", ("h200_sxm/comm/vllm/0.14.0",)),
    Printed("vllm-0.11", "blackwell", "b200_sxm/comm/vllm/0.19.0", ("b200_sxm/comm/vllm/0.24.0",)),
    Printed("vllm-0.15", "hopper", "h100_sxm/comm/vllm/0.19.0", ("h200_sxm/comm/vllm/0.24.0",)),
    Printed("sglang-0.4", "ampere", "a100_sxm/comm/sglang/0.5.9", ()),
    Printed("sglang-0.4", "hopper", "h100_sxm/comm/sglang/0.5.9", ("h200_sxm/comm/sglang/0.5.9",)),
    Printed("sglang-0.4", "blackwell", "b200_sxm/comm/sglang/0.5.9", ("b200_sxm/comm/sglang/0.5.10",)),
    Printed("sglang-0.5.6", "hopper", "h100_sxm/comm/trtllm/1.2.0rc5", ("h200_sxm/comm/trtllm/1.2.0rc5",)),
    Printed("sglang-0.5.6", "blackwell", "b200_sxm/comm/trtllm/1.2.0rc5", ("b200_sxm/comm/trtllm/1.3.0rc20",)),
)  # fmt: skip


def table_of(path: Path) -> pd.DataFrame:
    """Return the seconds of a file by ranks and bytes, inside graphs where it tells them apart."""
    rows = pd.read_parquet(path)
    graphs = rows.kernel_source.str.contains("graph")
    rows = rows[graphs] if graphs.any() else rows
    found = rows.pivot_table(
        index="num_gpus", columns="message_size", values="latency", aggfunc="median"
    )
    return seconds_from_ms(found.loc[RANKS, SIZES])


def main(folder: Path) -> None:
    """Print all tables."""
    for sheet, architecture, name, others in TABLES:
        own = table_of(folder / FILE.format(name))
        print(f"{sheet}, {architecture}: {name}")
        for ranks in RANKS:
            pairs = ", ".join(f"{size}: {own.loc[ranks, size]:.2e}" for size in SIZES)
            print(f"        {ranks}: {{{pairs}}}")
        for other in others:
            errors = np.abs(own / table_of(folder / FILE.format(other)) - 1).to_numpy()
            print(
                f"  {np.median(errors):.1%} median, {np.quantile(errors, 0.9):.0%} p90 off {other}"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
