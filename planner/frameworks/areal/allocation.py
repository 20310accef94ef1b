"""Allocation strings: `sglang:d4t2`, `megatron:(attn:d4p2t2|ffn:d2p2e4)`, and those of old for all engines together."""

import re
from dataclasses import dataclass
from typing import Final

GENERATES: Final = ("sglang", "vllm")
TRAINS: Final = ("fsdp", "megatron", "archon")
FSDP, MEGATRON, ARCHON = "fsdp", "megatron", "archon"
# A letter and a size; `m` is what the first versions called tensor parallelism.
DIMENSION: Final = re.compile(r"([dtpcesm])(\d+)")
DIMENSIONS: Final = re.compile(r"([dtpcesm]\d+)+")
BACKEND: Final = re.compile(
    r"(?:(sglang|vllm|fsdp|megatron|archon)(?:\[\w+\])?[:.])?(.*)", re.DOTALL
)
HYBRID: Final = re.compile(r"\(?attn:([^|]+)\|ffn:([^)]+)\)?")
# What stands for no training, in allocations of evaluations.
NO_TRAINING: Final = ("eval", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Hold what one engine gets.

    Attributes:
        backend: What trains or generates.
        ep, expert_tp: Ranks that experts are shared out to, and that each one's width is cut over.
    """

    backend: str
    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    expert_tp: int | None = None

    @property
    def gpus(self) -> int:
        """Return its GPUs: experts are shared out among them."""
        return self.dp * self.tp * self.pp * self.cp


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocations:
    """Hold what engines get of an allocation of all together.

    Attributes:
        shared: Whether they share their GPUs.
    """

    generates: Allocation | None
    trains: Allocation | None
    shared: bool = False


def allocation_of(text: str, usual: str = "") -> Allocation | None:
    """Return what a string gives an engine; None where it is not understood.

    Args:
        usual: The back end of sizes alone.
    """
    found = BACKEND.fullmatch(text.replace(" ", ""))
    assert found is not None, "the pattern fits any text"
    backend, sizes = found[1] or usual, found[2]
    hybrid = HYBRID.fullmatch(sizes)
    if hybrid is not None:
        backend = backend if found[1] else MEGATRON if usual else ""
        attention, experts = _sizes(hybrid[1]), _sizes(hybrid[2])
        if attention is None or experts is None or not backend:
            return None
        dp, tp, pp, cp = (attention.get(name, 1) for name in "dtpc")
        ep, width = experts.get("e", 1), experts.get("t", 1)
        return Allocation(backend=backend, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, expert_tp=width)
    own = _sizes(sizes)
    if own is None or not backend:
        return None
    dp, tp, pp, cp, ep = (own.get(name, 1) for name in "dtpce")
    expert_tp = 1 if ep > 1 else None
    if not found[1] and (
        pp > 1 or ep > 1
    ):  # sizes alone are Megatron's where FSDP has none of them
        backend = MEGATRON
    return Allocation(backend=backend, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, expert_tp=expert_tp)


def allocations_of(text: str, usual: str = FSDP) -> Allocations | None:
    """Return what a string gives all engines: `GENERATES+TRAINS`, or `|` where they share; None where it is not understood.

    Args:
        usual: What trains where sizes stand alone.
    """
    plain = text.replace(" ", "")
    shared = "+" not in plain and HYBRID.search(plain) is None and "|" in plain
    parts = plain.split("|" if shared else "+")
    if len(parts) == 1:
        alone = allocation_of(plain, usual)
        if alone is None:
            return None
        generates = alone if alone.backend in GENERATES else None
        return Allocations(generates=generates, trains=None if generates else alone)
    if len(parts) != 2:  # noqa: PLR2004 -- what generates and what trains
        return None
    first = allocation_of(parts[0])
    second = None if parts[1] in NO_TRAINING else allocation_of(parts[1], usual)
    if first is None or (second is None and parts[1] not in NO_TRAINING):
        return None
    if first.backend in TRAINS and second is not None:
        first, second = second, first
    return Allocations(generates=first, trains=second, shared=shared)


def _sizes(text: str) -> dict[str, int] | None:
    if not DIMENSIONS.fullmatch(text):
        return None
    found = {name: int(size) for name, size in DIMENSION.findall(text)}
    if any(size < 1 for size in found.values()):
        return None
    if "m" in found:
        found["t"] = found.pop("m")
    return found
