"""TRL's jobs searched: what is proposed is what its scripts run, and its adapters elsewhere."""

import pytest

from rlplan.planner.configs.importing import imported
from rlplan.planner.configs.searching import plans_of
from rlplan.planner.configs.writing.exporting import exported
from rlplan.profiles.facts import load_facts
from tests.planner.configs.test_trl import GRPO, OPTIONS, VLLM


@pytest.mark.parametrize(
    ("words", "framework"),
    [
        (f"{GRPO} --num_generations 8", "trl-transformers"),  # DDP, without vLLM
        (GRPO.replace(" -m ", " --use_deepspeed --zero_stage 3 -m "), "trl-transformers-sharded"),
        (f"{VLLM} --dtype bfloat16", "trl"),  # DDP, which keeps no fp32 beside such weights
    ],
)
def test_what_a_search_proposes_is_what_scripts_of_trl_run(words, framework):
    found = imported("trl", words.split(), OPTIONS)
    assert found.resolved.framework == framework
    result = plans_of(found.resolved, load_facts)
    assert result.plans
    for each in result.plans:
        assert exported(each.plan, "trl").text


def test_adapters_of_another_framework_are_searched_as_easyr1_keeps_them():
    found = imported(
        "trl", f"{VLLM} --vllm_mode colocate --use_peft true --lora_r 16".split(), OPTIONS
    )
    plan = plans_of(found.resolved, load_facts, target="easyr1").plans[0].plan
    kept = plan.job.trainer("actor")
    assert (kept.weights, kept.adapters_apart) == ("bf16", True)
    assert exported(plan, "easyr1").text
