"""What an engine's attention takes: of prompts, of latent attention beside products, and where an index chooses tokens.

An index chooses what each query of a prompt attends to, so that queries share nothing: kernels gather for each of them,
for blocks of heads together, of which a tensor-parallel rank may have fewer (`SparseKernels`).
"""

import math
from dataclasses import dataclass, replace

from rlplan.attention_kernels import LatentKernels, SparseKernels, latent_rate
from rlplan.estimate import Estimate, Source
from rlplan.files.frozen import FrozenDict
from rlplan.models import PRECISIONS, ModelArchitecture
from rlplan.parts.grouped_attention import q_heads, seen_pairs
from rlplan.parts.latent_attention import sizes_of
from rlplan.sheets import DeviceSheet, StepCosts
from rlplan.simulator.costs.pricing import LATENT_ATTENTION, in_wide_format
from rlplan.simulator.costs.setting import Setting
from rlplan.simulator.model import NARROW_BYTES

# Those that attend to what an index chose: their own, or that of a layer before.
INDEXED, HANDED_ON = "sparse-latent-attention", "shared-index-latent-attention"
NO_SECONDS = FrozenDict[str, float]()
ALL_TOKENS = 10**12  # more than any sequence has


def cached_value_bytes(setting: Setting) -> int:
    """Return the bytes of one value in the KV cache."""
    return setting.cache_value_bytes or PRECISIONS[setting.precision].weight_bytes


def of_prompts(setting: Setting, steps: StepCosts) -> Setting:
    """Return the setting in which an engine's attention of prompts runs."""
    wide, own = in_wide_format(setting), steps.prompt_attention
    rates = own.get(setting.device.sheet.architecture)
    if rates is None:
        return wide
    half = rates.half_tokens
    kernels = replace(wide.kernels, attention_rate=rates.rate, attention_half_tokens=half)
    return replace(wide, kernels=kernels)


@dataclass(frozen=True, slots=True)
class LatentCosts:
    """Price kernels of latent attention in one layer of a kind, for an engine on a device; nothing for other kinds."""

    steps: StepCosts
    sheet: DeviceSheet
    tp: int

    def beside_products(self, kind: ModelArchitecture) -> Estimate:
        """Return seconds of a step beside products, norms and cache, however many tokens it has."""
        others = self.steps.beside_seconds.get(self.sheet.architecture, NO_SECONDS)
        seconds = self._latent(kind).layer_seconds + others.get(kind.attention, 0.0)
        return Estimate(seconds, 0.0, Source.FITTED)

    def fastest_cache(self, kind: ModelArchitecture, value_bytes: int) -> float:
        """Return the most bytes a second at which a decode step's products take the cache; no bound for other kinds, and in 8 bits."""
        peak = self.sheet.peak_flops_per_second.get("bf16")
        if kind.attention != LATENT_ATTENTION or value_bytes == NARROW_BYTES or peak is None:
            return math.inf
        sizes = sizes_of(kind)
        read = sizes.kv_rank + sizes.rope_dim
        return latent_rate(peak, q_heads(kind, self.tp), read, sizes.kv_rank, value_bytes)

    def beside_reading(
        self, kind: ModelArchitecture, running: int, cached: int, reading_seconds: float
    ) -> float:
        """Return seconds of a decode step beside those in which it reads the cache.

        Args:
            kind: Of the layer.
            running: Sequences of the step.
            cached: Tokens that each of them has in the cache.
            reading_seconds: Of the cache in the layer.
        """
        between = running * -(-kind.num_heads // self.tp) * self._latent(kind).head_bytes
        seconds = between / self.sheet.memory_bytes_per_second
        sparse = self._sparse(kind)
        if sparse is None:
            return seconds
        index = sparse.step_seconds if kind.attention == INDEXED else 0.0
        chosen = min(cached, sizes_of(kind).index_tokens)
        serial = sparse.serial_seconds * chosen
        products = running * chosen * self._product_seconds(sparse, kind)
        waits = max(0.0, serial - reading_seconds, products - reading_seconds)
        return seconds + index + running * sparse.sequence_seconds + waits

    def prompts(
        self, kind: ModelArchitecture, count: int, tokens: int, seen: int
    ) -> Estimate | None:
        """Return seconds of prompts between projections; None where they attend to everything, or it is not known.

        Args:
            kind: Of the layer.
            count: Prompts.
            tokens: Of each, that are computed.
            seen: Tokens of each before them.
        """
        sparse = self._sparse(kind)
        if sparse is None or seen + tokens <= sparse.whole_tokens:
            return None
        sizes, heads = sizes_of(kind), q_heads(kind, self.tp)
        seconds = tokens * (sparse.query_seconds + sparse.head_seconds * heads)
        pairs = seen_pairs(sizes.index_tokens, tokens, seen)
        seconds += pairs * self._product_seconds(sparse, kind)
        if kind.attention == INDEXED:
            scored = seen_pairs(ALL_TOKENS, tokens, seen) * sizes.index_heads
            seconds += tokens * sparse.index_query_seconds
            seconds += scored * sparse.index_seconds * self._product_times(sparse)
        return Estimate(count * seconds, 0.0, Source.FITTED)

    def _product_seconds(self, sparse: SparseKernels, kind: ModelArchitecture) -> float:
        """Return seconds of a query's products with a token that it attends to."""
        blocks = -(-q_heads(kind, self.tp) // sparse.block_heads)
        return blocks * sparse.chosen_seconds * self._product_times(sparse)

    def _product_times(self, sparse: SparseKernels) -> float:
        return sparse.product_times(self.sheet.peak_flops_per_second["bf16"])

    def _latent(self, kind: ModelArchitecture) -> LatentKernels:
        if not kind.attention.endswith(LATENT_ATTENTION):
            return LatentKernels()
        return self.steps.latent.get(self.sheet.architecture, LatentKernels())

    def _sparse(self, kind: ModelArchitecture) -> SparseKernels | None:
        if kind.attention not in (INDEXED, HANDED_ON):
            return None
        return self.steps.sparse.get(self.sheet.architecture)
