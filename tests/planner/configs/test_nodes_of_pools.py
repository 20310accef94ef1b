"""Pools that are parts of a node stand together in one only where the GPU's usual node has room for them."""

import pytest
import yaml

from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.profiles.sheets import sheet_files

APART = """
-m verl.experimental.one_step_off_policy.main_ppo trainer.nnodes=1 rollout.nnodes=1
actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.name=vllm data.train_batch_size=256
actor_rollout_ref.actor.ppo_mini_batch_size=64 data.max_prompt_length=1024 data.max_response_length=4096
actor_rollout_ref.actor.use_dynamic_bsz=True algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8
actor_rollout_ref.rollout.tensor_model_parallel_size=2
"""


def cluster_of(gpu: str, train: int, rollout: int) -> list[tuple[int, int]]:
    sizes = f"trainer.n_gpus_per_node={train} rollout.n_gpus_per_node={rollout}"
    options = ImportOptions(gpu=gpu, mean_response=300, mean_prompt=100, environment={})
    found = imported("verl", f"{APART} {sizes}".split(), options)
    return [(group.gpus_per_node, group.nodes) for group in found.resolved.cluster]


@pytest.mark.parametrize(
    ("gpu", "train", "rollout", "cluster"),
    [
        ("h100-80gb-sxm", 4, 4, [(8, 1)]),
        ("h100-80gb-sxm", 6, 2, [(8, 1)]),
        ("h100-80gb-sxm", 8, 2, [(8, 1), (2, 1)]),
        ("gb200", 2, 2, [(4, 1)]),
        ("gb200", 4, 4, [(4, 1), (4, 1)]),
    ],
)
def test_a_node_holds_as_many_pools_as_it_has_gpus_for(gpu, train, rollout, cluster):
    assert cluster_of(gpu, train, rollout) == cluster


def test_the_node_of_a_sheet_of_ones_own_counts(tmp_path):
    sheet = yaml.safe_load(sheet_files("devices")["gb200"].read_text(encoding="utf-8"))
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump({**sheet, "name": "own-gb", "aliases": []}), encoding="utf-8")
    assert cluster_of(str(own), 4, 4) == [(4, 1), (4, 1)]
