"""Costs from measured whole passes of a model, where the profile has them.

What runs in a job was measured as it runs: the passes are counted exactly as the executor makes
them, and no operator is priced.
"""

import math

from profiles.facts import DeviceFacts, Facts
from rlplan.dataflow import Task
from rlplan.estimate import ZERO, Estimate
from rlplan.job import Job
from rlplan.model import ModelArchitecture
from rlplan.plan import TaskPlan
from rlplan.probing import ModelPass, PassName
from simulator.costs.forward import host_work
from simulator.costs.pricing import precision_of
from simulator.costs.taskcost import TaskCost, cost_of
from simulator.costs.traffic import call_seconds, data_bytes
from simulator.site import Site
from simulator.workload.sequences import (
    local_sequences,
    micro_batch_of,
    micro_batches,
    statistics_of,
)
from simulator.workload.shared_prompts import computed_batch, waiting_fraction


class MeasuredPasses:
    """Look up whole passes of one task's model in its layout."""

    def __init__(self, task: Task, layout: TaskPlan, site: Site, job: Job, facts: Facts) -> None:
        self.device: DeviceFacts = facts.device(site.device)
        self.model: ModelArchitecture = job.architecture(task.role)
        self.head, self.precision, self.tp = task.head, precision_of(job), layout.tp
        self.engine = facts.engine(layout.engine)

    def seconds(
        self, name: PassName, *, dp: int = 1, sequences: int = 1, tokens: int = 1
    ) -> Estimate | None:
        """Return seconds of one pass, or None where this model was never measured so."""
        wanted = ModelPass(
            name=name,
            model=self.model,
            head=self.head,
            precision=self.precision,
            tp=self.tp,
            dp=dp,
            sequences=sequences,
            tokens=tokens,
        )
        return self.device.model_pass(wanted)

    def seconds_at_once(self, name: PassName, dp: int, **batch: int) -> Estimate | None:
        """Return seconds of one pass on `dp` ranks at once, or of one rank's where only that is known."""
        return self.seconds(name, dp=dp, **batch) or self.seconds(name, **batch)

    def seconds_of(self, name: PassName, dp: int, sequences: float, tokens: int) -> Estimate | None:
        """Return seconds of a micro-batch that computes as many tokens as so many sequences have.

        Where samples share their prompt it is fewer than it holds, and no whole number. That leaves
        out what is done for each sample all the same: attention over the prompt's tokens, and spreading
        them to every sample for it.
        """
        low = math.floor(sequences)
        least = self.seconds_at_once(name, dp, sequences=low, tokens=tokens)
        if least is None or sequences == low:
            return least
        most = self.seconds_at_once(name, dp, sequences=low + 1, tokens=tokens)
        assert most is not None, "what was measured once is found again"
        return least * (low + 1 - sequences) + most * (sequences - low)


def is_plain(layout: TaskPlan) -> bool:
    """Tell whether measured passes speak of this layout: they know TP and DP only."""
    sharded = layout.pp * layout.cp * layout.ep > 1 or layout.zero > 0
    return not (sharded or layout.offload or layout.recompute != "none")


def measured_infer(
    task: Task, layout: TaskPlan, site: Site, job: Job, facts: Facts
) -> TaskCost | None:
    """Return what an infer task costs by measured passes, or None where they are missing."""
    passes = MeasuredPasses(task, layout, site, job, facts)
    local = local_sequences(job, layout.dp)
    forward = _passes(passes, "infer", layout, job, local)
    if forward is None:
        return None
    return cost_of(
        {
            "forward": forward,
            "uneven lengths": _uneven(passes, forward, layout, job, local),
            "call overhead": _call(passes, task, layout, job),
        }
    )


def measured_train(
    task: Task, layout: TaskPlan, site: Site, job: Job, facts: Facts
) -> TaskCost | None:
    """Return what a train task costs by measured passes, or None where they are missing.

    Rewards and advantages come first. Each update then runs its micro-batches, reduces gradients
    over the data-parallel ranks if there are several, and steps the optimizer.
    """
    passes, workload = MeasuredPasses(task, layout, site, job, facts), job.workload
    local = local_sequences(job, layout.dp, updates=workload.updates)
    work = _passes(passes, "train", layout, job, local)
    step = passes.seconds("optimizer")
    reduction = ZERO if layout.dp == 1 else passes.seconds("gradient_reduction", dp=layout.dp)
    if work is None or step is None or reduction is None:
        return None
    updates = workload.updates * workload.epochs
    return cost_of(
        {
            "experience": _experience(passes, layout, job),
            "forward and backward": work * updates,
            "uneven lengths": _uneven(passes, work, layout, job, local) * updates,
            "gradient reduction": reduction * updates,
            "optimizer": step * updates,
            "call overhead": _call(passes, task, layout, job),
        }
    )


def _passes(
    passes: MeasuredPasses, name: PassName, layout: TaskPlan, job: Job, local: int
) -> Estimate | None:
    statistics, whole = statistics_of(job.workload), ZERO
    for size, count in micro_batches(local, layout.micro_batch):
        tokens = micro_batch_of(statistics, size, passes.engine.padding).tokens // size
        computed = computed_batch(passes.engine, statistics, size).tokens
        each = passes.seconds_of(name, layout.dp, min(size, computed / tokens), tokens)
        if each is None:
            return None
        whole = whole + each * count
    return whole


def _uneven(
    passes: MeasuredPasses, work: Estimate, layout: TaskPlan, job: Job, local: int
) -> Estimate:
    return work * waiting_fraction(
        passes.engine, statistics_of(job.workload), local, layout.micro_batch, layout.dp
    )


def _experience(passes: MeasuredPasses, layout: TaskPlan, job: Job) -> Estimate:
    """Return seconds of rewards and advantages; the engine's host work where nobody measured them."""
    rows = local_sequences(job, layout.dp)
    tokens = round(statistics_of(job.workload).mean_tokens)
    measured = passes.seconds_at_once("experience", layout.dp, sequences=rows, tokens=tokens)
    return measured if measured is not None else host_work(passes.engine, 1)


def _call(passes: MeasuredPasses, task: Task, layout: TaskPlan, job: Job) -> Estimate:
    num_bytes = data_bytes(task.inputs, job.workload) // layout.dp
    return call_seconds(passes.device, passes.model, passes.precision, num_bytes)
