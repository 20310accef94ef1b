"""Rules that prime-rl finds broken at run time: each broken on purpose, and none by sound configurations."""

import pytest

from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.importing import settings_of
from tests.planner.configs.test_keys_of_prime_rl import BASES, OPTIONS

NODE, NODES, EXPERTS = "a node", "several nodes", "experts"
BREAKS = {
    "batches-are-of-whole-groups": (NODE, "--orchestrator.batch_size 500"),
    "batches-are-of-samples-or-tokens": (NODE, "--orchestrator.token_batch_size 100000"),
    "engines-fill-their-gpus": (NODE, "--inference.vllm.tensor_parallel_size 3"),
    "gpus-are-of-one-node": (NODE, "--deployment.num_infer_gpus 6"),
    "several-nodes-want-slurm": (NODE, "--deployment.type multi_node --deployment.num_train_nodes 1"),
    "groups-divide-the-nodes": (NODES, "--deployment.num_train_nodes 4 --deployment.nodes_per_fsdp_group 3"),
    "sequence-ranks-divide-the-gpus": (NODE, "--trainer.model.cp 3"),
    "sequence-ranks-want-its-own-layers": (NODE, "--trainer.model.cp 2 --trainer.model.impl hf"),
    "experts-want-its-own-layers": (EXPERTS, "--trainer.model.ep 5"),
    "offloading-is-of-one-kind": (NODE, "--trainer.model.fsdp_cpu_offload true"),
    "activations-wait-on-the-host-once-checkpointed": (
        NODE, "--trainer.model.ac None --trainer.model.ac_offloading.pin_memory true",
    ),
    "adapters-go-over-files": ("an adapter", "--weight_broadcast.type nccl"),
    "parts-train-one-model": (NODE, "--trainer.model.seq_len 4096"),
    "keys-are-known": (NODE, "--orchestrator.max_off_policy_step 4"),
}  # fmt: skip


def broken(base, more=""):
    settings = settings_of("prime-rl", [*BASES[base], *more.split()], OPTIONS)
    return {
        rule.name: rule.broken(settings) for rule in rules_of("prime-rl") if rule.broken(settings)
    }


@pytest.mark.parametrize("base", [NODE, NODES, EXPERTS, "experts of the engine", "an adapter"])
def test_sound_configurations_break_no_rule(base):
    assert broken(base) == {}


@pytest.mark.parametrize("name", BREAKS)
def test_rules_are_found_broken(name):
    found = broken(*BREAKS[name])
    assert name in found
    assert all(each.problem and each.allowed for each in found[name])


def test_every_rule_is_broken_once():
    assert {rule.name for rule in rules_of("prime-rl")} == set(BREAKS)
