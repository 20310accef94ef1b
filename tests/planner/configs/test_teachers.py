"""Nodes of a cluster that teachers take from training and generation."""

import pytest

from rlplan.planner.configs.importing import ImportOptions, settings_of
from rlplan.planner.frameworks.nemo_rl.reading import nodes_of_policy
from tests.planner.configs.test_importing import NEMO

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={})
D = "on_policy_distillation"
T, C = f"{D}.teacher_model_by_agent_name", f"{D}.non_colocated_teachers"
APART = (f"{D}.enabled=true", f"{C}.enabled=true", "cluster.num_nodes=16")


@pytest.mark.parametrize(
    ("words", "nodes"),
    [
        ([], 16),
        ([f"{T}.a=one", f"{T}.b=two"], 14),
        ([f"{T}.a=one", f"{T}.b=one"], 15),
        ([f"{T}.a=one", f"{T}.b=one", f"{D}.deduplicate_shared_teacher_checkpoints=false"], 14),
        ([f"{T}.a=one", f"{C}.default_teacher_cfg.num_nodes=4"], 12),
        ([f"{T}.a=one", f"{T}.b=two", f"{C}.teacher_overrides.b.num_nodes=3"], 12),
        ([f"{T}.a=one", f"{C}.enabled=false"], 16),
    ],
)
def test_teachers_take_their_nodes_off_the_cluster(tmp_path, words, nodes):
    path = tmp_path / "recipe.yaml"
    path.write_text(NEMO)
    settings = settings_of("nemo-rl", [str(path), *APART, *words], OPTIONS)
    assert nodes_of_policy(settings) == nodes
