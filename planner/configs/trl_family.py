"""What TRL and what is built on its trainers read alike: processes, batches that count completions, generation without vLLM."""

import math
from dataclasses import dataclass
from typing import Final

from rlplan.plan import TaskPlan
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.run import USUAL_NODE, RunPool
from rlplan.planner.configs.sizes import nearest_divisor

STATIC, GATHERING = "transformers-static", "transformers-static-gathering"
NODE_SIZES: Final = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """Hold the processes that train, one on each GPU.

    Attributes:
        count: All of them.
        nodes: On which they are, equally many each.
        engine_gpus: GPUs of engines that have their own; 0 where there are none.
        said: Whether something says how many they are.
    """

    count: int
    nodes: int
    engine_gpus: int
    said: bool

    @property
    def cluster(self) -> tuple[int, int]:
        """Return GPUs of a node, and nodes: engines stand on what is left of a single one, else on others."""
        each = -(-self.count // self.nodes)
        if self.nodes == 1 and self.count + self.engine_gpus <= max(USUAL_NODE, each):
            return _node(self.count + self.engine_gpus), 1
        per_node = _node(each)
        return per_node, self.nodes + -(-self.engine_gpus // per_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Hold what is generated and learnt from between two points at which both begin anew.

    Attributes:
        completions: Generated in all.
        parts: In which they are generated, one after another.
        epochs: Passes over them.
        updates: Optimizer steps of one pass.
        divides: Whether optimizer steps and passes have whole parts of each other.
        micro_batch: Completions of a rank's forward pass.
        rank_part: Completions of a GPU in a part.
    """

    completions: int
    parts: int
    epochs: int
    updates: int
    divides: bool
    micro_batch: int
    rank_part: int

    @property
    def needs_old(self) -> bool:
        """Tell whether samples are learnt from after an update, so that old log-probabilities are needed."""
        return self.epochs > 1 or self.updates > 1

    @property
    def part(self) -> int:
        """Return the completions of a part."""
        return self.completions // self.parts

    @property
    def parts_guess(self) -> str:
        """Return what is assumed of several parts, for people."""
        return (
            f"{self.parts} generations of {self.part:,} completions, one after another before an optimizer step, are forecast "
            f"as {self.part:,} at a time, the next of which begins where one ends, and not where the longest of its generation does"
        )


def _node(gpus: int) -> int:
    return next((size for size in NODE_SIZES if size >= gpus), gpus)


def batches_between(
    *,
    generated: int,
    steps: int,
    epochs: int,
    accumulation: int,
    micro_batch: int,
    rank_part: int,
    whole: int | None = None,
) -> Batches:
    """Return what is generated and learnt from until both begin anew.

    A part is generated for every `steps` x `epochs` micro-batches, an optimizer step is made after every `accumulation` of
    them: both begin anew after their least common multiple (TRL, trainer/grpo_trainer.py).

    Args:
        generated: Completions of a part.
        whole: Micro-batches after which both begin anew, where that is otherwise.
    """
    whole = math.lcm(steps * epochs, accumulation) if whole is None else whole
    parts = whole // (steps * epochs)
    completions = parts * generated
    wanted = whole / accumulation / epochs
    updates = nearest_divisor(completions, max(1.0, wanted))
    return Batches(
        completions=completions,
        parts=parts,
        epochs=epochs,
        updates=updates,
        divides=updates == wanted,
        micro_batch=micro_batch,
        rank_part=rank_part,
    )


def samples_of(settings: Settings, batches: Batches) -> int:
    """Return the completions of a prompt.

    Raises:
        FileError: They do not divide what is generated.
    """
    samples = settings.whole("samples")
    if samples < 1 or batches.completions % samples:
        problem = f"does not divide the {batches.completions:,} completions that are generated"
        raise settings.refused("samples", problem, f"a divisor of {batches.completions:,}")
    return samples


def static_generation(
    settings: Settings, pool: RunPool, batches: Batches, *, sharded: bool
) -> TaskPlan:
    """Return the layout of generation by the trained model itself, on each GPU its part.

    Args:
        sharded: Whether DeepSpeed shards its weights, which are gathered first unless that is turned off.
    """
    engine = GATHERING if sharded and not settings.on("gathers") else STATIC
    return TaskPlan(pool=pool.name, engine=engine, dp=pool.gpus, max_running=batches.rank_part)


def doubt_uneven_steps(settings: Settings, batches: Batches) -> None:
    """Say where optimizer steps and generations have no whole parts of each other."""
    if not batches.divides:
        settings.doubt("epochs", "passes over what is generated that are no whole optimizer steps")
        settings.doubt("generation_steps", "generations that are no whole optimizer steps")
