"""Evaluation: how a run looks, between iterations, at what its actor has learnt."""

from dataclasses import dataclass

from rlplan.files.limits import AtLeastOne, NonNegative, Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Say on which prompts, that nothing is learnt from, an actor is judged, how often and how.

    `rlplan execute` does it before the first iteration, after every so many, and after the last. No forecast counts it.

    Attributes:
        prompts_file: Held-out prompts, a file like the job's `prompts_file`, read as `prompt_data` says.
        every: Iterations from one evaluation to the next.
        samples_per_prompt: Responses to each prompt.
        temperature: At which they are sampled; 0 takes the likeliest tokens.
        function: Reward function that judges, named like `rewards.function`; None takes that.
        correct_from: Score from which a response counts as right.
        shown_prompts: Prompts, the first ones, whose responses are kept as text.
    """

    prompts_file: str
    every: AtLeastOne = 10
    samples_per_prompt: AtLeastOne = 1
    temperature: NonNegative = 0.0
    function: str | None = None
    correct_from: Number = 1.0
    shown_prompts: AtLeastOne = 8
