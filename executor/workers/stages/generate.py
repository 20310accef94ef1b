"""Generation: responses to a replica's prompts, by the engine that the plan names."""

from dataclasses import replace
from typing import Any

import torch

from rlplan.dataflow import Task
from rlplan.executor.data.batches import Array, Columns, as_baseline, row_numbers
from rlplan.executor.data.prompts import EVALUATION
from rlplan.executor.data.workload import response_lengths
from rlplan.executor.parallel.positions import RankPositions, generation_positions
from rlplan.executor.rollout.engines import EngineSetup, start_engine
from rlplan.executor.rollout.sampling import GenerateSettings, Sequences
from rlplan.executor.workers.calls import (
    CallReport,
    EvaluationCall,
    Outcome,
    RollCall,
    Segment,
    SegmentCall,
    TaskCall,
    run_task,
)
from rlplan.executor.workers.clock import now_seconds
from rlplan.executor.workers.episodes import EpisodePlayer
from rlplan.executor.workers.rolling import Roller, Segments, generated_outputs, token_counts
from rlplan.executor.workers.worker import PoolModels, as_array
from rlplan.plan import Plan
from rlplan.workload import longest

PROTOCOL = "micro-dp"


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
        """Go on with this replica's responses (`rlplan.executor.workers.rolling`)."""
        if self._roller is None:
            self._roller = Roller(self._pool, self._engine, self._settings(0), self._player)
        return self._roller.roll(call, prompts)

    def play_segment(self, call: SegmentCall, prompts: tuple[Columns, ...]) -> Segment:
        """Go on with a batch of which only a part is wanted (`rlplan.executor.workers.rolling`)."""
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
            eos_id=setup.eos_id,
            greedy=greedy,
        )


def _outcome(outputs: tuple[str, ...], made: Sequences) -> Outcome:
    """Return sequences as calls pass them on, and how many tokens they have."""
    sequences = {"tokens": as_array(made.tokens), "parts": as_array(made.parts)}
    made_outputs = generated_outputs(outputs, sequences, as_array(made.log_probs))
    return made_outputs, token_counts(sequences)
