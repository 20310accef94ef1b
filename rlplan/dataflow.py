"""An RL algorithm as a graph of tasks tied by the data that they pass on."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from rlplan.files.frozen import FrozenDict
from rlplan.job import (
    DynamicSampling,
    Hyperparameters,
    Job,
    KlEstimator,
    KlPlace,
    LossMean,
    Role,
)
from rlplan.stages import STAGE_KINDS, Stage, StageKind
from rlplan.workload import Workload

# Global batches that an iteration samples on average where two thirds of the groups differ in reward.
USUAL_ROUNDS: Final = 1.5

Advantage = Literal[
    "gae",
    "group",
    "group-mean",
    "leave-one-out",
    "greedy-baseline",
    "whitened-returns",
    "whitened-group",
    "constrained-gae",
    "none",
]

Judge = Literal["rule", "environment"]
# Roles whose passes tell which groups are kept.
JUDGES: Final[frozenset[Role]] = frozenset({"rule", "reward", "cost"})


class Rounds(NamedTuple):
    """How often an iteration generates a batch, judges responses of one, and has others of its passes see one."""

    generated: float
    judged: float
    scored: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Describe one model function call of the dataflow.

    Attributes:
        name: `role.function`, such as `critic.compute_values`.
        kind: Name of a file in `rlplan/stages/`.
        inputs: Data keys that it waits for; those of `DATASET_KEYS` come from the data set.
        outputs: Data keys that it makes.
        head: Which output head the model has in this task.
        loss: Name of the loss in `executor/learning/losses/` (train only).
        batches: Global batches that pass through it in an iteration: 2 where a greedy baseline is
            made beside the samples, or where other sequences are mixed into an update; the expected
            number of rounds where groups are sampled again.
        without_adapter: Whether its role's adapters are off, which leaves the model as it was.
    """

    name: str
    role: Role
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    head: Literal["lm", "scalar"] = "lm"
    loss: str | None = None
    batches: float = 1.0
    without_adapter: bool = False

    @property
    def stage_kind(self) -> StageKind:
        """Return what all tasks of this kind have in common."""
        return STAGE_KINDS.load(self.kind)

    @property
    def stage(self) -> Stage:
        """Return the part of an iteration to which the task belongs."""
        return self.stage_kind.stage

    @property
    def has_model(self) -> bool:
        """Tell whether a model computes it, on GPUs; all others are host tasks."""
        return self.stage_kind.has_model

    @property
    def generates(self) -> bool:
        """Tell whether it samples sequences token by token."""
        return self.stage_kind.generates

    @property
    def trains(self) -> bool:
        """Tell whether it updates its model."""
        return self.stage_kind.has_gradients


def _pass(name: str, output: str, *, scalar: bool = False) -> Task:
    """Return a forward pass of a role's model over the sequences."""
    return Task(
        name=name,
        role=name.partition(".")[0],  # type: ignore[arg-type]
        kind="infer",
        inputs=("sequences",),
        outputs=(output,),
        head="scalar" if scalar else "lm",
    )


# Tasks that several algorithms have in common.
GENERATE = Task(
    name="actor.generate",
    role="actor",
    kind="generate",
    inputs=("prompts",),
    outputs=("sequences", "log_probs"),
)
# Where the trainer computes again what the engine said of its samples.
OLD_LOG_PROB = _pass("actor.compute_log_prob", "log_probs")
REFERENCE_LOG_PROB = _pass("reference.compute_log_prob", "reference_log_probs")
TEACHER_LOG_PROB = _pass("teacher.compute_log_prob", "teacher_log_probs")
# Its output with `top_tokens`.
TOP_LOG_PROBS: Final = "teacher_top_log_probs"
# Its output when whole distributions are compared: it stays on the GPUs that make it, so nothing is transferred.
DISTRIBUTIONS: Final = "teacher_distributions"
COMPUTE_VALUES = _pass("critic.compute_values", "values", scalar=True)
MODEL_REWARD = _pass("reward.compute_reward", "scores", scalar=True)
RULE_REWARD = replace(_pass("rule.compute_reward", "rule_scores"), kind="rule")


ACTOR_UPDATE: Final = "actor.update"


def actor_update(*inputs: str, loss: str = "ppo_policy") -> Task:
    """Return the actor's update from its sequences, rewards and these inputs between them."""
    return Task(
        name=ACTOR_UPDATE,
        role="actor",
        kind="train",
        inputs=("sequences", "log_probs", *inputs, "scores", "rule_scores"),
        loss=loss,
    )


def critic_update(*inputs: str, role: Role = "critic", loss: str = "value") -> Task:
    """Return the update of a critic from its inputs."""
    return Task(
        name=f"{role}.update", role=role, kind="train", inputs=inputs, head="scalar", loss=loss
    )


def without_critic(update: Task) -> tuple[Task, ...]:
    """Return the tasks of an algorithm of generation, rewards and the actor's update; with the reference, if it reads it."""
    compared = "reference_log_probs" in update.inputs
    reference = (REFERENCE_LOG_PROB,) if compared else ()
    return (GENERATE, *reference, MODEL_REWARD, RULE_REWARD, update)


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """Describe an algorithm: its tasks in their canonical order, and the models that it needs.

    Attributes:
        required_roles: Models that a job must name, if `roles_needed` lists them.
        optional_roles: Models that a job may name (a reward model in addition to a rule, say); tasks of absent roles are
            left out.
        groups: Whether advantages compare the samples of one prompt, so that they must stay on one
            data-parallel rank.
        advantage: Name of the advantage estimator.
        kl_in: Default place of the KL penalty towards the reference model.
        loss_mean: Default averaging of the policy's loss.
        kl_estimator: Default estimator of the KL penalty in the loss.
        clip_ratio: Default clip of the probability ratio.
        clip_ratio_high: Default clip of the probability ratio upwards; None is `clip_ratio`.
        one_sample: Whether a prompt has one sample only.
        constrained: Whether a cost is kept under the limit of the job's `constraint`.
        resamples: Whether groups of equal rewards are dropped and others sampled in their place.
        pretrains: Whether the job may mix sequences of its `pretrain` file into the actor's updates.
    """

    name: str
    title: str
    tasks: tuple[Task, ...]
    required_roles: tuple[Role, ...]
    optional_roles: tuple[Role, ...] = ("reward", "rule")
    groups: bool = False
    advantage: Advantage = "gae"
    kl_in: KlPlace = "reward"
    loss_mean: LossMean = "token"
    kl_estimator: KlEstimator = "k3"
    clip_ratio: float = 0.2
    clip_ratio_high: float | None = None
    one_sample: bool = False
    constrained: bool = False
    resamples: bool = False
    pretrains: bool = False
    paper: str = ""

    def uses_reference(self, settings: Hyperparameters) -> bool:
        """Tell whether a penalty for leaving the reference model has a place and a weight."""
        has_weight = (settings.kl_in or self.kl_in) != "none" and settings.kl_coefficient > 0
        return has_weight and "reference" in self.required_roles

    def shares_reference(self, job: Job) -> bool:
        """Tell whether the actor's frozen weights are the reference: its adapters are off."""
        adapter = job.adapter("actor")
        shares = adapter is not None and adapter.shares_reference
        return shares and self.uses_reference(job.hyperparameters)

    def roles_needed(self, job: Job) -> tuple[Role, ...]:
        """Return the models that a job with these settings must name."""
        kept = self.uses_reference(job.hyperparameters) and not self.shares_reference(job)
        return tuple(role for role in self.required_roles if kept or role != "reference")


# Estimators that compare samples of one prompt alone; others whiten over the whole batch.
LOCAL_ADVANTAGES = ("group", "leave-one-out", "greedy-baseline")


def parts_of_updates(algorithm: Algorithm, job: Job) -> int:
    """Return in how many parts an iteration's samples are learnt from, each when it is there.

    One where an update needs more of a batch than its own rows: to whiten over, in several epochs, or because a
    model that is trained infers first (a critic, old log-probabilities).
    """
    tasks = tasks_of(algorithm, job)
    trained = {task.role for task in tasks if task.trains}
    infers = any(
        task.role in trained and task.has_model and not (task.generates or task.trains)
        for task in tasks
    )
    in_parts = algorithm.advantage in LOCAL_ADVANTAGES and job.workload.epochs == 1
    return job.workload.updates if in_parts and not infers else 1


def begun_work(work: Workload, batches: float = 1.0) -> Workload:
    """Return the work of all that is begun for so many iterations, as if all of it went to its end."""
    return replace(
        work,
        prompts=math.ceil(work.prompts * work.over_provisioning * batches),
        samples_per_prompt=math.ceil(work.samples_per_prompt * work.over_sampling),
        over_provisioning=1.0,
        over_sampling=1.0,
    )


# Shares of samples that are sent to a task ahead, in modes that hand responses on one by one, so that a worker has its next
# share when it ends one.
SHARES_AHEAD = 2

# What the controller reads from files: prompts, and texts of ordinary language modelling.
DATASET_KEYS = ("prompts", "pretrain")

# Bytes of one row's entry: per token of the sequence, or per sample. Token ids are int64 with an
# int8 mask of the response; log-probabilities, values, rewards and costs are float32. A teacher's likeliest tokens have
# a float32 and an int64 each, as torch.topk gives them: the bytes are those of one of them.
BYTES_PER_TOKEN: FrozenDict[str, int] = FrozenDict(
    {
        "prompts": 8,
        "pretrain": 9,
        "sequences": 9,
        "log_probs": 4,
        "reference_log_probs": 4,
        "teacher_log_probs": 4,
        TOP_LOG_PROBS: 12,
        "values": 4,
        "cost_values": 4,
        "baseline_sequences": 9,
        "baseline_log_probs": 4,
        "baseline_reference_log_probs": 4,
    }
)
BYTES_PER_SAMPLE: FrozenDict[str, int] = FrozenDict(
    dict.fromkeys(
        (
            "scores",
            "rule_scores",
            "costs",
            "rule_costs",
            "baseline_scores",
            "baseline_rule_scores",
        ),
        4,
    )
)


def tasks_of(algorithm: Algorithm, job: Job) -> tuple[Task, ...]:
    """Return the tasks of a job: those of its models, and of its rule if it has one.

    Inputs that no task makes (scores without a reward model, say) are left out, and so is the pass of an unused reference
    model. If the trainer computes the old log-probabilities, a pass of the actor follows generation. A teacher's pass comes
    before rewards, in every algorithm, and the actor's update reads it. If episodes are played in environments and no rule
    judges them, generation brings their rewards. Generation and preparation run as often as the job is expected to resample
    groups; where groups are left out first, passes that judge nothing run once.
    """
    rewards = job.rewards
    tasks = _tasks_of(
        algorithm,
        frozenset(job.models) - unused_roles(algorithm, job),
        _judge(job),
        rewards is not None and rewards.cost_function is not None,
        job.pretrain is not None,
        _rounds(algorithm, job),
        shares_reference=algorithm.shares_reference(job),
        recomputes=job.old_log_prob == "trainer",
    )
    if job.top_tokens or job.compares_all:
        tasks = _with_teacher_output(tasks, DISTRIBUTIONS if job.compares_all else TOP_LOG_PROBS)
    return tasks if job.workload.texts is None else _beside_texts(tasks, job.workload.sampled_share)


@lru_cache(maxsize=256)
def _beside_texts(tasks: tuple[Task, ...], share: float) -> tuple[Task, ...]:
    """Return tasks that generate responses for a share of the batches only; the other batches have given texts."""
    return tuple(
        replace(task, batches=task.batches * share) if task.generates else task for task in tasks
    )


@lru_cache(maxsize=256)
def _with_teacher_output(tasks: tuple[Task, ...], what: str) -> tuple[Task, ...]:
    """Return tasks whose teacher gives log-probabilities of its likeliest tokens, or of all, instead of the sampled ones'."""
    sampled = TEACHER_LOG_PROB.outputs

    def renamed(keys: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(what if key in sampled else key for key in keys)

    return tuple(
        replace(task, inputs=renamed(task.inputs), outputs=renamed(task.outputs)) for task in tasks
    )


def _judge(job: Job) -> Judge | None:
    """Return the source of rewards besides models: a rule, or the environments."""
    if job.rewards is not None and job.rewards.calls:
        return "rule"
    return "environment" if job.environments else None


def unused_roles(algorithm: Algorithm, job: Job) -> frozenset[Role]:
    """Return the models that a job names and no task of it reads."""
    unused = not algorithm.uses_reference(job.hyperparameters) or algorithm.shares_reference(job)
    return frozenset(role for role in job.models if unused and role == "reference")


@lru_cache(maxsize=256)
def _tasks_of(
    algorithm: Algorithm,
    models: frozenset[Role],
    judge: Judge | None,
    has_cost_rule: bool,
    pretrains: bool,
    rounds: Rounds,
    *,
    shares_reference: bool,
    recomputes: bool,
) -> tuple[Task, ...]:
    has_rule = judge == "rule"
    functions = {
        "rule_scores": has_rule,
        "rule_costs": has_cost_rule,
        "baseline_rule_scores": has_rule,
    }
    roles = {*models, *(["rule"] if any(functions.values()) else [])}
    tasks = (
        replace(task, role="actor", without_adapter=True)
        if shares_reference and task.role == "reference"
        else task
        for task in _taught(_recomputing(algorithm.tasks) if recomputes else algorithm.tasks)
    )
    kept = [
        replace(task, outputs=tuple(key for key in task.outputs if functions.get(key, True)))
        for task in tasks
        if task.role in roles
    ]
    if judge == "environment":  # which says its rewards while it generates
        kept = [
            replace(task, outputs=(*task.outputs, *RULE_REWARD.outputs)) if task.generates else task
            for task in kept
        ]
    made = {"prompts", *(key for task in kept for key in task.outputs)}
    if pretrains:
        made.add("pretrain")
    return tuple(
        replace(
            task,
            inputs=tuple(key for key in task.inputs if key in made),
            batches=_batches(task, rounds, pretrains=pretrains),
        )
        for task in kept
    )


def _recomputing(tasks: tuple[Task, ...]) -> Iterator[Task]:
    """Yield the tasks of an algorithm whose trainer computes the old log-probabilities."""
    made = OLD_LOG_PROB.outputs
    for task in tasks:
        if task != GENERATE:
            yield task
            continue
        yield replace(task, outputs=tuple(key for key in task.outputs if key not in made))
        yield OLD_LOG_PROB


def _taught(tasks: Iterable[Task]) -> Iterator[Task]:
    """Yield the tasks of an algorithm with a teacher's pass behind those of the actor and its reference."""
    asked = False
    for task in tasks:
        if not asked and (task.trains or task.role not in ("actor", "reference")):
            asked = True
            yield TEACHER_LOG_PROB
        if task.name == ACTOR_UPDATE:
            yield replace(task, inputs=(*task.inputs, *TEACHER_LOG_PROB.outputs))
        else:
            yield task


def _rounds(algorithm: Algorithm, job: Job) -> Rounds:
    sampled, sampling = expected_rounds(algorithm, job), job.dynamic_sampling
    first = sampling is not None and bool(sampling.filters_first)
    return Rounds(sampled / rounds_together(job), sampled, 1.0 if first else sampled)


def rounds_of(sampling: DynamicSampling) -> float:
    """Return the rounds that forecasts count with, before those of a framework that generates whole batches are known."""
    return USUAL_ROUNDS if sampling.expected_rounds is None else sampling.expected_rounds


def rounds_together(job: Job) -> float:
    """Return how many batches are generated at a time of those that an iteration samples its prompts from."""
    sampling = job.dynamic_sampling
    return rounds_of(sampling) if sampling is not None and sampling.together else 1.0


def begun_of(job: Job, batches: float = 1.0) -> Workload:
    """Return the work of all that a job begins for so many iterations, as if all of it went to its end."""
    return begun_work(job.workload, batches * rounds_together(job))


def expected_rounds(algorithm: Algorithm, job: Job) -> float:
    """Return how often an iteration is expected to sample its prompts: at least as many as a call generates."""
    usual = DynamicSampling() if algorithm.resamples else None
    sampling = job.dynamic_sampling or usual
    if sampling is None:
        return 1.0
    return max(rounds_of(sampling), 1.0 if sampling.together else sampling.batches_at_once)


def rounds_in_batches(prompts: int, batch: int, most: int | None) -> float:
    """Return the global batches that an iteration usually samples where whole batches are generated until enough groups differ.

    Args:
        prompts: That an iteration learns from.
        batch: Prompts of a batch that is generated.
        most: Batches of an iteration; None sets no limit.
    """
    batches = math.ceil(USUAL_ROUNDS * prompts / batch)
    if most is not None:
        batches = min(batches, most)
    return max(1.0, batches * batch / prompts)


def expected_calls(algorithm: Algorithm, job: Job) -> float:
    """Return how often an iteration is expected to ask for a batch of generation, which may have several of the global ones."""
    sampling = job.dynamic_sampling
    if sampling is None or not sampling.together:
        at_once = 1.0 if sampling is None else sampling.batches_at_once
        return max(1.0, expected_rounds(algorithm, job) / at_once)
    return 1.0


def in_calls(task: Task, job: Job) -> tuple[Task, Job]:
    """Return a task that generates whole batches, with the job's prompts those that are generated at once.

    As it stands where that is a global batch, or all that rounds sample (`begun_of`).
    """
    sampling = job.dynamic_sampling
    if sampling is None or sampling.together or sampling.batches_at_once == 1 or not task.generates:
        return task, job
    at_once, work = sampling.batches_at_once, job.workload
    calls = max(1.0, task.batches / at_once)
    rounds = replace(sampling, expected_rounds=calls, batches_at_once=1.0)
    work = replace(work, prompts=max(1, round(work.prompts * at_once)))
    return replace(task, batches=calls), replace(job, workload=work, dynamic_sampling=rounds)


def most_called_work(job: Job) -> Workload:
    """Return the work of a call for whole batches of generation, or of a global batch where that has more prompts."""
    sampling, work = job.dynamic_sampling, job.workload
    if sampling is None or sampling.together or sampling.batches_at_once <= 1:
        return work
    return replace(work, prompts=round(work.prompts * sampling.batches_at_once))


def _batches(task: Task, rounds: Rounds, *, pretrains: bool) -> float:
    """Return how many global batches pass through a task of a job in an iteration."""
    if task.generates:
        return task.batches * rounds.generated
    if not task.trains:
        return task.batches * (rounds.judged if task.role in JUDGES else rounds.scored)
    if "pretrain" in task.inputs and pretrains:
        return task.batches + 1
    return task.batches


def parents_of(task: Task, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """Return the tasks whose outputs a task waits for, in the dataflow's order."""
    return tuple(other for other in tasks if set(other.outputs) & set(task.inputs))
