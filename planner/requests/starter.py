"""A first job for a model and a cluster, to be edited by its user."""

from pathlib import Path

from profiles.catalog import load_device, resolve_job
from rlplan.algorithms import load_algorithm
from rlplan.errors import PlanError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Hyperparameters, Job, NodeGroup, Rewards
from rlplan.workload.work import Workload

# A model of some hundred thousand weights learns at rates at which a large one falls apart.
SMALL_MODEL = Hyperparameters(learning_rate=1e-3, critic_learning_rate=2e-3)

# For the user to correct: what a short rule takes where no profile has measured it.
RULE_SECONDS = 1e-4


def starter_job(algorithm: str, model: str, gpu: str, gpus: int, folder: Path) -> Job:
    """Return a job that resolves: `model` in every role, on `gpus` devices of one kind.

    On CPU devices the job is small enough to run in a minute; elsewhere it has the size of the
    usual published runs.

    Raises:
        UserError: The model or device is unknown.
    """
    sheet = load_device(gpu)
    chosen = load_algorithm(algorithm)
    roles = (*chosen.required_roles, *(("cost",) if chosen.constrained else ()))
    small = sheet.kind == "cpu"
    group = chosen.groups
    job = Job(
        name=f"{algorithm}-{Path(model).name.removesuffix('.json')}",
        algorithm=algorithm,
        models=FrozenDict(dict.fromkeys(roles, model)),
        workload=Workload(
            prompts=(16 if group else 64) if small else (256 if group else 1024),
            samples_per_prompt=4 if group else 1,
            prompt_tokens=16 if small else 1024,
            response_tokens=16 if small else 1024,
            updates=2 if small else 4,
        ),
        cluster=(_nodes(gpu, gpus, sheet.gpus_per_node),),
        rewards=Rewards(function="digits", function_seconds_per_sample=RULE_SECONDS),
        hyperparameters=SMALL_MODEL if small else Hyperparameters(),
    )
    resolve_job(job, folder)
    return job


def _nodes(gpu: str, gpus: int, usual_gpus_per_node: int) -> NodeGroup:
    """Return the fewest equal nodes that hold `gpus` devices.

    Raises:
        PlanError: The devices do not fill whole nodes.
    """
    if gpus <= usual_gpus_per_node:
        return NodeGroup(gpu=gpu, gpus_per_node=gpus)
    if gpus % usual_gpus_per_node:
        raise PlanError(
            f"{gpus} x {gpu} do not fill nodes of {usual_gpus_per_node}; allowed: multiples of "
            f"{usual_gpus_per_node}, or fewer than that"
        )
    nodes = gpus // usual_gpus_per_node
    return NodeGroup(gpu=gpu, gpus_per_node=usual_gpus_per_node, nodes=nodes)
