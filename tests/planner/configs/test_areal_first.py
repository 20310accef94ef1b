"""AReaL's first system (`realhf`, until 0.3.0): its own keys, programs and allocation, worked out by hand from its source."""

import pytest

from rlplan.errors import FileError
from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.importing import imported
from rlplan_cli.config_options import framework_of
from tests.planner.configs.test_keys_of_areal import OPTIONS

SYNCHRONOUS = """
experiment_name: boba
trial_name: first
mode: ray
allocation_mode: 'sglang.d4p1m1+d2p2m1'
n_nodes: 1
n_gpus_per_node: 8
exp_ctrl: {total_train_epochs: 5, save_freq_epochs: 1}
actor:
  type: {_class: qwen2}
  path: deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
  optimizer: {lr: 2e-05, lr_scheduler_type: constant}
  sglang: {mem_fraction_static: 0.8}
ref: {path: deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B}
actor_train: {mb_spec: {max_tokens_per_mb: 30720}}
actor_inf: {mb_spec: {max_tokens_per_mb: 20480}}
dataset: {path: data.jsonl, max_prompt_len: 1024, train_bs_n_seqs: 512}
ppo:
  gen: {max_new_tokens: 27648, temperature: 1.0}
  ppo_n_minibatches: 4
  kl_ctl: 0.0
  disable_value: true
group_size: 16
"""
ASYNCHRONOUS = """
python3 training/main_async_ppo.py n_nodes=1 n_gpus_per_node=8 allocation_mode=sglang.d4p1m1+d2p1m2 \\
  actor.path=Qwen/Qwen3-1.7B group_size=8 dataset.train_bs_n_seqs=32 dataset.max_prompt_len=512 \\
  ppo.gen.max_new_tokens=4096 ppo.ppo_n_minibatches=2 actor_train.mb_spec.max_tokens_per_mb=32768 max_head_offpolicyness=3
"""


def first(tmp_path, text=SYNCHRONOUS, *words, name="boba.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return imported("areal", [str(path), *words], OPTIONS)


def test_its_file_in_a_checkout_of_a_later_system_is_its_own(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "areal").mkdir()
    (tmp_path / "areal" / "version.py").write_text('__version__ = "0.4.1"\n')
    found = first(tmp_path)
    assert found.settings.sheet.version == "0.2"
    assert 'not by "0.4.1"' in found.settings.version_reason
    assert " more: since n_nodes" in found.settings.version_reason


def test_its_file_is_read_field_by_field(tmp_path):
    found = first(tmp_path)
    work, options = found.job.workload, found.job.trainer("actor")
    assert (work.prompts, work.samples_per_prompt, work.updates) == (512, 16, 4)
    assert {pool.name: pool.gpus for pool in found.draft.pools} == {"rollout": 4, "train": 4}
    update = found.draft.tasks["actor.update"]
    assert (update.engine, update.dp, update.pp, update.tp, update.token_budget) == (
        "real",
        2,
        2,
        1,
        30720,
    )
    generate = found.draft.tasks["actor.generate"]
    assert (generate.engine, generate.dp, generate.tp) == ("sglang-0.4", 4, 1)
    assert "actor.compute_log_prob" not in found.draft.tasks
    assert "reference.compute_log_prob" not in found.draft.tasks
    assert found.settings.sheet.version == "0.2"
    assert found.keys.unknown == ()
    assert options is not None


def test_its_asynchronous_program_has_its_own_file_behind_it(tmp_path):
    found = first(tmp_path, ASYNCHRONOUS, name="run.sh")
    work = found.job.workload
    assert framework_of([str(tmp_path / "run.sh")])[0] == "areal"
    assert (work.prompts, work.samples_per_prompt, work.updates) == (32, 8, 2)
    assert found.draft.staleness == 3
    update = found.draft.tasks["actor.update"]
    assert (update.dp, update.tp, update.pp) == (2, 2, 1)
    assert "actor.compute_log_prob" in found.draft.tasks  # use_decoupled_loss of async-ppo.yaml
    assert any("async-ppo.yaml" in note for note in found.notes)


def test_critics_references_and_passes_are_where_it_says_so(tmp_path):
    text = SYNCHRONOUS.replace(
        "disable_value: true", "disable_value: false\n  recompute_logprob: true"
    ).replace("kl_ctl: 0.0", "kl_ctl: 0.1")
    found = first(tmp_path, text, "critic.path=deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")
    tasks = found.draft.tasks
    assert {"critic.update", "reference.compute_log_prob", "actor.compute_log_prob"} <= tasks.keys()


def test_engines_take_all_gpus_of_its_nodes(tmp_path):
    found = first(tmp_path, SYNCHRONOUS, "n_nodes=2")
    (rule,) = (each for each in rules_of("areal") if each.name == "first-engines-fill-their-nodes")
    (broken,) = rule.broken(found.settings)
    assert "takes 8 GPUs, and nodes have 16" in broken.problem
    assert not rule.broken(first(tmp_path).settings)


def test_what_no_file_says_is_asked_for(tmp_path):
    with pytest.raises(FileError, match=r"group_size|gconfig\.n_samples"):
        first(tmp_path, SYNCHRONOUS.replace("group_size: 16\n", ""))
