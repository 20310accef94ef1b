"""Models that engines serve: reward models that write judgements, and teachers that tell how likely a text is.

Their tasks stand in the dataflow where passes do, in the same sizes; what they compute is a generation by an engine. A judge
answers each response, which stands behind its prompt and the judge's instructions, with a text of its own. A teacher has
each prompt and response for its prompt, writes one token, and tells the log-probabilities of the prompt's tokens (vLLM's
`prompt_logprobs`; verl, workers/config/distillation.py, sets its engine's lengths so).
"""

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from rlplan.job import JudgeModel, Teacher
from rlplan.simulator.placed import PlacedTask
from rlplan.simulator.workload import evenly
from rlplan.workload import Empirical, Workload

# Prompts of judges and teachers are this many sums of a prompt and a response, in an order that no layout changes.
SUMS, ORDER_SEED = 512, 0
# What a teacher writes: engines answer no prompt with nothing.
TEACHER_TOKENS = 1


def judging(placed: PlacedTask) -> PlacedTask | None:
    """Return what the task of a judge or of a served teacher generates; None where it is a pass, or another model's."""
    job, task = placed.job, placed.task
    if task.kind != "infer" or task.role not in job.served_roles:
        return None
    said = job.judge if task.role == "reward" else job.teacher
    assert said is not None, "an engine serves it"
    engine = job.serving_engine(task.role)
    assert engine is not None, "job was not resolved: no engine that generates"
    usual = placed.facts.engine(engine).memory_fraction
    layout = replace(
        placed.layout,
        engine=engine,
        max_running=said.max_running,
        memory_fraction=usual if said.memory_fraction is None else said.memory_fraction,
    )
    work = placed.workload
    served = replace(
        job,
        workload=taught_workload(work, said.imbalance)
        if isinstance(said, Teacher)
        else judged_workload(work, said),
        speculation=None,
        rollout_precision=None,
        kv_cache=None,
        kv_offload=None,
        prefill=None,
    )
    generate = replace(task, kind="generate", head="lm", batches=1.0)
    return PlacedTask(generate, layout, placed.site, served, placed.facts)


@lru_cache(maxsize=256)
def judged_workload(work: Workload, said: JudgeModel) -> Workload:
    """Return the work of judging an iteration's responses, each as a prompt of its own."""
    return Workload(
        prompts=work.sequences,
        samples_per_prompt=said.samples,
        prompt_tokens=_texts(work, said.instruction_tokens),
        response_tokens=said.response_tokens,
    )


@lru_cache(maxsize=256)
def taught_workload(work: Workload, imbalance: float = 1.0) -> Workload:
    """Return the work of telling how likely an iteration's responses are, each as a prompt of its own.

    Args:
        imbalance: Responses of the replica that has most over the mean of all: as if all had as many.
    """
    prompts = math.ceil(work.sequences * imbalance)
    return Workload(
        prompts=prompts,
        prompt_tokens=_texts(work),
        response_tokens=TEACHER_TOKENS,
        images=work.images,
        sounds=work.sounds,
    )


def _texts(work: Workload, beside: int = 0) -> Empirical:
    """Return the lengths of prompts with their responses, in tokens.

    Args:
        beside: Tokens that each has beside them and what environments say.
    """
    count = min(SUMS, work.sequences)
    order = np.random.default_rng(ORDER_SEED)
    sums = evenly(work.prompt_tokens, count) + order.permutation(
        evenly(work.response_tokens, count)
    )
    beside += round(work.mean_observations_tokens)
    return Empirical(values=tuple((sums + beside).astype(int).tolist()))
