"""The playing of episodes on a generating rank: a turn of the model, a step of the environments, and so on."""

import os
from collections.abc import Sequence

import numpy as np
import torch

from rlplan.executor.data.batches import Array, Columns
from rlplan.executor.data.tokenizer import load_tokenizer
from rlplan.executor.data.workload import most_observed_tokens, prompt_stream
from rlplan.executor.rollout.engines import GenerationEngine
from rlplan.executor.rollout.sampling import GenerateSettings, Sequences
from rlplan.executor.rollout.sessions import Response, Session, TurnSession, padded_responses
from rlplan.executor.workers.episodes.hosts import EnvironmentHosts, LocalHost, RemoteHosts
from rlplan.executor.workers.episodes.sessions import Episode, EpisodeSession
from rlplan.executor.workers.pool_models import PoolModels
from rlplan.plan import FLOWS, USUAL_MODE, Mode, TaskPlan
from rlplan.workload.environment import Environment
from rlplan.workload.lengths import sample_lengths

# Seeds of turns lie apart from those of response lengths, which count iterations.
TURNS_SEED = 2**31


class EpisodePlayer:
    """Play the episodes of a replica's rows, in sessions (`rlplan.executor.workers.episodes.sessions`).

    With remote inference all episodes answer together, and their environments step together in processes of
    their own; inline, one episode after another is played in this process.
    """

    def __init__(self, pool: PoolModels, layout: TaskPlan, engine: GenerationEngine) -> None:
        setup = pool.setup
        self._job = setup.plan.job
        self._environments = environments = self._job.environments
        self._engine, self._shard = engine, pool.generator
        self._stream = prompt_stream(self._job, setup.rows)
        self._tokenizer = load_tokenizer(self._job.tokenizer, setup.folder)
        self._inline = environments[0].inference == "inline"
        self._instances = tuple(each.instances_each(layout.dp) for each in environments)
        self._hosts: EnvironmentHosts
        if self._inline:
            self._hosts = LocalHost(environments, setup.folder)
        else:
            workers = steps_at_a_time(environments, layout.dp)
            self._hosts = RemoteHosts(environments, setup.folder, workers)

    def play(
        self, columns: Columns, rows: Array, lengths: Array, settings: GenerateSettings
    ) -> tuple[Sequences, Array, dict[str, float]]:
        """Return sequences (B, P + W), the rewards of their episodes (B,), and what was counted.

        Args:
            columns: Left-padded prompts of the replica's rows.
            rows: Their numbers in the global batch. Shape (B,).
            lengths: Most tokens that the model generates, by row of the global batch.
        """
        width = columns["prompt_tokens"].shape[1]
        prompts = zip(columns["prompt_tokens"], columns["prompt_present"], strict=True)
        responses = [
            Response(
                batch=settings.iteration,
                row=row,
                prompt=tokens[present],
                most_tokens=int(lengths[row]),
            )
            for row, (tokens, present) in zip(rows.tolist(), prompts, strict=True)
        ]
        session = self.session(TurnSession(self._engine, self._shard, settings), USUAL_MODE)
        session.begin(self.episodes(settings.iteration, responses))
        ended = dict[int, Episode]()
        while session.running:
            ended |= {each.row: each for each in session.advance(steps=0, version=0)}
        played = [ended[row] for row in rows.tolist()]
        behind = columns_behind_prompts(self._environments, lengths)
        made = padded_responses(played, width, behind)
        counted = {
            "turns": float(sum(each.turn for each in played)),
            "environment_seconds_max": session.waited_seconds,
        }
        names = ("tokens", "parts", "log_probs")
        sequences = Sequences(*(torch.from_numpy(made[name]) for name in names))
        return sequences, np.array([each.reward for each in played], dtype=np.float32), counted

    def session(self, turns: Session, mode: Mode) -> EpisodeSession:
        """Return a session of episodes whose turns are responses of another one."""
        return EpisodeSession(
            turns,
            self._hosts,
            self._environments,
            self._tokenizer.encode_more,
            self._tokenizer.decode,
            most=1 if self._inline else None,
            instances=self._instances,
            in_step=self._inline or not FLOWS[mode].is_endless,
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
        work, environments = self._job.workload, self._environments
        kinds = kinds_of(environments, work.prompts).repeat(work.samples_per_prompt)
        return kinds, turns_of(environments, kinds, self._job.seed + batch)


def kinds_of(environments: Sequence[Environment], prompts: int) -> Array:
    """Return which environment plays each prompt of a batch, by their shares. Shape (prompts,)."""
    edges = np.cumsum([environment.share for environment in environments])[:-1]
    middles = (np.arange(prompts) + 0.5) / prompts
    return np.searchsorted(edges, middles, side="right")


def turns_of(environments: Sequence[Environment], kinds: Array, seed: int) -> Array:
    """Return the most turns of each episode, by its environment. Shape (episodes,)."""
    turns = np.zeros(len(kinds), dtype=np.int64)
    for kind, environment in enumerate(environments):
        drawn = sample_lengths(environment.turns, len(kinds), seed + TURNS_SEED + kind)
        turns = np.where(kinds == kind, drawn, turns)
    return turns


def columns_behind_prompts(environments: Sequence[Environment], budgets: Array) -> int:
    """Return the columns that any episode of a batch can fill behind its prompt: answers and observations."""
    return int(budgets.max()) + most_observed_tokens(environments)


def steps_at_a_time(environments: tuple[Environment, ...], replicas: int) -> int:
    """Return how many steps of environments run at a time for one replica: as many as cores allow, or as is said."""
    cores = os.cpu_count() or 1
    given = (each.workers or int(cores / (each.cpu_cores or 1.0)) for each in environments)
    return max(1, max(given) // replicas)
