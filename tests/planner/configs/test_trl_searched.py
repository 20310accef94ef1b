"""TRL's jobs searched: what is proposed is what its scripts run, and its adapters elsewhere."""

from dataclasses import replace

import pytest

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Hyperparameters
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import imported
from rlplan.planner.configs.proposing.searching import plans_of
from rlplan.planner.configs.writing.exporting import exported
from rlplan.planner.requests.pinned import NOTHING_PINNED
from rlplan.profiles.facts import load_facts
from tests.cases import first
from tests.planner.configs.test_trl import GRPO, OPTIONS, VLLM


@pytest.mark.parametrize(
    ("words", "framework"),
    first(
        2,
        [
            (f"{GRPO} --num_generations 8", "trl-transformers"),  # DDP, without vLLM
            (f"{VLLM} --dtype bfloat16", "trl"),  # DDP, which keeps no fp32 beside such weights
            (
                GRPO.replace(" -m ", " --use_deepspeed --zero_stage 3 -m "),
                "trl-transformers-sharded",
            ),
        ],
    ),
)
def test_what_a_search_proposes_is_what_scripts_of_trl_run(words, framework):
    found = imported("trl", words.split(), OPTIONS)
    assert found.resolved.framework == framework
    result = plans_of(found.resolved, load_facts)
    assert result.plans
    for each in result.plans:
        assert exported(each.plan, "trl").text


SERVED = f"{VLLM} --vllm_mode server --bf16 --max_prompt_length 512"


@pytest.mark.parametrize(("version", "sleeps"), [("0.18", False), ("1.16", True)])
def test_engines_beside_a_training_sleep_only_in_versions_that_have_a_key_for_it(version, sleeps):
    options = replace(OPTIONS, version=version)
    found = imported("trl", SERVED.split(), options)
    assert found.resolved.engines.sleeps  # on GPUs of their own they need not
    pinned = replace(NOTHING_PINNED, framework_version=found.settings.sheet.version)
    shared = [
        each.plan
        for each in plans_of(found.resolved, load_facts, pinned=pinned).plans
        if len({layout.pool for layout in each.plan.tasks.values()} - {"host"}) == 1
    ]
    assert shared
    assert {each.job.engines.sleeps for each in shared} == {sleeps}
    for each in shared:
        assert exported(each, "trl", runs_on=version).text


def test_a_plan_that_a_version_has_no_key_for_is_refused_by_what_it_lacks():
    found = imported(
        "trl", f"{VLLM} --vllm_mode colocate --vllm_enable_sleep_mode true".split(), OPTIONS
    )
    plan = plans_of(found.resolved, load_facts).plans[0].plan
    assert plan.job.engines.sleeps
    with pytest.raises(FileError, match=r"TRL 0\.18, which lacks a key for it"):
        exported(plan, "trl", runs_on="0.18")


def test_adapters_of_another_framework_are_searched_as_easyr1_keeps_them():
    found = imported(
        "trl", f"{VLLM} --vllm_mode colocate --use_peft true --lora_r 16".split(), OPTIONS
    )
    plan = plans_of(found.resolved, load_facts, target="easyr1").plans[0].plan
    kept = plan.job.trainer("actor")
    assert (kept.weights, kept.adapters_apart) == ("bf16", True)
    assert exported(plan, "easyr1").text


@pytest.mark.parametrize("target", first(1, ["areal", "skyrl"]))
def test_a_reference_beside_an_adapter_is_a_model_of_its_own_where_a_framework_has_it_so(target):
    """In TRL it is the frozen weights; a search for the other adds a model, and one for TRL leaves it out again."""
    words = f"{VLLM} --vllm_mode colocate --use_peft true --lora_r 16 --beta 0.04"
    job = imported("trl", words.split(), OPTIONS).resolved
    assert job.adapter("actor").shares_reference
    few = (replace(job.cluster[0], gpus_per_node=2, nodes=1),)
    job = replace(job, cluster=few, hyperparameters=Hyperparameters())
    plan = plans_of(job, load_facts, target=target, seconds=0.0).plans[0].plan
    assert "reference" in plan.placement
    assert exported(plan, target).text
    theirs = replace(plan.job, hyperparameters=Hyperparameters(), trainers=None)
    back = plans_of(theirs, load_facts, target="trl", seconds=0.0).plans[0].plan
    assert "reference" not in back.placement


def test_of_a_version_that_generates_each_micro_batch_by_itself_they_hold_whole_groups():
    """Up to 0.16 num_generations divides a micro-batch of all processes, since then what a step generates together."""
    words = (
        "accelerate launch --num_processes 7 --use_deepspeed --zero_stage 2 -m trl.scripts.grpo --use_vllm --bf16 "
        "--model_name_or_path Qwen/Qwen2.5-1.5B-Instruct --num_generations 8 --per_device_train_batch_size 8 "
        "--max_prompt_length 512"
    )
    found = imported("trl", words.split(), replace(OPTIONS, version="0.16"))
    plan = complete(found.draft, found.resolved, load_facts(found.resolved))
    assert exported(plan, "trl", runs_on="0.16").text
    tasks = {
        name: layout if layout.micro_batch is None else replace(layout, micro_batch=4)
        for name, layout in plan.tasks.items()
    }
    halved = replace(plan, tasks=FrozenDict(tasks))
    with pytest.raises(
        FileError, match=r"num_generations: TRL 0\.16 would stop: does not divide the 28 "
    ):
        exported(halved, "trl", runs_on="0.16")
    assert exported(halved, "trl", runs_on="0.18").text
