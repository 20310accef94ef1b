"""Batches: the sequences of an iteration divide over updates, ranks and rounds of a pipeline."""

import math

from rlplan.dataflow import Algorithm, Task
from rlplan.job import Job, Workload
from rlplan.rules.layouts import divisors
from rlplan.rules.rule import Problem, listed, rule


def learned_units(algorithm: Algorithm, work: Workload) -> int:
    """Return what an iteration's updates divide: prompts with all their samples, or sequences."""
    return work.prompts if algorithm.groups else work.sequences


def divides_prompts(dp: int, work: Workload) -> bool:
    """Tell whether data-parallel ranks get equally many prompts of an iteration."""
    return work.prompts % dp == 0


def divides_update(dp: int, algorithm: Algorithm, work: Workload) -> bool:
    """Tell whether data-parallel ranks get equal parts of an update, as updates of an iteration."""
    return learned_units(algorithm, work) % (work.updates * dp) == 0


def fills_rounds(num_micro_batches: int, pp: int) -> bool:
    """Tell whether an interleaved schedule takes micro-batches by rounds of all stages.

    Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2.
    """
    return num_micro_batches % pp == 0


@rule("plan")
def updates_divide_the_batch(job: Job, algorithm: Algorithm) -> Problem | None:
    """Learn equally much in every update; the samples of a prompt that are compared stay together."""
    units, updates = learned_units(algorithm, job.workload), job.workload.updates
    if units % updates == 0:
        return None
    name = "prompts" if algorithm.groups else "sequences"
    words = f"does not divide the {units} {name} of an iteration"
    return Problem("job.workload.updates", words, updates, listed(divisors(units)))


@rule("task")
def dp_divides_the_batch(task: Task, dp: int, job: Job, algorithm: Algorithm) -> Problem | None:
    """Give every copy of the model equally much of the batch, so that none waits for another."""
    work = job.workload
    if not task.trains:
        units, name = work.prompts, "prompts of an iteration"
        divides = divides_prompts(dp, work)
    else:
        units = learned_units(algorithm, work) // work.updates
        name = f"{'prompts' if algorithm.groups else 'sequences'} of an update"
        divides = divides_update(dp, algorithm, work)
    if divides:
        return None
    allowed = listed(size for size in divisors(units) if size <= job.gpus)
    return Problem("dp", f"does not divide the {units} {name}", dp, allowed)


@rule("task")
def chunks_take_whole_rounds(
    task: Task, chunks: int, pp: int, dp: int, micro_batch: int, job: Job
) -> Problem | None:
    """Keep an interleaved pipeline full: it takes micro-batches by rounds of all its stages."""
    work = job.workload
    count = math.ceil(work.sequences // (work.updates * dp) / micro_batch)
    if chunks == 1 or not task.trains or fills_rounds(count, pp):
        return None
    words = f"needs micro-batches in rounds of all {pp} stages, and a rank has {count}"
    return Problem("chunks", words, chunks, "1")


RULES = (updates_divide_the_batch, dp_divides_the_batch, chunks_take_whole_rounds)
