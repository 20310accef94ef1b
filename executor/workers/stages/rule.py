"""Rewards and costs by Python functions, on CPU cores, without torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.executor.data.batches import PROMPT, RESPONSE, Array, Columns, sequences_for
from rlplan.executor.data.prompts import Tokenizer, load_tokenizer
from rlplan.executor.data.workload import prompt_stream
from rlplan.executor.learning.reward_forms import Rule
from rlplan.executor.learning.rules import load_rule
from rlplan.executor.parallel.positions import RankPositions, train_positions
from rlplan.executor.workers.calls import HostSetup, JudgeCall, Outcome, TaskCall, run_task
from rlplan.executor.workers.processes.sandbox import Limits, Sandbox
from rlplan.job import Job
from rlplan.plan import Plan
from rlplan.workload import Workload, mean_length

PROTOCOL = "dp"
# Responses that are judged to see how long one takes, at most.
MOST_JUDGED = 128


def positions(plan: Plan, task: Task) -> RankPositions:
    """Return the pool's processes, each with rows of its own."""
    return train_positions(1, plan.pool_of(task.name).gpus)


def judging(job: Job, rows: list[dict[str, Any]], folder: Path) -> Callable[[str], int] | None:
    """Return what judges made-up responses as a worker does, by a function's name, and returns how many.

    None where functions are called in processes of their own.

    Args:
        rows: Prompts of the job.
    """
    rewards, work = job.rewards, job.workload
    assert rewards is not None, "a job without rewards has no functions"
    if Limits(rewards.limit_seconds, rewards.limit_bytes).given:
        return None
    tasks = tasks_of(load_algorithm(job.algorithm), job)
    task = next(each for each in tasks if each.kind == "rule")
    stage = Stage(HostSetup(job=job, tasks=(task,), rows=rows, folder=folder), task)
    outputs = {rewards.cost_function: "rule_costs", rewards.function: "rule_scores"}
    count = min(work.sequences, MOST_JUDGED)
    columns = _made_up(count, work, stage.tokenizer)
    batch = ((0, count),)

    def judge(name: str) -> int:
        call = TaskCall(
            task=task.name,
            outputs=(outputs[name],),
            iteration=0,
            rows=batch,
            inputs={"sequences": [batch]},
        )
        stage.run(call, (columns,))
        return count

    return judge


def _made_up(count: int, work: Workload, tokenizer: Tokenizer) -> Columns:
    """Return so many sequences of a job's mean lengths, all of one letter."""
    prompt, response = (
        round(mean_length(each)) for each in (work.prompt_tokens, work.response_tokens)
    )
    letters = tokenizer.encode_more("x" * response)
    row = ([0] * prompt + letters * response)[: prompt + response]
    parts = np.full((count, len(row)), PROMPT, dtype=np.int8)
    parts[:, prompt:] = RESPONSE
    return {"tokens": np.tile(np.array(row), (count, 1)), "parts": parts}


class Stage:
    """Run a job's reward and cost functions."""

    def __init__(self, setup: HostSetup, _: Task) -> None:
        rewards = setup.job.rewards
        assert rewards is not None
        functions = {"rule_scores": rewards.function, "rule_costs": rewards.cost_function}
        limits = Limits(rewards.limit_seconds, rewards.limit_bytes)
        self._rules: dict[str, Rule] = {
            key: _rule(spec, setup.folder, limits)
            for key, spec in functions.items()
            if spec is not None
        }
        self._held_out, evaluation = setup.held_out, setup.job.evaluation
        self._evaluating = self._rules.get("rule_scores")
        if evaluation is not None and evaluation.function is not None:
            self._evaluating = _rule(evaluation.function, setup.folder, limits)
        self.tokenizer = load_tokenizer(setup.job.tokenizer, setup.folder)
        self._stream = prompt_stream(setup.job, setup.rows)
        self._samples = setup.job.workload.samples_per_prompt

    def run(self, call: TaskCall, pieces: tuple[Columns, ...]) -> Any:
        """Judge the responses of this worker's rows."""

        def judge(columns: Columns) -> Outcome:
            outputs = {key: {key: self._called(key, call, columns)} for key in call.outputs}
            return outputs, {"broken_off": self._broken_off()}

        return run_task(call, pieces, judge, leads=True)

    def judge(self, call: JudgeCall) -> list[float]:
        """Return the scores of responses to held-out prompts."""
        assert self._evaluating is not None, "this job evaluates nothing"
        rows = [self._held_out[number] for number, _ in call.responses]
        responses = [response for _, response in call.responses]
        return [
            float(self._evaluating(row["prompt"], response, dict(row)))
            for row, response in zip(rows, responses, strict=True)
        ]

    def _broken_off(self) -> float:
        """Return how many calls were broken off since this was asked last."""
        count = 0
        for rule in self._rules.values():
            if isinstance(rule, Sandbox):
                count, rule.broken_off = count + rule.broken_off, 0
        return float(count)

    def _called(self, key: str, call: TaskCall, columns: Columns) -> Array:
        """Return the rule's number for each response. Shape (rows,)."""
        rule = self._rules[key.removeprefix("baseline_")]
        prompts = self._stream.batch(call.iteration)
        numbers = [row for start, stop in call.rows for row in range(start, stop)]
        scores = []
        for number, tokens, parts in zip(numbers, *sequences_for(key, columns), strict=True):
            row = prompts[number // self._samples]
            response = self.tokenizer.decode(tokens[parts == RESPONSE].tolist())
            scores.append(rule(row["prompt"], response, row))
        return np.array(scores, dtype=np.float32)


def _rule(spec: str, folder: Path, limits: Limits) -> Rule:
    """Return a function that judges, in a process of its own where its calls have limits."""
    return Sandbox(spec, folder, limits) if limits.given else load_rule(spec, folder)
