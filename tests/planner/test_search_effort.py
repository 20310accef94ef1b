"""What a search of a mixture of experts does, in calls and in generations played.

Its seconds, and those of larger clusters, are measured by `benchmarks/search.py`.
"""

from dataclasses import replace
from pathlib import Path

from rlplan.planner.search import search
from rlplan.profiles.catalog import load_job
from rlplan.profiles.facts import load_facts
from tests.effort import calls_of

JOB = Path(__file__).resolve().parents[2] / "benchmarks/searches/qwen3-30b-a3b-512xh20.yaml"


def test_the_best_layout_of_a_mixture_with_a_long_tail_is_proven_by_few_plays():
    job = load_job(JOB)
    workload = replace(job.workload, prompts=64)
    job = replace(job, workload=workload, cluster=(replace(job.cluster[0], nodes=1),))
    facts, found = load_facts(job), []
    calls = calls_of(lambda: found.append(search(job, facts)))
    assert found[0].gap == 0
    assert found[0].considered["generations played"] < 15
    # A third of them for engines whose experts several tensor-parallel groups share out.
    assert calls < 2_100_000
