"""The names that the metrics of a plan's run may have, known before it begins."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task
from rlplan.executor.control.evaluations import evaluation_names
from rlplan.executor.control.stopping import LEARNT_TOKENS
from rlplan.executor.control.summary import MEANS_OF_SUMS, VERL_NAMES
from rlplan.executor.learning.experience import effective_settings
from rlplan.executor.learning.losses import load_loss
from rlplan.executor.learning.multiplier import initial_state
from rlplan.job import Job
from rlplan.plan import Plan

# What an iteration has where something happened in it: groups were sampled again, weights went over, calls of
# reward functions were broken off.
NOT_IN_EVERY_ITERATION = (
    "rounds",
    "broken_off_rewards",
    "transition_received_bytes",
    "transition_redundant_bytes",
    "transition_buffer_bytes",
    "stage_seconds/transition",
    "task_seconds/transition",
    "timing_s/update_weights",
)
_OF_EVERY_RUN = (
    "seconds",
    "kl",
    "teacher_kl",
    LEARNT_TOKENS,
    "response_tokens",
    "response_tokens_std",
    "longest_response",
    "tokens_per_second",
    "staleness_mean",
    "staleness_max",
    "dropped_samples",
    "turns",
    "environment_seconds",
    "timing_s/step",
)


def possible_metrics(plan: Plan, tasks: tuple[Task, ...]) -> frozenset[str]:
    """Return the names that metrics of a plan's iterations may have (`rlplan.executor.control.summary`).

    Not every run has all of them: some hang on settings, or on what happens.
    """
    algorithm = load_algorithm(plan.job.algorithm)
    names = {*_OF_EVERY_RUN, *NOT_IN_EVERY_ITERATION, *MEANS_OF_SUMS.values()}
    names |= set(evaluation_names(plan.job.evaluation))
    names |= initial_state(algorithm, plan.job).keys()
    for task in tasks:
        names |= {f"task_seconds/{task.name}", f"stage_seconds/{task.stage}"}
        names.add(f"timing_s/{VERL_NAMES[task.name]}")
        if task.loss is not None:
            names |= {f"{task.role}_gradient_norm", f"{task.role}_learning_rate"}
            names |= _loss_metrics(task.loss, plan.job)
    return frozenset(names)


def _loss_metrics(loss: str, job: Job) -> set[str]:
    """Return the names of a loss's metrics, which one token tells."""
    settings = effective_settings(load_algorithm(job.algorithm), job.hyperparameters)
    token = _OneToken()
    with torch.no_grad():
        _, metrics = load_loss(loss)(token, token, settings, torch.ones(()))
    return set(metrics)


class _OneToken(Mapping[str, Tensor]):
    """Have whatever column a loss looks for: one token of a response, all numbers one. Shape (1, 1)."""

    def __getitem__(self, name: str) -> Tensor:
        return torch.ones(1, 1)

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
