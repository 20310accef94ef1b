"""Versions of frameworks: of which a configuration is, and what of its keys that version makes."""

from dataclasses import replace

import pytest

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import expected_rounds
from rlplan.errors import FileError
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.frameworks import frameworks_with
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.proposing.changes import argument
from rlplan.planner.configs.reading.given import GivenValue
from rlplan.planner.configs.reading.settings import Settings
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.planner.configs.reading.versions import runs_as
from rlplan.planner.configs.writing.texts import texts_with
from rlplan.profiles.facts import load_facts
from rlplan.profiles.sheets import load_engine, load_framework
from rlplan.simulator.simulate import simulate

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={"HOME": "~"})
MODEL = "actor_rollout_ref.model"
ROLL = "actor_rollout_ref.rollout"
BASE = (
    "algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct "
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 data.train_batch_size=256 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=64 data.max_prompt_length=512 data.max_response_length=1024 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8"
)
START = f"python3 -m verl.trainer.main_ppo {BASE}"
CRITIC = (
    "algorithm.adv_estimator=gae", "critic.model.path=Qwen/Qwen2.5-7B-Instruct", "critic.ppo_micro_batch_size_per_gpu=4",
)  # fmt: skip
NEMO = """
grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16}
policy:
  model_name: Qwen/Qwen2.5-1.5B
  train_global_batch_size: 512
  train_micro_batch_size: 4
  logprob_batch_size: 4
  max_total_sequence_length: 1024
  precision: bfloat16
  dtensor_cfg: {enabled: false}
  megatron_cfg: {enabled: true, tensor_model_parallel_size: 1}
  generation: {backend: vllm, vllm_cfg: {tensor_parallel_size: 1}}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""
TP = "megatron.tensor_model_parallel_size"
MEGATRON = ("model_engine=megatron", f"actor_rollout_ref.actor.{TP}=4")


def version(number):
    return replace(OPTIONS, version=number)


def verl(*more, options=OPTIONS):
    return imported("verl", ["-m", "verl.trainer.main_ppo", *BASE.split(), *more], options)


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a script with lines before its start, and files beside it, and imports it."""

    def written(before="", more="", files=()):
        for name, text in dict(files).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        path = tmp_path / "run.sh"
        path.write_text(f"{before}\n{START} {more}\n")
        return imported("verl", [str(path)], OPTIONS)

    return written


SAID = {
    "#SBATCH --container-image=verlai/verl:app-verl0.4-vllm0.8.5-mcore0.12.2-te2.2": ("0.4.1", "vllm-0.8-tokens-eager"),
    "docker pull verlai/verl:app-verl0.5-transformers4.55.4-vllm0.10.0-mcore0.13.0-te2.2": ("0.5", "vllm-0.11-tokens-eager"),
    "docker pull verlai/verl:app-verl0.6-vllm0.8.5": ("0.6.1", "vllm-0.8-tokens"),
    "pip install verl==0.7.0 vllm==0.8.5": ("0.7", "vllm-0.8"),
    "# image: hiyouga/verl:ngc-th2.6.0-cu126-vllm0.8.4-flashinfer0.2.2-cxx11abi0": ("0.5", "vllm-0.8-tokens-eager"),
    "# verlai/verl:vllm012.latest": ("0.7", "vllm-0.11-server-nccl"),
    "IMAGE=verlai/verl:vllm017.latest": ("0.9.1", "vllm-0.15-server"),
    "pip install verl==0.6.0": ("0.6", "vllm-0.11-tokens"),
    "pip install git+https://github.com/volcengine/verl@v0.3.0.post1": ("0.3", "vllm-0.6-eager"),
    "apptainer pull docker://vllm/vllm-openai:v0.8.5": ("0.5", "vllm-0.8-tokens-eager"),
    "pip install -U vllm==0.8.5": ("0.5", "vllm-0.8-tokens-eager"),
    "echo": ("0.9.1", "vllm-0.15-server"),
}  # fmt: skip


@pytest.mark.parametrize("line", SAID)
def test_images_and_packages_say_the_version(script, line):
    found = script(line)
    engine = found.draft.tasks["actor.generate"].engine
    assert (found.settings.sheet.version, engine) == SAID[line]


@pytest.mark.parametrize(
    ("lines", "engine"),
    [
        ("pip install verl==0.4.0\nexport VLLM_ATTENTION_BACKEND=XFORMERS", "vllm-0.6-eager"),
        ('pip install verl==0.5.0\nVLLM_USE_V1="0"', "vllm-0.6-eager"),
        ("docker pull verlai/verl:app-verl0.6-vllm0.8.5\nexport VLLM_USE_V1=0", "vllm-0.6"),
        ("pip install verl==0.4.0\n# export VLLM_USE_V1=0", "vllm-0.8-tokens-eager"),
        ("pip install verl==0.4.0\nexport VLLM_USE_V1=1", "vllm-0.8-tokens-eager"),
        (
            "pip install verl==0.4.0\nexport VLLM_USE_V1=0\nexport VLLM_USE_V1=1",
            "vllm-0.8-tokens-eager",
        ),
        (
            "pip install verl==0.4.0\nexport VLLM_USE_V1=0\nunset VLLM_USE_V1",
            "vllm-0.8-tokens-eager",
        ),
        ("pip install verl==0.4.0\nexport VLLM_USE_V1=${VLLM_USE_V1:-0}", "vllm-0.6-eager"),
        ('pip install verl==0.4.0\nR=\'{"env_vars": {"VLLM_USE_V1": "0"}}\'', "vllm-0.6-eager"),
        ("pip install verl==0.4.0\necho 'VLLM_USE_V1=0 is slower'", "vllm-0.8-tokens-eager"),
        (
            "pip install verl==0.4.0\nexport VLLM_USE_V1=0.5 MY_VLLM_USE_V1=0",
            "vllm-0.8-tokens-eager",
        ),
        (
            "pip install verl==0.4.0\necho ${VLLM_USE_V1:-0}\nX=${VLLM_USE_V1:-0}",
            "vllm-0.8-tokens-eager",
        ),
        # vLLM 0.11 has no other engine.
        (
            "pip install verl==0.4.0\nOLD=no\nif [ $OLD = yes ]; then\n  export VLLM_USE_V1=0\nfi",
            "vllm-0.8-tokens-eager",
        ),
        (
            "pip install verl==0.4.0\nOLD=yes\nif [ $OLD = yes ]; then\n  export VLLM_USE_V1=0\nfi",
            "vllm-0.6-eager",
        ),
        (
            "pip install verl==0.4.0\nOLD=no\nif [ $OLD = yes ]; then export VLLM_USE_V1=0; fi",
            "vllm-0.8-tokens-eager",
        ),
        (
            "pip install verl==0.4.0\nOLD=no\n[ $OLD = yes ] && export VLLM_USE_V1=0",
            "vllm-0.8-tokens-eager",
        ),
        (
            "pip install verl==0.4.0\nset_up() {\n  export VLLM_USE_V1=0\n}\nset_up",
            "vllm-0.6-eager",
        ),
        (
            "pip install verl==0.4.0\ncase v1 in\n  v0) export VLLM_USE_V1=0;;\n  *) echo;;\nesac",
            "vllm-0.8-tokens-eager",
        ),
        ("pip install verl==0.6.0\nexport VLLM_USE_V1=0", "vllm-0.11-tokens"),
    ],
)
def test_a_script_asks_for_vllms_first_engine_by_its_environment(script, lines, engine):
    found = script(lines)
    assert found.draft.tasks["actor.generate"].engine == engine
    assert any("(V0)" in note for note in found.notes) == engine.startswith("vllm-0.6")


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("requirements.txt", "torch\nverl==0.4.0\n", "0.4"),
        ("requirements.txt", "torch\n# vllm==0.8.4\n", "0.9.1"),
        ("verl/version/version", "0.5.0.dev\n", "0.5"),
        ("verl/version/version", "0.5.0\n", "0.5"),
        ("setup.py", "requires = ['verl==0.7.1']\n", "0.7.1"),
    ],
)
def test_files_beside_a_script_say_the_version(script, name, text, wanted):
    assert script(files={name: text}).settings.sheet.version == wanted


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"pyproject.toml": 'dependencies = ["trl[vllm]<0.17.0"]'}, "0.16"),
        ({"requirements.txt": "trl>=0.19.0,<0.20\n"}, "0.19"),
        ({"requirements.txt": "trl~=0.22.1\n"}, "0.22"),
        ({"requirements.txt": "trl @ git+https://github.com/huggingface/trl.git@v0.18.1\n"}, "0.18"),
        ({"requirements.txt": "trl>=0.19.0,!=0.20.0,<0.21\n"}, "0.20"),
        ({"requirements.txt": "trl>=0.19.0\n"}, "0.27"),  # as the newest with max_prompt_length
        ({"requirements.txt": "# trl<0.17\nmytrl<0.17\n"}, "0.27"),
        ({"requirements.txt": "trl>=0.14\n", "uv.lock": '[[package]]\nname = "trl"\nversion = "0.15.2"\n'}, "0.15"),
        ({"requirements.txt": "trl==0.18.1\n", "uv.lock": 'name = "trl"\nversion = "0.15.2"\n'}, "0.18"),
        ({"pyproject.toml": '[project]\nname = "trl"\ndynamic = ["version"]\n', "VERSION": "0.24.0\n"}, "0.24"),
    ],
)  # fmt: skip
def test_what_requirements_leave_or_lock_and_a_checkouts_own_file_say_the_version(
    tmp_path, files, wanted
):
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    command = "trl grpo --model_name_or_path Qwen/Qwen2.5-7B-Instruct --max_prompt_length 512"
    (tmp_path / "run.sh").write_text(f"{command}\n", encoding="utf-8")
    found = imported("trl", [str(tmp_path / "run.sh")], replace(OPTIONS, mean_response=100))
    assert found.settings.sheet.version == wanted


def test_files_beside_a_program_that_a_command_line_starts_say_the_version(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "from trl import GRPOConfig, GRPOTrainer\n"
        "GRPOTrainer(model='Qwen/Qwen2.5-7B-Instruct', args=GRPOConfig(num_generations=8)).train()\n",
        encoding="utf-8",
    )
    (tmp_path / "requirements.txt").write_text("trl<0.24\n", encoding="utf-8")
    words = ["accelerate", "launch", str(program)]
    found = imported("trl", words, replace(OPTIONS, mean_response=100))
    assert found.settings.sheet.version == "0.23"
    assert any('the newest that "trl<0.24" leaves' in note for note in found.notes)


@pytest.mark.parametrize(("number", "logits"), [("0.3", "entropy"), ("0.4", None)])
def test_updates_of_verl_0_3_make_entropies_that_nothing_is_learnt_from(number, logits):
    packs = "actor_rollout_ref.model.use_remove_padding=True"
    found = verl("actor_rollout_ref.actor.entropy_coeff=0", packs, options=version(number))
    assert found.job.trainer("actor").logits == logits


KEYS = {
    "critic.model.fsdp_config.param_offload=True": "0.7.1",
    "trainer.use_legacy_worker_impl=disable": "0.7.1",
    "actor_rollout_ref.rollout.mode=sync": "0.6.1",
    "actor_rollout_ref.rollout.mode=async": "0.9.1",
    "actor_rollout_ref.actor.checkpoint.contents=[model]": "0.4",
    "actor_rollout_ref.actor.fsdp_config.grad_offload=False": "0.2",
    "+actor_rollout_ref.actor.fsdp_config.grad_offload=False": "0.9.1",
    "critic.fsdp.param_offload=True": "0.9.1",
    # One stale key among newer ones does not count.
    "actor_rollout_ref.actor.fsdp_config.grad_offload=False trainer.use_v1=True critic.fsdp.fsdp_size=-1": "0.9.1",
}


@pytest.mark.parametrize("more", KEYS)
def test_keys_of_some_versions_say_the_version(script, more):
    found = script(more=more)
    assert found.settings.sheet.version == KEYS[more]
    assert any(note.startswith(f"verl {KEYS[more]}, ") for note in found.notes)


def test_the_version_says_why(script):
    key = "critic.model.fsdp_config.param_offload=True"
    (note,) = (each for each in script(more=key).notes if each.startswith("verl 0"))
    assert note.startswith(
        "verl 0.7.1, since critic.model.fsdp_config.param_offload is a key of versions up to 0.7.1 ("
    )
    assert note.endswith("run.sh:2)")


@pytest.mark.parametrize(
    ("word", "wanted"),
    [("0.7", "0.7.1"), ("0.7.0", "0.7"), ("v0.6.1", "0.6.1"), ("0.9", "0.9.1"), ("0.8.0", "0.8")],
)
def test_an_option_says_the_version(word, wanted):
    found = verl("actor_rollout_ref.rollout.mode=sync", options=version(word))
    assert found.settings.sheet.version == wanted
    assert found.document()["version"] == wanted


@pytest.mark.parametrize(
    ("framework", "word"), [("verl", "1.0"), ("nemo-rl", "0.1"), ("openrlhf", "0.12")]
)
def test_a_version_that_is_not_known_is_refused(framework, word):
    words = {
        "verl": ["-m", "verl.trainer.main_ppo"],
        "nemo-rl": ["examples/run_grpo.py"],
        "openrlhf": ["-m", "openrlhf.cli.train_ppo_ray"],
    }
    with pytest.raises(
        FileError, match=r"--framework-version.*is no version of .* whose keys are known"
    ):
        imported(framework, words[framework], version(word))


def test_defaults_are_those_of_the_version():
    older, newer = verl(options=version("0.5")), verl(options=version("0.9.1"))
    tasks = [each.draft.tasks["actor.generate"] for each in (older, newer)]
    assert [(task.engine, task.max_running) for task in tasks] == [
        ("vllm-0.8-tokens-eager", 1024),
        ("vllm-0.15-server", 256),
    ]


@pytest.mark.parametrize(
    ("number", "framework"),
    [
        ("0.2", "verl-fsdp-0.2"),
        ("0.5", "verl-fsdp-0.5"),
        ("0.6.0", "verl-fsdp-0.6"),
        ("0.6.1", "verl-fsdp"),
        ("0.9.1", "verl-fsdp"),
    ],
)
def test_steps_are_those_of_the_version(number, framework):
    assert verl(options=version(number)).job.framework == framework


@pytest.mark.parametrize(
    ("number", "framework", "keeps"),
    [
        ("0.4", "verl-megatron-0.5", True),
        ("0.5", "verl-megatron-0.5", True),
        ("0.6.0", "verl-megatron-0.6", False),
    ],
)
def test_engines_beside_megatron_sleep_at_the_level_of_the_version(number, framework, keeps):
    found = verl(*MEGATRON, options=version(number)).job.framework
    assert found == framework
    assert load_framework(found).host.keeps_engine_weights == keeps


@pytest.mark.parametrize(
    ("number", "framework", "engine"),
    [
        ("0.7", "nemo-rl-megatron", "vllm-0.15-ray"),
        ("0.6", "nemo-rl-megatron-0.6", "vllm-0.15-ray"),
        ("0.5", "nemo-rl-megatron-0.5", "vllm-0.11"),
        ("0.4", "nemo-rl-megatron-0.4", "vllm-0.10"),
        ("0.3", "nemo-rl-megatron-0.3", "vllm-0.8"),
    ],
)
def test_steps_and_engines_of_nemo_rl_are_those_of_the_version(number, framework, engine, tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text(NEMO)
    found = imported("nemo-rl", [str(path)], version(number))
    assert (found.job.framework, found.draft.tasks["actor.generate"].engine) == (framework, engine)


def test_every_version_has_sheets_that_there_are():
    for name in frameworks_with("keys"):
        sheet = load_config_sheet(name)
        assert set(sheet.earlier) <= set(sheet.versions)
        for number in sheet.versions:
            for trainer in sheet.of(number).trainers.values():
                load_framework(trainer.framework)
                assert trainer.padded is None or load_engine(trainer.padded).padding != "none"
        for found in sheet.engine_versions.values():
            list(map(load_engine, found.values()))


@pytest.mark.full
def test_the_synchronous_mode_is_gone_only_where_it_is():
    words = ["-m", "verl.trainer.main_ppo", *BASE.split(), "actor_rollout_ref.rollout.mode=sync"]
    gone = {
        number: [each.rule for each in check_config("verl", words, version(number)).findings]
        for number in ("0.4", "0.6.1", "0.7", "0.9.1")
    }
    assert gone == {
        "0.4": [],
        "0.6.1": [],
        "0.7": ["generation-is-asynchronous"],
        "0.9.1": ["generation-is-asynchronous"],
    }


def update_seconds(found):
    facts = load_facts(found.resolved)
    forecast = simulate(complete(found.draft, found.resolved, facts, "test"), facts)
    return next(each.seconds for each in forecast.costs if each.name == "actor.update")


PADDED = {
    "0.5": "fsdp2-hf-padded-to-limits",
    "0.7": "fsdp2-hf-padded-to-limits",
    "0.9.1": "fsdp2-hf-padded",
}


@pytest.mark.parametrize("number", PADDED)
def test_padding_takes_seconds(number):
    packed = verl(f"{MODEL}.use_remove_padding=True", options=version(number))
    padded = verl(f"{MODEL}.use_remove_padding=False", options=version(number))
    assert padded.draft.tasks["actor.update"].engine == PADDED[number]
    assert packed.draft.tasks["actor.update"].engine == "fsdp2-hf"
    before, after = map(update_seconds, (packed, padded))
    assert after > 1.3 * before


FLASH, CUDNN = "megatron-core-2025-flash", "megatron-core-2025"


@pytest.mark.parametrize(
    ("number", "word", "packs", "engine"),
    [
        ("0.9.1", None, True, FLASH),
        ("0.9.1", "flash", True, FLASH),
        ("0.9.1", "fused", True, CUDNN),
        ("0.9.1", "auto", True, CUDNN),
        ("0.9.1", None, False, f"{FLASH}-padded-to-rank"),
        ("0.9.1", "fused", False, f"{CUDNN}-padded-to-rank"),
        ("0.8", None, False, f"{FLASH}-padded"),
        ("0.8", "auto", False, f"{CUDNN}-padded"),
        ("0.7.1", "fused", False, CUDNN),  # packs whatever is said
        ("0.9.1", "unfused", True, FLASH),
        ("0.6.1", None, True, f"{FLASH}-rope-apart"),
        ("0.5", None, True, f"{CUDNN}-early-rope-apart"),
        ("0.5", "flash", True, f"{FLASH}-rope-apart"),
    ],
)
def test_megatrons_attention_is_the_one_that_a_version_or_key_asks_for(number, word, packs, engine):
    """A reference has the actor's; attention that is not fused is named as not counted."""
    key = "actor_rollout_ref.actor.megatron.override_transformer_config.attention_backend"
    asked = () if word is None else (f"{key}={word}",)
    packing = f"{MODEL}.use_remove_padding={packs}"
    more = (packing, *asked, "actor_rollout_ref.actor.use_kl_loss=True")
    found = verl(*MEGATRON, *more, options=version(number))
    trained = ("actor.update", "actor.compute_log_prob", "reference.compute_log_prob")
    assert {found.draft.tasks[name].engine for name in trained} == {engine}
    assert [each for each in found.keys.not_modelled if "attention" in each] == [key] * (
        word == "unfused"
    )


def test_rows_of_a_micro_batch_alone_are_as_short_as_they_are_where_a_key_says_so():
    key = "actor_rollout_ref.actor.megatron.pad_bshd_to_minibatch_max"
    padded = f"{MODEL}.use_remove_padding=False"
    usual, told = (verl(*MEGATRON, padded, *more) for more in ((), (f"{key}=False",)))
    assert told.draft.tasks["actor.update"].engine == f"{FLASH}-padded"
    assert update_seconds(told) < 0.9 * update_seconds(usual)


@pytest.mark.parametrize(
    ("number", "mode", "engine"),
    [
        ("0.6.1", "sync", "vllm-0.11-tokens"),
        ("0.6.1", "async", "vllm-0.11-server-nccl"),
        ("0.6", "async", "vllm-0.11-server-nccl"),
        ("0.9.1", "async", "vllm-0.15-server"),
    ],
)
def test_rollouts_that_are_asynchronous_are_served_by_a_process_of_the_engine(number, mode, engine):
    found = verl(f"{ROLL}.mode={mode}", options=version(number))
    assert found.draft.tasks["actor.generate"].engine == engine
    assert f"{ROLL}.mode" not in found.keys.not_modelled


def test_servers_of_vllm_0_8_are_named_as_not_counted():
    found = verl(f"{ROLL}.mode=async", options=version("0.5"))
    assert f"{ROLL}.mode" in found.keys.not_modelled


@pytest.mark.parametrize(
    ("number", "fused", "engine"),
    [
        ("0.5", True, f"{CUDNN}-early"),
        ("0.6.1", True, FLASH),
        ("0.6.1", False, f"{FLASH}-rope-apart"),
        ("0.9.1", True, FLASH),
        ("0.7", False, FLASH),  # Megatron-Core 0.15 rotates all at once, fused or not
        ("0.9.1", False, FLASH),
    ],
)
def test_megatron_rotates_each_sequence_by_itself_up_to_a_version_where_it_is_not_fused(
    number, fused, engine
):
    role = "actor_rollout_ref.actor"
    key = f"{role}.megatron.override_transformer_config.apply_rope_fusion"
    settings = (f"{MODEL}.use_remove_padding=True", f"+{key}={fused}")
    found = verl(*MEGATRON, *settings, options=version(number))
    assert found.draft.tasks["actor.update"].engine == engine
    counted = number in {"0.5", "0.6.1"}
    assert (key in found.keys.not_modelled) == (not fused and not counted)


@pytest.mark.parametrize(
    ("number", "more", "sleeps"),
    [
        ("0.9.1", "", False),
        ("0.5", "", False),
        ("0.4.1", "", True),
        ("0.3", "", False),  # vLLM 0.6 keeps its cache
        ("0.3", "actor_rollout_ref.rollout.name=sglang", True),
    ],
)
def test_engines_slept_whatever_was_said_before_0_5(number, more, sleeps):
    key = "actor_rollout_ref.rollout.free_cache_engine"
    found = verl(f"{key}=False", *more.split(), options=version(number))
    assert found.job.engines.sleeps == sleeps
    assert (
        any(f"{key}=False has no effect in verl {number}" in each for each in found.notes) == sleeps
    )
    assert verl(options=version(number)).job.engines.sleeps


def test_what_fits_with_an_engine_that_sleeps_is_told_where_it_stays():
    words = [
        "-m",
        "verl.trainer.main_ppo",
        *BASE.split(),
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.7",
    ]
    key = "actor_rollout_ref.rollout.free_cache_engine"
    stays = check_config("verl", [*words, f"{key}=False"], OPTIONS)
    assert stays.verdict == "does not fit"
    (remark,) = [each for each in stays.remarks if "sleeps" in each]
    assert remark.startswith(
        f"with an engine that sleeps while others work ({key}) it takes at most "
    )
    sleeps = check_config("verl", words, OPTIONS)
    assert sleeps.verdict != "does not fit"
    assert not any("an engine that sleeps" in each for each in sleeps.remarks)


def test_padding_was_the_default_once():
    assert verl(options=version("0.6.1")).draft.tasks["actor.update"].engine == PADDED["0.5"]
    assert verl(options=version("0.7")).draft.tasks["actor.update"].engine == "fsdp2-hf"


def test_a_critic_pads_by_a_key_of_its_own():
    tasks = verl(*CRITIC, options=version("0.7")).draft.tasks
    assert (tasks["actor.update"].engine, tasks["critic.update"].engine) == (
        "fsdp2-hf",
        PADDED["0.7"],
    )
    packed = verl(*CRITIC, "critic.model.use_remove_padding=True", options=version("0.7"))
    assert packed.draft.tasks["critic.update"].engine == "fsdp2-hf"


def test_budgets_of_padded_micro_batches_count_what_sequences_have():
    more = (
        "actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=6000",
        f"{MODEL}.use_remove_padding=False",
    )  # fmt: skip
    update = verl(*more).draft.tasks["actor.update"]
    assert (update.token_budget, update.micro_batch) == (None, 6000 // (256 + 300))


def tensor_ranks(found):
    return {name: task.tp for name, task in found.draft.tasks.items() if "generate" not in name}


def test_the_first_engine_lays_out_megatrons_process():
    found = verl(*MEGATRON, *CRITIC, "actor_rollout_ref.actor.use_kl_loss=True", f"critic.{TP}=2",
                 "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4")  # fmt: skip
    assert set(tensor_ranks(found).values()) == {2}
    (note,) = (each for each in found.notes if each.startswith("Megatron has one layout"))
    assert note == (
        f"Megatron has one layout a process, and the critic's counts (critic.{TP}=2): actor_rollout_ref.actor.{TP}=4 "
        "has no effect in verl 0.9.1"
    )


def test_the_actors_layout_counted_up_to_version_0_7():
    found = verl(*MEGATRON, *CRITIC, f"critic.{TP}=1", "critic.megatron.pipeline_model_parallel_size=2",
                 options=version("0.7"))  # fmt: skip
    assert set(tensor_ranks(found).values()) == {4}
    (note,) = (each for each in found.notes if each.startswith("Megatron has one layout"))
    assert (
        f"critic.{TP}=1, critic.megatron.pipeline_model_parallel_size=2 have no effect in verl 0.7.1"
        in note
    )


def test_a_reference_that_gives_no_layout_leaves_it_to_the_actor():
    compares = (
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
    )
    found = verl(*MEGATRON, *compares)
    assert set(tensor_ranks(found).values()) == {4}
    assert not any(each.startswith("Megatron") for each in found.notes)
    led = verl(*MEGATRON, *compares, f"actor_rollout_ref.ref.{TP}=2")
    assert set(tensor_ranks(led).values()) == {2}
    older = verl(*MEGATRON, *compares, f"actor_rollout_ref.ref.{TP}=2", options=version("0.7"))
    assert set(tensor_ranks(older).values()) == {4}


def test_meshes_of_fsdp_are_each_roles_own():
    found = verl(*CRITIC, "critic.ulysses_sequence_parallel_size=2")
    tasks = found.draft.tasks
    assert (tasks["actor.update"].cp, tasks["critic.update"].cp) == (1, 2)
    assert not any(each.startswith("Megatron") for each in found.notes)


@pytest.mark.parametrize(
    ("minor", "framework", "reason"),
    [
        (5, "nemo-rl-megatron-0.5", 'NeMo-RL 0.5, by "0.5.0" ('),
        (3, "nemo-rl-megatron-0.3", 'NeMo-RL 0.3, by "0.3.0" ('),
        # Its main has called itself so since then.
        (
            6,
            "nemo-rl-megatron",
            "NeMo-RL main of September 2026, the newest that is known, since checkouts of it say ",
        ),
    ],
)
def test_a_recipe_of_nemo_rls_checkout_is_of_its_version(tmp_path, minor, framework, reason):
    recipe = tmp_path / "examples" / "configs" / "mine.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(NEMO, encoding="utf-8")
    info = f'MAJOR = 0\nMINOR = {minor}\nPATCH = 0\nPRE_RELEASE = "rc0"\n__version__ = ".".join(VERSION)\n'
    (tmp_path / "nemo_rl").mkdir()
    (tmp_path / "nemo_rl" / "package_info.py").write_text(info, encoding="utf-8")
    found = imported("nemo-rl", [str(recipe)], OPTIONS)
    assert found.job.framework == framework
    assert any(note.startswith(reason) for note in found.notes)


@pytest.mark.parametrize(
    ("version", "more", "wanted"),
    [
        # Between 0.3.1 and 0.3.2, before and after the commit that packs micro-batches by tokens (EasyR1@9146f0f).
        ("0.3.2.dev0", "", "0.3.1"),
        ("0.3.2.dev0", "    dynamic_batching: true\n", "0.3.2"),
        ("0.3.2", "", "0.3.2"),
    ],
)
def test_a_checkout_between_versions_is_of_the_one_whose_keys_its_files_have(
    tmp_path, version, more, wanted
):
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").write_text(f'__version__ = "{version}"\n')
    path = tmp_path / "examples" / "config.yaml"
    path.parent.mkdir()
    path.write_text(
        "data: {rollout_batch_size: 64, max_prompt_length: 512, max_response_length: 512, video_fps: 2.0}\n"
        "algorithm: {adv_estimator: grpo}\n"
        "worker:\n"
        "  actor:\n"
        "    global_batch_size: 64\n"
        "    micro_batch_size_per_device_for_update: 2\n"
        "    micro_batch_size_per_device_for_experience: 4\n"
        f"    padding_free: true\n{more}"
        "    model: {model_path: Qwen/Qwen2.5-7B-Instruct}\n"
        "  rollout: {n: 4, tensor_parallel_size: 2}\n"
        "trainer: {n_gpus_per_node: 8}\n"
    )
    found = imported("easyr1", [str(path)], OPTIONS)
    assert found.settings.sheet.version == wanted
    assert (found.draft.tasks["actor.update"].token_budget is None) == (wanted == "0.3.1")


FILTERS = ("actor_rollout_ref.actor.use_kl_loss=False", "algorithm.filter_groups.enable=True")


@pytest.mark.parametrize(
    ("number", "rounds"), [("0.4", 1.0), ("0.7", 1.0), ("0.8", 1.0), ("0.9", 1.5)]
)
def test_before_0_9_recipes_alone_leave_groups_out(number, rounds):
    found = verl(*FILTERS, options=version(number))
    assert found.job.dynamic_sampling.expected_rounds == rounds
    assert expected_rounds(load_algorithm(found.job.algorithm), found.job) == rounds
    said = any("filter_groups.enable=True has no effect" in note for note in found.notes)
    assert said == (rounds == 1.0)
    assert any("of groups are taken to differ" in guess for guess in found.guesses) != said
    start = ["-m", "recipe.dapo.main_dapo", *BASE.split(), *FILTERS]
    recipe = imported("verl", start, version(number))
    assert recipe.job.dynamic_sampling.expected_rounds == 2.0
    assert not any("has no effect" in note for note in recipe.notes)


@pytest.mark.parametrize(("number", "most"), [("0.3", 256), ("0.4", 1024), ("0.9", 256)])
def test_engines_that_are_handed_no_limit_of_sequences_have_their_own(number, most):
    found = verl(options=version(number))
    assert found.draft.tasks["actor.generate"].max_running == most


@pytest.mark.parametrize(
    ("version", "key", "first"),
    [
        ("1.0.4", "actor.logprobs_chunk_size", "2.0"),
        ("0.5.3", "actor.backend", "1.0.3"),
        ("1.0.4", "actor.path", "1.0.4"),
    ],
)
def test_a_checkout_between_two_versions_is_searched_as_the_first_that_has_all_its_keys(
    version, key, first
):
    sheet = load_config_sheet("areal").of(version)
    flat = {key: GivenValue(value=1, where="run.yaml:1")}
    assert runs_as(Settings(sheet, flat, "run.yaml", "")) == first


def test_a_section_that_checkouts_call_otherwise_since_is_read_and_written_by_their_name(tmp_path):
    section = "{enabled: true, tensor_parallel_size: 2, cpu_offload: true}"
    pytorch = NEMO.replace("megatron_cfg: {enabled: true,", "megatron_cfg: {enabled: false,")
    texts = {
        name: pytorch.replace("dtensor_cfg: {enabled: false}", f"{name}: {section}")
        for name in ("dtensor_cfg", "automodel_cfg")
    }
    earlier, later = (
        imported("nemo-rl", [_written(tmp_path / f"{name}.yaml", text)], OPTIONS)
        for name, text in texts.items()
    )
    assert later.run.trainers == earlier.run.trainers
    assert later.run.trainers["actor"].tp == 2
    assert not later.keys.unknown
    assert any("policy.automodel_cfg is read as policy.dtensor_cfg" in each for each in later.notes)
    key = "policy.dtensor_cfg.activation_checkpointing"
    assert argument(earlier.settings, key, True)[0].lstrip("+") == f"{key}=true"
    own = "policy.automodel_cfg.activation_checkpointing"
    assert argument(later.settings, key, True)[0].lstrip("+") == f"{own}=true"
    file = tmp_path / "automodel_cfg.yaml"
    first = next(iter(texts_with(file.read_text(), file, later.settings, (key, True))))
    assert "activation_checkpointing: true}" in first


def _written(path, text):
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("more", "text", "framework"),
    [
        ("", "", "slime-0.2"),
        ("", "can_reuse_log_probs_in_loss = True", "slime"),
        # Keys that are gone by then are of the version that the checkout says.
        ("--train-backend fsdp", "can_reuse_log_probs_in_loss = True", "slime-fsdp"),
    ],
)
def test_a_checkout_of_slime_between_releases_is_of_the_version_whose_code_it_has(
    more, text, framework, tmp_path
):
    (tmp_path / ".git").mkdir()
    (tmp_path / "setup.py").write_text(
        'from setuptools import setup\nsetup(name="slime", version="0.2.4")\n'
    )
    own = tmp_path / "slime" / "backends" / "megatron_utils" / "actor.py"
    own.parent.mkdir(parents=True)
    own.write_text(f"{text}\n")
    script = tmp_path / "scripts" / "run.sh"
    script.parent.mkdir()
    script.write_text(
        "python3 train.py --hf-checkpoint Qwen/Qwen3-4B --rollout-batch-size 32 --n-samples-per-prompt 8 --colocate "
        f"--rollout-max-response-len 4096 --global-batch-size 256 --rollout-num-gpus-per-engine 1 {more}\n"
    )
    found = imported("slime", [str(script)], OPTIONS)
    assert found.job.framework == framework
    assert any("0.2.4" in note for note in found.notes)
    assert ("actor.compute_log_prob" in found.draft.tasks) == (framework != "slime")


def test_an_adapters_path_without_a_rank_is_asked_for_or_trains_nothing_by_version():
    words = [
        *BASE.split(),
        f"{MODEL}.lora_adapter_path=/models/adapter",
        "actor_rollout_ref.actor.use_kl_loss=True",
    ]
    command = ["-m", "verl.trainer.main_ppo", *words]
    with pytest.raises(FileError, match="lora_rank: is missing beside") as missing:
        imported("verl", command, replace(OPTIONS, version="0.7.1"))
    assert "lora_rank=64" in str(missing.value)
    told = imported("verl", [*command, f"{MODEL}.lora_rank=64"], replace(OPTIONS, version="0.7.1"))
    assert told.job.adapters is not None
    assert "reference" not in told.job.models
    later = imported("verl", command, replace(OPTIONS, version="0.9.1"))
    assert later.job.adapters is None
    assert "every weight learns" in later.keys.changes_work[f"{MODEL}.lora_adapter_path"]
    without = [*command[:-2], f"{MODEL}.lora_adapter_path=null", command[-1]]
    assert not imported("verl", without, replace(OPTIONS, version="0.9.1")).keys.changes_work


@pytest.mark.parametrize(
    ("start", "more", "passes"),
    [
        ("verl.experimental.fully_async_policy.fully_async_main", "", False),
        ("verl.experimental.fully_async_policy.fully_async_main", "algorithm.rollout_correction.bypass_mode=False", True),
        ("verl.experimental.one_step_off_policy.main_ppo", "", False),
        ("recipe.fully_async_policy.fully_async_main", "", False),
        ("recipe.fully_async_policy.fully_async_main", "async_training.compute_prox_log_prob=True", True),
        ("recipe.one_step_off_policy.main_ppo", "", True),
    ],
)  # fmt: skip
def test_asynchronous_trainers_take_the_engines_log_probabilities_as_their_own_files_say(
    start, more, passes
):
    """By fully_async_policy/config and one_step_off_policy/config of verl 0.6.1 to 0.9, which users' scripts only name."""
    words = [
        "-m",
        start,
        *BASE.split(),
        "rollout.nnodes=1",
        "rollout.n_gpus_per_node=8",
        *more.split(),
    ]
    found = imported("verl", words, replace(OPTIONS, version="0.7.1"))
    assert ("actor.compute_log_prob" in found.draft.tasks) == passes


@pytest.mark.parametrize(
    ("framework", "start"),
    [
        ("trl", "accelerate launch -m trl.scripts.grpo --model_name_or_path Qwen/Qwen3-4B"),
        ("ms-swift", "swift rlhf --rlhf_type grpo --model Qwen/Qwen3-4B"),
    ],
)
def test_vllms_first_engine_generates_where_a_script_asks_for_it(tmp_path, framework, start):
    path = tmp_path / "run.sh"
    more = "--use_vllm true --vllm_mode colocate --max_completion_length 512 --num_generations 4"
    more += " --per_device_train_batch_size 4"
    for asked, engine in (("export VLLM_USE_V1=0", "vllm-0.6"), ("", "vllm-0.8")):
        path.write_text(f"pip install vllm==0.8.5\n{asked}\n{start} {more}\n", encoding="utf-8")
        options = ImportOptions(gpu="h100-80gb-sxm", mean_response=64.0, environment={})
        assert imported(framework, [str(path)], options).run.engines.generate == engine
