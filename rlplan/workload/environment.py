"""Environments: what answers a model between its turns, and how long that takes."""

import math
import random
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Literal

from rlplan.files.limits import AtLeastOne, Fraction, NonNegative, Positive
from rlplan.files.tags import Tag
from rlplan.workload.lengths import Lengths, cut_mean, log_moments, longest, mean_length

# Standard normal quantile of the 99th percentile.
NORMAL_P99 = NormalDist().inv_cdf(0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class LognormalSeconds:
    """Draw seconds whose logarithm is normal.

    Attributes:
        mean: Mean in seconds, before the cut.
        std: Standard deviation in seconds, before the cut.
        max: Longest; longer draws become this long. None for no cut.
    """

    distribution: Literal["lognormal"] = "lognormal"
    mean: Positive
    std: Positive
    max: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PercentileSeconds:
    """Draw seconds whose logarithm is normal, with these percentiles.

    Attributes:
        p50: Median in seconds.
        p99: Seconds that one in a hundred exceeds.
        max: Longest; longer draws become this long. None for no cut.
    """

    distribution: Literal["percentiles"] = "percentiles"
    p50: Positive
    p99: Positive
    max: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformSeconds:
    """Draw seconds evenly between `low` and `high`."""

    distribution: Literal["uniform"] = "uniform"
    low: NonNegative
    high: NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class EmpiricalSeconds:
    """Draw seconds from a list of observed ones, all equally likely."""

    distribution: Literal["empirical"] = "empirical"
    values: tuple[NonNegative, ...]


Latency = Annotated[
    LognormalSeconds | PercentileSeconds | UniformSeconds | EmpiricalSeconds, Tag("distribution")
]
Seconds = NonNegative | Latency


def log_normal_of(latency: LognormalSeconds | PercentileSeconds) -> tuple[float, float]:
    """Return mean and standard deviation of the logarithm of the seconds, before the cut."""
    if isinstance(latency, PercentileSeconds):
        return math.log(latency.p50), math.log(latency.p99 / latency.p50) / NORMAL_P99
    return log_moments(latency.mean, latency.std)


def sample_seconds(seconds: Seconds, count: int, seed: int) -> tuple[float, ...]:
    """Draw `count` times in seconds; the same seed gives the same ones on any machine."""
    if isinstance(seconds, int | float):
        return (float(seconds),) * count
    generator = random.Random(seed)
    if isinstance(seconds, UniformSeconds):
        return tuple(generator.uniform(seconds.low, seconds.high) for _ in range(count))
    if isinstance(seconds, EmpiricalSeconds):
        return tuple(generator.choices(seconds.values, k=count))
    centre, width = log_normal_of(seconds)
    most = math.inf if seconds.max is None else seconds.max
    return tuple(min(most, generator.lognormvariate(centre, width)) for _ in range(count))


def mean_seconds(seconds: Seconds) -> float:
    """Return the expected seconds, the cut at the maximum included."""
    if isinstance(seconds, int | float):
        return float(seconds)
    if isinstance(seconds, UniformSeconds):
        return (seconds.low + seconds.high) / 2
    if isinstance(seconds, EmpiricalSeconds):
        return sum(seconds.values) / len(seconds.values)
    return cut_mean(*log_normal_of(seconds), math.inf if seconds.max is None else seconds.max)


Inference = Literal["remote", "inline"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Describe the episodes of some of a job's prompts.

    An episode begins with a reset. Then the model answers and the environment steps, turn by turn; each step
    but the last adds an observation to the context. `workload.response_tokens` are those that the model
    generates in all turns of an episode together; observations come on top.

    Attributes:
        name: Its name for people, once in a job.
        source: For `execute`: a built-in environment's name, `path/to/file.py:name` of a class or function,
            or the id of a Gymnasium environment. Forecasts need none.
        share: Share of the prompts whose episodes it plays; those of all environments sum to 1.
        turns: Turns of an episode: how often the model answers.
        observation_tokens: Tokens that a step adds to the context; None only where episodes have one turn.
        step_seconds: What a step (a tool's call) takes, once it has its cores.
        final_step_seconds: What the step behind the last turn takes, which judges the episode; None is as the
            others, and 0 is for tools that a last answer does not call.
        reset_seconds: What it takes to begin an episode (a sandbox's start).
        cpu_cores: Host cores that a running step or reset holds; 0 where it runs outside of the cluster.
        workers: Steps and resets that run at a time; None is as many as the cores of all nodes allow.
        instances: Episodes that are under way at a time, each with a sandbox of its own; None is all.
        step_limit_seconds: After which a step is broken off, so that it takes no longer.
        episode_limit_seconds: After which an episode gets no further turn.
        inference: Where the policy answers: `remote`, in the batches of the generating pool, or `inline`,
            with a copy of its own beside each environment, one answer at a time.
    """

    name: str
    source: str | None = None
    share: Fraction = 1.0
    turns: Lengths = 1
    observation_tokens: Lengths | None = None
    step_seconds: Seconds
    final_step_seconds: Seconds | None = None
    reset_seconds: Seconds = 0.0
    cpu_cores: NonNegative = 1.0
    workers: AtLeastOne | None = None
    instances: AtLeastOne | None = None
    step_limit_seconds: Positive | None = None
    episode_limit_seconds: Positive | None = None
    inference: Inference = "remote"

    def instances_each(self, replicas: int) -> int | None:
        """Return the whole instances that each of so many generating replicas has; 0 where several share one."""
        return None if self.instances is None else self.instances // replicas

    @property
    def longest_observations_tokens(self) -> int:
        """Return the most tokens that observations add to an episode's context."""
        if self.observation_tokens is None:
            return 0
        return (longest(self.turns) - 1) * longest(self.observation_tokens)

    @property
    def mean_observations_tokens(self) -> float:
        """Return the expected tokens that observations add to an episode's context."""
        if self.observation_tokens is None:
            return 0.0
        return (mean_length(self.turns) - 1) * mean_length(self.observation_tokens)
