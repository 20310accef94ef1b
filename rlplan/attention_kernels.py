"""What kernels of attention take in engines that generate, as their sheets say it."""

from dataclasses import dataclass

from rlplan.files.limits import AtLeastOne, Fraction, NonNegative, NonNegativeInt, Positive

# Rows of queries that kernels of latent attention compute at a time, heads of one sequence, and the share of the device's peak that they
# reach where reading is not what decides: FlashMLA's blocks of 64, 660 of 989 TFLOP/s on H800 SXM5 (deepseek-ai/FlashMLA, README).
LATENT_ROWS, LATENT_PEAK_FRACTION = 64, 0.67


def latent_rate(
    peak_flops_per_second: float, heads: int, read_values: int, kept_values: int, value_bytes: int
) -> float:
    """Return the bytes of a latent cache a second that decode attention's products take at most.

    Args:
        peak_flops_per_second: Of the device, in 16 bits.
        heads: Of a rank.
        read_values: Of a token in the cache, of which a score is made.
        kept_values: Those of them that an answer is made of.
        value_bytes: Of each.
    """
    rows = -(-heads // LATENT_ROWS) * LATENT_ROWS
    flops = 2 * rows * (read_values + kept_values)
    return read_values * value_bytes * LATENT_PEAK_FRACTION * peak_flops_per_second / flops


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentKernels:
    """Say what latent attention takes in an engine that generates, beside its products, norms and cache.

    Attributes:
        layer_seconds: Of kernels that write the cache, multiply with absorbed matrices and copy queries and outputs.
        head_bytes: What decode steps move between them in a layer for every head of a sequence.
    """

    layer_seconds: NonNegative = 0.0
    head_bytes: NonNegative = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTiles:
    """Say how decode attention computes queries: in tiles of so many rows for each KV head, however few a sequence has.

    Attributes:
        rows: Of a tile where all sequences decode.
        peak_fraction: Share of the device's peak at which such tiles are computed.
        mixed_rows: Of a tile in a step with prompts.
        mixed_peak_fraction: As `peak_fraction`.
    """

    rows: AtLeastOne
    peak_fraction: Fraction
    mixed_rows: AtLeastOne
    mixed_peak_fraction: Fraction

    def cache_rate(self, peak_flops_per_second: float, value_bytes: int, *, mixed: bool) -> float:
        """Return the bytes of keys and values a second that tiles take, whatever the size of a head.

        A cached position has 2 d values, and takes 4 d flops a row: its score, and its part of the answer.
        """
        rows = self.mixed_rows if mixed else self.rows
        share = self.mixed_peak_fraction if mixed else self.peak_fraction
        return 2 * value_bytes * share * peak_flops_per_second / (4 * rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAttention:
    """Say how fast an engine's attention computes prompts.

    Attributes:
        rate: For the longest prompts, over the device's.
        half_tokens: Tokens of a prompt at which half of it is reached.
    """

    rate: Positive
    half_tokens: NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseKernels:
    """Say what kernels of latent attention to chosen tokens take in a layer: all of prompts, of decode steps beside reading.

    Attributes:
        query_seconds: Of each query of a prompt, however long that is: copies of queries and outputs.
        index_query_seconds: Of each query of a prompt on a layer with an index of its own, beside: what is chosen, and where that lies.
        head_seconds: Of each query of a prompt, for every head of a rank.
        chosen_seconds: Of each query of a prompt and token that it attends to, for every block of heads.
        block_heads: Heads that the kernel computes together; with fewer on a rank it takes as long.
        index_seconds: Of each query of a prompt and token before it, for every head of the index.
        whole_tokens: Prompts, with what they see, that attend to everything as latent attention does, if they are no longer; 0: none.
        step_seconds: Of the index in a decode step.
        sequence_seconds: Of each sequence of a decode step, beside what it reads.
        serial_seconds: Of each token that a sequence attends to in a decode step, one after another: reading takes at least as long.
        measured_flops_per_second: Peak in 16 bits of the device of which all this is.
    """

    measured_flops_per_second: Positive
    query_seconds: Positive
    index_query_seconds: NonNegative
    head_seconds: NonNegative = 0.0
    chosen_seconds: Positive
    block_heads: AtLeastOne
    index_seconds: Positive
    whole_tokens: NonNegativeInt = 0
    step_seconds: NonNegative = 0.0
    sequence_seconds: NonNegative = 0.0
    serial_seconds: NonNegative = 0.0

    def product_times(self, peak_flops_per_second: float) -> float:
        """Return how many times as long products of prompts take on a device of another peak: no shorter on one with more."""
        return max(1.0, self.measured_flops_per_second / peak_flops_per_second)
