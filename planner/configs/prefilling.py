"""Replicas of an engine that read prompts alone (prefill apart from decode), as configurations say it.

slime and miles say how many servers (`--prefill-num-servers`, each of `--rollout-num-gpus-per-engine` GPUs), SkyRL how many
engines (`num_prefill`); verl's replicas are groups of one engine that reads and some that write (workers/rollout/sglang_rollout/
sglang_pd_replica.py: `prefill_replicas` other than 1 is refused there).
"""

from typing import Final

from rlplan.job import PrefillApart
from rlplan.plan import FLOWS
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.run import Run

SWITCH: Final = "prefills_apart"
NAMES: Final = (SWITCH, "prefillers", "prefill_each", "decode_each", "decode_tp")
NOT_COUNTED: Final = "engines that only read prompts, which are forecast where whole batches are handed on, with one layout for all and no cache in host memory"


def prefill_of(settings: Settings, run: Run, *, offloads: bool) -> PrefillApart | None:
    """Return how many replicas read prompts alone; None where none does, or where that is not forecast, which is said.

    Args:
        offloads: Whether host memory keeps blocks of the engine's cache, which is forecast where all replicas do both.
    """
    known = [name for name in NAMES if name in settings.sheet.settings]
    if not known or (SWITCH in known and not settings.on(SWITCH)):
        return None
    if SWITCH not in known and not settings.whole("prefillers"):
        return None
    pool = next(each for each in run.pools if each.name == run.generate.pool)
    replicas = pool.gpus // (run.generate.tp * run.generate.pp)
    reading = _reading(settings, run, replicas, known)
    whole = not FLOWS[run.mode].by_sample and run.work.over_provisioning == 1
    if whole and not offloads and 0 < reading < replicas:
        return PrefillApart(replicas=reading)
    for name in known:
        settings.leave_out(name, NOT_COUNTED)
    return None


def _reading(settings: Settings, run: Run, replicas: int, known: list[str]) -> int:
    """Return the replicas that read prompts alone; 0 where their layout is another one than the others'."""
    if "decode_each" in known:
        tp = settings.value("decode_tp")
        group = settings.whole("prefill_each") + settings.whole("decode_each")
        same = tp is None or tp == run.generate.tp
        return settings.whole("prefill_each") * (replicas // group) if same and group else 0
    engines = settings.whole("engines") if "engines" in settings.sheet.settings else replicas
    return settings.whole("prefillers") * replicas // max(1, engines)
