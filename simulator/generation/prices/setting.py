"""What decides the seconds of a replica's steps: equal settings share all that is remembered of them."""

from dataclasses import dataclass

from rlplan.models.model import ModelArchitecture
from rlplan.sheets.hardware import EngineSheet
from rlplan.simulator.costs.pricing import Setting, setting_of
from rlplan.simulator.placed.task import PlacedTask


@dataclass(frozen=True, slots=True)
class ReplicaSetting:
    """Hold the setting of one replica of a generation engine.

    Attributes:
        copies: Replicas that work at the same time, where passes were measured with so many; else 1.
        gathering_gpus: GPUs over which the engine gathers its weights layer by layer; 0 if it does not.
    """

    model: ModelArchitecture
    engine: EngineSheet
    setting: Setting
    copies: int = 1
    gathering_gpus: int = 0


def replica_setting_of(placed: PlacedTask) -> ReplicaSetting:
    """Return what decides the seconds of a generating task's steps."""
    return ReplicaSetting(
        placed.model,
        placed.engine,
        setting_of(placed),
        copies=1 if placed.device.profile is None else placed.layout.dp,
        gathering_gpus=placed.site.gpus if placed.engine.gathers_weights else 0,
    )
