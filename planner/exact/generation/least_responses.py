"""The work that bounds are of where more responses are begun than are learnt from: those that end last are dropped.

Which end last depends on every layout. But whichever units are done (the responses of a prompt where they are
compared, else single ones), their k-th shortest responses are no shorter than as many k-th shortest ones of all the
units that are begun, sorted and counted from the shortest. These, for all k that are needed of a unit, are responses
that no choice undercuts. Where a batch is so large that its first replicas stand for all, each number of replicas has
first ones of its own: then each response is the shortest of its rank among all of these.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rlplan.dataflow import begun_work
from rlplan.job import Job
from rlplan.workload.lengths import Empirical
from rlplan.workload.work import Workload
from simulator.generation.over_provisioning import PLAYED_SEQUENCES, kept_of
from simulator.generation.shares import ORDER_SEED, evenly_spread, first_replicas_rows
from simulator.placed.columns import Floats

# Orders of a batch's responses: that of whole batches first. Streamed batches come in an order after another,
# and chance decides which responses share a prompt.
ORDERS = 8


def priced_job(job: Job) -> Job:
    """Return the job whose work no choice of what is learnt from undercuts; itself where nothing is dropped."""
    work = job.workload
    if not work.drops_responses:
        return job
    lengths = Empirical(values=tuple(least_responses(job).astype(int).tolist()))
    work = replace(work, response_tokens=lengths, over_provisioning=1.0, over_sampling=1.0)
    return replace(job, workload=work)


def least_responses(job: Job) -> Floats:
    """Return the tokens of responses that no choice undercuts, in order. Shape (sequences of the batch,)."""
    kept, wanted = kept_of(job), job.workload.sequences
    least = np.full(wanted, np.inf)
    for responses in _orders(job):
        units = responses[: len(responses) // kept.unit * kept.unit].reshape(-1, kept.unit)
        by_rank = np.sort(np.sort(units, axis=1)[:, : kept.needed], axis=0)
        shortest = np.sort(by_rank[: kept.done(len(units))], axis=None)
        least = np.minimum(least, shortest[np.arange(wanted) * len(shortest) // wanted])
    return least


def _orders(job: Job) -> Iterator[Floats]:
    """Yield the responses of begun batches, in tokens, those of a prompt after one another."""
    whole = begun_work(job.workload)
    for seed in range(ORDER_SEED, ORDER_SEED + ORDERS):
        _, responses = evenly_spread(whole, np.random.default_rng(seed))
        yield responses
        if seed > ORDER_SEED or whole.sequences <= PLAYED_SEQUENCES:
            continue
        most = min(job.gpus, whole.sequences)
        for count in sorted({_standing_for_all(whole, each) for each in range(1, most + 1)}):
            yield responses[:count]


def _standing_for_all(whole: Workload, replicas: int) -> int:
    """Return how many responses the first replicas have that stand for all of so many."""
    samples = whole.samples_per_prompt
    rows = first_replicas_rows(whole.sequences, replicas, samples, PLAYED_SEQUENCES)
    return sum(map(len, rows))
