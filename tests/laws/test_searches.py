"""Laws of searches over random jobs: what narrows one finds nothing better, what widens it nothing worse."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlplan.errors import UserError
from rlplan.files.decoding import decode
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, Specs
from rlplan.plan import TaskDraft
from rlplan.planner.answers.best_plans import best_plans
from rlplan.planner.configs.proposing.searching import plans_of, target_of
from rlplan.planner.configs.proposing.ways import framework_of
from rlplan.planner.objectives import limited_objectives, load_objective, objective_names
from rlplan.planner.requests.pinned import NOTHING_PINNED, Pinned
from rlplan.planner.requests.schedules import AskedSchedules
from rlplan.profiles.catalog import resolve_job
from rlplan.profiles.facts import load_facts

ROUNDING = 1e-9
# Jobs of each law, by default and with `--full`.
FEW, MANY = 3, 75

FRAMEWORKS = ("rlplan", "verl-fsdp", "verl-megatron", "nemo-rl-dtensor", "openrlhf", "skyrl-fsdp")
MODES = ((), ("sync", "one-step-off"), ("sync", "streaming"))

few = settings(
    max_examples=MANY if settings().max_examples >= MANY else FEW,
    suppress_health_check=list(HealthCheck),
)


@st.composite
def jobs(draw):
    """Draw a resolved job of one of several frameworks on a few GPUs, by one of the objectives."""
    algorithm = draw(st.sampled_from(["grpo", "grpo", "ppo"]))
    model = draw(st.sampled_from(["qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b"]))
    roles = ("actor", "reference", "critic") if algorithm == "ppo" else ("actor", "reference")
    longest = draw(st.sampled_from([512, 2048, 12288]))
    document = {
        "algorithm": algorithm,
        "framework": draw(st.sampled_from(FRAMEWORKS)),
        "models": dict.fromkeys(roles, model),
        "workload": {
            "prompts": draw(st.sampled_from([16, 32, 96])),
            "samples_per_prompt": draw(st.sampled_from([2, 4])) if algorithm == "grpo" else 1,
            "prompt_tokens": draw(st.sampled_from([128, 512])),
            "response_tokens": draw(
                st.sampled_from(
                    [longest, {"distribution": "logged", "mean": longest // 3, "max": longest}]
                )
            ),
            "updates": draw(st.sampled_from([1, 2])),
        },
        "cluster": [
            {
                "gpu": draw(st.sampled_from(["h100-80gb-sxm", "a100-80gb-sxm", "l40s"])),
                "gpus_per_node": draw(st.sampled_from([1, 2, 4])),
                "nodes": draw(st.sampled_from([1, 2])),
            }
        ],
        "rewards": {"function": "exact_match"},
        "objective": draw(st.sampled_from(objective_names())),
    }
    return resolve_job(decode(Job, document, "job"), Path())


modes = st.sampled_from(MODES)


class Found:
    """Hold what a search found: the best value, infinite where there is no plan, and what none can beat."""

    def __init__(self, job, find):
        try:
            self.result = find(job)
        except UserError:
            self.result, self.value, self.bound = None, math.inf, math.inf
            return
        self.best = self.result.plans[0]
        self.value = load_objective(job.objective).figure(self.best.forecast)
        self.bound = self.value * (1 - self.result.gap)


def plain(job, asked=(), pinned=NOTHING_PINNED, **options):
    """Search whatever the cost model knows, whether a framework runs it or not."""
    pinned = replace(pinned, asked=AskedSchedules(modes=asked))
    facts = load_facts(job)
    return Found(job, partial(best_plans, facts=facts, pinned=pinned, **options))


def for_framework(job, asked=(), pinned=NOTHING_PINNED, **options):
    """Search what a job's framework can run."""
    pinned = replace(pinned, asked=AskedSchedules(modes=asked))
    return Found(job, partial(plans_of, facts_of=load_facts, pinned=pinned, **options))


def is_no_better(narrow, wide):
    """Hold what was found in a part of a space to what none of the whole space can beat."""
    assert narrow.value >= wide.bound * (1 - ROUNDING)


@few
@given(jobs(), modes, st.sampled_from([plain, for_framework]), st.data())
def test_a_limit_improves_nothing(job, asked, find, data):
    wide = find(job, asked)
    if wide.result is None:
        return
    spec, name = data.draw(st.sampled_from(sorted(limited_objectives().items())))
    figure = load_objective(name).figure(wide.best.forecast)
    share = data.draw(st.sampled_from([0.9, 0.999, 1.0, 1.1]))
    specs = data.draw(
        st.sampled_from([Specs(**{spec: share * figure}), Specs(gpus=job.gpus // 2 or 1)])
    )
    is_no_better(find(replace(job, specs=specs), asked), wide)


PINS = (
    {"actor.update": TaskDraft(tp=2)},
    {"actor.update": TaskDraft(micro_batch=1)},
    {"actor.update": TaskDraft(token_budget=16384), "reference.compute_log_prob": TaskDraft(tp=1)},
    {"actor.generate": TaskDraft(tp=1)},
    {"actor.update": TaskDraft(offload=True)},
    {"actor.compute_log_prob": TaskDraft(offload=True)},
    {"reference.compute_log_prob": TaskDraft(offload=True)},
    {"actor.update": TaskDraft(recompute="full", cp=2)},
)


@few
@given(jobs(), st.sampled_from(PINS))
def test_a_pin_of_what_is_searched_improves_nothing(job, drafts):
    wide = plain(job)
    if wide.result is None:
        return
    first = wide.best.plan.tasks["actor.update"]
    of_space = drafts.get("actor.update", TaskDraft())
    if of_space.token_budget is not None and first.token_budget is None:
        return  # neither engine nor framework packs
    is_no_better(plain(job, pinned=Pinned(tasks=FrozenDict(drafts))), wide)


@pytest.mark.full
@few
@given(jobs(), modes)
def test_a_framework_runs_nothing_better_than_what_is_found_beyond_it(job, asked):
    if target_of(job) is not None:
        is_no_better(for_framework(job, asked), plain(job, asked))


@pytest.mark.full
@few
@given(jobs(), modes, st.sampled_from([plain, for_framework]))
def test_more_nodes_and_more_modes_worsen_nothing(job, asked, find):
    narrow = find(job, ("sync",))
    group = job.cluster[0]
    larger = replace(job, cluster=(replace(group, nodes=group.nodes + 1),))
    assert find(larger, asked or ("sync",)).bound <= narrow.value * (1 + ROUNDING)
    assert find(job, asked or ("sync",)).bound <= narrow.value * (1 + ROUNDING)


@pytest.mark.full
@few
@given(jobs(), st.sampled_from([1, 3, 5]), st.sampled_from([None, 20_032, 24_000]))
def test_the_plan_as_it_stands_is_one_of_the_candidates(job, micro_batch, token_budget):
    found = for_framework(job)
    if found.result is None:
        return
    plan = found.best.plan
    update = replace(
        plan.tasks["actor.update"], micro_batch=micro_batch, token_budget=token_budget, chunks=1
    )
    stands = replace(plan, tasks=plan.tasks.with_item("actor.update", update))
    again = for_framework(job, as_it_stands=stands)
    assert again.value <= found.value * (1 + ROUNDING)
    own = again.result.plans[0].plan
    if own == stands:
        assert again.bound <= again.value


def test_a_version_of_a_framework_is_searched_as_the_framework():
    job = decode(
        Job,
        {
            "algorithm": "grpo",
            "framework": "verl-fsdp-0.6",
            "models": {"actor": "qwen2.5-0.5b", "reference": "qwen2.5-0.5b"},
            "workload": {"prompts": 8, "prompt_tokens": 64, "response_tokens": 64},
            "cluster": [{"gpu": "h100-80gb-sxm", "gpus_per_node": 1}],
        },
        "job",
    )
    assert (framework_of(job), target_of(job)) == ("verl-fsdp", "verl")
