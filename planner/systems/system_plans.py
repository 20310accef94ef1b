"""What systems of the field offer: pools, the layouts that their tasks may choose from, batch sizes."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Task, tasks_of
from rlplan.job import Job, NodeGroup
from rlplan.models.model import ModelArchitecture
from rlplan.parts import num_parameters
from rlplan.plan import ResourcePool, TaskPlan
from rlplan.planner.placements.partitions import placed_roles
from rlplan.rules.batches import divides_prompts, divides_update
from rlplan.rules.layouts import fits_model
from rlplan.transfers import TransitionName

# What scripts of the field give batches for: Llama-2-7B's parameters and hidden size.
SCRIPTED_PARAMETERS, SCRIPTED_WIDTH = 6.74e9, 4096

Choices = Mapping[str, Sequence[TaskPlan]]


@dataclass(frozen=True, slots=True)
class SystemOption:
    """Hold one arrangement that a system can run, its tasks' settings still open.

    Attributes:
        choices: By task name, the layouts to choose from, the one that needs least memory first.
    """

    pools: tuple[ResourcePool, ...]
    choices: Choices
    transition: TransitionName


def job_tasks(job: Job) -> tuple[Task, ...]:
    """Return the tasks of a job that need GPUs, in the dataflow's order."""
    known = tasks_of(load_algorithm(job.algorithm), job)
    return tuple(task for task in known if task.has_model)


def largest_group(job: Job) -> NodeGroup:
    """Return the equal nodes with the most GPUs: systems of the field run on one kind."""
    return max(job.cluster, key=lambda group: group.gpus)


def powers_up_to(most: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to `most`."""
    return tuple(1 << power for power in range(max(1, most).bit_length()) if 1 << power <= most)


def local_batch(job: Job, task: Task, dp: int) -> int:
    """Return the sequences of one data-parallel rank in one pass; 0 if they do not divide."""
    work = job.workload
    if task.kind != "train":
        return work.sequences // dp if divides_prompts(dp, work) else 0
    divides = divides_update(dp, load_algorithm(job.algorithm), work)
    return work.sequences // work.updates // dp if divides else 0


def micro_batches(job: Job, task: Task, layout: TaskPlan, most: int) -> tuple[TaskPlan, ...]:
    """Return a layout with each micro-batch of a power of two that divides a rank's batch."""
    local = local_batch(job, task, layout.dp)
    sizes = [size for size in powers_up_to(min(most, local)) if local % size == 0] if local else []
    return tuple(replace(layout, micro_batch=size) for size in sizes)


def batch_by_weights(of_7b: int, job: Job, task: Task) -> int:
    """Return the sequences of a batch whose room shrinks as weights grow, given those for 7B.

    Twice the parameters, half the sequences, as in benchmark/deepspeed-chat of OpenRLHF's repository:
    generation batches of 8 for 7B and 2 for 13B.
    """
    return _nearest_power(of_7b * SCRIPTED_PARAMETERS / num_parameters(_model(job, task)), of_7b)


def batch_by_width(of_7b: int, job: Job, task: Task) -> int:
    """Return the sequences of a micro-batch whose activations take as much as those given for 7B.

    Activations of a token grow with the hidden size (Korthikanti et al. 2022, arXiv:2205.05198,
    table 2).
    """
    return _nearest_power(of_7b * SCRIPTED_WIDTH / _model(job, task).hidden_size, of_7b)


def _model(job: Job, task: Task) -> ModelArchitecture:
    return job.architecture(task.role)


def _nearest_power(size: float, most: int) -> int:
    return min(most, 1 << max(0, round(math.log2(size))))


def transition_on_one_pool(train: TaskPlan, generate: TaskPlan) -> TransitionName:
    """Return how verl brings weights to generation: inside micro-data-parallel groups, if at all."""
    same = (train.tp, train.pp) == (generate.tp, generate.pp)
    return "none" if same else "hybridflow"


def one_pool(job: Job) -> tuple[ResourcePool, ...]:
    """Return a pool of all GPUs of the largest group, shared by all roles."""
    group = largest_group(job)
    return (ResourcePool(name="all", device=group.gpu, gpus=group.gpus, roles=placed_roles(job)),)


def choices_of(
    job: Job, layouts_of: Callable[[Task], Iterable[TaskPlan]]
) -> dict[str, tuple[TaskPlan, ...]]:
    """Return the layouts of every task by its name."""
    return {task.name: tuple(layouts_of(task)) for task in job_tasks(job)}


def splits(job: Job, task: Task, gpus: int, *, most_pp: int) -> Iterator[tuple[int, int, int]]:
    """Yield (TP, PP, DP) that divide a model's heads and layers, TP inside a node."""
    model = job.architecture(task.role)
    for tp in powers_up_to(min(gpus, largest_group(job).gpus_per_node)):
        for pp in powers_up_to(min(most_pp, gpus // tp)):
            if gpus % (tp * pp) == 0 and fits_model(tp, pp, model):
                yield tp, pp, gpus // (tp * pp)
