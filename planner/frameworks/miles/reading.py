"""miles: as slime, which it was forked from; FSDP trains as well, adapters are trained, weights go over RDMA."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rlplan.job import USUAL_WEIGHT_SYNC, WeightSync
from rlplan.models import Adapter
from rlplan.planner.configs.megatron import teaching
from rlplan.planner.configs.megatron.reading import (
    MEGATRON,
    WAITING_GROUPS,
    Ways,
    batch_of,
    critic_gpus_of,
    endless,
    never_stops,
    one_off,
    run_by,
    steps_ahead,
)
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.run import Run
from rlplan.planner.configs.sizes import adapter_of

P2P: Final = "miles-p2p"
# Entropies that are watched are made as those of a loss are, beside the softmax of log-probabilities (loss_hub/math_utils.py).
WITH_ENTROPY: Final = "entropy-kept"
BROADCAST: Final = "broadcast"
# The rollout that --fully-async stands for.
OWN_ENDLESS: Final = "FullyAsyncRolloutFn"
# Flags that say where a critic is: its own GPUs until miles@dec268f70 (30 July 2026), and nothing since.
OF_CRITICS: Final = ("critic_nodes", "critic_gpus_per_node")
CRITIC_APART: Final = (
    "a critic on GPUs of its own, as miles places it before August 2026, on which colocated engines stand too: it is forecast on the "
    "actor's"
)

# ray/placement_group.py, _get_placement_group_layout: beside --colocate no GPU is reserved for them.
VALIDATION_APART: Final = (
    "engines for validation alone, for which miles reserves no GPUs beside --colocate"
)


def run_of(settings: Settings) -> Run:
    """Return what a configuration trains, and how."""
    teaching.join(settings)
    if settings.whole("validation_gpus") and settings.on("colocate"):
        settings.doubt("validation_gpus", VALIDATION_APART)
    if settings.value("replicas") is not None and settings.word("backend") == "fsdp":
        settings.leave_out("replicas", "copies of the weights that groups of ranks hold")
    given = [name for name in OF_CRITICS if settings.is_given(name)]
    critic = settings.word("estimator") == "ppo" and bool(given)
    for name in given if critic and settings.on("colocate") else ():
        settings.doubt(name, CRITIC_APART)
    ways = Ways(
        trainer=settings.word("backend"),
        reuses_log_probs=settings.on("skips_pass"),
        weight_sync=_weight_sync(settings),
        adapter=_adapter(settings),
        one_pool=True,
        own_linear="tokens",
        critic_gpus=critic_gpus_of(settings) if critic and not settings.on("colocate") else 0,
        mode=_mode(settings),
        under_way=_under_way(settings) if never_stops(settings) else None,
        logits=WITH_ENTROPY if _watches_entropy(settings) else None,
    )
    return run_by(settings, ways)


def _watches_entropy(settings: Settings) -> bool:
    """Tell whether updates by Megatron make entropies that the loss has not (loss_hub/losses.py, policy_loss_function)."""
    return settings.word("backend") == MEGATRON and settings.on("observes_entropy")


def _adapter(settings: Settings) -> Adapter | None:
    """Return the adapter that is trained, which engines get by itself and add to the weights that they keep.

    backends/megatron_utils/update_weight: load_lora_adapter_from_tensors, load_lora_adapter_from_distributed.
    """
    adapter = adapter_of(settings)
    return None if adapter is None else replace(adapter, sync="adapter")


def _weight_sync(settings: Settings) -> WeightSync:
    """Return how weights reach the engines where that is not by CUDA IPC or broadcasts."""
    way = settings.word("sync_transport")
    if way == P2P:
        return WeightSync(between_pools=P2P)
    if way != BROADCAST:
        settings.leave_out("sync_transport", "weights that go over a file system")
    return USUAL_WEIGHT_SYNC


def _mode(settings: Settings) -> Mapping[str, Any] | None:
    """Return the mode: a batch ahead, or without an end with --fully-async (rollout/fully_async_rollout.py).

    So many samples are under way as a step learns from, or as a flag says; behind them wait those of a buffer. The example
    before it (examples/fully_async, of before August 2026) has slime's queue, which new weights do not pass by. What becomes of
    a cache then is of the sync of weights, whatever rollout there is (update_weight_from_distributed/mixin.py).
    """
    if not never_stops(settings):
        return one_off(settings)
    kept = settings.word("pauses")
    if not (settings.on("fully_async") or OWN_ENDLESS in str(settings.value("rollout_function"))):
        held = batch_of(settings) + WAITING_GROUPS * settings.whole("samples")
        return endless(steps_ahead(settings, held), kept)
    staleness = _under_way(settings) / batch_of(settings) + settings.number("async_buffer")
    most = settings.optional_whole("max_staleness")
    return endless(staleness if most is None else min(staleness, max(1, most)), kept)


def _under_way(settings: Settings) -> int:
    """Return the samples that a rollout without an end keeps under way (rollout/fully_async_rollout.py, _max_in_flight_groups)."""
    return settings.optional_whole("async_samples") or batch_of(settings)
