"""ReMax: REINFORCE with the greedy response's reward as the baseline, no critic (Li et al. 2024).

The actor generates twice, samples and greedy responses; reference and reward work on both.
"""

from dataclasses import replace

from rlplan.dataflow import (
    GENERATE,
    MODEL_REWARD,
    REFERENCE_LOG_PROB,
    RULE_REWARD,
    Algorithm,
    Task,
    actor_update,
)


def _on_both(task: Task, *made: str) -> Task:
    """Return a task that works on the greedy responses too."""
    inputs = tuple(key for key in task.inputs if key != "prompts")
    return replace(
        task,
        inputs=(*task.inputs, *(f"baseline_{key}" for key in inputs)),
        outputs=(*task.outputs, *made),
        batches=2.0,
    )


ALGORITHM = Algorithm(
    name="remax",
    title="ReMax",
    paper="Li et al. 2024, ReMax, arXiv:2310.10505",
    required_roles=("actor", "reference"),
    advantage="greedy-baseline",
    one_sample=True,
    tasks=(
        _on_both(GENERATE, "baseline_sequences", "baseline_log_probs"),
        _on_both(REFERENCE_LOG_PROB, "baseline_reference_log_probs"),
        _on_both(MODEL_REWARD, "baseline_scores"),
        _on_both(RULE_REWARD, "baseline_rule_scores"),
        actor_update(
            "reference_log_probs",
            "baseline_sequences",
            "baseline_log_probs",
            "baseline_reference_log_probs",
            "baseline_scores",
            "baseline_rule_scores",
        ),
    ),
)
