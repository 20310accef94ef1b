"""The clock of one generation: seconds of its steps, and how well they are known."""

from rlplan.estimate import Estimate
from simulator.generation.prices.grids import Note, nodes, stretches, worst_of
from simulator.generation.prices.stepping import EngineSteps, Stretch
from simulator.generation.replica import Chunks


class EngineClock:
    """Give seconds of steps for one generation, and remember how well they are known."""

    def __init__(self, steps: EngineSteps) -> None:
        self._steps = steps
        self._notes: set[Note] = set()
        self._latest: dict[int, Stretch] = {}  # by sequences
        self._stages = steps.setting.pp
        self._overlap = steps.overlaps

    def prefill(self, sequences: int, tokens: float) -> float:
        """Return seconds of a pass over whole prompts of a mean of `tokens` tokens."""
        return self.mixed(0, 0.0, Chunks(sequences, tokens, 0.0))

    def decode(self, running: int, cached: float) -> float:
        """Return seconds of a decode step of sequences with a mean of `cached` tokens."""
        return self.decode_run(running, cached, 1)

    def decode_run(self, running: int, first: float, steps: int) -> float:
        """Return seconds of decode steps with a mean of first, first + 1, ... cached tokens."""
        last = first + steps - 1
        stretch = self._latest.get(running)
        if stretch is not None and first >= stretch.low and last <= stretch.high:
            return self._on(stretch, steps, (first + last) / 2)
        return sum(
            self._on(self._stretch(running, mean), count, mean)
            for mean, count in stretches(first, steps)
        )

    prefill_run = None  # it has a KV cache
    uneven = None  # it pads nothing

    def _on(self, stretch: Stretch, steps: int, mean: float) -> float:
        """Return seconds of steps around a mean on a straight line, none shorter than the floor."""
        device = stretch.base + stretch.slope * mean
        margin = abs(stretch.slope) * (steps - 1) / 2
        if device - margin >= stretch.floor:
            return steps * (device + stretch.added)
        if device + margin <= stretch.floor:
            return steps * (stretch.floor + stretch.added)
        first = mean - (steps - 1) / 2
        each = (stretch.base + stretch.slope * (first + step) for step in range(steps))
        return sum(max(seconds, stretch.floor) for seconds in each) + steps * stretch.added

    def _stretch(self, running: int, cached: float) -> Stretch:
        """Return the straight line on which a decode step lies, and remember it."""
        stretch, notes = self._steps.stretch(running, cached)
        self._latest[running] = stretch
        self._notes |= notes
        return stretch

    def mixed(self, running: int, cached: float, chunks: Chunks) -> float:
        """Return seconds of a step that decodes and prefills."""
        each, count = -(-running // self._stages), chunks.parts / self._stages
        steps, notes = self._steps, self._notes
        tokens = each + count * chunks.tokens
        device = steps.dense_grid(notes, tokens)
        device += steps.head_grid(notes, each + count)
        device += self._prefill(count, chunks.seen, chunks.tokens)
        device *= self._stages
        if running:
            stretch = self._latest.get(running)
            if stretch is None or not stretch.low <= cached <= stretch.high:
                stretch = self._stretch(running, cached)
            device += stretch.base - stretch.fixed + stretch.slope * cached
        device = max(device, steps.floor_seconds(tokens))
        host = steps.host_seconds(running + chunks.parts)
        return max(device, host) if self._overlap else device + host

    def _prefill(self, count: float, seen: float, tokens: float) -> float:
        """Return seconds of prefill attention.

        Chunks hardly ever see the same mean of tokens twice, so only nodes of it are remembered.
        """
        grid, notes = self._steps.prefill_grid, self._notes
        low, high, share = nodes(seen)
        seconds = grid(notes, count, low, tokens)
        if share:
            seconds += share * (grid(notes, count, high, tokens) - seconds)
        return seconds

    def estimates(self, prefill_seconds: float, decode_seconds: float) -> tuple[Estimate, Estimate]:
        """Return these seconds, summed over steps, as estimates.

        They have the weakest source of all parts asked for, and their largest relative spread, or
        the engine's own where its forecasts were held against measured generations.
        """
        worst = worst_of(self._notes)
        spread = self._steps.engine.forecast_spread or worst.spread
        return (
            Estimate(prefill_seconds, prefill_seconds * spread, worst.source, worst.outside_range),
            Estimate(decode_seconds, decode_seconds * spread, worst.source, worst.outside_range),
        )
