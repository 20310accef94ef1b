"""Rows of the tables of environments: what trajectories show of them, and what they ask of host and cache."""

import math
from collections.abc import Sequence

from rlplan.reports.tables.plans import Table, columns
from rlplan.results.forecast import EnvironmentForecast
from rlplan.results.measurement import SeenEpisodes
from rlplan.units import show_seconds

NOTHING = "-"


def seen_table(seen: Sequence[SeenEpisodes]) -> Table:
    """Return a row for each environment's episodes, as trajectories have them."""
    return Table(
        columns=columns(
            "Environment",
            "#Episodes",
            "#Turns",
            "#Most turns",
            "#Response",
            "#Observation",
            "#Largest",
            "#Step",
            "#Slowest",
            "#Longest episode",
        ),
        rows=tuple(
            (
                each.name,
                f"{each.episodes:,}",
                f"{each.turns:.2f}",
                f"{each.most_turns:,}",
                f"{each.response_tokens:,.0f}",
                f"{each.observation_tokens:,.0f}",
                f"{each.most_observation_tokens:,}",
                NOTHING if each.seconds is None else show_seconds(each.seconds),
                NOTHING if each.most_seconds is None else show_seconds(each.most_seconds),
                f"{each.longest_tokens:,}",
            )
            for each in seen
        ),
    )


def needs_table(found: Sequence[EnvironmentForecast]) -> Table:
    """Return what each environment asks: sandboxes, cores on average and at most of those that there are, contexts in the cache.

    The last two are how many whole contexts a replica's cache holds, and how many episodes it has under way.
    """
    return Table(
        columns=columns(
            "Environment",
            "#Episodes",
            "#Sandboxes",
            "#Cores, mean",
            "#At most",
            "#Of",
            "#Context",
            "#Cached",
            "#A replica",
        ),
        rows=tuple(
            (
                each.name,
                f"{each.episodes:,.0f}",
                f"{each.under_way:,}",
                f"{each.mean_cores:,.1f}",
                NOTHING if math.isinf(each.most_cores) else f"{each.most_cores:,.0f}",
                NOTHING if each.host_cores is None else f"{each.host_cores:,}",
                f"{each.context_tokens:,.0f}",
                f"{min(each.resident, math.ceil(each.episodes_each)):,}"
                if each.resident
                else NOTHING,
                f"{each.episodes_each:,.0f}",
            )
            for each in found
        ),
    )


def needs_words(each: EnvironmentForecast, *, reads_back: bool) -> tuple[str, ...]:
    """Say what an environment lacks: cores that its steps wait for, and cache for contexts of episodes that wait.

    Args:
        reads_back: Whether host memory keeps some of them.
    """
    found = []
    if each.host_cores is not None and each.mean_cores > each.host_cores:
        found.append(
            f"environment {each.name}: its steps ask for {each.mean_cores:,.0f} cores on average, of {each.host_cores:,}"
        )
    if each.resident and each.episodes_each > each.resident:
        again = "prefilled again" + (" where host memory has not kept them" if reads_back else "")
        found.append(
            f"environment {each.name}: a replica's cache holds {each.resident:,} whole contexts of "
            f"{each.episodes_each:,.0f} episodes: those that wait for a tool are pushed out, and {again}"
        )
    return tuple(found)
