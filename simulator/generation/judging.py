"""Reward models that generate: the task of a judge, which answers each response with a text of its own.

It stands in the dataflow where a reward model's pass does, in the same sizes; what it computes is a generation of its own
lengths by an engine. Its prompts are the prompt and the response that it judges, and its instructions.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from rlplan.job import JudgeModel
from rlplan.simulator.placed import PlacedTask
from rlplan.simulator.workload import evenly
from rlplan.workload import Empirical, Workload

# Prompts of judges are this many sums of a prompt and a response, in an order that no layout changes.
SUMS, ORDER_SEED = 512, 0


def judging(placed: PlacedTask) -> PlacedTask | None:
    """Return what a reward model's task generates; None where it is a pass, or no reward model's."""
    said = placed.job.judge
    if said is None or placed.task.role != "reward" or placed.task.kind != "infer":
        return None
    engine = said.engine or placed.job.engines.generate
    assert engine is not None, "job was not resolved: no engine that generates"
    usual = placed.facts.engine(engine).memory_fraction
    layout = replace(
        placed.layout,
        engine=engine,
        max_running=said.max_running,
        memory_fraction=usual if said.memory_fraction is None else said.memory_fraction,
    )
    job = replace(
        placed.job,
        workload=judged_workload(placed.workload, said),
        speculation=None,
        rollout_precision=None,
        kv_cache=None,
    )
    task = replace(placed.task, kind="generate", head="lm", batches=1.0)
    return PlacedTask(task, layout, placed.site, job, placed.facts)


@lru_cache(maxsize=256)
def judged_workload(work: Workload, said: JudgeModel) -> Workload:
    """Return the work of judging an iteration's responses, each as a prompt of its own."""
    count = min(SUMS, work.sequences)
    order = np.random.default_rng(ORDER_SEED)
    sums = evenly(work.prompt_tokens, count) + order.permutation(
        evenly(work.response_tokens, count)
    )
    beside = said.instruction_tokens + round(work.mean_observations_tokens)
    return Workload(
        prompts=work.sequences,
        samples_per_prompt=said.samples,
        prompt_tokens=Empirical(values=tuple((sums + beside).astype(int).tolist())),
        response_tokens=said.response_tokens,
    )
