"""The memory that searches leave free: an engine that fills its share of a GPU leaves the rest, to the byte."""

from pathlib import Path

from planner.requests.specs import usable_fraction
from planner.search import search
from profiles.catalog import resolve_job
from profiles.facts import load_facts
from rlplan.files.decoding import decode
from rlplan.job import Job
from rlplan.specs import Specs

JOB = resolve_job(decode(
    Job,
    {
        "algorithm": "grpo",
        "models": {"actor": "qwen2.5-1.5b"},
        "workload": {
            "prompts": 256, "samples_per_prompt": 16, "prompt_tokens": 1024, "response_tokens": 8192,
        },
        "cluster": [{"gpu": "h100-80gb-sxm", "gpus_per_node": 1}],
        "hyperparameters": {"kl_in": "none"},
        "rewards": {"function": "exact_match"},
    },
    "job",
), Path())  # fmt: skip


def test_an_engine_may_fill_its_usual_share_where_just_the_rest_is_to_stay_free():
    facts = load_facts(JOB)
    found = {}
    for headroom in (0.1, 0.0999):  # the engine's share is 0.9
        best = search(JOB, facts, specs=Specs(memory_headroom_fraction=headroom)).plans[0]
        found[headroom] = best.plan
        assert best.forecast.memory[0].terms.get("KV cache", 0) > 0
        assert 1 - best.forecast.free_fraction <= usable_fraction(Specs()) - headroom + 1e-9
    assert found[0.1] == found[0.0999]
