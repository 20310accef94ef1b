"""No key of prime-rl's is swallowed: changing it changes job or plan, or what becomes of it is said."""

import ast
from pathlib import Path

import pytest

from rlplan.errors import UserError
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.reading.given import GivenValue
from rlplan.planner.configs.reading.settings import Settings, keys_of
from rlplan.planner.configs.reading.sheet import load_config_sheet
from tests.cases import first
from tests.planner.configs.fates import first_fate, imports_of, mapped_keys, outcome, usual_values

CATALOGUE = Path(__file__).parent / "data" / "keys_of_prime_rl.txt"
OPTIONS = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={"HOME": "~"}
)
SHEET = load_config_sheet("prime-rl")
WORK = "uv run rl --model.name Qwen/Qwen3-8B --orchestrator.batch_size 512 --orchestrator.group_size 16 --seq_len 8192"
NODE = f"{WORK} --deployment.num_train_gpus 4 --deployment.num_infer_gpus 4"
NODES = f"{WORK} --deployment.type multi_node --deployment.num_train_nodes 2 --slurm.job_name job --inference.vllm.tensor_parallel_size 4"
BASES = {
    name: words.split()
    for name, words in {
        "a node": NODE,
        "several nodes": f"{NODES} --deployment.num_infer_nodes 2",
        "experts": f"{NODES} --deployment.num_infer_nodes 2 --model.name Qwen/Qwen3-30B-A3B",
        "experts of the engine": (
            f"{NODES} --deployment.num_infer_nodes 2 --model.name Qwen/Qwen3-30B-A3B "
            "--inference.vllm.enable_expert_parallel true --inference.vllm.data_parallel_size 2"
        ),
        "engines' own nodes": f"{NODES} --inference.deployment.type multi_node",
        "readers apart": f"{NODES} --inference.deployment.type disaggregated",
        "an adapter": f"{NODE} --trainer.model.lora.rank 8",
        "the engine alone says": f"{WORK} --deployment.num_train_gpus 4 --inference.vllm.tensor_parallel_size 2",
        "no names": NODE.replace("--model.name Qwen/Qwen3-8B", ""),
        "no sizes": NODE.replace("--seq_len 8192", "").replace("--orchestrator.group_size 16", ""),
        "layers computed again in part": f"{NODE} --trainer.model.ac.mode selective",
        "nothing computed again": f"{NODE} --trainer.model.ac None --trainer.model.ac_offloading None",
        "lists of GPUs": f"{WORK} --trainer_gpu_ids [4,5,6,7]",
    }.items()
}  # fmt: skip


def catalogue():
    """Return prime-rl's keys and their defaults."""
    lines = CATALOGUE.read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return {key: ast.literal_eval(default) if default else None for key, default in rows}


KEYS = catalogue()
MAPPED = [key for key in mapped_keys(SHEET) if key in KEYS]
# What the length of a training alone needs, and what takes a note away.
ONLY_ELSEWHERE = {
    "max_steps",
    "trainer.max_steps",
    "orchestrator.max_steps",
    "orchestrator.train.filter_zero_advantages",
}


@pytest.fixture(scope="module")
def before():
    """Return the job and plan of each base as it is."""
    return imports_of("prime-rl", BASES, OPTIONS)


def told(key, value, name, before):
    """Return what becomes of a key that is changed in one of the bases."""
    try:
        found = imported("prime-rl", [*BASES[name], f"--{key}", str(value)], OPTIONS)
    except UserError as error:
        said = str(error)
        return "refused" if key in said and "is no whole number" not in said else ""
    return outcome(found, key, before[name])


@pytest.mark.parametrize("key", first(4, sorted(MAPPED)))
def test_no_key_is_swallowed(key, before):
    values = [
        *usual_values(SHEET, key, KEYS[key]),
        "None",
        "[0,1]",
        "disaggregated",
        "bfloat16",
        "muon",
        "opd",
        1,
    ]
    if key not in ONLY_ELSEWHERE:
        fates = (told(key, value, name, before) for name in BASES for value in values)
        assert first_fate(fates) != "swallowed"


def test_every_key_of_every_version_is_known():
    flat = {key: GivenValue(value="word", where="there") for key in KEYS}
    assert keys_of(Settings(SHEET, flat, "file")).unknown == ()


def test_nothing_is_ignored_by_a_pattern():
    names = [name for keys in SHEET.without_influence.values() for name in keys]
    assert [name for name in names if any(sign in name for sign in "*?[")] == []


def test_defaults_are_those_of_its_classes():
    differing = {
        each.keys[0]: (each.default, KEYS[each.keys[0]])
        for each in SHEET.every_setting()
        if each.keys
        and each.default is not None
        and KEYS.get(each.keys[0]) not in {None, each.default}
    }
    # What a union of classes has is that of one of them.
    assert set(differing) <= {
        "trainer.optim.type", "orchestrator.algo.type", "inference.deployment.type", "weight_broadcast.type",
        "trainer.model.full_offload",
    }  # fmt: skip


def test_a_key_that_nobody_knows_is_not_understood():
    found = imported("prime-rl", [*BASES["a node"], "--trainer.nonsense", "7"], OPTIONS)
    assert found.keys.unknown == ("trainer.nonsense",)
