"""Models that the executor does not build are refused by name before anything starts."""

from dataclasses import replace
from typing import get_args

import pytest

from rlplan.errors import CapabilityError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.plan import Recompute
from rlplan.profiles.catalog import load_model
from tests.cases import first
from tests.executor.plans import TINY, make_job, make_plan
from tests.hybrids import HYBRIDS

OF_OTHER_FAMILIES = (
    "deepseek-v3",
    "gpt-oss-20b",
    "gemma-2-2b",
    "nemotron-h-8b",
    "qwen3.5-27b",
    "phi-4",
)

POOLS = {"p0": (1, ("actor", "reference"))}


def refusal(model):
    """Return what is said of a plan whose models are this one, and which capability it lacks."""
    job = make_job("grpo", model=replace(model, max_positions=64))
    with pytest.raises(CapabilityError) as caught:
        check_runnable(make_plan(job, POOLS))
    return str(caught.value), caught.value.capability


@pytest.mark.parametrize("name", first(3, OF_OTHER_FAMILIES))
def test_families_that_it_cannot_build_are_refused_by_their_name(name):
    model = load_model(name)
    words, capability = refusal(model)
    assert f"models.actor.family is {model.family}: this executor cannot" in words
    assert capability == "models of this family"
    assert "\n" not in words


@pytest.mark.parametrize("kind", first(2, HYBRIDS))
def test_layers_of_unlike_kinds_are_refused_in_a_family_that_it_builds(kind):
    words, capability = refusal(replace(HYBRIDS[kind], num_experts=0, experts_per_token=0))
    assert "models.actor.layer_kinds is given: this executor cannot" in words
    assert capability == "layers of other parts than the family's own"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"window": 32}, "models.actor.window is 32"),
        ({"qkv_bias": True}, "models.actor.qkv_bias is true"),
        ({"qk_norm": True}, "models.actor.qk_norm is true"),
        ({"vision_parameters": 9}, "models.actor.vision_parameters is 9"),
    ],
)
def test_parts_that_a_family_does_not_have_are_refused(change, words):
    assert words in refusal(replace(TINY, **change))[0]


@pytest.mark.parametrize("recompute", get_args(Recompute))
def test_what_it_computes_again_is_run(recompute):
    assert check_runnable(make_plan(make_job("grpo"), POOLS, recompute=recompute))
