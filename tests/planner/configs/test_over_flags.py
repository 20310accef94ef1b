"""Files that flags of slime and miles name: their values stand for the flags that would say the same."""

import pytest

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.job import PrefillApart
from rlplan.planner.configs.importing import ImportOptions, imported

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=1000, environment={})
FLAGS = """slime/train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --hf-checkpoint Qwen/Qwen3-4B
    --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 8192 --global-batch-size 256
    --tensor-model-parallel-size 2 --use-dynamic-batch-size --max-tokens-per-gpu 9216"""
APART = f"{FLAGS} --rollout-num-gpus 8 --rollout-num-gpus-per-engine 2"


def read(tmp_path, text, key, flags=APART, framework="slime", options=OPTIONS):
    """Return a script beside a file that one of its flags names, imported."""
    (tmp_path / "file.yaml").write_text(text)
    path = tmp_path / "run.sh"
    words = flags.replace("slime/", "").replace("\n", " \\\n")
    path.write_text(f"python3 {words} --{key} /elsewhere/file.yaml\n")
    return imported(framework, [str(path)], options)


def test_a_mapping_counts_before_the_flags(tmp_path):
    found = read(tmp_path, "rollout_batch_size: 64\nlr: 2e-6\n", "custom-config-path")
    assert found.job.workload.prompts == 64
    assert found.job.hyperparameters.learning_rate == 2e-6
    assert not found.keys.changes_work
    assert not found.keys.unknown


def test_what_options_say_counts_before_a_file(tmp_path):
    options = ImportOptions(
        gpu="h100-80gb-sxm",
        mean_response=1000,
        environment={},
        values=FrozenDict({"rollout-batch-size": "96"}),
    )
    text = "rollout_batch_size: 16\n"
    found = read(tmp_path, text, "custom-config-path", options=options)
    assert found.job.workload.prompts == 96


@pytest.mark.parametrize(("text", "of_work"), [("max_turns: 3", True), ("flavour: vanilla", False)])
def test_what_only_ones_own_functions_read_is_said(tmp_path, text, of_work):
    found = read(tmp_path, text, "custom-config-path")
    there = found.keys.changes_work if of_work else found.keys.not_modelled
    assert text.partition(":")[0] in there["custom-config-path"]


def test_miles_file_gives_what_no_flag_does(tmp_path):
    flags = f"{APART} --train-backend fsdp".replace("--tensor-model-parallel-size 2", "")
    found = read(tmp_path, "rollout_batch_size: 16\nlr: 2e-6\n", "config", flags, "miles")
    assert found.job.workload.prompts == 32
    assert found.job.hyperparameters.learning_rate == 2e-6


ROLES = """
megatron:
- {role: actor, overrides: {lr: 2e-6, num_nodes: 4, save: /a}}
- {role: critic, overrides: {lr: 1e-5, save: /b, tensor_model_parallel_size: 2%s}}
"""


def test_roles_have_rates_of_their_own(tmp_path):
    flags = f"{FLAGS} --colocate --advantage-estimator ppo"
    found = read(tmp_path, ROLES % "", "megatron-config-path", flags)
    assert found.job.hyperparameters.learning_rate == 2e-6
    assert "critic-lr" in found.keys.without_influence
    assert found.draft.pools[0].gpus == 8
    assert not found.keys.changes_work


def test_a_critic_that_is_cut_otherwise_is_doubtful(tmp_path):
    flags = f"{FLAGS} --colocate --advantage-estimator ppo"
    text = ROLES % ", max_tokens_per_gpu: 4096"
    found = read(tmp_path, text, "megatron-config-path", flags)
    assert "max-tokens-per-gpu=4096" in found.keys.changes_work["megatron-config-path"]


ENGINES = """
sglang:
- name: actor
  server_groups:
"""


def test_engines_alike_are_those_of_flags(tmp_path):
    groups = "  - {worker_type: regular, num_gpus: 6, num_gpus_per_engine: 1, overrides: {mem_fraction_static: 0.6}}\n"
    idle = "  - {worker_type: placeholder, num_gpus: 2}\n"
    found = read(tmp_path, ENGINES + groups + idle, "sglang-config")
    layout = found.draft.tasks["actor.generate"]
    assert (layout.tp, layout.dp, layout.memory_fraction) == (1, 6, 0.6)
    assert [pool.gpus for pool in found.draft.pools] == [8, 6]
    assert not found.keys.changes_work


def test_engines_that_only_read_are_counted(tmp_path):
    groups = (
        "  - {worker_type: prefill, num_gpus: 2}\n"
        "  - {worker_type: decode, num_gpus: 6, overrides: {max_running_requests: 64}}\n"
    )
    found = read(tmp_path, ENGINES + groups, "sglang-config")
    assert found.job.prefill == PrefillApart(replicas=1)
    assert found.draft.tasks["actor.generate"].dp == 4
    assert "prefill engines of 2 GPUs" in found.keys.changes_work["sglang-config"]


FROZEN = """
sglang:
- {name: actor, server_groups: [{worker_type: regular, num_gpus: 4}]}
- name: other
  model_path: /models/Qwen3-14B
  num_gpus_per_engine: 2
  server_groups: [{worker_type: regular, num_gpus: 4, overrides: {mem_fraction_static: 0.7}}]
"""


def test_a_model_that_only_serves_has_its_gpus_and_is_named(tmp_path):
    found = read(tmp_path, FROZEN, "sglang-config")
    assert [pool.gpus for pool in found.draft.pools] == [8, 4]
    said = found.keys.changes_work["sglang-config"]
    assert "other (/models/Qwen3-14B, on 4 GPUs of its own)" in said
    assert "rewards.service" in said


def test_a_teacher_among_the_engines_is_one(tmp_path):
    flags = f"{APART} --use-opd --opd-type sglang"
    found = read(tmp_path, FROZEN, "sglang-config", flags)
    assert dict(found.job.models)["teacher"] == "qwen3-14b"
    pools = [(pool.name, pool.gpus) for pool in found.draft.pools]
    assert pools == [("train", 8), ("rollout", 4), ("teacher", 4)]
    task = found.draft.tasks["teacher.compute_log_prob"]
    assert (task.tp, task.dp) == (2, 2)
    assert found.job.teacher.memory_fraction == 0.7
    assert not found.keys.changes_work


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sglang: 3", "has no list of mappings"),
        (f"{ENGINES}  - {{worker_type: regular, num_gpus: 4}}", "has groups of 4 GPUs together"),
        (f"{ENGINES}  - {{worker_type: regulr, num_gpus: 8}}", "worker_type: is not known"),
        (f"{ENGINES}  - {{worker_type: regular, num_gpus: x}}", "is no number of GPUs"),
        (f"{ENGINES}  - regular", "server_groups: has no list of mappings"),
        (
            f"{ENGINES}  - {{worker_type: regular, num_gpus: 8, overrides: [1]}}",
            "overrides: is no mapping",
        ),
        (f"{ENGINES}  - {{worker_type: placeholder, num_gpus: 8}}", "has no engine"),
        (
            "sglang: [{name: a, update_weights: false, server_groups: [{worker_type: regular, num_gpus: 8}]}]",
            "has 0 models that get the trained weights",
        ),
    ],
)
def test_what_slime_stops_at_is_refused(tmp_path, text, message):
    with pytest.raises(FileError, match=message):
        read(tmp_path, text, "sglang-config")


@pytest.mark.parametrize("key", ["sglang-config", "megatron-config-path", "custom-config-path"])
def test_a_file_that_is_not_at_hand_is_named_with_what_to_type(key):
    found = imported("slime", f"{APART} --{key} /gone.yaml".split(), OPTIONS)
    said = found.keys.changes_work[key]
    assert "not at hand" in said
    assert "--set" in said


WRITING = """
CONFIG=$(mktemp /tmp/engines_XXXX.yaml)
cat > "${CONFIG}" <<END
sglang:
- {name: default, server_groups: [{worker_type: prefill, num_gpus: 2}, {worker_type: decode, num_gpus: 6}]}
END
"""


def test_a_file_that_the_script_writes_itself_is_read(tmp_path):
    path = tmp_path / "run.sh"
    words = APART.replace("slime/", "").replace("\n", " \\\n")
    path.write_text(f'{WRITING}python3 {words} --sglang-config "${{CONFIG}}"\n')
    found = imported("slime", [str(path)], OPTIONS)
    assert found.job.prefill == PrefillApart(replicas=1)
    assert not found.keys.changes_work


def test_corrections_of_slimes_examples_change_no_work(tmp_path):
    text = "use_tis: true\ntis_level: token\nrs_lower_bound: null\ntis_batch_normalize: true\n"
    found = read(tmp_path, text, "custom-config-path")
    assert not found.keys.changes_work
    assert not found.keys.not_modelled
    assert not found.keys.unknown
