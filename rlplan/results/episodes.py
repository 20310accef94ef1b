"""What was seen of episodes in the trajectories of a run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEpisodes:
    """Hold what was seen of one environment's episodes, in the mean and at most.

    Attributes:
        turns: Mean of how often the model answered.
        response_tokens: Mean of what it wrote in all turns.
        observation_tokens: Mean of what a step added.
        seconds: Mean of a step; None where no trajectory says it.
        longest_tokens: Of an episode's context at its end.
    """

    name: str
    episodes: int
    turns: float
    most_turns: int
    response_tokens: float
    observation_tokens: float
    most_observation_tokens: int
    seconds: float | None
    most_seconds: float | None
    longest_tokens: int
