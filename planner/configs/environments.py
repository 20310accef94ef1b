"""Environments of an imported job: what a user says of tools and turns, within what the configuration's keys allow.

No configuration says how many turns an episode has on average, what observations hold and what tools take. So that is asked
for: environments in a file, as `rlplan fit-environment` writes it, or means of one environment. What keys do say are
limits, and those hold.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rlplan.errors import FileError
from rlplan.files.decoding import decode, load_yaml
from rlplan.files.writing import write_yaml
from rlplan.planner.configs.reading.settings import Keys, Settings
from rlplan.planner.configs.run import Work
from rlplan.workload import (
    Empirical,
    Environment,
    Lengths,
    Lognormal,
    Uniform,
    Workload,
    longest,
)

# What becomes of keys about turns once environments are given.
SAID: Final = "said by the environments that are given"
# Words of what is said of keys, by which it is about turns.
OF_TURNS: Final = ("turn", "turns")
# Fields of environments that keys limit, by the settings of a sheet that say them.
LIMITS: Final[Mapping[str, str]] = {
    "step_limit_seconds": "step_limit",
    "episode_limit_seconds": "episode_limit",
    "workers": "environment_workers",
    "instances": "environment_instances",
}
TURN_FILE: Final = "--environment FILE (rlplan fit-environment writes it)"
MEANS: Final = "--turns, --observation-tokens and --tool-seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentsFile:
    """Hold what a file of environments has."""

    environments: tuple[Environment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenEnvironments:
    """Say what no configuration does of turns and tools.

    Attributes:
        file: Of environments (YAML); relative to where the command is.
        turns: Mean turns of an episode.
        observation_tokens: Mean tokens that a step adds.
        tool_seconds: Mean seconds of a step.
    """

    file: Path | None = None
    turns: float | None = None
    observation_tokens: float | None = None
    tool_seconds: float | None = None

    @property
    def means(self) -> dict[str, float | None]:
        """Return the means of one environment by the options that give them."""
        return {
            "--turns": self.turns,
            "--observation-tokens": self.observation_tokens,
            "--tool-seconds": self.tool_seconds,
        }


NOTHING_GIVEN: Final = GivenEnvironments()


def as_given(environments: tuple[Environment, ...], folder: Path) -> GivenEnvironments:
    """Return a job's environments as a user gives them: in a file, which is written to a folder."""
    if not environments:
        return NOTHING_GIVEN
    file = folder / "environments.yaml"
    write_yaml(file, EnvironmentsFile(environments=environments))
    return GivenEnvironments(file=file)


def environments_of(
    given: GivenEnvironments, settings: Settings, work: Work, cores: float | None = None
) -> tuple[tuple[Environment, ...], tuple[str, ...]]:
    """Return a job's environments, and what was assumed of them; none where nothing is said of any.

    Args:
        cores: Those of all nodes together, where they are known: more workers than run on them wait for one another.

    Raises:
        FileError: What is given contradicts itself or the keys, or a part of it is missing.
    """
    said = {option: value for option, value in given.means.items() if value is not None}
    if given.file is not None:
        if said:
            problem = "has its turns and seconds itself"
            raise FileError(
                "--environment",
                problem,
                value=str(given.file),
                allowed=f"without {', '.join(said)}",
            )
        found = decode(EnvironmentsFile, load_yaml(given.file), str(given.file)).environments
        notes: tuple[str, ...] = ()
    elif said:
        found, notes = _of_means(given, work)
    else:
        return (), ()
    limited = tuple(_within(each, settings, work) for each in found)
    told = [
        f"environment {new.name}: {', '.join(words)}, by the configuration's keys"
        for old, new in zip(found, limited, strict=True)
        if (words := list(_changes(old, new)))
    ]
    fitting = tuple(
        new if old.workers is not None else _on_cores(new, cores)
        for old, new in zip(found, limited, strict=True)
    )
    told += [
        f"environment {new.name}: {new.workers} workers hold more than the nodes' {cores:g} cores: as many run as fit"
        for new, fit in zip(limited, fitting, strict=True)
        if new != fit
    ]
    return fitting, (*notes, *told)


def _of_means(
    given: GivenEnvironments, work: Work
) -> tuple[tuple[Environment, ...], tuple[str, ...]]:
    """Return one environment of means: turns spread evenly around theirs, every step alike.

    Raises:
        FileError: A mean is missing, or no episode can have it.
    """
    turns, tokens, seconds = given.turns, given.observation_tokens, given.tool_seconds
    if turns is None or seconds is None or (tokens is None and turns > 1):
        missing = [option for option, value in given.means.items() if value is None]
        problem = "is missing: no configuration says it"
        raise FileError(missing[0], problem, allowed=f"{MEANS} together, or {TURN_FILE}")
    if turns < 1 or (work.turns is not None and work.turns > 1 and turns > work.turns):
        most = f", at most {work.turns:,}" if work.turns is not None and work.turns > 1 else ""
        raise FileError(
            "--turns",
            "no episodes have so many on average",
            value=turns,
            allowed=f"1 or more{most}",
        )
    spread = _spread(turns, work.turns if work.turns is not None and work.turns > 1 else None)
    environment = Environment(
        name="environment",
        turns=spread,
        observation_tokens=None if tokens is None else max(1, round(tokens)),
        step_seconds=seconds,
        final_step_seconds=0.0,
    )
    words = "one each" if isinstance(spread, int) else f"from {spread.low} to {spread.high}, evenly"
    if isinstance(spread, int) and spread > 1:
        words = f"{spread} each"
    notes = (
        (
            f"turns of an episode: {words}; every observation has {tokens or 0:,.0f} tokens and every step takes "
            f"{seconds:g} s: rlplan fit-environment has them as a run's trajectories have them"
        ),
        "an episode's last answer calls no tool, and a running step holds one core of the nodes",
    )
    return (environment,), notes


def _spread(mean: float, most: int | None) -> int | Uniform:
    """Return turns spread evenly around a mean, from 1 where that is as far below as the most is above."""
    high = round(2 * mean - 1) if most is None else min(most, round(2 * mean - 1))
    low = max(1, round(2 * mean) - high)
    return low if low >= high else Uniform(low=low, high=high)


def _within(environment: Environment, settings: Settings, work: Work) -> Environment:
    """Return an environment within the limits of a configuration's keys, where it has none of its own."""
    found: dict[str, Any] = {}
    for field, name in LIMITS.items():
        value = settings.value(name) if name in settings.sheet.settings else None
        own = getattr(environment, field)
        usable = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        if own is None and usable:
            assert isinstance(value, int | float), "it is a number"
            found[field] = value if field.endswith("seconds") else int(value)
    limited = replace(environment, **found)
    if work.turns is not None and work.turns > 1:
        limited = replace(limited, turns=cut_lengths(limited.turns, work.turns))
    most = (
        settings.value("observation_limit")
        if "observation_limit" in settings.sheet.settings
        else None
    )
    if isinstance(most, int) and most > 0 and limited.observation_tokens is not None:
        limited = replace(limited, observation_tokens=cut_lengths(limited.observation_tokens, most))
    return limited


def _on_cores(environment: Environment, cores: float | None) -> Environment:
    """Return the environment without a number of workers where those would need more cores than there are."""
    held = (environment.workers or 0) * environment.cpu_cores
    return environment if cores is None or held <= cores else replace(environment, workers=None)


def _changes(old: Environment, new: Environment) -> Iterator[str]:
    """Yield what an environment has otherwise than another, in words."""
    for field in ("turns", "observation_tokens"):
        before, after = getattr(old, field), getattr(new, field)
        if before != after:
            yield f"at most {longest(after):,} {field.replace('_', ' ')}"
    for field in LIMITS:
        if getattr(old, field) != getattr(new, field):
            yield f"{field} {getattr(new, field):g}"


def cut_lengths(lengths: Lengths, most: int) -> Lengths:
    """Return lengths that are at most so many."""
    if isinstance(lengths, int):
        return min(lengths, most)
    if isinstance(lengths, Uniform):
        if lengths.low >= most:
            return most
        return replace(lengths, high=min(lengths.high, most))
    if isinstance(lengths, Empirical):
        return Empirical(values=tuple(min(value, most) for value in lengths.values))
    if isinstance(lengths, Lognormal):
        return replace(lengths, max=min(lengths.max, most))
    return lengths


def played(workload: Workload, environments: tuple[Environment, ...], work: Work) -> Workload:
    """Return an imported workload with its environments; where a response's limit holds observations too, so does the total."""
    found = replace(workload, environments=environments)
    if not work.max_response_of_all or work.max_response is None or work.max_prompt is None:
        return found
    both = work.max_prompt + work.max_response
    return replace(found, max_total_tokens=min(both, workload.max_total_tokens or both))


def with_turns_said(keys: Keys) -> Keys:
    """Return what became of keys once environments are given: those about turns change the work no longer unseen."""
    about = {key for key, what in keys.changes_work.items() if set(what.split()) & {*OF_TURNS}}
    return replace(
        keys,
        not_modelled={**keys.not_modelled, **dict.fromkeys(about, SAID)},
        changes_work={key: what for key, what in keys.changes_work.items() if key not in about},
    )
