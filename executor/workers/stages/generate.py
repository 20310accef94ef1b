"""Generation: responses to a replica's prompts, by the engine that the plan names.

Whole batches at once; in steps, of a replica's running responses; or batches of which only a part is wanted.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rlplan.dataflow import Task
from rlplan.executor.data.batches import (
    PADDING,
    RESPONSE,
    ROLLOUT_LOG_PROBS,
    Array,
    Columns,
    Rows,
    as_baseline,
    row_numbers,
)
from rlplan.executor.data.finite import check_finite
from rlplan.executor.data.prompts import EVALUATION
from rlplan.executor.data.workload import job_of_batches, response_lengths
from rlplan.executor.parallel.positions import RankPositions, generation_positions
from rlplan.executor.rollout.engines import EngineSetup, GenerationEngine, start_engine
from rlplan.executor.rollout.sampling import GenerateSettings, Sequences
from rlplan.executor.rollout.sessions import Response, Session, padded_responses, start_session
from rlplan.executor.workers.calls import (
    CallReport,
    EvaluationCall,
    Outcome,
    RollCall,
    RolledResponse,
    RolloutReport,
    Segment,
    SegmentCall,
    TaskCall,
    now_seconds,
    run_task,
)
from rlplan.executor.workers.episodes import Episode, EpisodePlayer, EpisodeSession
from rlplan.executor.workers.worker import PoolModels, as_array
from rlplan.plan import Plan
from rlplan.workload import longest

PROTOCOL = "micro-dp"
SAMPLED = "log-probabilities of sampled tokens"


def positions(plan: Plan, _: Task) -> RankPositions:
    """Return where the pool's ranks stand during generation."""
    return generation_positions(plan)


class Stage:
    """Generate with the actor's weights in the generate layout."""

    def __init__(self, pool: PoolModels, task: Task) -> None:
        self._pool, setup = pool, pool.setup
        pool.build_generator(task)
        self._layout = setup.plan.tasks[task.name]
        start = EngineSetup(job=setup.plan.job, layout=self._layout, seed=setup.seed)
        self._engine = start_engine(self._layout.engine, pool.generator, start)
        self._player = (
            EpisodePlayer(pool, self._layout, self._engine) if setup.plan.job.environments else None
        )
        self._roller: Roller | None = None
        self._segments: Segments | None = None
        if setup.plan.ends_generation_early:
            self._segments = Segments(pool, self._engine, self._settings(0))

    def run(self, call: TaskCall, pieces: tuple[Columns, ...]) -> Any:
        """Generate responses of this replica's prompts, or hand over those that segments have made."""
        leads = self._pool.generator.mesh.comes_first
        if self._segments is not None:
            results = self._segments.hand_over(call)
        else:
            results = run_task(
                call, pieces, lambda columns: self._generate(call, columns), leads=leads
            )
        if self._pool.transition is not None:
            self._pool.transition.end()
        return results

    def roll(self, call: RollCall, prompts: tuple[Columns, ...]) -> Any:
        """Go on with this replica's responses."""
        if self._roller is None:
            self._roller = Roller(self._pool, self._engine, self._settings(0), self._player)
        return self._roller.roll(call, prompts)

    def play_segment(self, call: SegmentCall, prompts: tuple[Columns, ...]) -> Segment:
        """Go on with a batch of which only a part is wanted."""
        assert self._segments is not None, "this plan waits for all responses"
        return self._segments.play(call, prompts)

    def evaluate(self, call: EvaluationCall, prompts: Columns) -> tuple[Columns | None, CallReport]:
        """Return this replica's responses to held-out prompts (None on ranks whose results do not count), and a report.

        Training goes on as if it had not been: sessions keep what they have, and random numbers belong to rows.
        """
        start = now_seconds()
        rows = row_numbers(call.rows)
        columns = {name: column[rows] for name, column in prompts.items()}
        made = self._evaluated(columns, rows) if len(rows) else None
        if self._pool.transition is not None:
            self._pool.transition.end()
        report = CallReport(start_seconds=start, end_seconds=now_seconds())
        return (made if self._pool.generator.mesh.comes_first else None), report

    def _evaluated(self, columns: Columns, rows: Array) -> Columns:
        """Return the tokens and parts of an evaluation's sequences."""
        job, tensor = self._pool.setup.plan.job, self._pool.tensor
        assert job.evaluation is not None, "this job evaluates nothing"
        width = longest(job.workload.response_tokens)
        settings = replace(
            self._settings(EVALUATION, greedy=not job.evaluation.temperature),
            temperature=job.evaluation.temperature or 1.0,
        )
        self._engine.load_weights()
        made = self._engine.generate(
            tensor(columns["prompt_tokens"]),
            tensor(columns["prompt_present"]),
            torch.full((len(rows),), width, device=self._pool.device),
            torch.from_numpy(rows),
            width,
            settings,
        )
        self._engine.release()
        check_finite(SAMPLED, as_array(made.log_probs))
        return {"tokens": as_array(made.tokens), "parts": as_array(made.parts)}

    def _generate(self, call: TaskCall, columns: Columns) -> Outcome:
        self._engine.load_weights()
        outputs, metrics = self._responses(call, columns)
        if "baseline_sequences" in call.outputs:
            greedy, greedy_metrics = self._responses(call, columns, greedy=True)
            outputs = {**outputs, **as_baseline(greedy)}
            metrics = {**metrics, "tokens": metrics["tokens"] + greedy_metrics["tokens"]}
        self._engine.release()
        return outputs, metrics

    def _responses(self, call: TaskCall, columns: Columns, *, greedy: bool = False) -> Outcome:
        tensor = self._pool.tensor
        lengths = response_lengths(self._pool.setup.plan.job, call.iteration)
        rows = row_numbers(call.rows)
        settings = self._settings(call.iteration, greedy=greedy)
        if self._player is not None:
            made, rewards, counted = self._player.play(columns, rows, lengths, settings)
            outputs, metrics = _outcome(call.outputs, made)
            if "rule_scores" in call.outputs:
                outputs = {**outputs, "rule_scores": {"rule_scores": rewards}}
            return outputs, {**metrics, **counted}
        made = self._engine.generate(
            tensor(columns["prompt_tokens"]),
            tensor(columns["prompt_present"]),
            tensor(lengths[rows]),
            torch.from_numpy(rows),
            int(lengths.max()),
            settings,
        )
        return _outcome(call.outputs, made)

    def _settings(self, iteration: int, *, greedy: bool = False) -> GenerateSettings:
        setup = self._pool.setup
        return GenerateSettings(
            max_running=self._layout.max_running,
            temperature=setup.plan.job.hyperparameters.temperature,
            seed=setup.seed,
            iteration=iteration,
            end_ids=setup.end_ids,
            greedy=greedy,
        )


def _outcome(outputs: tuple[str, ...], made: Sequences) -> Outcome:
    """Return sequences as calls pass them on, and how many tokens they have."""
    sequences = {"tokens": as_array(made.tokens), "parts": as_array(made.parts)}
    made_outputs = generated_outputs(outputs, sequences, as_array(made.log_probs))
    return made_outputs, token_counts(sequences)


class Roller:
    """Keep a rank's session (`rlplan.executor.rollout.sessions`)."""

    def __init__(
        self,
        pool: PoolModels,
        engine: GenerationEngine,
        settings: GenerateSettings,
        player: EpisodePlayer | None,
    ) -> None:
        plan = pool.setup.plan
        self._job, self._mesh, self._player = plan.job, pool.generator.mesh, player
        session = start_session(engine, pool.generator, settings, plan.mode, plan.in_flight)
        self._session: Session | EpisodeSession = session
        if player is not None:
            self._session = player.session(session, plan.mode)

    def roll(self, call: RollCall, prompts: tuple[Columns, ...]) -> Any:
        """Continue this replica's responses; return those that have ended.

        Returns:
            The task's outputs and `versions` (None where nothing has ended, or another rank gives them), then
            a `RolloutReport`.
        """
        start, before = now_seconds(), self._waited_seconds
        if call.has_new_weights:
            self._session.take_weights()
        if call.withdraw:
            assert not isinstance(self._session, EpisodeSession), (
                "episodes are played to their ends"
            )
            self._session.withdraw(call.withdraw)
        for (batch, rows), columns in zip(call.begin, prompts, strict=True):
            self._session.begin(self._begun(batch, rows, columns))
        ended: list[Response] = []
        for _ in range(call.looks):
            ended += self._session.advance(call.steps, call.version)
            if len(ended) >= call.ends or self._session.is_between_waves:
                break
        keys = (*call.outputs, "versions")
        outputs: dict[str, Columns | None] = dict.fromkeys(keys)
        if ended and self._mesh.comes_first:
            columns = padded_responses(ended)
            sequences = {name: columns[name] for name in ("tokens", "parts")}
            outputs = {**generated_outputs(call.outputs, sequences, columns["log_probs"])}
            outputs["versions"] = {"versions": columns["versions"]}
            if "rule_scores" in call.outputs:
                outputs["rule_scores"] = {"rule_scores": _rewards(ended)}
        rolled = RolloutReport(
            ended=tuple(_rolled(response) for response in ended),
            running=self._session.running,
            report=CallReport(
                start_seconds=start,
                end_seconds=now_seconds(),
                metrics={"environment_seconds": self._waited_seconds - before},
            ),
        )
        return (*(outputs[key] for key in keys), rolled)

    def _begun(self, batch: int, rows: Rows, columns: Columns) -> list[Response]:
        begun = begun_responses(response_lengths(self._job, batch), batch, rows, columns)
        return begun if self._player is None else self._player.episodes(batch, begun)

    @property
    def _waited_seconds(self) -> float:
        """Return how long environments alone were waited for so far."""
        session = self._session
        return session.waited_seconds if isinstance(session, EpisodeSession) else 0.0


def begun_responses(lengths: Array, batch: int, rows: Rows, columns: Columns) -> list[Response]:
    """Return responses to rows of a batch of prompts, with nothing said yet.

    Args:
        lengths: Most tokens of each response of the batch. Shape (sequences,).
        columns: The prompts of the batch.
    """
    return [
        Response(
            batch=batch,
            row=row,
            prompt=columns["prompt_tokens"][row][columns["prompt_present"][row]],
            most_tokens=int(lengths[row]),
        )
        for start, stop in rows
        for row in range(start, stop)
    ]


def generated_outputs(
    made: tuple[str, ...], sequences: Columns, log_probs: Array
) -> dict[str, Columns]:
    """Return what is generated by key; where the trainer has log-probabilities of its own, the engine's stay with the tokens.

    Raises:
        DivergedError: Tokens were sampled from logits that are not finite.
    """
    check_finite(SAMPLED, log_probs)
    if "log_probs" in made:
        return {"sequences": sequences, "log_probs": {"log_probs": log_probs}}
    return {"sequences": {**sequences, ROLLOUT_LOG_PROBS: log_probs}}


def token_counts(sequences: Columns) -> dict[str, float]:
    """Return how many tokens sequences have, and how long their responses are."""
    lengths = (sequences["parts"] == RESPONSE).sum(axis=1, dtype=float)
    return {
        "response_tokens": float(lengths.sum()),
        "response_tokens_squared": float((lengths**2).sum()),
        "longest_response_max": float(lengths.max(initial=0.0)),
        "tokens": float((sequences["parts"] != PADDING).sum()),
    }


def _rewards(ended: Sequence[Response]) -> Array:
    """Return what the environments of episodes gave."""
    rewards = [each.reward for each in ended if isinstance(each, Episode)]
    assert len(rewards) == len(ended), "environments give rewards of episodes"
    return np.array(rewards, dtype=np.float32)


def _rolled(response: Response) -> RolledResponse:
    is_episode = isinstance(response, Episode)
    said = response.said if isinstance(response, Episode) else len(response.tokens)
    return RolledResponse(
        batch=response.batch,
        row=response.row,
        prompt_tokens=len(response.prompt),
        response_tokens=said,
        observed_tokens=len(response.tokens) - said,
        turns=response.turn if is_episode else 1,
    )


class Segments:
    """Keep a rank's batch from segment to segment; all ranks of a replica run the same segments."""

    def __init__(
        self, pool: PoolModels, engine: GenerationEngine, settings: GenerateSettings
    ) -> None:
        self._pool, self._engine, self._settings = pool, engine, settings
        self._job = job_of_batches(pool.setup.plan)
        self._session: Session | None = None
        self._ended: dict[int, Response] = {}
        self._widths = (0, 0)
        self._start_seconds = 0.0

    def play(self, call: SegmentCall, prompts: tuple[Columns, ...]) -> Segment:
        """Sample tokens one by one, until enough responses have ended, all have, or the steps are done."""
        if call.begin is not None:
            self._begin(call.batch, call.begin, prompts[0])
        session, ended = self._session, list[tuple[int, int]]()
        assert session is not None, "a batch has begun"
        step, completions = 0, call.completions
        while session.running and step != call.steps:
            at_once = session.advance(1, call.batch)
            self._ended |= {response.row: response for response in at_once}
            ended += [(step, response.row) for response in at_once]
            if completions is not None:
                completions.note(0, ended[-len(at_once) :] if at_once else ())
                if completions.are_enough:
                    break
            step += 1
        return Segment(ended=tuple(ended), running=session.running)

    def hand_over(self, call: TaskCall) -> Any:
        """Return the wanted rows in the form of a generate call, and forget the batch."""
        rows = [row for start, stop in call.rows for row in range(start, stop)]
        columns = padded_responses([self._ended[row] for row in rows], *self._widths)
        self._session, self._ended = None, {}
        sequences = {name: columns[name] for name in ("tokens", "parts")}
        outputs = generated_outputs(call.outputs, sequences, columns["log_probs"])
        leads = self._pool.generator.mesh.comes_first
        report = CallReport(
            start_seconds=self._start_seconds,
            end_seconds=now_seconds(),
            metrics=token_counts(sequences),
        )
        return (*(outputs[key] if leads else None for key in call.outputs), report)

    def _begin(self, batch: int, rows: Rows, columns: Columns) -> None:
        self._start_seconds = now_seconds()
        plan, lengths = self._pool.setup.plan, response_lengths(self._job, batch)
        self._widths = columns["prompt_tokens"].shape[1], int(lengths.max())
        self._session = start_session(
            self._engine, self._pool.generator, self._settings, plan.mode, plan.in_flight
        )
        self._session.begin(begun_responses(lengths, batch, rows, columns))
