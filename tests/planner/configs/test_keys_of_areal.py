"""No key of AReaL's is swallowed: changing it changes job or plan, or what becomes of it is said."""

import ast
from pathlib import Path

import pytest

from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.reading.given import GivenValue
from rlplan.planner.configs.reading.settings import Settings, keys_of
from rlplan.planner.configs.reading.sheet import load_config_sheet
from tests.cases import first
from tests.planner.configs.fates import fate, imports_of, mapped_keys, usual_values

CATALOGUE = Path(__file__).parent / "data" / "keys_of_areal.txt"
OPTIONS = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={"HOME": "~"}
)
SHEET = load_config_sheet("areal")
WORK = (
    "actor.path=Qwen/Qwen3-8B train_dataset.batch_size=128 gconfig.n_samples=16 gconfig.max_new_tokens=4096 actor.kl_ctl=0 "
    "actor.mb_spec.max_tokens_per_mb=16384 rollout.max_head_offpolicyness=2 train_dataset.max_length=1024 "
    "actor.gradient_checkpointing=true"
)
NODE = f"{WORK} rollout.backend=sglang:d4 actor.backend=fsdp:d4"
REFERENCE = "actor.kl_ctl=0.1 ref.path=Qwen/Qwen3-8B ref.scheduling_strategy.type=colocation"
CRITIC = "critic.path=Qwen/Qwen3-8B critic.scheduling_strategy.type=colocation"
BASES = {
    name: words.split()
    for name, words in {
        "SGLang": NODE,
        "vLLM": NODE.replace("sglang:", "vllm:"),
        "a reference": f"{NODE} {REFERENCE}",
        "a critic": f"{NODE} {CRITIC}",
        "Megatron": NODE.replace("fsdp:d4", "megatron:d2p2"),
        "Archon": NODE.replace("fsdp:", "archon:"),
        "experts": NODE.replace("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B").replace("fsdp:d4", "megatron:(attn:d4t2|ffn:d1t1e8)"),
        "all together": f"{WORK} allocation_mode=sglang:d4+d4",
        "an adapter": f"{NODE} actor.use_lora=true",
        "decoupled": f"{NODE} actor.use_decoupled_loss=true",
        "micro-batches counted": f"{NODE} {REFERENCE} {CRITIC} actor.mb_spec.max_tokens_per_mb=null",
        "no lengths": NODE.replace("train_dataset.max_length=1024", ""),
        "little said": (
            "actor.path=Qwen/Qwen3-8B rollout.backend=sglang:d4 actor.backend=fsdp:d4 train_dataset.batch_size=128 "
            "gconfig.n_samples=16"
        ),
    }.items()
}  # fmt: skip

# Which a rule warns of.
CROWDED = {
    "one node for both": [*BASES["SGLang"], "cluster.n_nodes=1", "cluster.n_gpus_per_node=4"]
}


def catalogue():
    """Return AReaL's keys and their defaults."""
    lines = CATALOGUE.read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return {key: ast.literal_eval(default) if default else None for key, default in rows}


KEYS = catalogue()
MAPPED = [key for key in mapped_keys(SHEET) if key in KEYS]
MORE = [
    "sglang:d2t2",
    "fsdp:d2t2",
    "colocation",
    "sequence",
    "loglinear",
    "disk",
    "sgd",
    "selective",
    "fp8_e5m2",
    "false",
    "true",
    3000,
]
# What only the length of a training, or rules, ask for.
ONLY_ELSEWHERE = {"total_train_steps"}


@pytest.fixture(scope="module")
def before():
    """Return the job and plan of each base as it is."""
    return imports_of("areal", BASES | CROWDED, OPTIONS)


@pytest.mark.parametrize("key", first(4, sorted(MAPPED, reverse=True)))
def test_no_key_is_swallowed(key, before):
    values = [*usual_values(SHEET, key, KEYS[key]), *MORE]
    if key not in ONLY_ELSEWHERE:
        assert fate("areal", key, values, BASES | CROWDED, OPTIONS, before) != "swallowed"


def test_every_key_of_every_version_is_known():
    flat = {key: GivenValue(value="word", where="there") for key in KEYS}
    assert keys_of(Settings(SHEET, flat, "file")).unknown == ()


def test_nothing_is_ignored_by_a_pattern():
    names = [name for keys in SHEET.without_influence.values() for name in keys]
    assert [name for name in names if any(sign in name for sign in "*?[")] == []


def test_defaults_are_those_of_its_classes():
    differing = {
        each.keys[0]
        for each in SHEET.every_setting()
        if each.keys
        and each.default is not None
        and KEYS.get(each.keys[0]) not in {None, each.default}
    }
    assert differing == set()


def test_a_key_that_nobody_knows_is_not_understood():
    found = imported("areal", [*BASES["SGLang"], "actor.nonsense=7"], OPTIONS)
    assert found.keys.unknown == ("actor.nonsense",)
