"""Throughput of whole iterations, HybridFlow (Sheng et al. 2025, EuroSys), Figures 9 to 12.

Parallel sizes are not published: for HybridFlow itself the fastest colocated plan that fits is
forecast. The plans of its peers are other software's, with engines of their own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rlplan.accuracy import Row
from rlplan.estimate import Estimate, Source
from rlplan.forecast import Forecast
from simulator.accuracy.hybridflow_plans import MODELS, PROMPTS, TOKENS, candidates, facts_of
from simulator.accuracy.rows import Record, forecast_row, skipped_row
from simulator.intervals import P90_DEVIATIONS
from simulator.simulate import simulate

SYSTEM = "HybridFlow"
SEARCHED = (
    "parallel sizes are not published: searched were colocated plans (training TP, PP of 1 to 8, "
    "generation TP up to the training's, micro-batches of 2 and 8), and the fastest that fits taken"
)
NOT_SEARCHED = "its parallel sizes are not published, and it ran engines of its own"


@dataclass(frozen=True)
class HybridFlowThroughput:
    """Forecast HybridFlow's own iterations; its peers' are skipped."""

    name: str = "hybridflow_throughput"
    about: str = (
        "Tokens per second of whole iterations on A100-80GB nodes of 8, 200 Gbps between them, "
        "turned into seconds of an iteration of 1,024 prompts of 1,024 tokens and as many "
        "response tokens. Given: algorithm, model, GPUs, system; searched: the parallel sizes."
    )

    def matches(self, columns: frozenset[str]) -> bool:
        """Tell whether a table has throughput by figure, algorithm, model, GPUs and system."""
        wanted = {"figure", "algorithm", "model", "gpus", "system_or_placement", "tokens_per_s"}
        return wanted <= columns

    def rows(self, records: Sequence[Record]) -> Iterable[Row]:
        """Yield a forecast for every PPO row of HybridFlow itself."""
        for index, record in enumerate(records):
            system, model, gpus = (
                record["system_or_placement"],
                record["model"],
                int(record["gpus"]),
            )
            label = f"{record['algorithm']} {model}, {gpus} GPUs"
            measured = PROMPTS * 2 * TOKENS / float(record["tokens_per_s"])
            reason = _reason(record["algorithm"], system, model)
            best = None if reason else fastest(model, gpus)
            if best is None:
                reason = reason or "no colocated plan fits"
                yield skipped_row(
                    self, index, label, reason, kind=system, measured_seconds=measured
                )
                continue
            low, high = best.iteration_seconds_interval
            spread = (high - low) / 2 / P90_DEVIATIONS
            estimate = Estimate(best.iteration_seconds, spread, Source.FITTED)
            yield forecast_row(self, index, label, measured, estimate, kind=system, note=SEARCHED)


READER = HybridFlowThroughput()


def _reason(algorithm: str, system: str, model: str) -> str | None:
    if system != SYSTEM:
        return NOT_SEARCHED
    if algorithm.lower() != "ppo":
        return f"rlplan has no algorithm {algorithm}"
    return None if model in MODELS else f"models known by size: {', '.join(MODELS)}"


@lru_cache(maxsize=64)
def fastest(model: str, gpus: int) -> Forecast | None:
    """Return the forecast of the fastest plan that fits; None when none does."""
    facts = facts_of(model, gpus)
    forecasts = [simulate(plan, facts) for plan in candidates(model, gpus)]
    fitting = [each for each in forecasts if each.feasible]
    return min(fitting, key=lambda each: each.iteration_seconds, default=None)
