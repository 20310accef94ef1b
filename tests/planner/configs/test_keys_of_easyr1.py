"""No key of EasyR1's is swallowed: changing it changes job or plan, or what becomes of it is said."""

import ast
from pathlib import Path

import pytest

from rlplan.errors import UserError
from rlplan.planner.configs.importing import ImportOptions, imported, settings_of
from rlplan.planner.configs.reading.settings import keys_of
from rlplan.planner.configs.reading.sheet import load_config_sheet
from tests.planner.configs.fates import first_fate, outcome

CATALOGUE = Path(__file__).parent / "data" / "keys_of_easyr1.txt"
OPTIONS = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={"HOME": "~"}
)
SHEET = load_config_sheet("easyr1")
COMMON = """
-m verl.trainer.main trainer.n_gpus_per_node=8 trainer.nnodes=2 worker.rollout.n=8 data.rollout_batch_size=256
worker.actor.global_batch_size=64 data.max_prompt_length=1024 data.max_response_length=4096
worker.actor.model.model_path=Qwen/Qwen3-8B worker.actor.micro_batch_size_per_device_for_update=2
worker.actor.micro_batch_size_per_device_for_experience=4
"""
CRITIC = "algorithm.adv_estimator=gae worker.critic.model.model_path=Qwen/Qwen3-8B worker.critic.global_batch_size=64"
BASES = {
    "samples compared": COMMON,
    "a critic": f"{COMMON} {CRITIC}",
    "a critic, packed": f"{COMMON} {CRITIC} worker.critic.padding_free=true",
    "micro-batches counted": f"{COMMON} worker.actor.dynamic_batching=false worker.critic.dynamic_batching=false",
    "states off the GPUs": f"{COMMON} worker.actor.offload.offload_params=true worker.actor.offload.offload_optimizer=true",
    "no reference": f"{COMMON} algorithm.disable_kl=true",
    "groups sampled again": f"{COMMON} algorithm.disable_kl=true algorithm.online_filtering=true",
    "an adapter": f"{COMMON} worker.actor.model.lora.rank=32",
    "images": COMMON.replace("Qwen/Qwen3-8B", "Qwen/Qwen2.5-VL-7B-Instruct"),
    "images, a critic": f"{COMMON} {CRITIC}".replace(
        "Qwen/Qwen3-8B", "Qwen/Qwen2.5-VL-7B-Instruct"
    ),
}


def catalogue():
    """Return EasyR1's keys and their defaults."""
    lines = (
        line.split("\t")
        for line in CATALOGUE.read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    return {key: ast.literal_eval(default) for key, _, _, _, default in lines}


def changed(key, default):
    """Return values that a key may be changed to, by the type of its default."""
    meant = [word for each in SHEET.every_setting() if key in each.keys for word in each.values]
    if isinstance(default, bool):
        return [not default, default]
    if isinstance(default, int | float):
        return [default * 2 or 1, default + 1, default / 2, 4, 64, 0.25, 3000]
    return [*meant, 1, 2, 4, 32, 3000, True, "actually_other", "Qwen/Qwen2.5-7B", "adamw_bf16"]


@pytest.fixture(scope="module")
def before():
    """Return the job and plan of each base as it is."""
    found = {name: imported("easyr1", words.split(), OPTIONS) for name, words in BASES.items()}
    return {name: (each.job, each.draft) for name, each in found.items()}


def told(key, value, name, before):
    """Return what becomes of a key that is changed; empty where that is not seen in this configuration."""
    try:
        found = imported("easyr1", [*BASES[name].split(), f"{key}={value}"], OPTIONS)
    except UserError as error:
        said = str(error)
        return "refused" if key in said and "is no whole number" not in said else ""
    return outcome(found, key, before[name])


def fate(key, default, before):
    """Return what becomes of a key in the first configuration and with the first value that show it."""
    if key in SHEET.harmless():
        return "named"
    values = changed(key, default)
    return first_fate(told(key, value, name, before) for name in BASES for value in values)


def test_no_key_is_swallowed(pytestconfig, before):
    keys = catalogue()
    chosen = list(keys) if pytestconfig.getoption("full") else list(keys)[::7]
    assert [key for key in chosen if fate(key, keys[key], before) == "swallowed"] == []


def test_every_key_of_every_version_is_known():
    words = [*COMMON.split(), *(f"{key}=null" for key in catalogue())]
    assert keys_of(settings_of("easyr1", words, OPTIONS)).unknown == ()


def test_nothing_is_ignored_by_a_pattern():
    names = [name for keys in SHEET.without_influence.values() for name in keys]
    assert [name for name in names if any(sign in name for sign in "*?[")] == []


def test_defaults_are_those_of_its_dataclasses():
    known = catalogue()
    differing = {
        each.keys[0]
        for each in SHEET.every_setting()
        if each.keys
        and each.default is not None
        and each.default != known.get(each.keys[0], each.default)
    }
    # A reference's are the actor's, whatever its own fields hold before they are set.
    assert {key for key in differing if not key.startswith("worker.ref.")} == set()


def test_a_key_that_nobody_knows_is_not_understood():
    found = imported("easyr1", [*COMMON.split(), "data.nonsense=7"], OPTIONS)
    assert found.keys.unknown == ("data.nonsense",)
