"""A worker of a host pool: rewards and costs by Python functions, on a CPU core, without torch."""

from pathlib import Path
from typing import Any

import numpy as np

from executor.data.batches import RESPONSE, Array, Columns, sequences_for
from executor.data.tokenizer import load_tokenizer
from executor.data.workload import prompt_stream
from executor.learning.rules import Rule, load_rule
from executor.workers.calls import Outcome, StoreCall, TaskCall, run_task
from executor.workers.process_state import peak_bytes, read_random_states, write_random_states
from executor.workers.protocols import DP_PROTO, ONE_TO_ALL, registered
from rlplan.job import Job


class RuleWorker:
    """Run a job's reward and cost functions."""

    @registered(ONE_TO_ALL)
    def prepare(self, request: tuple[Job, list[dict[str, Any]], str]) -> None:
        """Load the rules, the tokenizer and the prompts' rows (job, rows, folder of relative paths)."""
        self._job, rows, folder = request
        rewards = self._job.rewards
        assert rewards is not None
        self._rules: dict[str, Rule] = {}
        for key, spec in {
            "rule_scores": rewards.function,
            "rule_costs": rewards.cost_function,
        }.items():
            if spec is not None:
                self._rules[key] = load_rule(spec, Path(folder))
        self._tokenizer = load_tokenizer(self._job.tokenizer, Path(folder))
        self._stream = prompt_stream(self._job, rows)

    @registered(DP_PROTO)
    def rule(self, call: TaskCall, *pieces: Columns) -> Any:
        """Judge the responses of this worker's rows."""
        return run_task(call, pieces, lambda columns: self._judge(call, columns), leads=True)

    def _judge(self, call: TaskCall, columns: Columns) -> Outcome:
        return {key: {key: self._called(key, call, columns)} for key in call.task.outputs}, {}

    def _called(self, key: str, call: TaskCall, columns: Columns) -> Array:
        """Return the rule's number for each response. Shape (rows,)."""
        rule = self._rules[key.removeprefix("baseline_")]
        prompts = self._stream.batch(call.iteration)
        numbers = [row for start, stop in call.rows for row in range(start, stop)]
        samples = self._job.workload.samples_per_prompt
        scores = []
        for number, tokens, parts in zip(numbers, *sequences_for(key, columns), strict=True):
            row = prompts[number // samples]
            response = self._tokenizer.decode(tokens[parts == RESPONSE].tolist())
            scores.append(rule(row["prompt"], response, row))
        return np.array(scores, dtype=np.float32)

    @registered(ONE_TO_ALL)
    def peak(self, _: None) -> int:
        """Return the largest resident bytes of this process."""
        return peak_bytes("cpu")

    @registered(ONE_TO_ALL)
    def save_checkpoint(self, call: StoreCall) -> None:
        """Write this process's random states: rules may use random numbers."""
        write_random_states(call.random_file)

    @registered(ONE_TO_ALL)
    def load_checkpoint(self, call: StoreCall) -> bool:
        """Take over the random states of this rank, if there are any; nothing generates here."""
        if call.random_file.exists():
            read_random_states(call.random_file)
        return False
