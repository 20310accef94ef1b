"""Rewards and costs by Python functions, on CPU cores, without torch."""

from typing import Any

import numpy as np

from executor.data.batches import RESPONSE, Array, Columns, sequences_for
from executor.data.tokenizer import load_tokenizer
from executor.data.workload import prompt_stream
from executor.learning.rules import Rule, load_rule
from executor.parallel.positions import RankPositions, train_positions
from executor.workers.calls import HostSetup, Outcome, TaskCall, run_task
from executor.workers.sandbox import Limits, Sandbox
from rlplan.dataflow import Task
from rlplan.plan import Plan

PROTOCOL = "dp"


def positions(plan: Plan, task: Task) -> RankPositions:
    """Return the pool's processes, each with rows of its own."""
    return train_positions(1, plan.pool_of(task.name).gpus)


class Stage:
    """Run a job's reward and cost functions."""

    def __init__(self, setup: HostSetup, _: Task) -> None:
        rewards = setup.job.rewards
        assert rewards is not None
        functions = {"rule_scores": rewards.function, "rule_costs": rewards.cost_function}
        limits = Limits(rewards.limit_seconds, rewards.limit_bytes)
        self._rules: dict[str, Rule] = {
            key: Sandbox(spec, setup.folder, limits)
            if limits.given
            else load_rule(spec, setup.folder)
            for key, spec in functions.items()
            if spec is not None
        }
        self._tokenizer = load_tokenizer(setup.job.tokenizer, setup.folder)
        self._stream = prompt_stream(setup.job, setup.rows)
        self._samples = setup.job.workload.samples_per_prompt

    def run(self, call: TaskCall, pieces: tuple[Columns, ...]) -> Any:
        """Judge the responses of this worker's rows."""
        return run_task(call, pieces, lambda columns: self._judge(call, columns), leads=True)

    def _judge(self, call: TaskCall, columns: Columns) -> Outcome:
        outputs = {key: {key: self._called(key, call, columns)} for key in call.outputs}
        return outputs, {"broken_off": self._broken_off()}

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
            response = self._tokenizer.decode(tokens[parts == RESPONSE].tolist())
            scores.append(rule(row["prompt"], response, row))
        return np.array(scores, dtype=np.float32)
