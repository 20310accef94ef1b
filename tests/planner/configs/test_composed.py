"""Configurations that hydra composes: a file of one's own over verl's defaults, beneath the command line."""

from dataclasses import replace

import pytest

from rlplan.errors import FileError
from rlplan.planner.configs.importing import ImportOptions, imported

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={"HOME": "~"})
OWN = """
hydra: {searchpath: ["file://verl/trainer/config"]}
defaults:
  - ppo_trainer
  - _self_
algorithm: {adv_estimator: grpo}
data:
  train_batch_size: 64
  max_prompt_length: 512
  max_response_length: 1024
actor_rollout_ref:
  model: {path: Qwen/Qwen3-8B}
  actor:
    use_kl_loss: true
    ppo_mini_batch_size: 32
    ppo_micro_batch_size_per_gpu: 4
  ref: {log_prob_micro_batch_size_per_gpu: "${actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu}"}
  rollout: {name: vllm, n: 8, log_prob_micro_batch_size_per_gpu: 8}
trainer: {nnodes: 1, n_gpus_per_node: 8}
"""


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a script and files beside it, and imports the script."""

    def written(command, files, **options):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        path = tmp_path / "run.sh"
        path.write_text(command + "\n")
        return imported("verl", [str(path)], replace(OPTIONS, **options))

    return written


NAMED = (
    "--config-path=./config --config-name=mine",
    "--config-path=$PROJECT/config --config-name='mine.yaml'",
    "--config-path /elsewhere/config --config-name mine",
    "-cp config -cn mine",
    "--config-dir=config --config-name=mine",
    "--config-name mine",
)


@pytest.mark.parametrize("flags", NAMED)
def test_a_file_of_ones_own_is_read_whatever_way_it_is_named(script, flags):
    found = script(f"python3 -m verl.trainer.main_ppo {flags}", {"config/mine.yaml": OWN})
    assert (found.job.algorithm, dict(found.job.models)) == (
        "grpo",
        {"actor": "qwen3-8b", "reference": "qwen3-8b"},
    )
    assert (found.job.workload.prompts, found.job.workload.samples_per_prompt) == (64, 8)
    assert not found.keys.unknown
    assert not list(found.doubts())


def test_a_value_says_in_which_line_of_its_file_it_stands(script, tmp_path):
    found = script("python3 -m verl.trainer.main_ppo --config-name=mine", {"config/mine.yaml": OWN})
    flat = found.settings.flat
    assert flat["data.train_batch_size"].where == f"{tmp_path}/config/mine.yaml:8"


def test_references_are_followed_after_the_command_line(script):
    found = script(
        "python3 -m verl.trainer.main_ppo --config-name=mine actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        {"config/mine.yaml": OWN},
    )
    assert found.draft.tasks["actor.update"].micro_batch == 2
    assert found.draft.tasks["reference.compute_log_prob"].micro_batch == 2


def test_an_argument_counts_before_a_files_other_key_of_the_same_setting(script):
    more = OWN.replace(
        "  actor:\n", "  actor:\n    fsdp_config: {ulysses_sequence_parallel_size: 1}\n"
    )
    found = script(
        "python3 -m verl.trainer.main_ppo --config-name=mine actor_rollout_ref.actor.ulysses_sequence_parallel_size=4",
        {"config/mine.yaml": more},
    )
    assert found.draft.tasks["actor.update"].cp == 4


def test_what_stands_before_self_lies_beneath_a_files_own_values(script):
    files = {
        "config/base.yaml": "data: {train_batch_size: 128, max_prompt_length: 2048}\n",
        "config/mine.yaml": OWN.replace("  - ppo_trainer\n", "  - ppo_trainer\n  - base\n"),
        "config/yours.yaml": OWN.replace("  - _self_\n", "  - _self_\n  - base\n"),
    }
    mine = script("python3 -m verl.trainer.main_ppo --config-name=mine", files)
    yours = script("python3 -m verl.trainer.main_ppo --config-name=yours", files)
    assert mine.job.workload.prompts == 64
    assert yours.job.workload.prompts == 128


def test_groups_are_put_under_their_packages(script):
    chosen = (
        "  - data: small\n  - size@actor_rollout_ref.actor: tiny\n  - /shape/eight@trainer\n"
        "  - experiment/fast\n"
    )
    files = {
        "config/data/small.yaml": "train_batch_size: 16\nmax_prompt_length: 256\nmax_response_length: 512\n",
        "config/size/tiny.yaml": "ppo_mini_batch_size: 8\nppo_micro_batch_size_per_gpu: 1\n",
        "config/shape/eight.yaml": "nnodes: 2\n",
        "config/experiment/fast.yaml": "# @package _global_\nactor_rollout_ref: {rollout: {n: 4}}\n",
        "config/mine.yaml": OWN.replace("  - _self_\n", f"  - _self_\n{chosen}"),
    }
    found = script("python3 -m verl.trainer.main_ppo --config-name=mine", files)
    work = found.job.workload
    assert (work.prompts, work.updates, work.samples_per_prompt) == (16, 2, 4)
    assert found.draft.tasks["actor.update"].micro_batch == 1
    assert found.job.gpus == 16


@pytest.mark.parametrize("choice", ["+experiment=fast", "experiment=fast"])
def test_a_group_chosen_on_the_command_line_is_read(script, choice):
    files = {
        "config/experiment/fast.yaml": "# @package _global_\nactor_rollout_ref: {rollout: {n: 4}}\n",
        "config/mine.yaml": OWN,
    }
    found = script(f"python3 -m verl.trainer.main_ppo --config-name=mine {choice}", files)
    assert found.job.workload.samples_per_prompt == 4


def test_the_defaults_of_megatron_take_its_trainer(script):
    own = OWN.replace("- ppo_trainer", "- ppo_megatron_trainer")
    found = script("python3 -m verl.trainer.main_ppo --config-name=mine", {"config/mine.yaml": own})
    assert found.job.framework == "verl-megatron"
    plain = script("python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer data.train_batch_size=256 "
                   "actor_rollout_ref.model.path=Qwen/Qwen3-8B", {})  # fmt: skip
    assert plain.job.framework == "verl-megatron-0.7"


def test_what_is_taken_away_is_as_verl_has_it(script):
    found = script(
        "python3 -m verl.trainer.main_ppo --config-name=mine '~actor_rollout_ref.rollout.n'",
        {"config/mine.yaml": OWN},
    )
    assert found.job.workload.samples_per_prompt == 1


def test_a_started_module_says_which_file_is_its_own(script):
    files = {
        "recipe/mine/main_mine.py": '@hydra.main(config_path="settings", config_name="base", version_base=None)\n',
        "recipe/mine/settings/base.yaml": OWN,
    }
    found = script(
        "python3 -m recipe.mine.main_mine data.train_batch_size=96 actor_rollout_ref.rollout.n=4",
        files,
    )
    assert (found.job.algorithm, found.job.workload.prompts) == ("grpo", 96)


def test_a_file_that_is_not_there_makes_the_answer_doubtful(script):
    found = script("python3 -m verl.trainer.main_ppo --config-name=mine data.train_batch_size=256 "
                   "actor_rollout_ref.model.path=Qwen/Qwen3-8B", {})  # fmt: skip
    (doubt,) = found.doubts()
    assert doubt.startswith("--config-name=mine changes the amount of work (its file is not found")
    assert found.notes[0].startswith("mine is not there")


@pytest.mark.parametrize("name", ["mine", "rl_factory_ppo_trainer"])
def test_a_forks_own_file_among_verls_is_read(name, script):
    """SDPO's `sdpo.yaml` lies in `verl/trainer/config`, and turns the critic off; RL-Factory's is called much as verl's."""
    folder = "verl/trainer/config"
    files = {
        "verl/trainer/main_ppo.py": '@hydra.main(config_path="config", config_name="ppo_trainer")\n',
        f"{folder}/ppo_trainer.yaml": "algorithm: {adv_estimator: gae}\n",
        f"{folder}/user.yaml": "trainer: {nnodes: 2}\n",
        f"{folder}/mine.yaml": OWN.replace("  - _self_\n", "  - user\n  - _self_\n").replace(
            "{nnodes: 1, n_gpus_per_node: 8}", "{n_gpus_per_node: 4}"
        ),
    }
    files[f"{folder}/{name}.yaml"] = files.pop(f"{folder}/mine.yaml")
    found = script(f"python3 -m verl.trainer.main_ppo --config-name {name}", files)
    assert not list(found.doubts())
    assert (found.job.algorithm, found.job.workload.prompts) == ("grpo", 64)
    (group,) = found.job.cluster
    assert (group.gpus_per_node, group.nodes) == (4, 2)


def test_verls_own_files_are_not_missed(script):
    for flags in (
        "--config-path=config --config-name='ppo_megatron_trainer.yaml'",
        "--config-name ppo_trainer",
    ):
        found = script(
            f"python3 -m verl.trainer.main_ppo {flags} actor_rollout_ref.model.path=Qwen/Qwen3-8B",
            {},
        )
        assert not list(found.doubts())


def test_a_copy_of_verls_own_file_in_a_folder_that_is_not_there_is_missed(script):
    flags = "--config-path={} --config-name=ppo_trainer actor_rollout_ref.model.path=Qwen/Qwen3-8B"
    own = script(
        f"python3 -m verl.trainer.main_ppo {flags.format('$VERL/verl/trainer/config')}", {}
    )
    copied = script(
        f"python3 -m verl.trainer.main_ppo {flags.format('/elsewhere/project/config')}", {}
    )
    assert (len(list(own.doubts())), len(list(copied.doubts()))) == (0, 1)


def test_a_files_choices_of_verls_own_groups_count(script):
    own = OWN.replace(
        "  - _self_\n",
        "  - override model_engine: megatron\n  - ref@actor_rollout_ref.ref: dp_ref\n  - _self_\n",
    )
    found = script("python3 -m verl.trainer.main_ppo --config-name=mine", {"config/mine.yaml": own})
    assert found.job.framework == "verl-megatron"
    assert not found.keys.unknown
    chosen = OWN.replace("- ppo_trainer", "- actor@actor_rollout_ref.actor: megatron_actor")
    found = script(
        "python3 -m verl.trainer.main_ppo --config-name=mine", {"config/mine.yaml": chosen}
    )
    assert found.job.framework == "verl-megatron"


def test_what_has_to_be_given_elsewhere_is_not_given(script):
    own = OWN.replace("name: vllm", "name: '???'")
    found = script("python3 -m verl.trainer.main_ppo --config-name=mine", {"config/mine.yaml": own})
    assert "actor_rollout_ref.rollout.name" not in found.settings.flat


def test_files_are_looked_for_where_the_command_line_says(script, tmp_path):
    files = {
        "more/base.yaml": "data: {train_batch_size: 128}\n",
        "config/mine.yaml": OWN.replace("  - _self_\n", "  - _self_\n  - base\n"),
    }
    found = script(
        f"python3 -m verl.trainer.main_ppo --config-name=mine hydra.searchpath=[file://{tmp_path}/more]",
        files,
    )
    assert found.job.workload.prompts == 128


def test_numbers_are_those_of_omegaconf(script):
    own = OWN.replace("    use_kl_loss: true\n", "    use_kl_loss: true\n    optim: {lr: 1e-6}\n")
    found = script("python3 -m verl.trainer.main_ppo --config-name=mine", {"config/mine.yaml": own})
    assert found.settings.flat["actor_rollout_ref.actor.optim.lr"].value == 1e-6


def test_a_file_may_change_the_choice_of_another_ones_group(script):
    files = {
        "config/data/small.yaml": "train_batch_size: 32\nmax_prompt_length: 256\n",
        "config/data/large.yaml": "train_batch_size: 512\nmax_prompt_length: 256\n",
        "config/experiment/fast.yaml": "# @package _global_\ndefaults:\n  - override /data: large\n",
        "config/mine.yaml": OWN.replace("  - _self_\n", "  - _self_\n  - data: small\n"),
    }
    start = "python3 -m verl.trainer.main_ppo --config-name=mine"
    assert script(start, files).job.workload.prompts == 32
    assert script(f"{start} +experiment=fast", files).job.workload.prompts == 512
    assert script(f"{start} data=large", files).job.workload.prompts == 512


def test_a_key_that_comes_twice_is_refused_where_omegaconf_reads(script):
    twice = OWN.replace(
        "max_prompt_length: 512", "max_prompt_length: 512\n  max_prompt_length: 256"
    )
    with pytest.raises(
        FileError, match=r"own\.yaml: data\.max_prompt_length: comes twice, .* line 10"
    ):
        script(
            "python3 -m verl.trainer.main_ppo --config-path . --config-name own",
            {"own.yaml": twice},
        )


def test_a_mapping_that_holds_itself_is_refused_in_one_line(script):
    start = "python3 -m verl.trainer.main_ppo --config-path . --config-name own"
    with pytest.raises(FileError, match=r"own\.yaml: data\.again: refers to itself"):
        script(start, {"own.yaml": "data: &data\n  train_batch_size: 8\n  again: *data\n"})


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("data: {train_files: [{a: 1, a: 2}]}\n", r"data\.train_files\[0\]\.a: comes twice"),
        ("data: &data {train_files: [*data]}\n", r"data\.train_files\[0\]: refers to itself"),
    ],
)
def test_mappings_in_lists_are_looked_at_as_others_are(script, written, said):
    start = "python3 -m verl.trainer.main_ppo --config-path . --config-name own"
    with pytest.raises(FileError, match=said):
        script(start, {"own.yaml": written})


CHECKOUT = {
    "verl/trainer/main_ppo.py": '@hydra.main(config_path="config", config_name="ppo_trainer")\n',
    "verl/version/version": "0.2.0.dev\n",
    "verl/trainer/config/ppo_trainer.yaml": """
algorithm: {adv_estimator: grpo, gamma: 1.0}
actor_rollout_ref:
  model: {path: ~/models/elsewhere, use_remove_padding: true}
  actor: {use_kl_loss: true, ulysses_sequence_parallel_size: 4, fsdp_config: {param_offload: true}}
  rollout: {name: vllm, n: 8, max_num_batched_tokens: 8192, tensor_model_parallel_size: 4}
critic: {ppo_max_token_len_per_gpu: 32768}
trainer: {total_epochs: 30}
""",
}
BARE = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"


def test_a_checkouts_own_defaults_stand_beneath_a_command_line(script):
    """DeepResearcher's script says no estimator: its `ppo_trainer.yaml` has GRPO's, with a reference."""
    found = script(BARE, CHECKOUT)
    job, draft = found.job, found.draft
    assert (job.algorithm, dict(job.models)["reference"]) == ("grpo", "qwen3-8b")
    assert (draft.tasks["actor.generate"].tp, draft.tasks["actor.update"].cp) == (4, 4)
    assert draft.tasks["actor.update"].offload
    (said,) = (each for each in found.notes if each.startswith("defaults of the checkout"))
    assert "algorithm.adv_estimator=grpo" in said
    for same in ("gamma", "total_epochs", "max_num_batched_tokens", "critic", "elsewhere"):
        assert same not in said


def test_a_fork_under_a_name_of_its_own_is_told_by_its_version(script):
    """AgentGym-RL's verl, with a trainer of its own, lies in a folder that is called as the project is."""
    files = {f"Agents/{name}": text for name, text in CHECKOUT.items()}
    found = script(f"cd Agents\n{BARE}", files)
    assert found.draft.tasks["actor.generate"].tp == 4
    assert found.settings.version_reason.endswith("(Agents/verl/trainer/config)") or any(
        "Agents/verl/version/version" in each for each in found.notes
    )
    twice = {f"Other/{name}": text for name, text in CHECKOUT.items()}
    assert script(BARE, {**files, **twice}).draft.tasks["actor.generate"].tp != 4


def test_a_checkouts_variable_of_the_environment_has_its_default(script, monkeypatch):
    name = "verl/trainer/config/ppo_trainer.yaml"
    text = CHECKOUT[name].replace("n: 8", 'n: "${oc.env:SAMPLES_OF_A_FORK,6}"')
    assert script(BARE, {**CHECKOUT, name: text}).job.workload.samples_per_prompt == 6
    monkeypatch.setenv("SAMPLES_OF_A_FORK", "3")
    assert script(BARE, {**CHECKOUT, name: text}).job.workload.samples_per_prompt == 3


@pytest.mark.parametrize(
    ("line", "reference"),
    [
        ("Role.RefPolicy: ray.remote(Worker),", True),
        ("# Role.RefPolicy: ray.remote(Worker),", False),
    ],
)
def test_a_checkout_whose_code_starts_no_reference_has_none(line, reference, script):
    """verl up to 0.3 starts one in every run, and Skywork-OR1, which counts as such, in none."""
    main = f"{CHECKOUT['verl/trainer/main_ppo.py']}mapping = {{\n    {line}\n}}\n"
    config = "algorithm: {adv_estimator: grpo}\n"
    files = {"verl/trainer/main_ppo.py": main, "verl/trainer/config/ppo_trainer.yaml": config}
    found = script(BARE, {**CHECKOUT, "verl/version/version": "0.2.0\n", **files})
    assert ("reference" in dict(found.job.models)) == reference


def test_a_checkouts_own_defaults_count_beside_a_version_that_is_said(script):
    assert script(BARE, CHECKOUT, version="0.5").draft.tasks["actor.generate"].tp == 4


def test_a_script_in_a_checkout_of_another_version_than_the_one_that_is_said_says_so(script):
    plain = script(BARE, {**CHECKOUT, "verl/version/version": "0.5.0\n"}, version="0.5")
    assert not any("which says another" in note for note in plain.notes)
    files = {**CHECKOUT, "verl/version/version": "0.7.0\n"}
    found = script(BARE, files, version="0.5")
    assert found.draft.tasks["actor.generate"].tp == 4
    assert any("which says another" in note for note in found.notes)


def test_a_checkout_of_another_version_than_the_one_that_is_said_is_not_read(script):
    files = {f"third_party/verl/{name}": text for name, text in CHECKOUT.items()}
    files["third_party/verl/verl/version/version"] = "0.7.0\n"
    words = f"{BARE} algorithm.adv_estimator=grpo"
    assert script(words, files, version="0.5").draft.tasks["actor.generate"].tp == 2
    assert script(words, files, version="0.7").draft.tasks["actor.generate"].tp == 4


def test_a_checkout_of_another_version_than_a_script_installs_is_not_read(script):
    files = {f"third_party/verl/{name}": text for name, text in CHECKOUT.items()}
    files["third_party/verl/verl/version/version"] = "0.7.0\n"
    files["third_party/verl/setup.py"] = 'VLLM_REQUIRES = ["vllm>=0.8.5,<=0.12.0"]\n'
    found = script(f"pip install verl==0.4.1\n{BARE} algorithm.adv_estimator=grpo", files)
    assert (found.settings.sheet.version, found.draft.tasks["actor.generate"].tp) == ("0.4.1", 2)
    assert found.settings.version_reason.endswith("third_party/verl")
    assert found.job.engines.generate == "vllm-0.8-tokens-eager"
    assert not any("defaults of the checkout" in each for each in found.notes)


def test_a_command_line_counts_before_a_checkouts_own_defaults(script):
    found = script(f"{BARE} actor_rollout_ref.rollout.tensor_model_parallel_size=2", CHECKOUT)
    assert found.draft.tasks["actor.generate"].tp == 2


def test_checkouts_say_the_newest_engine_that_they_take(script):
    """Of a checkout of 0.2.0.dev the number says nothing: it took vLLM 0.6.3 at first, and 0.8.3 at last."""
    named = 'VLLM_REQUIRES = ["tensordict<=0.6.2", "vllm<={}"]\n'
    start = f"{BARE} actor_rollout_ref.rollout.free_cache_engine=False"
    early = script(start, {**CHECKOUT, "setup.py": named.format("0.6.3")})
    late = script(start, {**CHECKOUT, "setup.py": named.format("0.8.3")})
    pinned = script(start, {**CHECKOUT, "requirements.txt": "vllm==0.6.3\n"})
    engines = [each.job.engines for each in (early, late, pinned)]
    assert [each.generate for each in engines] == ["vllm-0.6-eager", "vllm-0.8-tokens-eager", "vllm-0.6-eager"]  # fmt: skip
    assert [each.sleeps for each in engines] == [False, True, False]


@pytest.mark.parametrize(
    ("version", "key", "running"),
    [
        ("0.5", "max_num_seqs", 1024),
        ("0.5", "engine_kwargs.vllm.max_num_seqs", 64),
        ("0.6", "max_num_seqs", 64),
    ],
)
def test_a_number_of_sequences_counts_where_engines_are_given_it(version, key, running, script):
    files = {**CHECKOUT, "verl/version/version": f"{version}.0\n"}
    found = script(f"{BARE} +actor_rollout_ref.rollout.{key}=64", files)
    assert found.draft.tasks["actor.generate"].max_running == running
    said = any("reaches none in verl 0.5" in each for each in found.notes)
    assert said == (running == 1024)


@pytest.mark.parametrize(
    ("version", "gpu", "running"),
    [("0.5", "l40s-48gb", 256), ("0.5", "a100-80gb-sxm", 1024), ("0.3", "h100-80gb-sxm", 256)],
)
def test_where_engines_are_given_no_number_their_gpu_says_it(version, gpu, running, script):
    files = {**CHECKOUT, "verl/version/version": f"{version}.0\n"}
    found = script(BARE, files, gpu=gpu)
    assert found.draft.tasks["actor.generate"].max_running == running


@pytest.mark.parametrize(
    ("number", "own", "version"),
    [
        ("0.2.0.dev", "{use_kl_in_reward: false}", "0.4"),  # since 0.4: as late as May 2025
        ("0.2.0.dev", "{gamma: 1.0}", "0.2"),
        ("0.7.0.dev", "{rollout_correction: {bypass_mode: false}}", "0.7"),
        ("0.7.0.dev", "{rollout_is: false}", "0.6"),  # in 0.6 alone
        ("0.6.0", "{rollout_correction: {bypass_mode: false}}", "0.6.1"),
        ("0.1", "{use_kl_in_reward: false}", "0.1"),  # three versions on: a key of the fork's own
    ],
)
def test_a_checkout_between_releases_is_of_the_version_whose_keys_it_has(
    number, own, version, script
):
    files = {
        "verl/version/version": f"{number}\n",
        "verl/trainer/config/ppo_trainer.yaml": f"algorithm: {own}\n",
    }
    assert script(BARE, files).settings.sheet.version == version
