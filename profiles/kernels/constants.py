"""What kernels take on one architecture: constants fitted to operator tables, with their spread.

`profiles/kernels/constants/<architecture>.yaml` holds them, written by the command that it names;
`profiles/fits/<architecture>.yaml` says whose kernels stand for an architecture.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from rlplan.errors import UnknownNameError
from rlplan.files.decoding import read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import AtLeastOne, NonNegative, Positive

KERNELS_FOLDER: Final = Path(__file__).parent

RowKind = Literal["norm", "rope", "activation", "residual", "embedding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmKernels:
    """Hold what matrix products take; `rlplan.profiles.kernels.kernel_time` has the formula.

    Attributes:
        tiles: Share of a multiprocessor's peak rate by output tile, "rows x columns".
        depth_step: A product's depth is computed in steps of so many values.
        epilogue_seconds: Time to write out a tile of 256 x 128 that nothing hides.
        tail_fraction: Share of a started wave's time that the tiles missing in it still cost.
        slowdown: Loss of rate in long products, as the clock falls and the cache is refilled.
        slowdown_seconds: Time of computing at which half of that loss is reached.
        memory_efficiency: Share of the memory's rate.
        overlap_exponent: How far computing hides memory traffic: with p, the two take
            (compute^p + memory^p)^(1/p); 1 is not at all, large values are the pure maximum.
        split_traffic: Passes of the partial sums through memory when the depth is split.
        split_seconds: Time to add them up that does not depend on their number.
        fixed_seconds: Time of a product with next to no work.
        spread: Relative, one sigma, on shapes held back from the fit.
    """

    tiles: FrozenDict[str, Positive]
    depth_step: AtLeastOne
    epilogue_seconds: NonNegative
    tail_fraction: NonNegative
    slowdown: NonNegative
    slowdown_seconds: Positive
    memory_efficiency: Positive
    overlap_exponent: Positive
    split_traffic: NonNegative
    split_seconds: NonNegative
    fixed_seconds: NonNegative
    spread: NonNegative
    standard_errors: FrozenDict[str, NonNegative] = FrozenDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedKernels:
    """Hold how products of many experts in one kernel differ from single products.

    Attributes:
        rate: Rate of computing over that of a single product's tiles.
        memory_rate: Rate of memory over that of a single product.
        fixed_seconds: Time of a grouped product with next to no work, its share of sorting tokens by
            expert among it.
        spread: Relative, one sigma, on shapes held back from the fit.
    """

    rate: Positive
    memory_rate: Positive
    fixed_seconds: NonNegative
    spread: NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKernels:
    """Hold what a kernel takes that works row by row; `rlplan.profiles.kernels.kernel_time` has the formula.

    Attributes:
        fixed_seconds: Time of a kernel with next to no work.
        start_seconds: Time of a block of threads before its first step along the row.
        step_seconds: Time of a step of a block that has a multiprocessor to itself.
        seconds_per_value: Of a multiprocessor that many blocks keep busy.
        tail_fraction: Share of a started wave's time that the blocks missing in it still cost.
        cached_bytes: Bytes that stay in the second-level cache between kernels.
        memory_efficiency: Share of the memory's rate at which bytes beyond them add to the time.
        overlap_exponent: How far a block's waiting hides others' work, as of the matrix products.
    """

    fixed_seconds: NonNegative
    start_seconds: NonNegative
    step_seconds: NonNegative
    seconds_per_value: NonNegative
    tail_fraction: NonNegative
    cached_bytes: NonNegative
    memory_efficiency: Positive
    overlap_exponent: Positive
    spread: NonNegative
    standard_errors: FrozenDict[str, NonNegative] = FrozenDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProtocol:
    """Hold one way of moving bytes inside a node: what it takes to start, and its rate.

    Attributes:
        step_seconds: Of every hop that follows another.
        link_efficiency: Share of the link's rate.
    """

    start_seconds: NonNegative
    step_seconds: NonNegative
    link_efficiency: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkKernels:
    """Hold what collectives take inside a node; the fastest protocol is used, as NCCL chooses.

    Attributes:
        reduce: Protocols of rings (all-reduce, all-gather, reduce-scatter, broadcast).
        own_share: Share of a byte's time on the link that a byte of a rank's own part takes, which
            is read and written beside the steps that pass links: a ring of n ranks has 2n - 1 steps
            on each of n parts, 2n - 2 of which pass a link (NCCL, `src/device/all_reduce.h`).
        send: From one rank to another.
        send_cached_bytes: Messages beyond it leave the cache, and their rest moves at
            `send_memory_efficiency`.
    """

    reduce: tuple[LinkProtocol, ...]
    own_share: NonNegative
    send: LinkProtocol
    send_cached_bytes: NonNegative
    send_memory_efficiency: Positive
    reduce_spread: NonNegative
    send_spread: NonNegative
    standard_errors: FrozenDict[str, NonNegative] = FrozenDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernels:
    """Hold what attention over a paged cache takes; `rlplan.profiles.kernels.kernel_time` has the formula.

    Attributes:
        alone_efficiency: Rate at which a decode block walks along keys when it has a multiprocessor
            to itself, as a share of a multiprocessor's part of the memory's rate (above 1: through
            the second-level cache).
        paired_efficiency: The same of one of two that share a multiprocessor, of half of that part.
        alone_start_seconds: Time of a decode block alone before its first keys.
        paired_start_seconds: The same of one of two.
        cached_bytes: Keys and values that stay in the second-level cache between steps.
        memory_efficiency: Share of the memory's rate at which the others move.
        overlap_exponent: As of the matrix products.
        decode_fixed_seconds: Time of a decode step with next to no work.
        combine_seconds: Time to combine the results of split keys.
        combine_part_seconds: The same for each part.
        prefill_efficiency: Share of the peak rate of prefill blocks, two on a multiprocessor.
        append_efficiency: Share of the memory's rate at which they write keys into the cache
            (above 1: through the second-level cache).
        alone_fraction: Time of a block alone on its multiprocessor over that of one of two.
        tail_fraction: As of the matrix products.
        prefill_fixed_seconds: Time of a prefill with next to no work.
    """

    alone_efficiency: Positive
    paired_efficiency: Positive
    alone_start_seconds: NonNegative
    paired_start_seconds: NonNegative
    cached_bytes: Positive
    memory_efficiency: Positive
    overlap_exponent: Positive
    decode_fixed_seconds: NonNegative
    combine_seconds: NonNegative
    combine_part_seconds: NonNegative
    prefill_efficiency: Positive
    append_efficiency: Positive
    alone_fraction: Positive
    tail_fraction: NonNegative
    prefill_fixed_seconds: NonNegative
    decode_spread: NonNegative
    prefill_spread: NonNegative
    standard_errors: FrozenDict[str, NonNegative] = FrozenDict()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Hold the kernels of one architecture.

    Attributes:
        fitted: Whether the constants were fitted to measurements.
        refit: The command that fits them again.
        held_out: Errors of rows that were not fitted on, by part; `without what is left out` are
            those of a fit that is only tried (benchmarks/fit_kernels.py says what it leaves out).
        grouped: Products of many experts in one kernel; None where they run one after another.
        attention: Over a paged cache; None where no table was at hand, and `attention_of` names the
            architecture whose kernels stand for it.
        attention_prefill_factor: Share of the peak rate that those kernels' prefill reaches here, over
            the share that it reaches there.
    """

    architecture: str
    source: str
    fitted: bool
    refit: str = ""
    held_out: FrozenDict[str, str] = FrozenDict()
    gemm: GemmKernels
    rows: FrozenDict[RowKind, RowKernels]
    links: LinkKernels
    grouped: GroupedKernels | None = None
    attention: AttentionKernels | None = None
    attention_of: str = ""
    attention_prefill_factor: Positive = 1.0


@cache
def load_kernels(architecture: str) -> Kernels:
    """Return the kernels of an architecture, such as `ampere`.

    Raises:
        UnknownNameError: There is no file of that name in `profiles/kernels/constants/`.
    """
    known = sorted(path.stem for path in KERNELS_FOLDER.glob("*.yaml"))
    if architecture not in known:
        raise UnknownNameError("kernels", architecture, known)
    return read_yaml(Kernels, KERNELS_FOLDER / f"{architecture}.yaml")
