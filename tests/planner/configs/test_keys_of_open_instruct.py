"""No flag of open-instruct's is swallowed: changing it changes job or plan, or what becomes of it is said."""

import ast
from pathlib import Path

import pytest

from rlplan.errors import UserError
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.reading.given import GivenValue
from rlplan.planner.configs.reading.settings import Settings, keys_of
from rlplan.planner.configs.reading.sheet import load_config_sheet
from tests.cases import first
from tests.planner.configs.fates import imports_of, mapped_keys, outcome, usual_values

CATALOGUE = Path(__file__).parent / "data" / "keys_of_open_instruct.txt"
OPTIONS = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={"HOME": "~"}
)
SHEET = load_config_sheet("open-instruct")
WORK = (
    "--model_name_or_path Qwen/Qwen2.5-7B --num_unique_prompts_rollout 32 --num_samples_per_prompt_rollout 16 "
    "--max_prompt_token_length 2048 --response_length 4096 --pack_length 8192 --num_learners_per_node 8 "
    "--vllm_num_engines 4 --vllm_tensor_parallel_size 2"
)
FAST = f"python open_instruct/grpo_fast.py {WORK} --deepspeed_stage 3"
BASES = {
    name: words.split()
    for name, words in {
        "learners": FAST,
        "without a reference": f"{FAST} --load_ref_policy false --beta 0",
        "groups again": f"{FAST} --load_ref_policy false --beta 0 --active_sampling true",
        "OLMo-core": f"python open_instruct/grpo.py {WORK}",
        "one GPU": (
            "python open_instruct/grpo_fast.py --model_name_or_path Qwen/Qwen2.5-0.5B --single_gpu_mode true "
            "--max_prompt_token_length 512 --response_length 512 --pack_length 1024"
        ),
        "an adapter": f"{FAST} --use_peft true",
        "tools": f"{FAST} --tools python --max_steps 5",
        "updates": f"{FAST} --num_mini_batches 2",
        "launched": f"python mason.py --gpus 8 --num_nodes 2 -- {FAST}",
    }.items()
}


def catalogue():
    """Return open-instruct's flags and their defaults."""
    lines = CATALOGUE.read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return {key: ast.literal_eval(default) if default else None for key, default in rows}


KEYS = catalogue()
MAPPED = [key for key in mapped_keys(SHEET) if key in KEYS]
# What only rules ask for, or what reads validation.
ONLY_IN_RULES = {
    "apply_r1_style_format_reward", "apply_verifiable_reward", "non_stop_penalty", "use_rho_correction",
    "filter_zero_std_samples", "local_eval_every",
}  # fmt: skip


@pytest.fixture(scope="module")
def before():
    """Return the job and plan of each base as it is."""
    return imports_of("open-instruct", BASES, OPTIONS)


def fate(key, values, before):
    """Return what becomes of a flag: the first outcome that shows it."""
    seen = "swallowed"
    for name, words in BASES.items():
        for value in values:
            try:
                found = imported("open-instruct", [*words, f"--{key}", str(value)], OPTIONS)
            except UserError as error:
                seen = "refused" if key in str(error) else seen
                continue
            told = outcome(found, key, before[name])
            if told in {"acts", "reported"}:
                return told
    return seen


@pytest.mark.parametrize("key", first(4, sorted(MAPPED)))
def test_no_flag_is_swallowed(key, before):
    values = [*usual_values(SHEET, key, KEYS[key]), "null"]
    if key not in ONLY_IN_RULES:
        assert fate(key, values, before) != "swallowed"


def test_every_flag_is_known():
    flat = {key: GivenValue(value="word", where="there") for key in KEYS}
    assert keys_of(Settings(SHEET, flat, "file")).unknown == ()


def test_defaults_are_those_of_its_classes():
    differing = {
        each.keys[0]
        for each in SHEET.every_setting()
        if each.keys
        and each.default is not None
        and not each.values
        and KEYS.get(each.keys[0]) not in {None, each.default}
    }
    assert differing == set()


def test_a_flag_that_nobody_knows_is_not_understood():
    found = imported("open-instruct", [*BASES["learners"], "--nonsense", "7"], OPTIONS)
    assert found.keys.unknown == ("nonsense",)
