"""Measured steps of RL frameworks as `rl_steps` has them, in a table with other columns (SkyRL's are published so)."""

import re
from collections import defaultdict
from collections.abc import Iterator

from rlplan.calibration import NO_CALIBRATION, Calibration
from rlplan.plan import USUAL_MODE
from rlplan.planner.measured.rows import Record, TableReader, skipped_row
from rlplan.planner.measured.tables import rl_steps
from rlplan.results.accuracy import Row

COLUMNS = (
    "system",
    "prompts_per_step",
    "train_layout",
    "rollout_layout",
    "old_logprob_s",
    "train_s",
)
# Columns of `rl_steps` by those of this table.
SAME = {
    "framework": "system", "version": "version", "model": "model", "gpu": "gpu", "gpus": "gpus",
    "mode": "mode", "algorithm": "algo", "prompts": "prompts_per_step",
    "samples_per_prompt": "samples_per_prompt", "mean_prompt": "prompt_mean", "max_prompt": "prompt_max",
    "mean_response": "resp_mean", "max_response": "resp_max_cap", "rollout_engine": "rollout_engine",
    "rollout_memory_fraction": "rollout_gpu_mem_util", "step_s": "step_s", "gen_s": "gen_s",
    "old_log_prob_s": "old_logprob_s", "ref_s": "ref_s", "update_actor_s": "train_s",
    "weight_sync_s": "weight_sync_s", "notes": "note", "source": "source",
}  # fmt: skip
TRAINERS = {"fsdp": "fsdp2", "megatron": "megatron"}
SIZES = ("tp", "pp", "cp", "ep")
OBSERVATIONS = "tokens that environments add between turns: not published"


def rows_of(record: Record, site: Calibration = NO_CALIBRATION) -> Iterator[Row]:
    """Yield the step of a record, or why it has no forecast."""
    if record.get("turns"):
        label = f"{record['system']} {record['model']} on {record['gpus']} {record['gpu']}, {record.get('trainer', '')}"
        yield skipped_row(label, OBSERVATIONS, kind=f"{record['system']}, {record['turns']} turns")
        return
    yield from rl_steps.rows_of(_as_step(record), site)


def _as_step(record: Record) -> Record:
    """Return a record as `rl_steps` has it; columns that this table lacks are empty."""
    cells = {name: record.get(own, "") for name, own in SAME.items()}
    trainer = record.get("trainer", "").lower()
    step = cells | {
        "trainer": TRAINERS.get(trainer, trainer),
        "mode": record.get("mode") or USUAL_MODE,
    }
    if record.get("mini_batch") and record.get("samples_per_prompt"):
        sequences = float(record["mini_batch"]) * float(record["samples_per_prompt"])
        step["sequences_per_update"] = f"{sequences:g}"
    step |= {f"train_{size}": _size(record["train_layout"], size) for size in SIZES}
    step |= {f"rollout_{size}": _size(record["rollout_layout"], size) for size in ("tp", "pp")}
    return defaultdict(str, step)


def _size(layout: str, name: str) -> str:
    found = re.search(rf"(?i)\b{name} ?(\d+)", layout)
    return found[1] if found else ""


READER = TableReader(
    about=f"Seconds of whole steps and of their stages, in other columns than `rl_steps`. {rl_steps.READER.about}",
    columns=frozenset(COLUMNS),
    rows_of=rows_of,
    calibrated_rows_of=rows_of,
)
