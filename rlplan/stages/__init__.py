"""Kinds of tasks, one file each: `KIND`; a task of an algorithm names its kind as the file.

What a kind costs stands in the simulator, and how it runs in the executor.
"""

from dataclasses import dataclass
from typing import Literal

from rlplan.plug_ins import PlugIns

Stage = Literal["generation", "preparation", "training"]
Place = Literal["gpus", "host", "outside"]
EngineRole = Literal["train", "generate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKind:
    """Say what all tasks of one kind have in common.

    Attributes:
        stage: The part of an iteration to which they belong.
        runs_on: `gpus` (a pool of GPUs), `host` (a pool of CPU worker processes), or `outside` (no
            pool of the plan).
        engine: Which of a job's two engines runs the model; None where there is no model.
        has_gradients: Whether they have a backward pass, gradients and an optimizer step.
        layout_fields: What they use of their task's layout, beside the pool and `dp`.
    """

    stage: Stage
    runs_on: Place = "gpus"
    engine: EngineRole | None = None
    has_gradients: bool = False
    layout_fields: frozenset[str] = frozenset()

    @property
    def generates(self) -> bool:
        """Tell whether they sample sequences token by token."""
        return self.engine == "generate"


MODEL_SIZES = frozenset({"tp", "pp", "cp", "ep", "expert_tp", "engine"})
STAGE_SIZES = frozenset({"first_stage_layers", "last_stage_layers"})

STAGE_KINDS = PlugIns[StageKind](__name__, __path__, kind="kind of task", attribute="KIND")
