"""An iteration's metrics, as `metrics.jsonl` and TensorBoard show them."""

from collections.abc import Mapping

from executor.controller import Finished
from rlplan.dataflow import Task
from rlplan.plan import Plan

# Sums over the rows of an iteration, by the name that their mean has.
MEANS_OF_SUMS = {
    "reward_sum": "mean_reward",
    "scores_sum": "model_score",
    "rule_scores_sum": "rule_reward",
}


def iteration_metrics(plan: Plan, tasks: tuple[Task, ...], record: Finished) -> dict[str, float]:
    """Return the numbers of one iteration by name.

    `mean_reward`, `rule_reward`, `model_score` are means over the responses; `kl` is the mean of
    log(policy / reference) over response tokens; `tokens_per_second` counts prompt and response
    tokens; `stage_seconds/...` reach from the first start to the last end of a stage's tasks;
    `task_seconds/...` are the spans. Losses bear the names that their files give them.
    """
    sequences = plan.job.workload.sequences
    generated = record.metrics["actor.generate"]
    update = record.metrics["actor.update"]
    metrics = {"seconds": record.span.seconds}
    for name, mean_name in MEANS_OF_SUMS.items():
        if name in update:
            metrics[mean_name] = update[name] / sequences
    if "kl_sum" in update:
        metrics["kl"] = update["kl_sum"] / max(1.0, generated["response_tokens"])
    metrics["response_tokens"] = generated["response_tokens"] / sequences
    metrics["tokens_per_second"] = generated["tokens"] / record.span.seconds
    for task in tasks:
        if task.kind == "train":
            metrics |= _losses(task, record.metrics[task.name])
    return metrics | _stage_seconds(tasks, record) | _span_seconds(record)


def _losses(task: Task, metrics: Mapping[str, float]) -> dict[str, float]:
    named = {"gradient_norm_mean": f"{task.role}_gradient_norm"}
    return {
        named.get(name, name): value for name, value in metrics.items() if not name.endswith("_sum")
    }


def _stage_seconds(tasks: tuple[Task, ...], record: Finished) -> dict[str, float]:
    stages = {task.name: task.stage for task in tasks}
    bounds: dict[str, tuple[float, float]] = {}
    for span in record.spans:
        stage = stages.get(span.name, span.activity)
        start, end = bounds.get(stage, (span.start_seconds, span.end_seconds))
        bounds[stage] = (min(start, span.start_seconds), max(end, span.end_seconds))
    return {f"stage_seconds/{stage}": end - start for stage, (start, end) in bounds.items()}


def _span_seconds(record: Finished) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for span in record.spans:
        name = f"task_seconds/{span.name}"
        seconds[name] = seconds.get(name, 0.0) + span.seconds
    return seconds
