"""Segments: a replica generates a batch of which only what ends first is wanted, and keeps it until that is known."""

from typing import Any

from rlplan.executor.data.batches import Columns, Rows
from rlplan.executor.data.workload import job_of_batches, response_lengths
from rlplan.executor.rollout.engines import GenerationEngine
from rlplan.executor.rollout.sampling import GenerateSettings
from rlplan.executor.rollout.sessions import Response, Session, padded_responses, start_session
from rlplan.executor.workers.calls import CallReport, Segment, SegmentCall, TaskCall
from rlplan.executor.workers.clock import now_seconds
from rlplan.executor.workers.pool_models import PoolModels
from rlplan.executor.workers.rolling import begun_responses, generated_outputs, token_counts


class Segments:
    """Keep a rank's batch from segment to segment; all ranks of a replica play the same ones."""

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
        """Sample tokens one by one, until enough has ended, everything has, or the steps are done."""
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
        """Return the rows of a call, as one that generates them does, and forget the batch."""
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
