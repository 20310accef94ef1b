"""Pools that are parts of a node stand together in one only where the GPU's usual node has room for them."""

import pytest
import yaml

from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.run import nodes_of
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


SLIME = """
train.py --actor-num-nodes 1 --actor-num-gpus-per-node 4 --rollout-num-gpus 4 --hf-checkpoint /models/Qwen3-4B
--ref-load /models/ref --num-rollout 10 --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 8192
--global-batch-size 256 --use-dynamic-batch-size --max-tokens-per-gpu 9216 --tensor-model-parallel-size 2
--sequence-parallel --rollout-num-gpus-per-engine 2 --use-kl-loss --advantage-estimator grpo
"""
OPEN_INSTRUCT = """
open_instruct/grpo_fast.py --num_samples_per_prompt_rollout 8 --num_unique_prompts_rollout 64 --num_mini_batches 1
--max_prompt_token_length 2048 --response_length 8192 --pack_length 10240 --model_name_or_path Qwen/Qwen3-8B
--deepspeed_stage 3 --num_learners_per_node 4 --vllm_num_engines 4 --vllm_tensor_parallel_size 1
"""
OPENRLHF = """
-m openrlhf.cli.train_ppo_ray --actor.num_nodes 1 --actor.num_gpus_per_node 4 --ref.num_nodes 1 --ref.num_gpus_per_node 4
--train.colocate_actor_ref --vllm.num_engines 4 --vllm.tensor_parallel_size 1 --algo.advantage.estimator group_norm
--actor.model_name_or_path Qwen/Qwen3-8B --rollout.n_samples_per_prompt 4 --reward.remote_url http://localhost:5000
"""


@pytest.mark.parametrize(
    ("framework", "script"),
    [("slime", SLIME), ("open-instruct", OPEN_INSTRUCT), ("openrlhf", OPENRLHF)],
)
@pytest.mark.parametrize(("gpu", "cluster"), [("h100", (8, 1)), ("gb200", (4, 2)), ("gh200", (1, 8))])  # fmt: skip
def test_nodes_that_nothing_speaks_of_are_as_wide_as_the_gpus_usual_one(
    framework, script, gpu, cluster
):
    options = ImportOptions(gpu=gpu, mean_response=300, mean_prompt=100, environment={})
    (group,) = imported(framework, script.split(), options).job.cluster
    narrow = gpu == "gh200"  # four learners, or trainers, are said to share a node
    assert (group.gpus_per_node, group.nodes) == ((4, 2) if narrow else cluster)


def test_a_node_whose_gpus_a_configuration_says_is_so_wide_on_any_gpu():
    options = ImportOptions(gpu="gb200", mean_response=300, mean_prompt=100, environment={})
    (group,) = imported("slime", f"{SLIME} --num-gpus-per-node 8".split(), options).job.cluster
    assert (group.gpus_per_node, group.nodes) == (8, 1)


@pytest.mark.parametrize(("gpu", "cluster"), [("h100", (8, 4)), ("gb200", (4, 8))])
def test_trainers_on_parts_of_several_nodes_are_packed_beside_engines(gpu, cluster):
    """Pack them as slime does, whose trainers then have the first nodes whole."""
    parts = "--actor-num-nodes 4 --actor-num-gpus-per-node 4 --rollout-num-gpus 16"
    options = ImportOptions(gpu=gpu, mean_response=300, mean_prompt=100, environment={})
    (group,) = imported("slime", f"{SLIME} {parts}".split(), options).job.cluster
    assert (group.gpus_per_node, group.nodes) == cluster


@pytest.mark.parametrize(
    ("said", "cluster"), [("4", (4, 2)), ("8", (8, 1)), ("$(nvidia-smi -L | wc -l)", (8, 1))]
)
def test_what_a_script_tells_ray_of_its_node_is_how_wide_it_is(tmp_path, said, cluster):
    script = tmp_path / "run.sh"
    command = " ".join(SLIME.split())
    script.write_text(f"ray start --head --num-gpus {said}\npython3 {command}\n", encoding="utf-8")
    options = ImportOptions(gpu="h100", mean_response=300, mean_prompt=100, environment={})
    (group,) = imported("slime", [str(script)], options).job.cluster
    assert (group.gpus_per_node, group.nodes) == cluster


@pytest.mark.parametrize(
    ("asks", "cluster"),
    [
        ("", [(8, 1)]),
        ("#SBATCH --gpus-per-node=4\n", [(4, 2)]),
        ("#SBATCH --gres=gpu:h100:2\n", [(8, 1)]),
        ("#SBATCH --gres=lscratch:100,gpu:h100-80gb:4\n", [(4, 2)]),
        ("#SBATCH --gres=lscratch:100 --gpus-per-node=h100\n", [(8, 1)]),
    ],
)
def test_nodes_that_a_script_asks_slurm_for_count_where_no_key_says_their_width(
    tmp_path, asks, cluster
):
    script = tmp_path / "run.sh"
    script.write_text(
        f"#!/bin/bash\n{asks}python3 -m openrlhf.cli.train_ppo_ray --actor_num_gpus_per_node 4 --colocate_actor_ref --pretrain Qwen/Qwen3-4B "
        "--ref_num_gpus_per_node 4 --vllm_num_engines 2 --vllm_tensor_parallel_size 2 --advantage_estimator rloo "
        "--n_samples_per_prompt 8 --remote_rm_url reward.py --packing_samples\n"
    )
    options = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={})
    found = imported("openrlhf", [str(script)], options)
    assert [(group.gpus_per_node, group.nodes) for group in found.resolved.cluster] == cluster
    assert any("as #SBATCH asks for" in note for note in found.notes) == (cluster == [(4, 2)])


def test_nodes_are_not_narrower_than_a_part_of_a_pool_that_stands_on_one():
    assert nodes_of(14, 8, least=8) == (8, 2)  # two of sixteen are left over
    assert nodes_of(12, 8, least=4) == (4, 3)
    assert nodes_of(14, 8) == (2, 7)
