"""What bounds generation in episodes: all turns together, and single episodes with the waiting between turns."""

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from rlplan.job import Job
from rlplan.planner.exact.generation.bounds import BoundedSettings
from rlplan.planner.exact.generation.loads import Load, load_of
from rlplan.sheets.hardware import EngineSheet
from rlplan.simulator.environments.host import host_share
from rlplan.simulator.generation.episodes.playing import Episode, EpisodeShare
from rlplan.simulator.generation.shares import longest_episodes
from rlplan.simulator.workload.sequences import statistics_of

# A token more or less of an episode weighs as much as this many seconds where the longest ones are looked for.
TOKEN_SECONDS = 0.01


class BoundingLoad(NamedTuple):
    """Hold a load that a replica cannot do without.

    Attributes:
        running: Most of its sequences that run at a time.
        outside_seconds: In which none of them is computed.
    """

    load: Load
    running: int = sys.maxsize
    outside_seconds: float = 0.0

    def asked(self, asked: BoundedSettings) -> BoundedSettings:
        """Return a replica's settings as this load meets them."""
        return asked._replace(max_running=min(asked.max_running, self.running))


def episode_loads(job: Job, engine: EngineSheet, replicas: int) -> list[BoundingLoad]:
    """Return what the replicas that may end last cannot do without.

    All turns of a replica, whenever they come; and the turns of one episode, of which one runs at a time,
    with its resets and steps between.
    """
    samples = job.workload.samples_per_prompt
    host = host_share(job, replicas)
    shares = longest_episodes(statistics_of(job.workload), replicas, samples, host)
    certain = [tuple(_certain(each, share) for each in share.episodes) for share in shares]
    alone = {episode for episodes in certain for episode in _longest(episodes)}
    found = [BoundingLoad(_load(episodes, engine, samples)) for episodes in certain]
    found += [
        BoundingLoad(_load((episode,), engine, 1, begun=True), 1, outside_seconds(episode))
        for episode in sorted(alone)
    ]
    return found


def batch_load(job: Job, engine: EngineSheet) -> Load | None:
    """Return the load of all turns of a batch, in whatever order its lengths come; None where that may change it.

    A limit of all tokens, or of an episode's seconds, ends other episodes in each order.
    """
    work = job.workload
    if work.max_total_tokens is not None or any(
        each.episode_limit_seconds is not None for each in job.environments
    ):
        return None
    samples = work.samples_per_prompt
    (share, *_) = longest_episodes(statistics_of(work), 1, samples, host_share(job, 1))
    return _load(share.episodes, engine, samples)


def outside_seconds(episode: Episode) -> float:
    """Return what an episode spends in its environment at least, were there always cores."""
    return episode.reset_seconds + sum(turn.step_seconds for turn in episode.turns)


def _certain(episode: Episode, share: EpisodeShare) -> Episode:
    """Return what of an episode is played whatever holds it up: its first turn where a limit may end it."""
    if share.host.seats[episode.environment].limit_seconds == math.inf:
        return episode
    return episode._replace(turns=episode.turns[:1])


def _longest(episodes: Sequence[Episode]) -> set[Episode]:
    """Return the episodes that may end last: the longest in tokens, in their environment, and in both."""

    def tokens(episode: Episode) -> float:
        return TOKEN_SECONDS * sum(turn.response_tokens for turn in episode.turns)

    amounts = (
        tokens,
        outside_seconds,
        lambda each: tokens(each) + outside_seconds(each),
    )
    return {max(episodes, key=amount) for amount in amounts}


def _load(
    episodes: Sequence[Episode], engine: EngineSheet, samples: int, *, begun: bool = False
) -> Load:
    """Return the load of episodes: each turn is a sequence whose prompt is all that came before.

    Args:
        samples: Episodes in a row that have one prompt.
        begun: Whether others may have computed the first one's prompt.
    """
    block = engine.kv_block_tokens
    prompts, responses, computed = [], [], []
    for number, episode in enumerate(episodes):
        for turn, context in zip(episode.turns, episode.contexts, strict=True):
            first = context == episode.prompt_tokens and number % samples == 0 and not begun
            known = 0 if first or not engine.shares_prompts else (context - 1) // block * block
            prompts.append(context)
            responses.append(turn.response_tokens)
            computed.append(context - known)
    load = load_of(tuple(prompts), tuple(responses))
    return replace(
        load,
        prompt_tokens=sum(computed),
        shortest_prompt_tokens=min(computed),
        contexts=replace(load.contexts, in_turn=False),
    )
