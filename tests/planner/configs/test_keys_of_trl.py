"""No key of TRL's is swallowed: changing it changes job or plan, or what becomes of it is said."""

from pathlib import Path

import pytest

from rlplan.errors import UserError
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.reading.given import GivenValue
from rlplan.planner.configs.reading.settings import Settings, keys_of
from rlplan.planner.configs.reading.sheet import load_config_sheet
from tests.planner.configs.fates import first_fate, outcome

CATALOGUE = Path(__file__).parent / "data" / "keys_of_trl.txt"
OPTIONS = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={"HOME": "~"}
)
SHEET = load_config_sheet("trl")
LAUNCH = "accelerate launch --num_machines 1"
WORK = (
    "-m trl.scripts.grpo --model_name_or_path Qwen/Qwen3-8B --num_generations 4 --per_device_train_batch_size 4 "
    "--gradient_accumulation_steps 8 --max_completion_length 2048"
)
BASES = {
    "vLLM beside": f"{LAUNCH} --num_processes 8 --use_deepspeed {WORK} --use_vllm --beta 0.1",
    "a server": f"{LAUNCH} --num_processes 8 {WORK} --use_vllm --vllm_mode server",
    "transformers": f"{LAUNCH} --num_processes 8 --use_deepspeed --zero_stage 3 {WORK} --beta 0.1",
    "FSDP": f"{LAUNCH} --num_processes 8 --use_fsdp {WORK} --use_vllm --gradient_checkpointing False",
    "an adapter": f"{LAUNCH} --num_processes 8 {WORK} --use_vllm --use_peft --beta 0.1",
    "processes of each machine": f"torchrun --nnodes 2 {WORK} --use_vllm",
    "by steps": f"{LAUNCH} --num_processes 8 {WORK.replace('--gradient_accumulation_steps 8', '')} --use_vllm",
    "another model": f"{LAUNCH} --num_processes 8 {WORK.replace('--model_name_or_path Qwen/Qwen3-8B', '--model_init_kwargs.dtype bfloat16')}",
}


def catalogue():
    """Return TRL's keys with their defaults."""
    lines = CATALOGUE.read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return {key: default for key, _, default in rows}


def values(key, default):
    """Return words that a key may be given: what its setting knows, truths, numbers and names."""
    settings = list(SHEET.every_setting())
    meant = [word for setting in settings if key in setting.keys for word in setting.values]
    truths = ["true", "false"] if default in {"True", "False", "None"} else []
    numbers = ["2", "16", "64", "512", "0.25", "0.7"]
    return [*meant, *truths, *numbers, "0,1", "Qwen/Qwen2.5-7B", "zero3.json", "fp16", "other_word"]


@pytest.fixture(scope="module")
def before():
    """Return the job and plan of each base as it is, by the bases that can be read."""
    found = {}
    for name, words in BASES.items():
        options = OPTIONS if "model_name" in words else ImportOptions(
            gpu=OPTIONS.gpu, mean_response=300, mean_prompt=100, model="qwen3-8b", environment={}
        )  # fmt: skip
        each = imported("trl", words.split(), options)
        found[name] = (options, (each.job, each.draft))
    return found


def told(key, word, name, before):
    """Return what becomes of a key that is given a word in one of the bases."""
    options, usual = before[name]
    try:
        found = imported("trl", [*BASES[name].split(), f"--{key}", word], options)
    except UserError as error:
        said = str(error)
        return "refused" if f"{key}:" in said and "is no " not in said else ""
    return outcome(found, key, usual)


def fate(key, default, before):
    """Return what becomes of a key in the first base and with the first word that show it."""
    if key in SHEET.harmless():
        return "named"
    words = values(key, default)
    return first_fate(told(key, word, name, before) for name in before for word in words)


# What only rules ask for, or a loss of its own kind has no field for: their values change no job and no plan.
ONLY_IN_RULES = {
    "use_deepspeed", "log_completions_hub_repo", "auto_find_batch_size", "vllm_importance_sampling_mode",
    "parallelism_config_cp_size",
}  # fmt: skip


@pytest.mark.full
def test_no_key_is_swallowed(pytestconfig, before):
    keys = catalogue()
    chosen = list(keys) if pytestconfig.getoption("full") else list(keys)[::13]
    swallowed = [key for key in chosen if fate(key, keys[key], before) == "swallowed"]
    assert set(swallowed) <= ONLY_IN_RULES


def test_every_key_is_known():
    flat = {key: GivenValue(value="word", where="there") for key in catalogue()}
    assert keys_of(Settings(SHEET, flat, "file")).unknown == ()


def test_defaults_of_the_newest_version_are_trl_s_own():
    """What the sheet takes for a key that is not given is what the package says, where it says a constant."""
    own = catalogue()
    words = {"True": True, "False": False}
    for name in ("samples", "max_response", "kl_weight", "epochs", "memory_fraction", "rollout_tp", "sleeps",
                 "use_vllm", "server_mode", "temperature", "corrects_sampling", "device_batch", "accumulation",
                 "lora_rank", "lora_alpha", "checkpoints", "server_tp", "server_dp", "server_memory"):  # fmt: skip
        setting = SHEET.settings[name]
        default = own[setting.keys[0]].strip("'")
        assert (
            str(setting.default) == str(words.get(default, default))
            or float(default) == setting.default
        )
