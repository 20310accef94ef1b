"""The work of an iteration: prompts, lengths, environments and evaluations, with their distributions."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt, MinLen

from rlplan.files.limits import (
    AtLeastOne,
    Fraction,
    NonNegative,
    NotBool,
    Number,
    Positive,
    Share,
    Tag,
)


def log_moments(mean: float, std: float) -> tuple[float, float]:
    """Return mean and standard deviation of the logarithm of what has this mean and standard deviation."""
    variance = math.log1p((std / mean) ** 2)
    return math.log(mean) - variance / 2, math.sqrt(variance)


def normal_share(below: float) -> float:
    """Return the share of a standard normal distribution that lies below a value."""
    return 0.5 * math.erfc(-below / math.sqrt(2))


def cut_mean(centre: float, width: float, most: float) -> float:
    """Return E[min(X, most)] of a log-normal X, in closed form.

    Args:
        centre, width: Mean and standard deviation of its logarithm.
    """
    whole = math.exp(centre + width**2 / 2)
    if not width or most == math.inf:
        return min(whole, most)
    cut = (math.log(most) - centre) / width
    return whole * normal_share(cut - width) + most * normal_share(-cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """Draw lengths whose logarithm is normal, cut off at `max`.

    Attributes:
        mean: Mean of the lengths before the cut.
        std: Standard deviation of the lengths before the cut.
        max: Longest length; longer draws become this long, as `max_new_tokens` makes them.
        at_max: Share of lengths that are `max` whatever else is drawn, as those of responses that never
            end; None for none.
        assumed: What of it the job did not say, and where that is from; None where all was said.
        training_means: Means, once cut, at moments of a training that lie evenly from its beginning to its end, two or
            more, between which lengths grow evenly; None where they stay. A step is one of `mean`;
            `rlplan.simulator.whole_run` goes through the training, and the executor draws from it (`at_step`).
    """

    distribution: Literal["lognormal"] = "lognormal"
    mean: Positive
    std: Positive
    max: AtLeastOne
    at_max: Share | None = None
    assumed: str | None = None
    training_means: Annotated[tuple[Positive, ...], MinLen(2)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Draw lengths evenly between `low` and `high`, both included."""

    distribution: Literal["uniform"] = "uniform"
    low: AtLeastOne
    high: AtLeastOne


@dataclass(frozen=True, slots=True, kw_only=True)
class Empirical:
    """Draw lengths from a list of observed ones, all equally likely."""

    distribution: Literal["empirical"] = "empirical"
    values: tuple[AtLeastOne, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFile:
    """Name a CSV or JSONL file of observed lengths; it becomes `Empirical` when a job is resolved.

    Attributes:
        trace: Path, relative to the job's file.
        column: Column (CSV) or key (JSONL) that holds the lengths.
    """

    distribution: Literal["trace"] = "trace"
    trace: str
    column: str
    max: AtLeastOne | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """Give lengths as a framework's log prints them; they become `Lognormal` when a job is resolved.

    Attributes:
        mean: Mean as it is printed, of lengths that were cut at `max`.
        max: Longest length that the engine allows; None takes what the job's `max_total_tokens` leaves.
        clip_ratio: Share of the lengths that reach `max`, as verl prints it; None where it is not known.
        std: Standard deviation as it would be printed, of lengths that were cut; None where it is not
            known. Without either the spread is that of published runs.
        mean_at_end: Mean at the end of training where lengths grow from `mean`, evenly unless `means_between` says how.
        means_between: Means at evenly spaced moments between the beginning and the end of training, as they were measured.
        training_share: Of a training whose lengths grow, how much is done at the step that is meant;
            None means a step of the mean length over training.
    """

    distribution: Literal["logged"] = "logged"
    mean: Positive
    max: AtLeastOne | None = None
    clip_ratio: Share | None = None
    std: Positive | None = None
    mean_at_end: Positive | None = None
    means_between: tuple[Positive, ...] = ()
    training_share: Share | None = None


Distribution = Annotated[Lognormal | Uniform | Empirical | Logged | TraceFile, Tag("distribution")]
Lengths = AtLeastOne | Distribution


def sample_lengths(lengths: Lengths, count: int, seed: int) -> tuple[int, ...]:
    """Draw `count` lengths in tokens; the same seed gives the same lengths on any machine.

    Both readers of a plan draw from here, so the simulator and the executor mean the same workload.
    """
    if isinstance(lengths, int):
        return (lengths,) * count
    generator = random.Random(seed)
    if isinstance(lengths, Uniform):
        return tuple(generator.randint(lengths.low, lengths.high) for _ in range(count))
    if isinstance(lengths, Empirical):
        return tuple(generator.choices(lengths.values, k=count))
    if isinstance(lengths, Lognormal):
        centre, width = log_moments(lengths.mean, lengths.std)
        draws = [generator.lognormvariate(centre, width) for _ in range(count)]
        if lengths.at_max:
            draws = [math.inf if generator.random() < lengths.at_max else draw for draw in draws]
        return tuple(max(round(min(draw, lengths.max)), 1) for draw in draws)
    raise _unresolved(lengths)


def longest(lengths: Lengths) -> int:
    """Return the longest length in tokens that can occur: what buffers are sized for."""
    if isinstance(lengths, int):
        return lengths
    if isinstance(lengths, Uniform):
        return lengths.high
    if isinstance(lengths, Empirical):
        return max(lengths.values)
    if isinstance(lengths, Lognormal):
        return lengths.max
    raise _unresolved(lengths)


def mean_length(lengths: Lengths) -> float:
    """Return the expected length in tokens, the cut at the maximum included."""
    if isinstance(lengths, int):
        return float(lengths)
    if isinstance(lengths, Uniform):
        return (lengths.low + lengths.high) / 2
    if isinstance(lengths, Empirical):
        return sum(lengths.values) / len(lengths.values)
    if isinstance(lengths, Lognormal):
        others = cut_mean(*log_moments(lengths.mean, lengths.std), lengths.max)
        return others + (lengths.at_max or 0.0) * (lengths.max - others)
    raise _unresolved(lengths)


def _unresolved(lengths: Logged | TraceFile) -> AssertionError:
    return AssertionError(f"the job was not resolved: {lengths}")


def mean_in_training(means: Sequence[float], share: float) -> float:
    """Return the mean length in tokens where so much of a training is done.

    Args:
        means: At moments that lie evenly from its beginning to its end; between two of them it changes evenly.
        share: Of the training, from 0 to 1.
    """
    place = min(max(share, 0.0), 1.0) * (len(means) - 1)
    at = min(int(place), len(means) - 2)
    return means[at] + (means[at + 1] - means[at]) * (place - at)


def mean_at_step(means: Sequence[float], step: int, steps: int) -> float:
    """Return the mean length in tokens at a step of a training, counted from 1.

    It is taken at the middle of the step: if lengths grow evenly, the mean over the training is then the mean of its
    first and last length. Steps beyond the last are as the end is.
    """
    return mean_in_training(means, (step - 0.5) / steps)


def at_step(lengths: Lengths, step: int, steps: int | None) -> Lengths:
    """Return lengths as a step of a training has them, counted from 1; the same ones where they do not grow.

    Args:
        steps: Of the training; needed where lengths grow.
    """
    if not isinstance(lengths, Lognormal) or lengths.training_means is None:
        return lengths
    assert steps is not None, "over how many steps lengths grow is checked"
    return with_mean(lengths, mean_at_step(lengths.training_means, step, steps))


def can_have_mean(lengths: Lengths, mean: float) -> bool:
    """Tell whether lengths of this kind, cut at the same maximum, can have a mean of so many tokens."""
    return 1 <= mean < longest(lengths) if isinstance(lengths, Lognormal) else mean >= 1


def with_mean(lengths: Lengths, mean: float) -> Lengths:
    """Return lengths of the same kind whose mean, after the cut at the maximum, is that many tokens.

    A mean beyond the maximum takes the maximum along.
    """
    if isinstance(lengths, int):
        return max(1, round(mean))
    factor = mean / mean_length(lengths)
    if isinstance(lengths, Uniform):
        low, high = max(1, round(lengths.low * factor)), max(1, round(lengths.high * factor))
        return replace(lengths, low=low, high=high)
    if isinstance(lengths, Empirical):
        values = tuple(max(1, round(each * factor)) for each in lengths.values)
        return replace(lengths, values=values)
    assert isinstance(lengths, Lognormal), "traces are resolved before"
    highest = max(lengths.max, math.ceil(mean))
    low_factor, high_factor = 0.0, 2.0
    scaled = partial(_scaled_lognormal, lengths, highest)
    while mean_length(scaled(high_factor)) < mean and high_factor < LARGEST_FACTOR:
        high_factor *= 2
    for _ in range(HALVINGS):
        middle = (low_factor + high_factor) / 2
        short = mean_length(scaled(middle)) < mean
        low_factor, high_factor = (middle, high_factor) if short else (low_factor, middle)
    return scaled(high_factor)


def stretched(lengths: Lengths, factor: int) -> Lengths:
    """Return lengths that are each so many times as long, the longest possible one too."""
    if isinstance(lengths, int):
        return lengths * factor
    if isinstance(lengths, Uniform):
        return replace(lengths, low=lengths.low * factor, high=lengths.high * factor)
    if isinstance(lengths, Empirical):
        return Empirical(values=tuple(each * factor for each in lengths.values))
    if isinstance(lengths, Lognormal):
        return _scaled_lognormal(lengths, lengths.max * factor, factor)
    raise _unresolved(lengths)


LARGEST_FACTOR, HALVINGS = 1e3, 60


def _scaled_lognormal(lengths: Lognormal, highest: int, factor: float) -> Lognormal:
    return replace(lengths, mean=lengths.mean * factor, std=lengths.std * factor, max=highest)


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


def observations_tokens(environments: Iterable[Environment]) -> float:
    """Return the tokens that environments are expected to add to a sequence."""
    return sum(each.share * each.mean_observations_tokens for each in environments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Say on which prompts, that nothing is learnt from, an actor is judged, how often and how.

    It stands between iterations: before the first one, after every so many, and after the last. Forecasts count it beside
    the iterations' own seconds, where it is said how many prompts there are.

    Attributes:
        prompts_file: For `execute`: held-out prompts, a file like the job's `prompts_file`, read as `prompt_data` says.
        prompts: For forecasts: how many there are; None is not known, and an evaluation's seconds then neither.
        every: Iterations from one evaluation to the next; None for none between the first and the last.
        before_first: Whether there is one before the first iteration.
        after_last: Whether there is one after the last iteration, whatever its number.
        samples_per_prompt: Responses to each prompt.
        prompts_at_a_time: For forecasts: prompts that are answered together, before the next ones begin; None is all.
        prompt_tokens: For forecasts: lengths of its prompts; None takes those of the job's workload.
        response_tokens: For forecasts: lengths of its responses; None takes those of the job's workload.
        temperature: At which they are sampled; 0 takes the likeliest tokens.
        function: Reward function that judges, named like `rewards.function`; None takes that.
        correct_from: Score from which a response counts as right.
        shown_prompts: Prompts, the first ones, whose responses are kept as text.
    """

    prompts_file: str | None = None
    prompts: AtLeastOne | None = None
    every: AtLeastOne | None = 10
    before_first: bool = True
    after_last: bool = True
    samples_per_prompt: AtLeastOne = 1
    prompts_at_a_time: AtLeastOne | None = None
    prompt_tokens: Lengths | None = None
    response_tokens: Lengths | None = None
    temperature: NonNegative = 0.0
    function: str | None = None
    correct_from: Number = 1.0
    shown_prompts: AtLeastOne = 8

    def due(self, iterations: int) -> int:
        """Return how many evaluations a run of so many iterations has."""
        between = iterations // self.every if self.every else 0
        at_end = bool(self.every) and iterations % (self.every or 1) == 0
        return self.before_first + between + (self.after_last and not at_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptImages:
    """Say what images prompts hold, whose tokens are among `prompt_tokens`.

    Attributes:
        tokens: Of an image, as the text model sees it: patches that are merged count once.
        per_prompt: Images of a prompt, the mean.
    """

    tokens: AtLeastOne
    per_prompt: Positive = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSounds:
    """Say what sound prompts hold, whose tokens are among `prompt_tokens`.

    Attributes:
        tokens: Of a clip, as the text model sees it: 25 a second of Qwen2.5-Omni, 13 of Qwen3-Omni.
        per_prompt: Clips of a prompt, the mean.
    """

    tokens: AtLeastOne
    per_prompt: Positive = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Say that batches are learnt from whose responses are texts at hand, in place of the actor's own.

    Agarwal et al. 2024, GKD (arXiv:2306.13649), algorithm 1: a batch is the actor's own with probability lambda, of a data
    set otherwise; TRL's GKD asks so for each micro-batch.

    Attributes:
        share: Of an iteration's batches, on average; others are generated.
        response_tokens: Lengths of the texts, without their prompts; None has those of the actor's responses.
    """

    share: Annotated[float, Gt(0), Lt(1), NotBool()]
    response_tokens: Lengths | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Describe the work of one iteration.

    Attributes:
        prompts: Prompts in a global batch.
        samples_per_prompt: Responses generated for each prompt.
        prompt_tokens: Lengths of the prompts.
        response_tokens: Lengths of the responses.
        max_total_tokens: Limit on the tokens of a prompt, its response and observations together, at which the engine
            cuts off; None where each has a separate limit.
        over_provisioning: Prompts begun over prompts learnt from; the last ones to end are dropped.
        over_sampling: The same of the responses of each prompt.
        updates: Optimizer steps in one pass over the global batch.
        epochs: Passes over the global batch.
        environments: Environments that answer the model between its turns; empty where a response is one turn.
        texts: Share of batches whose responses are given texts, for algorithms that learn from those; None where all
            responses are generated.
        images: For forecasts: images of the prompts, which the model's tower computes; None without images, or to count
            their tokens only.
        sounds: The same of sound clips.
        ignore_eos: For `execute`: whether a response continues after an end-of-sequence token until it has its drawn
            length. For random weights, which end responses by chance; forecasts always use the drawn lengths.
    """

    prompts: AtLeastOne
    samples_per_prompt: AtLeastOne = 1
    prompt_tokens: Lengths
    response_tokens: Lengths
    max_total_tokens: AtLeastOne | None = None
    over_provisioning: Annotated[float, Ge(1), NotBool()] = 1.0
    over_sampling: Annotated[float, Ge(1), NotBool()] = 1.0
    updates: AtLeastOne = 1
    epochs: AtLeastOne = 1
    environments: tuple[Environment, ...] = ()
    texts: Texts | None = None
    images: PromptImages | None = None
    sounds: PromptSounds | None = None
    ignore_eos: bool = False

    @property
    def begun_beyond(self) -> dict[str, float]:
        """Return, by the field that says so, how many are begun for each that is learnt from, where more are."""
        ratios = {"over_provisioning": self.over_provisioning, "over_sampling": self.over_sampling}
        return {name: ratio for name, ratio in ratios.items() if ratio > 1}

    @property
    def drops_responses(self) -> bool:
        """Tell whether more responses are begun than are learnt from."""
        return bool(self.begun_beyond)

    @property
    def sampled_share(self) -> float:
        """Return the share of an iteration's batches whose responses are generated, on average."""
        return 1.0 if self.texts is None else 1.0 - self.texts.share

    @property
    def sequences(self) -> int:
        """Return the responses of one iteration."""
        return self.prompts * self.samples_per_prompt

    @property
    def longest_sequence_tokens(self) -> int:
        """Return the longest prompt, response and observations together, or what limits them."""
        both = longest(self.prompt_tokens) + longest(self.response_tokens)
        both += max((each.longest_observations_tokens for each in self.environments), default=0)
        return min(both, self.max_total_tokens or both)

    @property
    def mean_observations_tokens(self) -> float:
        """Return the tokens that environments are expected to add to a sequence."""
        return observations_tokens(self.environments)
