"""Evaluations of a run: what its actor answers to held-out prompts, judged between iterations."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import ray

from rlplan.dataflow import Task
from rlplan.executor.control.controller import Controller
from rlplan.executor.control.evaluations import EVALUATIONS_FILE, SAMPLES_FILE, passing_counts
from rlplan.executor.control.line_file import LineFile
from rlplan.executor.data.batches import RESPONSE, split_rows
from rlplan.executor.data.prompts import HeldOut, Tokenizer
from rlplan.executor.data.workload import PromptBatches
from rlplan.executor.parallel.positions import generation_positions
from rlplan.executor.workers.calls import EvaluationCall, JudgeCall
from rlplan.executor.workers.pools import WorkerGroup, fetched
from rlplan.executor.workers.protocols import PROTOCOLS
from rlplan.executor.workers.stages import STAGES
from rlplan.plan import Plan
from rlplan.replicas import with_replicas
from rlplan.workload import Evaluation, longest

# Letters of a text that a line on the terminal has room for.
SHOWN_LETTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Hold a response to a held-out prompt.

    Attributes:
        prompt: Its number.
        tokens: Of the response.
        is_cut: Whether it has the most tokens that it may have.
    """

    prompt: int
    text: str
    tokens: int
    is_cut: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Hold what an evaluation found.

    Attributes:
        done: Iterations.
        numbers: By name, as `evaluations.jsonl` has them.
        first: The first prompt, a response to it, and its score.
    """

    done: int
    numbers: Mapping[str, float]
    first: tuple[str, str, float]


class Evaluator:
    """Evaluate the actor of a run, and write down what it answers.

    Args:
        prompts: Has the held-out ones.
        groups: By pool.
    """

    def __init__(
        self,
        plan: Plan,
        tasks: tuple[Task, ...],
        prompts: PromptBatches,
        groups: Mapping[str, WorkerGroup],
        out: Path,
    ) -> None:
        assert plan.job.evaluation is not None, "this job evaluates nothing"
        assert prompts.held_out is not None, "and its prompts were read"
        self._plan, self._groups, self._out = plan, groups, out
        self._evaluation: Evaluation = plan.job.evaluation
        self._held_out: HeldOut = prompts.held_out
        self._tokenizer: Tokenizer = prompts.tokenizer
        self._generates = next(task for task in tasks if task.generates)
        self._judges = next(task for task in tasks if task.kind == "rule")
        self._columns = ray.put(prompts.held_out.columns)

    def evaluate(self, controller: Controller, done: int) -> Evaluated:
        """Judge the newest weights; append what was found to the run's files.

        Args:
            done: Iterations.
        """
        start = time.monotonic()
        controller.bring_newest(done)
        answers = self._answers()
        scores = self._scores(answers)
        numbers = found_numbers(self._evaluation, answers, scores)
        numbers = {**numbers, "seconds": time.monotonic() - start}
        with LineFile(self._out / SAMPLES_FILE) as lines:
            for row in self._sample_rows(done, answers, scores):
                lines.append(row)
        with LineFile(self._out / EVALUATIONS_FILE) as lines:
            lines.append({"iteration": done, **numbers})
        first = (str(self._held_out.rows[0]["prompt"]), answers[0].text, scores[0])
        return Evaluated(done=done, numbers=numbers, first=first)

    def _answers(self) -> list[Answer]:
        """Return the responses to all held-out prompts, those to one prompt consecutive."""
        group = self._groups[self._plan.tasks[self._generates.name].pool]
        there, parts = group.present, None
        while parts is None:
            there, parts = self._parts(group, there)
        samples = self._evaluation.samples_per_prompt
        texts = [text for part in parts if part is not None for text in self._texts_of(part)]
        return [
            Answer(prompt=index // samples, text=text, tokens=tokens, is_cut=is_cut)
            for index, (text, tokens, is_cut) in enumerate(texts)
        ]

    def _parts(
        self, group: WorkerGroup, there: tuple[int, ...]
    ) -> tuple[tuple[int, ...], list[Any] | None]:
        """Let ranks generate all responses; return those that are still there, and the responses' columns by share.

        Args:
            there: Ranks that are asked.

        Returns:
            Ranks that have not ended meanwhile; and nothing where some have, for then what they were to generate is missing.
        """
        layout = self._plan.tasks[self._generates.name]
        fewer = with_replicas(self._plan, len(there) // (layout.tp * layout.pp))
        places = generation_positions(fewer if len(there) < group.ranks else self._plan)
        protocol = PROTOCOLS.load(STAGES.load(self._generates.kind).PROTOCOL)
        samples = self._evaluation.samples_per_prompt
        rows = ((0, len(self._held_out.rows) * samples),)
        shares = protocol.distribute(
            places, rows, lambda whole, parts: split_rows(whole, parts, block=samples)
        )
        calls = {
            there[place]: (EvaluationCall(task=self._generates.name, rows=share), self._columns)
            for place, share in shares.items()
        }
        results = group.send("evaluate", calls, num_returns=2)
        reports = group.answers({rank: report for rank, (_, report) in results.items()})
        if len(reports) < len(results):
            return tuple(rank for rank in there if rank in reports or rank not in results), None
        made = {there.index(rank): columns for rank, (columns, _) in results.items()}
        return there, ray.get(protocol.collect(places, made, list))

    def _texts_of(self, part: Mapping[str, Any]) -> list[tuple[str, int, bool]]:
        most = longest(self._plan.job.workload.response_tokens)
        said = [
            tokens[parts == RESPONSE].tolist()
            for tokens, parts in zip(part["tokens"], part["parts"], strict=True)
        ]
        return [(self._tokenizer.decode(each), len(each), len(each) == most) for each in said]

    def _scores(self, answers: Sequence[Answer]) -> list[float]:
        """Return the score of each answer, by the processes that call the job's functions."""
        group = self._groups[self._plan.tasks[self._judges.name].pool]
        asked = [(answer.prompt, answer.text) for answer in answers]
        shares = split_rows(((0, len(asked)),), group.ranks, block=1)
        calls = {
            rank: (JudgeCall(task=self._judges.name, responses=asked[start:stop]),)
            for rank, share in enumerate(shares)
            for start, stop in share
        }
        found = fetched(group.send("judge", calls))
        return [score for rank in sorted(found) for score in found[rank]]

    def _sample_rows(
        self, done: int, answers: Sequence[Answer], scores: Sequence[float]
    ) -> Iterator[dict[str, Any]]:
        """Yield the lines of the prompts that are shown."""
        for answer, score in zip(answers, scores, strict=True):
            if answer.prompt < self._evaluation.shown_prompts:
                yield {
                    "iteration": done,
                    "prompt": self._held_out.rows[answer.prompt]["prompt"],
                    "response": answer.text,
                    "score": score,
                    "tokens": answer.tokens,
                }


def found_numbers(
    evaluation: Evaluation, answers: Sequence[Answer], scores: Sequence[float]
) -> dict[str, float]:
    """Return the numbers of an evaluation by name.

    `accuracy` is the share of responses that are right, `pass@k` the chance that one of k is, for the powers of two
    up to all samples of a prompt; `score` the mean score; `response_tokens` the mean length, and `cut` the share of
    responses that are as long as they may be.
    """
    samples = evaluation.samples_per_prompt
    right = np.array(scores).reshape(-1, samples) >= evaluation.correct_from
    found = {"accuracy": float(right.mean())}
    for count in passing_counts(evaluation):
        passing = [pass_at(count, samples, int(each)) for each in right.sum(axis=1)]
        found[f"pass@{count}"] = mean(passing)
    return {
        **found,
        "score": mean(scores),
        "response_tokens": mean(float(answer.tokens) for answer in answers),
        "cut": mean(float(answer.is_cut) for answer in answers),
    }


def pass_at(count: int, samples: int, right: int) -> float:
    """Return the chance that one of `count` responses is right, unbiased, from `samples` of which some are.

    Chen et al. 2021, arXiv:2107.03374, equation 1.
    """
    return 1.0 - comb(samples - right, count) / comb(samples, count)


def evaluation_line(evaluated: Evaluated) -> str:
    """Return an evaluation in one line: its numbers, and the first prompt with the response to it."""
    numbers = evaluated.numbers
    passing = "".join(
        f", {name} {value:.3f}" for name, value in numbers.items() if name.startswith("pass@")
    )
    prompt, response, score = evaluated.first
    return (
        f"evaluation after {evaluated.done} iterations: accuracy {numbers['accuracy']:.3f}{passing},"
        f" {numbers['response_tokens']:.1f} tokens a response, {numbers['seconds']:.2f} s;"
        f" {_shortened(prompt, last=True)!r} -> {_shortened(response)!r} ({score:g})"
    )


def _shortened(text: str, *, last: bool = False) -> str:
    """Return the beginning of a text, or its end, on one line."""
    line = " ".join(text.split())
    if len(line) <= SHOWN_LETTERS:
        return line
    return f"...{line[-SHOWN_LETTERS:]}" if last else f"{line[:SHOWN_LETTERS]}..."
