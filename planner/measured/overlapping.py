"""How a published step overlaps generation with training: modes and bounds in frameworks' own words, as a plan's."""

import re
from dataclasses import dataclass

from rlplan.job import OldLogProb
from rlplan.plan import BY_SAMPLE_MODE, ENDLESS_MODE, WHOLE_BATCH_MODES, InFlight, Mode
from rlplan.planner.measured.framework_runs import UnknownSettingError
from rlplan.planner.measured.rows import Record

# verl V1 begins one batch before the first step (docs/advance/v1_async_trainer.md, num_warmup_batches).
BATCHES_AHEAD = 1.0
# verl's fully asynchronous trainer takes the engine's log-probabilities (docs/advance/fully_async.md,
# use_rollout_log_probs and rollout_correction.bypass_mode).
ENGINES_LOG_PROBS = "fully_async"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Hold how a step overlaps generation with training.

    Attributes:
        parts: Equal parts of a step that its trainer takes one after another, between two syncs of weights.
        staleness: In parts of a step, as a plan counts it in iterations.
        old_log_prob: None is the framework's own.
    """

    mode: Mode
    parts: int = 1
    staleness: float = 0.0
    in_flight: InFlight = "drain"
    old_log_prob: OldLogProb | None = None


def overlap_of(record: Record, usual: InFlight) -> Overlap:
    """Return how a record's step overlaps generation with training.

    A published step is what lies between two syncs: verl's trainer takes it in `sync_step` parts (its
    `trigger_parameter_sync_step`, or V1's `parameter_sync_step`), with a bound of so many batches beside the one
    that is due (`staleness_threshold`). NeMo-RL's `8off` bounds the age in steps.

    Args:
        usual: What the framework makes of responses under way where the record does not say it.

    Raises:
        UnknownSettingError: The mode is no step.
    """
    for mode in WHOLE_BATCH_MODES:
        if record["mode"] == mode:
            return Overlap(mode=mode)
    if record["mode"] != ENDLESS_MODE:
        raise UnknownSettingError(f"the mode {record['mode']} is no step")
    text = record["mode_text"].lower()
    log_prob: OldLogProb | None = "engine" if ENGINES_LOG_PROBS in text else None
    ahead = _batches_ahead(record)
    if ahead == 0:
        return Overlap(mode=BY_SAMPLE_MODE, old_log_prob=log_prob)
    found = re.search(r"sync_step (\d+)", text)
    parts = int(found[1]) if found else 1
    return Overlap(
        mode=ENDLESS_MODE,
        parts=parts,
        staleness=parts - 1 + ahead * parts,
        in_flight="recompute" if "partial" in text else usual,
        old_log_prob=log_prob,
    )


def _batches_ahead(record: Record) -> float:
    """Return the batches that may be begun beside the one that is due.

    Raises:
        UnknownSettingError: The cell is no number.
    """
    cell = record["staleness_fraction"]
    steps = re.search(r"(\d+) ?off", record["mode_text"].lower())
    if not cell and steps:
        return float(steps[1])
    try:
        return float(cell) if cell else BATCHES_AHEAD
    except ValueError:
        raise UnknownSettingError(f"{cell} is no number") from None
