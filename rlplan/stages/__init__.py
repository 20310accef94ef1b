"""Kinds of tasks, one file each: `KIND`; a task of an algorithm names its kind as the file.

What a kind costs stands in the simulator, and how it runs in the executor.
"""

from dataclasses import dataclass
from typing import Literal

from rlplan.plug_ins import PlugIns

Stage = Literal["generation", "preparation", "training"]
EngineRole = Literal["train", "generate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKind:
    """Say what all tasks of one kind have in common.

    Attributes:
        stage: The part of an iteration to which they belong.
        engine: Which of a job's two engines runs the model, on a pool of GPUs; None where there is no
            model: such tasks run on a pool of CPU worker processes.
        has_gradients: Whether they have a backward pass, gradients and an optimizer step.
        calls_functions: Whether they call the job's reward functions, one response at a time, which a
            job may have streamed.
        layout_fields: What they use of their task's layout, beside the pool and `dp`.
    """

    stage: Stage
    engine: EngineRole | None = None
    has_gradients: bool = False
    calls_functions: bool = False
    layout_fields: frozenset[str] = frozenset()

    @property
    def has_model(self) -> bool:
        """Tell whether a model computes them, on GPUs; all others are host tasks."""
        return self.engine is not None

    @property
    def generates(self) -> bool:
        """Tell whether they sample sequences token by token."""
        return self.engine == "generate"


MODEL_SIZES = frozenset({"tp", "pp", "cp", "ep", "expert_tp", "engine"})
STAGE_SIZES = frozenset({"first_stage_layers", "last_stage_layers"})

STAGE_KINDS = PlugIns[StageKind](__name__, __path__, kind="kind of task", attribute="KIND")
