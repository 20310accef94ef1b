"""Environments of a job from the trajectories of a run: turns, observations and seconds, spread as they were."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Final

from rlplan.errors import FileError
from rlplan.planner.measured.trajectories import CHARACTERS_PER_TOKEN, GROUPS, Episode
from rlplan.results.measurement import SeenEpisodes
from rlplan.workload import Empirical, EmpiricalSeconds, Environment, Lengths, Seconds

# Of what was seen so many values are kept, of more the means of as many equal parts in their order, so that the mean stays:
# a job and every plan hold a copy.
MOST_VALUES: Final = 256
# Seconds are kept to a microsecond.
DIGITS: Final = 6
TOTAL: Final = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """Say what trajectories do not.

    Attributes:
        name: Of the environment, where there is one.
        by: A key of rows by which they are of several environments; None takes all as of one.
        tool_seconds: Of a step, where trajectories do not say it.
        cpu_cores: Host cores that a running step holds; None leaves the job's usual.
        instances: Episodes under way at a time; None leaves all.
        characters_per_token: By which tokens were counted where trajectories do not say them.
    """

    name: str = "environment"
    by: str | None = None
    tool_seconds: float | None = None
    cpu_cores: float | None = None
    instances: int | None = None
    characters_per_token: float = CHARACTERS_PER_TOKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEnvironments:
    """Hold environments as a job has them, with what they were fitted on.

    Attributes:
        seen: Of each environment, in the same order, and of all episodes where there are several.
        prompt_tokens, response_tokens: Means of an episode, for the job's lengths.
        longest_tokens: Of an episode's context, for `workload.max_total_tokens`.
        notes: What was assumed, in sentences.
    """

    environments: tuple[Environment, ...]
    seen: tuple[SeenEpisodes, ...]
    prompt_tokens: float
    response_tokens: float
    longest_tokens: int
    notes: tuple[str, ...]


def fit_environments(
    episodes: Sequence[Episode], options: FitOptions, file: str
) -> FittedEnvironments:
    """Return the environments of some episodes.

    Args:
        file: What the episodes are of, for messages.

    Raises:
        FileError: Rows do not say of which environment they are, or nothing says how long a step takes.
    """
    groups = _grouped(episodes, options, file)
    environments: list[Environment] = []
    left = 1.0
    for at, (name, own) in enumerate(groups.items()):
        is_last = at == len(groups) - 1
        share = round(left if is_last else len(own) / len(episodes), 4)
        left -= share
        environments.append(_environment(name, share, own, options, file))
    seen = [_seen(name, own) for name, own in groups.items()]
    if len(groups) > 1:
        seen.append(_seen(TOTAL, episodes))
    return FittedEnvironments(
        environments=tuple(environments),
        seen=tuple(seen),
        prompt_tokens=_mean(each.prompt_tokens for each in episodes),
        response_tokens=_mean(each.response_tokens for each in episodes),
        longest_tokens=max(each.context_tokens for each in episodes),
        notes=tuple(_notes(episodes, options)),
    )


def _grouped(
    episodes: Sequence[Episode], options: FitOptions, file: str
) -> dict[str, list[Episode]]:
    """Return episodes by environment, the most frequent first.

    Raises:
        FileError: Rows do not have the key that is to tell it.
    """
    if options.by is None:
        return {options.name: list(episodes)}
    counts = Counter(each.group(options.by) for each in episodes)
    if None in counts:
        known = [key for key in GROUPS if all(each.group(key) is not None for each in episodes)]
        problem = f"is missing in {counts[None]} of {len(episodes)} trajectories"
        allowed = f"a key that all have: {', '.join(known) or 'none of those that are known'}"
        raise FileError(file, problem, field=options.by, allowed=allowed)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], str(item[0])))
    return {
        str(name): [each for each in episodes if each.group(options.by) == name]
        for name, _ in ordered
    }


def _environment(
    name: str, share: float, episodes: Sequence[Episode], options: FitOptions, file: str
) -> Environment:
    turns = [each.turns for each in episodes]
    observations = [count for each in episodes for count in each.observation_tokens]
    resets = [each.reset_seconds for each in episodes if each.reset_seconds is not None]
    step = _step_seconds(name, episodes, options, file)
    found = Environment(
        name=name,
        share=share,
        turns=lengths_of(turns),
        observation_tokens=lengths_of(observations) if max(turns) > 1 else None,
        step_seconds=step,
        final_step_seconds=_final_seconds(episodes),
        reset_seconds=seconds_of(resets) if resets else 0.0,
        instances=options.instances,
    )
    cores = options.cpu_cores
    return found if cores is None else replace(found, cpu_cores=cores)


def _step_seconds(
    name: str, episodes: Sequence[Episode], options: FitOptions, file: str
) -> Seconds:
    """Return what a step takes: as trajectories say it, or as it is given.

    Raises:
        FileError: Neither does.
    """
    seen = [seconds for each in episodes for seconds in each.step_seconds]
    if seen:
        return seconds_of(seen)
    if options.tool_seconds is not None:
        return options.tool_seconds
    if all(each.turns == 1 and not each.ends_in_step for each in episodes):
        return 0.0
    raise FileError(
        file,
        f"does not say how long a step of {name} takes: it has neither timestamps nor durations",
        field="--tool-seconds",
        allowed="seconds of a step on average: --tool-seconds 1.5",
    )


def _final_seconds(episodes: Sequence[Episode]) -> Seconds | None:
    """Return what follows the last turn: as trajectories time it; none where no environment answers; else as a step."""
    timed = [each.final_seconds for each in episodes if each.final_seconds is not None]
    if len(timed) == len(episodes):
        return seconds_of(timed)
    return None if all(each.ends_in_step for each in episodes) else 0.0


def lengths_of(values: Sequence[int]) -> Lengths:
    """Return the distribution of measured lengths, at least 1 each; one number if all are the same."""
    kept = [round(value) for value in _at_most([max(1, value) for value in values])]
    if not kept:
        return 1
    return kept[0] if min(kept) == max(kept) else Empirical(values=tuple(kept))


def seconds_of(values: Sequence[float]) -> Seconds:
    """Return seconds spread as some were."""
    kept = [round(value, DIGITS) for value in _at_most(values)]
    return kept[0] if min(kept) == max(kept) else EmpiricalSeconds(values=tuple(kept))


def _at_most(values: Sequence[float]) -> list[float]:
    """Return values in their order; of many the means of equal parts of them, values at an edge shared out to both."""
    ordered = sorted(values)
    count = len(ordered)
    if count <= MOST_VALUES:
        return ordered
    sums = [0.0, *accumulate(ordered)]

    def until(place: float) -> float:
        whole = min(int(place), count - 1)
        return sums[whole] + (place - whole) * ordered[whole]

    size = count / MOST_VALUES
    edges = [until(at * size) for at in range(MOST_VALUES)] + [sums[-1]]
    return [(end - begin) / size for begin, end in pairwise(edges)]


def _seen(name: str, episodes: Sequence[Episode]) -> SeenEpisodes:
    observations = [count for each in episodes for count in each.observation_tokens]
    seconds = [each for episode in episodes for each in episode.step_seconds]
    return SeenEpisodes(
        name=name,
        episodes=len(episodes),
        turns=_mean(each.turns for each in episodes),
        most_turns=max(each.turns for each in episodes),
        response_tokens=_mean(each.response_tokens for each in episodes),
        observation_tokens=_mean(observations),
        most_observation_tokens=max(observations, default=0),
        seconds=_mean(seconds) if seconds else None,
        most_seconds=max(seconds, default=None),
        longest_tokens=max(each.context_tokens for each in episodes),
    )


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def _notes(episodes: Sequence[Episode], options: FitOptions) -> Iterable[str]:
    """Yield what was assumed."""
    uncounted = sum(not each.counted for each in episodes)
    if uncounted:
        yield (
            f"tokens of {uncounted} of {len(episodes)} trajectories are taken from their text, "
            f"{options.characters_per_token:g} characters each; tokens of the chat template are not counted"
        )
    if not any(each.step_seconds for each in episodes) and options.tool_seconds is not None:
        yield f"every step takes {options.tool_seconds:g} s, as --tool-seconds says: trajectories do not"
    elif any(each.step_seconds for each in episodes):
        steps = sum(len(each.observation_tokens) for each in episodes)
        timed = sum(len(each.step_seconds) for each in episodes)
        if timed < steps:
            yield f"{timed} of {steps} steps say how long they took: the others are taken to be as long"
    if not any(each.reset_seconds is not None for each in episodes):
        yield "nothing says how long an episode's start takes (reset_seconds): it is taken to be nothing"
    if options.cpu_cores is None:
        yield "a running step is taken to hold one core; --cpu-cores says otherwise, 0 where it runs elsewhere"
    if options.by is None:
        for key in GROUPS:
            names = {each.group(key) for each in episodes}
            if len(names) > 1 and None not in names:
                yield f"rows name {len(names)} values of {key}: --by {key} makes each an environment of its own"
