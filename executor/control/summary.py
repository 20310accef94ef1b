"""An iteration's metrics, as `metrics.jsonl`, TensorBoard and the line on the terminal show them, and their names beforehand."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task
from rlplan.executor.control.controller import MeasuredIteration
from rlplan.executor.control.evaluations import evaluation_names
from rlplan.executor.control.stopping import LEARNT_TOKENS
from rlplan.executor.learning.experience import effective_settings
from rlplan.executor.learning.losses import load_loss
from rlplan.executor.learning.multiplier import MULTIPLIER, initial_state
from rlplan.job import Job
from rlplan.plan import Plan

# Share of responses that got the same reward as all others of their prompt, where they are compared with these.
EQUAL_REWARDS = "equal_rewards"

# Sums over the rows of an iteration, by the name that their mean has.
MEANS_OF_SUMS = {
    "reward_sum": "mean_reward",
    "scores_sum": "model_score",
    "rule_scores_sum": "rule_reward",
    "cost_sum": "mean_cost",
    "costs_sum": "model_cost",
    "rule_costs_sum": "rule_cost",
    "baseline_rewards_sum": "baseline_reward",
    "equal_rewards_sum": EQUAL_REWARDS,
}

# What verl calls the time of a task (its `timing_s/...`); several tasks under one name add up.
VERL_NAMES = {
    "actor.generate": "gen",
    "actor.compute_log_prob": "old_log_prob",
    "reference.compute_log_prob": "ref",
    "teacher.compute_log_prob": "teacher",
    "critic.compute_values": "values",
    "cost_critic.compute_values": "cost_values",
    "reward.compute_reward": "reward",
    "rule.compute_reward": "reward",
    "cost.compute_cost": "cost",
    "actor.update": "update_actor",
    "critic.update": "update_critic",
    "cost_critic.update": "update_cost_critic",
    "transition": "update_weights",
}

# Replicas that generate where they come and go, at an iteration's end, and those that were lost in it.
REPLICAS, LOST_REPLICAS = "replicas", "lost_replicas"

# Updates of a model that were left out, for their gradients were not finite: behind its role.
SKIPPED_UPDATES = "_skipped_updates"

# What an iteration has where something happened in it: groups were sampled again, weights went over, calls of
# reward functions were broken off.
NOT_IN_EVERY_ITERATION = (
    "rounds",
    REPLICAS,
    LOST_REPLICAS,
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


def iteration_metrics(
    plan: Plan, tasks: tuple[Task, ...], record: MeasuredIteration
) -> dict[str, float]:
    """Return the numbers of one iteration by name.

    `mean_reward`, `rule_reward`, `model_score`, `mean_cost` are means over the responses that were
    trained on, and `equal_rewards` is the share of those whose prompt has one reward for all its samples; `kl` is the mean of log(policy / reference) over their tokens, `teacher_kl` of log(policy / teacher);
    `response_tokens` is
    the mean length of those that were generated, `response_tokens_std` their standard deviation and
    `longest_response` the longest; `learnt_tokens` are the tokens of the responses that were trained on;
    `tokens_per_second` counts prompt and response tokens; `transition_received_bytes` are those of the rank that received most when weights went to
    the generate layout, `transition_redundant_bytes` those that it then held twice, and
    `transition_buffer_bytes` the most that was under way to it at a time; `rounds` says how often
    prompts were sampled; `replicas` are those that generate at its end where they come and go, and `lost_replicas` those
    whose processes ended in it; `turns` are the mean ones of an episode and `environment_seconds` how long the rank
    that waited longest waited for environments; `broken_off_rewards` are calls of reward functions that went
    beyond their limits; `staleness_mean` and `staleness_max` how many updates the
    weights lacked that began the samples; `dropped_samples` were begun and not learnt from, where more is begun; `stage_seconds/...` reach from
    the first start to the last end of a
    stage's tasks; `task_seconds/...` are the spans, and `timing_s/...` the same under verl's names; `actor_learning_rate` is that
    of its last update, and `actor_skipped_updates` are those that its gradient was not finite for. Losses bear the names that their files give them.
    """
    generated, update = record.metrics["actor.generate"], record.metrics["actor.update"]
    sequences = plan.job.workload.sequences
    # Responses that go on one by one are counted when they are learnt from.
    rounds = (
        1 if plan.flow.by_sample else sum(span.name == "actor.generate" for span in record.spans)
    )
    metrics = {"seconds": record.span.seconds}
    for name, mean_name in MEANS_OF_SUMS.items():
        if name in update:
            metrics[mean_name] = update[name] / sequences
    metrics |= _divergences(update, generated["response_tokens"] / rounds)
    if "response_tokens_sum" in update:
        metrics[LEARNT_TOKENS] = update["response_tokens_sum"]
    metrics |= _response_lengths(generated, sequences * rounds)
    metrics["tokens_per_second"] = generated["tokens"] / record.span.seconds
    metrics |= _outside_models(record, sequences * rounds)
    metrics |= _of_the_queue(plan, record)
    metrics |= {name: generated[name] for name in (REPLICAS, LOST_REPLICAS) if name in generated}
    if rounds > 1:
        metrics["rounds"] = float(rounds)
    for name in ("received", "redundant", "buffer"):
        moved = record.metrics.get("transition", {}).get(f"{name}_bytes_max")
        if moved is not None:
            metrics[f"transition_{name}_bytes"] = moved
    metrics |= record.state
    for task in tasks:
        if task.trains:
            metrics |= _losses(task, record.metrics[task.name])
    seconds = _span_seconds(record)
    metrics |= _stage_seconds(tasks, record)
    metrics |= {f"task_seconds/{name}": each for name, each in seconds.items()}
    return metrics | _verl_seconds(seconds, record)


def _divergences(update: Mapping[str, float], tokens: float) -> dict[str, float]:
    """Return the mean KL divergence of a token from the reference and from the teacher, where there are such."""
    names = [name for name in ("kl", "teacher_kl") if f"{name}_sum" in update]
    return {name: update[f"{name}_sum"] / max(1.0, tokens) for name in names}


def _of_the_queue(plan: Plan, record: MeasuredIteration) -> dict[str, float]:
    """Return how old samples were, and how many got too old."""
    found = {}
    if record.ages:
        found["staleness_mean"] = sum(record.ages) / len(record.ages)
        found["staleness_max"] = float(max(record.ages))
    if plan.job.workload.drops_responses:
        found["dropped_samples"] = float(record.dropped)
    return found


def _response_lengths(generated: Mapping[str, float], sequences: int) -> dict[str, float]:
    """Return the mean length of responses and, where generation notes it, how they are spread."""
    mean = generated["response_tokens"] / sequences
    if "longest_response_max" not in generated:
        return {"response_tokens": mean}
    square = generated["response_tokens_squared"] / sequences
    return {
        "response_tokens": mean,
        "response_tokens_std": max(0.0, square - mean**2) ** 0.5,
        "longest_response": generated["longest_response_max"],
    }


def _outside_models(record: MeasuredIteration, sequences: int) -> dict[str, float]:
    """Return what environments and limits of reward functions did."""
    generated, metrics = record.metrics["actor.generate"], dict[str, float]()
    if "turns" in generated:
        metrics["turns"] = generated["turns"] / sequences
        metrics["environment_seconds"] = generated["environment_seconds_max"]
    broken_off = record.metrics.get("rule.compute_reward", {}).get("broken_off", 0.0)
    return metrics | ({"broken_off_rewards": broken_off} if broken_off else {})


def progress_line(iteration: int, metrics: Mapping[str, float]) -> str:
    """Return an iteration in one line: reward, KL, lengths, tokens per second, seconds by stage."""
    parts = [f"reward {metrics['mean_reward']:.4g}"]
    if "mean_cost" in metrics:
        parts.append(f"cost {metrics['mean_cost']:.4g}")
    if MULTIPLIER in metrics:
        parts.append(f"multiplier {metrics[MULTIPLIER]:.3g}")
    if "kl" in metrics:
        parts.append(f"KL {metrics['kl']:.3g}")
    if "teacher_kl" in metrics:
        parts.append(f"KL to the teacher {metrics['teacher_kl']:.3g}")
    parts += [
        f"{value:.0f} update{'' if value == 1 else 's'} of {name.removesuffix(SKIPPED_UPDATES)} skipped"
        for name, value in metrics.items()
        if value and name.endswith(SKIPPED_UPDATES)
    ]
    if metrics.get(EQUAL_REWARDS):
        parts.append(f"{metrics[EQUAL_REWARDS]:.0%} in groups of equal rewards")
    parts.append(f"{metrics['response_tokens']:.1f} tokens a response")
    if REPLICAS in metrics:
        count = round(metrics[REPLICAS])
        parts.append("1 replica" if count == 1 else f"{count} replicas")
    if "rounds" in metrics:
        parts.append(f"{metrics['rounds']:.0f} rounds")
    parts.append(f"{metrics['tokens_per_second']:,.0f} tokens/s")
    stages = ", ".join(
        f"{name.removeprefix('stage_seconds/')} {seconds:.2f}"
        for name, seconds in metrics.items()
        if name.startswith("stage_seconds/")
    )
    return f"iteration {iteration}: {', '.join(parts)}, {metrics['seconds']:.2f} s ({stages})"


def skipped_updates_of(role: str) -> str:
    """Return the metric's name that counts a model's updates that were left out, for their gradients were not finite."""
    return role + SKIPPED_UPDATES


def _losses(task: Task, metrics: Mapping[str, float]) -> dict[str, float]:
    named = {
        "skipped_updates_max": skipped_updates_of(task.role),
        "gradient_norm_mean": f"{task.role}_gradient_norm",
        "learning_rate_max": f"{task.role}_learning_rate",
    }
    return {
        named.get(name, name): value for name, value in metrics.items() if not name.endswith("_sum")
    }


def _stage_seconds(tasks: tuple[Task, ...], record: MeasuredIteration) -> dict[str, float]:
    stages = {task.name: task.stage for task in tasks}
    bounds: dict[str, tuple[float, float]] = {}
    for span in record.spans:
        stage = stages.get(span.name, span.activity)
        start, end = bounds.get(stage, (span.start_seconds, span.end_seconds))
        bounds[stage] = (min(start, span.start_seconds), max(end, span.end_seconds))
    return {f"stage_seconds/{stage}": end - start for stage, (start, end) in bounds.items()}


def _span_seconds(record: MeasuredIteration) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for span in record.spans:
        seconds[span.name] = seconds.get(span.name, 0.0) + span.seconds
    return seconds


def _verl_seconds(seconds: Mapping[str, float], record: MeasuredIteration) -> dict[str, float]:
    found = {"timing_s/step": record.span.seconds}
    for name, each in seconds.items():
        verl = f"timing_s/{VERL_NAMES[name]}"
        found[verl] = found.get(verl, 0.0) + each
    return found


# Names that the metrics of a plan's run may have, known before it begins.


def possible_metrics(plan: Plan, tasks: tuple[Task, ...]) -> frozenset[str]:
    """Return the names that metrics of a plan's iterations may have.

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
            names.add(skipped_updates_of(task.role))
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
