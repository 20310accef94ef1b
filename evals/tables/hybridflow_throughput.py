"""Throughput of whole iterations, HybridFlow (Sheng et al. 2025, EuroSys), Figures 9 to 13.

Parallel sizes are not published: every system's best plan is searched, HybridFlow's over all placements
by the project's own search, its peers' by `rlplan.planner.systems.baselines`.
"""

from collections.abc import Iterator

from rlplan.algorithms import algorithm_names
from rlplan.evals.settings.hybridflow_jobs import MODELS, PROMPTS, ROLES_BY_ALGORITHM, TOKENS
from rlplan.evals.settings.hybridflow_systems import (
    OURS,
    PEERS,
    placed_forecast,
    system_forecast,
)
from rlplan.planner.measured.rows import Record, TableReader, forecast_row, skipped_row
from rlplan.planner.placements.strategies import strategy_names
from rlplan.results.accuracy import Row, SystemForecast

SEARCHED = (
    "parallel sizes are not published: the best plan over all placements is searched, activations "
    "recomputed"
)
BASELINE = "parallel sizes are not published: the best of those that the system can run is taken"
FITTED_UP_TO_GPUS = 32


def rows_of(record: Record) -> Iterator[Row]:
    """Yield the forecast of a row whose algorithm, models and system are known."""
    system = record["system_or_placement"]
    label = f"{record['algorithm']} {record['model']}, {int(record['gpus'])} GPUs"
    measured = PROMPTS * 2 * TOKENS / float(record["tokens_per_s"])
    found = forecast_of(record)
    if isinstance(found, str) or found.forecast is None:
        reason = found if isinstance(found, str) else found.reason or ""
        yield skipped_row(label, reason, kind=system, measured_seconds=measured)
        return
    yield forecast_row(
        label,
        measured,
        found.forecast,
        kind=system,
        fitted=_is_fitted(record),
        note=BASELINE if system in PEERS else SEARCHED,
    )


def forecast_of(record: Record) -> SystemForecast | str:
    """Return the best plan of a record's system, or why there is none to look for."""
    algorithm, model = _plain(record["algorithm"]), record["model"].replace(" ", "")
    known = {_plain(name): name for name in ROLES_BY_ALGORITHM if name in algorithm_names()}
    if algorithm not in known:
        return f"algorithms known of this evaluation: {', '.join(known.values())}"
    if not set(model.split("/")) <= set(MODELS):
        return f"models known by size: {', '.join(MODELS)}"
    point = (known[algorithm], model, int(record["gpus"]))
    system = _plain(record["system_or_placement"]).removesuffix("d")
    peers = {_plain(shown): name for shown, name in PEERS.items()}
    if system in peers:
        return system_forecast(peers[system], *point)
    if system == OURS:
        return system_forecast(OURS, *point)
    if system in strategy_names():
        return placed_forecast(system, *point)
    return f"systems known of this evaluation: HybridFlow, {', '.join(PEERS)} and named placements"


def _plain(text: str) -> str:
    """Return a name without what writers set differently: case, blanks, dashes."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


def _is_fitted(record: Record) -> bool:
    """Tell whether an engine's constant was fitted on a row: NeMo-Aligner's launches, by PPO."""
    return (
        PEERS.get(record["system_or_placement"]) == PEERS["NeMo-Aligner"]
        and record["algorithm"] == "PPO"
        and int(record["gpus"]) <= FITTED_UP_TO_GPUS
    )


READER = TableReader(
    about=(
        "Tokens per second of whole iterations on A100-80GB nodes of 8, 200 Gbps between them, "
        "turned into seconds of an iteration of 1,024 prompts of 1,024 tokens and as many "
        "response tokens. Given: algorithm, model, GPUs, system or placement; searched: the "
        "parallel sizes."
    ),
    columns=frozenset(
        {"figure", "algorithm", "model", "gpus", "system_or_placement", "tokens_per_s"}
    ),
    rows_of=rows_of,
)
