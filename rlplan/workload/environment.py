"""Environments: what answers a model between its turns, and how long that takes."""

from dataclasses import dataclass
from typing import Literal

from rlplan.files.limits import AtLeastOne, Fraction, NonNegative, Positive
from rlplan.workload.latencies import Seconds
from rlplan.workload.lengths import Lengths, longest, mean_length

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
