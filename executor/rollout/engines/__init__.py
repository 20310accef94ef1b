"""Generation engines, one file each; the name that a plan uses is the file's name with dashes.

Every file has `start(shard, setup) -> GenerationEngine`, which all ranks of a pool call together.
"""

import importlib
import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rlplan.job import Job
from rlplan.plan import TaskPlan

if TYPE_CHECKING:  # what a plan may name is known where torch is not installed
    from torch import Tensor

    from executor.rollout.engines.torch_static import GenerateSettings, Sequences
    from executor.weights.shard import ModelShard

DEFAULT_ENGINE = "torch-static"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """Say what an engine is started for.

    Attributes:
        layout: Of the task that generates.
        seed: Of the run.
    """

    job: Job
    layout: TaskPlan
    seed: int


class GenerationEngine(Protocol):
    """Generate with the weights of a shard; all ranks of a replica call each method together."""

    def load_weights(self) -> None:
        """Generate with what the shard's weights are now."""

    def generate(
        self,
        prompts: "Tensor",
        present: "Tensor",
        lengths: "Tensor",
        rows: "Tensor",
        width: int,
        settings: "GenerateSettings",
    ) -> "Sequences":
        """Return the sequences of a replica's rows (see `executor.rollout.engines.torch_static.generate`)."""

    def release(self) -> None:
        """Give back what is not needed until weights are taken again."""


def engine_module_names() -> tuple[str, ...]:
    """Return the names of all generation engines, sorted."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


def start_engine(name: str, shard: "ModelShard", setup: EngineSetup) -> GenerationEngine:
    """Start an engine on a rank's shard; an empty name takes the project's own."""
    module: Any = importlib.import_module(
        f"{__name__}.{(name or DEFAULT_ENGINE).replace('-', '_')}"
    )
    engine: GenerationEngine = module.start(shard, setup)
    return engine
