"""Megatron's keys of how tokens reach experts, by the three frameworks that hand them on."""

from dataclasses import replace

import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.planner.configs.sizes import GRAPHED
from rlplan.planner.configs.writing.exporting import exported
from rlplan.profiles.facts import load_facts

OPTIONS = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={"HOME": "~"}
)
SLIME = """python3 train.py --hf-checkpoint /models/Qwen3-30B-A3B --ref-load /models/Qwen3-30B-A3B_torch_dist
--num-rollout 100 --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 256 --colocate
--rollout-max-response-len 8192 --rollout-num-gpus-per-engine 2 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1
"""


def actor(tmp_path, *words, base=SLIME, framework="slime"):
    path = tmp_path / "run.sh"
    path.write_text(" ".join((base, *words)).replace("\n", " "), encoding="utf-8")
    return imported(framework, [str(path)], OPTIONS).job.trainer("actor")


def test_what_was_forked_reads_every_size_that_its_trainers_hand_on():
    slime, miles = (load_config_sheet(name).trainers for name in ("slime", "miles"))
    for name in set(slime) & set(miles):
        assert not set(slime[name].sizes) - set(miles[name].sizes), name


@pytest.mark.parametrize("framework", ["slime", "miles"])
@pytest.mark.parametrize(
    ("words", "dispatcher"),
    [
        ("", None),
        ("--moe-token-dispatcher-type alltoall", None),
        ("--moe-token-dispatcher-type allgather", "all-gather"),
        ("--moe-token-dispatcher-type flex", "deepep"),
        ("--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep", "hybridep"),
        ("--moe-token-dispatcher-type alltoall --moe-flex-dispatcher-backend hybridep", None),
        ("--moe-enable-deepep", "deepep"),
    ],
)
def test_a_dispatcher_is_megatron_s_kind_and_its_backend(tmp_path, framework, words, dispatcher):
    assert actor(tmp_path, words, framework=framework).dispatcher == dispatcher


def test_overlap_and_balance_by_force_are_the_trainer_s(tmp_path):
    found = actor(tmp_path, "--overlap-moe-expert-parallel-comm --moe-router-force-load-balancing")
    assert (found.overlaps_exchange, found.popularity_spread) == (True, 0.0)
    usual = actor(tmp_path)
    assert (usual.overlaps_exchange, usual.popularity_spread) == (False, None)


@pytest.mark.parametrize(
    ("words", "graphs"),
    [
        ("--cuda-graph-impl none", ()),
        ("--cuda-graph-impl full_iteration", ("iteration",)),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope moe_router", ("router",)),
        ("--cuda-graph-impl local", ("attention", "mamba", "mlp", "experts")),
    ],
)
def test_graphs_capture_what_megatron_s_scopes_say(tmp_path, words, graphs):
    assert actor(tmp_path, words).graphs == graphs
    assert set(graphs) <= set(GRAPHED.values())


def test_where_no_ranks_share_out_experts_nothing_is_dispatched(tmp_path):
    alone = SLIME.replace("--expert-model-parallel-size 8", "")
    assert actor(tmp_path, "--moe-token-dispatcher-type flex", base=alone).dispatcher is None


def test_experts_that_every_rank_has_need_no_dispatcher_of_a_reference(tmp_path):
    path = tmp_path / "run.sh"
    loss = "--use-kl-loss --kl-loss-coef 0.01 --moe-token-dispatcher-type flex"
    path.write_text(f"{SLIME} {loss}".replace("\n", " "), encoding="utf-8")
    found = imported("slime", [str(path)], OPTIONS)
    assert found.job.trainer("reference").dispatcher == "deepep"
    plan = complete(found.draft, found.resolved, load_facts(found.resolved), "run.sh")
    whole = {
        name: replace(each, ep=1, expert_tp=None) if each.ep > 1 else each
        for name, each in plan.tasks.items()
    }
    assert exported(replace(plan, tasks=FrozenDict(whole)), "slime").text
