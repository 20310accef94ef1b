"""A worker of a host pool: rewards by a Python function, on a CPU core, without torch."""

from pathlib import Path
from typing import Any

import numpy as np

from executor.batches import RESPONSE, Columns
from executor.calls import Outcome, TaskCall, run_task
from executor.footprint import peak_bytes
from executor.protocols import DP_PROTO, ONE_TO_ALL, registered
from executor.rules import load_rule
from executor.tokenizer import load_tokenizer
from executor.workload import prompt_stream
from rlplan.job import Job


class RuleWorker:
    """Run a job's reward function."""

    @registered(ONE_TO_ALL)
    def prepare(self, request: tuple[Job, list[dict[str, Any]], str]) -> None:
        """Load the rule, the tokenizer and the prompts' rows (job, rows, folder of relative paths)."""
        self._job, rows, folder = request
        assert self._job.rewards is not None
        assert self._job.rewards.function is not None
        self._rule = load_rule(self._job.rewards.function, Path(folder))
        self._tokenizer = load_tokenizer(self._job.tokenizer, Path(folder))
        self._stream = prompt_stream(self._job, rows)

    @registered(DP_PROTO)
    def rule(self, call: TaskCall) -> Any:
        """Reward the responses of this worker's rows."""
        return run_task(call, lambda columns: self._rewards(call, columns), leads=True)

    def _rewards(self, call: TaskCall, columns: Columns) -> Outcome:
        prompts = self._stream.batch(call.iteration)
        numbers = [row for start, stop in call.rows for row in range(start, stop)]
        samples = self._job.workload.samples_per_prompt
        rewards = []
        for number, tokens, parts in zip(numbers, columns["tokens"], columns["parts"], strict=True):
            row = prompts[number // samples]
            response = self._tokenizer.decode(tokens[parts == RESPONSE].tolist())
            rewards.append(self._rule(row["prompt"], response, row))
        return {"rule_scores": {"rule_scores": np.array(rewards, dtype=np.float32)}}, {}

    @registered(ONE_TO_ALL)
    def peak(self, _: None) -> int:
        """Return the largest resident bytes of this process."""
        return peak_bytes("cpu")
