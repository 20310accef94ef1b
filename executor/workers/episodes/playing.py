"""The playing of episodes on a generating rank: a turn of the model, a step of the environments, and so on."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from executor.data.batches import Array, Columns
from executor.data.tokenizer import Tokenizer, load_tokenizer
from executor.data.workload import observation_limit, prompt_stream
from executor.environments import Step
from executor.rollout.engines import GenerationEngine
from executor.rollout.episodes import Episodes, columns_behind_prompts, kinds_of, turns_of
from executor.rollout.sampling import GenerateSettings, Sequences
from executor.rollout.sessions import Response, Session
from executor.workers.episodes.hosts import Beginning, EnvironmentHosts, LocalHost, RemoteHosts
from executor.workers.episodes.sessions import Episode, EpisodeSession
from executor.workers.pool_models import PoolModels
from rlplan.plan import Mode, TaskPlan
from rlplan.workload.environment import Environment


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tools:
    """Hold what plays a replica's episodes."""

    engine: GenerationEngine
    hosts: EnvironmentHosts
    tokenizer: Tokenizer
    environments: tuple[Environment, ...]
    tensor: Callable[[Array], Tensor]


class EpisodePlayer:
    """Play the episodes of a replica's rows.

    With remote inference all episodes answer together, and their environments step together in processes of
    their own; inline, one episode after another is played in this process. Where responses go on one by one, a
    session plays them (`executor.workers.episodes.sessions`).
    """

    def __init__(self, pool: PoolModels, layout: TaskPlan, engine: GenerationEngine) -> None:
        setup = pool.setup
        self._job = setup.plan.job
        environments, folder = self._job.environments, setup.folder
        self._stream = prompt_stream(self._job, setup.rows)
        self._inline = environments[0].inference == "inline"
        self._tools = _Tools(
            engine=engine,
            hosts=LocalHost(environments, folder)
            if self._inline
            else RemoteHosts(environments, folder, steps_at_a_time(environments, layout.dp)),
            tokenizer=load_tokenizer(self._job.tokenizer, folder),
            environments=environments,
            tensor=pool.tensor,
        )

    def play(
        self, columns: Columns, rows: Array, lengths: Array, settings: GenerateSettings
    ) -> tuple[Sequences, Array, dict[str, float]]:
        """Return sequences (B, P + W), the rewards of their episodes (B,), and what was counted.

        Args:
            columns: Left-padded prompts of the replica's rows.
            rows: Their numbers in the global batch. Shape (B,).
            lengths: Most tokens that the model generates, by row of the global batch.
        """
        environments, samples = self._tools.environments, self._job.workload.samples_per_prompt
        kinds, turns = self._drawn(settings.iteration)
        prompts = self._stream.batch(settings.iteration)
        beginnings = [
            Beginning(
                row, int(kinds[row]), prompts[row // samples]["prompt"], prompts[row // samples]
            )
            for row in rows.tolist()
        ]
        episodes = Episodes(
            columns["prompt_tokens"], columns["prompt_present"], lengths[rows], turns[rows]
        )
        round_of = _Round(self._tools, episodes, beginnings, settings)
        places = np.arange(len(rows))
        for together in np.split(places, places[1:]) if self._inline else [places]:
            round_of.play(together)
        self._tools.hosts.clear()
        made = episodes.sequences(columns_behind_prompts(environments, lengths))
        counted = {
            "turns": float(episodes.turns_taken.sum()),
            "environment_seconds_max": round_of.environment_seconds,
        }
        return made, round_of.rewards, counted

    def session(self, turns: Session, mode: Mode) -> EpisodeSession:
        """Return a session of episodes whose turns are responses of another one."""
        tools = self._tools
        return EpisodeSession(
            turns,
            tools.hosts,
            tools.environments,
            tools.tokenizer.encode_more,
            tools.tokenizer.decode,
            most=1 if self._inline else None,
            in_step=self._inline or mode == "streaming",
        )

    def episodes(self, batch: int, responses: Sequence[Response]) -> list[Response]:
        """Return the episodes that responses of a batch stand for."""
        samples = self._job.workload.samples_per_prompt
        kinds, turns = self._drawn(batch)
        prompts = self._stream.batch(batch)
        return [
            Episode(
                batch=batch,
                row=each.row,
                prompt=each.prompt,
                most_tokens=each.most_tokens,
                kind=int(kinds[each.row]),
                most_turns=int(turns[each.row]),
                text=prompts[each.row // samples]["prompt"],
                data=prompts[each.row // samples],
            )
            for each in responses
        ]

    def _drawn(self, batch: int) -> tuple[Array, Array]:
        """Return the environment and the most turns of each episode of a batch."""
        work, environments = self._job.workload, self._tools.environments
        kinds = kinds_of(environments, work.prompts).repeat(work.samples_per_prompt)
        return kinds, turns_of(environments, kinds, self._job.seed + batch)


class _Round:
    """Play some of a replica's episodes together, from their beginning to their end."""

    def __init__(
        self,
        tools: "_Tools",
        episodes: Episodes,
        beginnings: list[Beginning],
        settings: GenerateSettings,
    ) -> None:
        self._tools, self._episodes = tools, episodes
        self._beginnings, self._settings = beginnings, settings
        self.rewards = np.zeros(len(beginnings), dtype=np.float32)
        self.environment_seconds = 0.0

    def play(self, places: Array) -> None:
        """Play episodes at these places of the replica."""
        tools, episodes = self._tools, self._episodes
        begun = time.monotonic()
        first = tools.hosts.reset([self._beginnings[place] for place in places])
        self.environment_seconds += time.monotonic() - begun
        for place, text in zip(places, first, strict=True):
            self._observe(int(place), text)
        turn = 0
        while (wave := episodes.wave(places)) is not None:
            numbers = np.array([self._beginnings[place].episode for place in wave.episodes])
            made = tools.engine.generate(
                tools.tensor(wave.tokens),
                tools.tensor(wave.present),
                tools.tensor(wave.lengths),
                torch.from_numpy(numbers),
                int(wave.lengths.max()),
                replace(self._settings, turn=turn),
            )
            answers = [tools.tokenizer.decode(ids) for ids in episodes.add(wave, made)]
            asked = time.monotonic()
            steps = tools.hosts.step(list(zip(numbers.tolist(), answers, strict=True)))
            self.environment_seconds += time.monotonic() - asked
            spent = time.monotonic() - begun
            for place, step in zip(wave.episodes, steps, strict=True):
                self._take(int(place), step, spent)
            turn += 1

    def _take(self, place: int, step: Step, spent_seconds: float) -> None:
        """Note a step's reward, and whether and with what its episode goes on."""
        self.rewards[place] += step.reward
        environment = self._tools.environments[self._beginnings[place].kind]
        limit = environment.episode_limit_seconds
        if step.ends or (limit is not None and spent_seconds >= limit):
            self._episodes.end(place)
        elif self._episodes.goes_on(place):
            self._observe(place, step.observation)

    def _observe(self, place: int, text: str) -> None:
        environment = self._tools.environments[self._beginnings[place].kind]
        tokens = self._tools.tokenizer.encode_more(text)[: observation_limit(environment)]
        self._episodes.observe(place, tokens)


def steps_at_a_time(environments: tuple[Environment, ...], replicas: int) -> int:
    """Return how many steps of environments run at a time for one replica: as many as cores allow, or as is said."""
    cores = os.cpu_count() or 1
    given = (each.workers or int(cores / (each.cpu_cores or 1.0)) for each in environments)
    return max(1, max(given) // replicas)
