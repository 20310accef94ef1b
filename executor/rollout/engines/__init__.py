"""Generation engines, one file each; the name that a plan uses is the file's name with dashes.

Every file has `start(shard, setup) -> GenerationEngine`, which all ranks of a pool call together.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from rlplan.job import Job
from rlplan.plan import TaskPlan
from rlplan.plug_ins import PlugIns

if TYPE_CHECKING:  # what a plan may name is known where torch is not installed
    from torch import Tensor

    from rlplan.executor.rollout.sampling import GenerateSettings, Sequences
    from rlplan.executor.weights.shard import ModelShard

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
        """Return the sequences of a replica's rows (see `rlplan.executor.rollout.engines.torch_static`)."""

    def release(self) -> None:
        """Give back what is not needed until weights are taken again."""


# On a rank's shard; what it returns has the shard's weights.
EngineStart: TypeAlias = "Callable[[ModelShard, EngineSetup], GenerationEngine]"
ENGINES = PlugIns[EngineStart](__name__, __path__, kind="generation engine", attribute="start")
engine_module_names = ENGINES.names


def start_engine(name: str, shard: "ModelShard", setup: EngineSetup) -> GenerationEngine:
    """Start an engine on a rank's shard; an empty name takes the project's own.

    Raises:
        UnknownNameError: No file of that name exists.
    """
    return ENGINES.load(name or DEFAULT_ENGINE)(shard, setup)
