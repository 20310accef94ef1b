"""What a site takes beside what sheets say: named factors, fitted on its own steps. The file `site.yaml`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from rlplan.files.frozen import FrozenDict
from rlplan.files.limits import NonNegative, NonNegativeInt, Positive, Share

CALIBRATION_VERSION: Literal[1] = 1

# Kinds of work in a step: passes that infer are log-probabilities, values and rewards; a transition is
# the weight sync from the trainer to the engine that generates.
WorkKind = Literal["generation", "inference", "training", "transition"]
WORK_KINDS: Final[tuple[WorkKind, ...]] = get_args(WorkKind)
# Kinds of work whose engines have factors of their own where a site ran several of them. Passes that infer
# are the training engine's too, and stay with their kind.
ENGINE_KINDS: Final[tuple[WorkKind, ...]] = ("generation", "training")
Link = Literal["intra-node", "inter-node"]
LINKS: Final[tuple[Link, ...]] = get_args(Link)

# Kind of work of each stage of a step, by the names of stages in tables and logs; `log_probs` and `training` are all inference
# passes, and all updates, where these are timed together.
STEP_STAGES: Final[FrozenDict[str, WorkKind]] = FrozenDict(
    {
        "generation": "generation",
        "log_probs": "inference",
        "old_log_prob": "inference",
        "reference": "inference",
        "values": "inference",
        "rewards": "inference",
        "update_critic": "training",
        "update_actor": "training",
        "training": "training",
        "weight_sync": "transition",
    }
)
# The tasks of each; a weight sync is the plan's transition.
STAGE_TASKS: Final[FrozenDict[str, tuple[str, ...]]] = FrozenDict(
    {
        "generation": ("actor.generate",),
        "old_log_prob": ("actor.compute_log_prob",),
        "reference": ("reference.compute_log_prob",),
        "values": ("critic.compute_values",),
        "rewards": ("reward.compute_reward",),
        "update_critic": ("critic.update",),
        "update_actor": ("actor.update",),
        "weight_sync": ("transition",),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Hold a calibration factor: seconds at a site over the seconds of the sheets.

    Attributes:
        value: The factor; 1 where the sheets hold.
        spread: Relative error of a forecast with this factor, one sigma.
        rows: Number of measurements that it was fitted on.
        shrinkage: How far the prior moved it back to 1, as a share of the logarithm that the measurements alone give.
        tied_to: Other factors that the measurements cannot separate from it; they are fitted together.
    """

    value: Positive = 1.0
    spread: NonNegative = 0.0
    rows: NonNegativeInt = 0
    shrinkage: Share = 0.0
    tied_to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Hold the calibration factors of a site; without a factor, the sheets hold.

    Attributes:
        site: Name of the site, for reports.
        rests_on: Source of the forecasts that the factors correct: `datasheet`, or a profile's label.
        framework: Framework whose steps the factors were fitted on; empty where it is not known.
        stages: By kind of work.
        engines: By engine, in place of the factor of its kind of work.
        links: Of collectives inside nodes and between nodes, in addition to the factor of the work they are part of.
        overhead: Of the host's seconds in a step.
        sources: Files that the factors were fitted on.
    """

    version: Literal[1] = CALIBRATION_VERSION
    site: str = ""
    rests_on: str = "datasheet"
    framework: str = ""
    stages: FrozenDict[WorkKind, Factor] = field(default_factory=FrozenDict)
    engines: FrozenDict[str, Factor] = field(default_factory=FrozenDict)
    links: FrozenDict[Link, Factor] = field(default_factory=FrozenDict)
    overhead: Factor | None = None
    sources: tuple[str, ...] = ()

    @property
    def label(self) -> str | None:
        """Return what to call the site in a forecast; None if it has no factor."""
        return (self.site or "a site") if any(self.named()) else None

    def factor(self, kind: WorkKind, engine: str = "") -> Factor | None:
        """Return the factor of work by an engine: its own, or that of all such work; None without one."""
        own = self.engines.get(engine) if kind in ENGINE_KINDS else None
        return own or self.stages.get(kind)

    def named(self) -> Iterator[tuple[str, Factor]]:
        """Yield every factor by its name in words ("engine vllm-0.8")."""
        yield from self.stages.items()
        yield from ((engine_factor(name), factor) for name, factor in self.engines.items())
        yield from ((link_factor(link), factor) for link, factor in self.links.items())
        if self.overhead is not None:
            yield OVERHEAD, self.overhead


OVERHEAD: Final = "host overhead"
NO_FACTOR: Final = Factor()
NO_CALIBRATION: Final = Calibration()


def engine_factor(engine: str) -> str:
    """Return the name of an engine's factor."""
    return f"engine {engine}"


def link_factor(link: Link) -> str:
    """Return the name of a link's factor."""
    return f"{link} link"
