"""Batches: the sequences of an iteration go to updates, ranks and rounds of a pipeline.

Copies of a model share out sequences, whatever prompts they belong to, and pad where they do not divide: the
fullest copy gets one more than others, and all wait for it.
"""

import math
from collections.abc import Iterable

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import Algorithm, Task, parts_of_updates
from rlplan.job import Job
from rlplan.plan import Plan
from rlplan.rules.layouts import divisors
from rlplan.rules.rule import ModelContext, PlanContext, Problem, TaskContext, listed, rule
from rlplan.sheets import EngineSheet
from rlplan.workload import Workload

# Most parts in which a batch is handed on, in modes that hand responses on one by one. Each part costs this project's executor
# about ten calls, of storage actors and of workers that judge or infer, of a millisecond of CPU time each.
MOST_PARTS = 16


def handed_over_parts(plan: Plan, tasks: Iterable[Task]) -> int:
    """Return in how many parts a batch is handed over at most.

    Where it is learnt from in its order, none is finer than what goes through a task, or into an update, together.
    """
    if not plan.learns_in_order:
        return MOST_PARTS
    work = plan.job.workload
    prepares = (task for task in tasks if task.has_model and not (task.generates or task.trains))
    shares = (plan.tasks[task.name].share_rows(work.samples_per_prompt) for task in prepares)
    updates = parts_of_updates(load_algorithm(plan.job.algorithm), plan.job)
    finest = min(work.sequences, work.sequences // updates, *shares)
    return min(MOST_PARTS, -(-work.sequences // finest))


def learned_units(algorithm: Algorithm, work: Workload) -> int:
    """Return what an iteration's updates divide: prompts with all their samples, or sequences."""
    return work.prompts if algorithm.groups else work.sequences


def divides_prompts(dp: int, work: Workload) -> bool:
    """Tell whether data-parallel ranks get equally many prompts of an iteration."""
    return work.prompts % dp == 0


def divides_update(dp: int, algorithm: Algorithm, work: Workload) -> bool:
    """Tell whether data-parallel ranks get equal parts of an update, as updates of an iteration."""
    return learned_units(algorithm, work) % (work.updates * dp) == 0


def batch_sequences(work: Workload, *, trains: bool) -> int:
    """Return the sequences that copies of a model share out: of an update where it trains, else of all."""
    return -(-work.sequences // work.updates) if trains else work.sequences


def rank_sequences(dp: int, work: Workload, *, trains: bool) -> int:
    """Return the sequences of the data-parallel rank that has most of them."""
    return -(-batch_sequences(work, trains=trains) // dp)


def divides_batch(dp: int, job: Job, *, trains: bool) -> bool:
    """Tell whether data-parallel ranks get equal parts of a batch, prompts with all their samples."""
    if trains:
        return divides_update(dp, load_algorithm(job.algorithm), job.workload)
    return divides_prompts(dp, job.workload)


def shares_batch(dp: int, engine: EngineSheet, job: Job, *, trains: bool) -> bool:
    """Tell whether an engine shares a batch out to so many data-parallel ranks."""
    if engine.equal_parts and not divides_batch(dp, job, trains=trains):
        return False
    return dp <= batch_sequences(job.workload, trains=trains)


def fills_rounds(num_micro_batches: int, pp: int) -> bool:
    """Tell whether an interleaved schedule takes micro-batches by rounds of all stages.

    Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2.
    """
    return num_micro_batches % pp == 0


@rule(PlanContext)
def updates_divide_the_batch(given: PlanContext) -> Problem | None:
    """Learn equally much in every update; whether a prompt's samples stay together is their framework's matter."""
    units, updates = given.job.workload.sequences, given.job.workload.updates
    if units % updates == 0:
        return None
    words = f"does not divide the {units} sequences of an iteration"
    return Problem("job.workload.updates", words, updates, listed(divisors(units)))


@rule(TaskContext)
def every_copy_has_a_sequence(given: TaskContext) -> Problem | None:
    """Give every copy of the model something to do; replicas of an engine that get no sequence stand still."""
    task, dp = given.task, given.dp
    if dp is None or not task.has_model or task.generates:
        return None
    count = batch_sequences(given.job.workload, trains=task.trains)
    if dp <= count:
        return None
    whole = "an update" if task.trains else "an iteration"
    words = f"has more ranks than the {count} sequences of {whole}"
    return Problem("dp", words, dp, f"at most {count}")


@rule(ModelContext)
def dp_divides_the_batch(given: ModelContext) -> Problem | None:
    """Give every copy of the model equally much of the batch where its engine does not pad."""
    dp, engine = given.dp, given.engine
    if dp is None or engine is None or not engine.equal_parts:
        return None
    problem = unequal_parts(given.task, dp, given.job)
    if problem is None:
        return None
    words, allowed = problem
    return Problem("dp", f"{words}, and engine {engine.name} does not pad", dp, allowed)


def unequal_parts(task: Task, dp: int, job: Job) -> tuple[str, str] | None:
    """Return in words what data-parallel ranks cannot share equally, and the sizes that can; else None."""
    work, algorithm = job.workload, load_algorithm(job.algorithm)
    if divides_batch(dp, job, trains=task.trains):
        return None
    units, name = work.prompts, "prompts of an iteration"
    if task.trains:
        units = learned_units(algorithm, work) // work.updates
        name = f"{'prompts' if algorithm.groups else 'sequences'} of an update"
    allowed = listed(size for size in divisors(units) if size <= job.gpus)
    return f"does not divide the {units} {name}", allowed


@rule(ModelContext)
def chunks_take_whole_rounds(given: ModelContext) -> Problem | None:
    """Keep an interleaved pipeline full: it takes micro-batches by rounds of all its stages."""
    chunks, pp, dp, micro_batch = given.chunks, given.pp, given.dp, given.micro_batch
    if chunks is None or pp is None or dp is None or micro_batch is None:
        return None
    count = math.ceil(rank_sequences(dp, given.job.workload, trains=True) / micro_batch)
    if chunks == 1 or not given.task.trains or fills_rounds(count, pp):
        return None
    words = f"needs micro-batches in rounds of all {pp} stages, and a rank has {count}"
    return Problem("chunks", words, chunks, "1")
