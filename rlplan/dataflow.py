"""An RL algorithm as a graph of tasks tied by the data that they pass on."""

from dataclasses import dataclass, replace
from typing import Literal

from rlplan.frozen import FrozenDict
from rlplan.job import Job, Role

Kind = Literal["generate", "infer", "train", "rule"]
Stage = Literal["generation", "preparation", "training"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Describe one model function call of the dataflow.

    Attributes:
        name: `role.function`, such as `critic.compute_values`.
        inputs: Data keys that it waits for; `prompts` comes from the data set.
        outputs: Data keys that it makes.
        head: Which output head the model has in this task.
        loss: Name of the loss in `executor/losses/` (train only).
    """

    name: str
    role: Role
    kind: Kind
    stage: Stage
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    head: Literal["lm", "scalar"] = "lm"
    loss: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """Describe an algorithm: its tasks in their canonical order, and who it needs.

    Attributes:
        required_roles: Models that a job must name.
        optional_roles: Models that a job may name (a reward model beside a rule, say); tasks of
            roles that are absent are left out.
        groups: Whether advantages compare the samples of one prompt, so that they must stay on one
            data-parallel rank.
        advantage: Name of the advantage estimator.
    """

    name: str
    title: str
    tasks: tuple[Task, ...]
    required_roles: tuple[Role, ...]
    optional_roles: tuple[Role, ...] = ()
    groups: bool = False
    advantage: Literal["gae", "group"] = "gae"
    paper: str = ""


# Bytes of one row's entry: per token of the sequence, or per sample. Token ids are int64 with an
# int8 mask of the response; log-probabilities, values and rewards are float32.
BYTES_PER_TOKEN: FrozenDict[str, int] = FrozenDict(
    {"prompts": 8, "sequences": 9, "log_probs": 4, "reference_log_probs": 4, "values": 4}
)
BYTES_PER_SAMPLE: FrozenDict[str, int] = FrozenDict({"scores": 4, "rule_scores": 4})


def tasks_of(algorithm: Algorithm, job: Job) -> tuple[Task, ...]:
    """Return the tasks that a job has: those of its models, and the rule's if it has one.

    Inputs that nobody makes (scores without a reward model, say) are left out.
    """
    has_rule = job.rewards is not None and job.rewards.function is not None
    roles = {*job.models, *(["rule"] if has_rule else [])}
    kept = [task for task in algorithm.tasks if task.role in roles]
    made = {"prompts", *(key for task in kept for key in task.outputs)}
    return tuple(
        replace(task, inputs=tuple(key for key in task.inputs if key in made)) for task in kept
    )


def parents_of(task: Task, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """Return the tasks whose outputs a task waits for, in the dataflow's order."""
    return tuple(other for other in tasks if set(other.outputs) & set(task.inputs))
