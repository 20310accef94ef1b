"""EasyR1's configurations: its YAML file by a key, one that is not at hand, versions, images, and what it shares."""

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.frameworks import CODE_PARTS, frameworks_with
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.notes import IN_ONE_TENSOR, ONE_BY_ONE, TOGETHER
from rlplan.planner.configs.reading.telling import starts_of
from rlplan.planner.configs.writing.exporting import exported
from rlplan.planner.layouts.settings import token_budgets
from rlplan.profiles.facts import load_facts
from rlplan.profiles.frameworks import DATA_PARTS
from rlplan.trainers import TrainerOptions
from rlplan.workload import PromptImages, Workload
from rlplan_cli.config_options import framework_of
from tests.house.tree import ROOT
from tests.planner.configs.test_rules_of_easyr1 import CRITIC, EASYR1, A, C, R

PUBLISHED = ROOT.parent / "shared" / "data" / "configs-new" / "easyr1"
OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=300, environment={"HOME": "~"})
FILE = """
data: {rollout_batch_size: 128, max_prompt_length: 1000, max_response_length: 3000}
algorithm: {adv_estimator: grpo, use_kl_loss: true}
worker:
  actor:
    global_batch_size: 32
    padding_free: true
    dynamic_batching: true
    model: {model_path: Qwen/Qwen2.5-7B-Instruct}
    micro_batch_size_per_device_for_update: 1
    micro_batch_size_per_device_for_experience: 2
  rollout: {n: 4, tensor_parallel_size: 1}
trainer: {n_gpus_per_node: 4, logger: [console]}
"""
SCRIPT = 'python3 -m verl.trainer.main config=examples/config.yaml worker.rollout.n=8 "$@"\n'


def easyr1(*more, options=OPTIONS):
    return imported("easyr1", [*EASYR1, *more], options)


def written(folder, files):
    """Write texts into files of a folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_it_is_a_framework_with_every_part():
    assert "easyr1" in frameworks_with(*DATA_PARTS, *CODE_PARTS)


def test_a_command_line_is_laid_over_the_file_that_a_key_names(tmp_path):
    written(tmp_path, {"examples/config.yaml": FILE, "examples/run.sh": SCRIPT})
    found = imported("easyr1", [str(tmp_path / "examples" / "run.sh")], OPTIONS)
    work = found.job.workload
    assert (work.prompts, work.samples_per_prompt, work.updates) == (128, 8, 4)
    assert found.keys.unknown == ()
    assert "config" in found.keys.without_influence
    assert not any("not at hand" in note for note in found.notes)
    alone = imported("easyr1", [str(tmp_path / "examples" / "config.yaml"), f"{R}.n=8"], OPTIONS)
    assert (alone.job, alone.draft) == (replace(found.job, name="config"), found.draft)


def test_for_a_file_of_its_own_that_is_not_at_hand_stand_its_known_values(tmp_path):
    written(tmp_path, {"run.sh": SCRIPT})
    found = imported("easyr1", [str(tmp_path / "run.sh")], OPTIONS)
    work = found.job.workload
    assert (work.prompts, work.samples_per_prompt, work.updates) == (512, 8, 4)
    assert found.job.models["actor"] == "qwen2.5-7b"
    assert (
        "examples/config.yaml, which is not at hand, has EasyR1's own values: put it beside the script"
        in found.guesses
    )
    assert list(found.doubts()) == []


def test_what_stands_for_a_file_is_of_the_configurations_version(tmp_path):
    older = SCRIPT.replace('"$@"', "worker.reward.reward_type=batch trainer.total_episodes=3")
    written(tmp_path, {"now.sh": SCRIPT, "older.sh": older})
    now, then = (
        imported("easyr1", [str(tmp_path / name)], OPTIONS) for name in ("now.sh", "older.sh")
    )
    assert (now.settings.sheet.version, then.settings.sheet.version) == ("0.3.3", "0.3")
    assert now.draft.tasks["actor.update"].token_budget == 4096
    update = then.draft.tasks["actor.update"]
    assert (update.token_budget, update.micro_batch) == (None, 4)


def test_another_file_that_is_not_at_hand_makes_the_answer_doubtful_and_names_no_model(tmp_path):
    written(tmp_path, {"run.sh": SCRIPT.replace("examples/config.yaml", "mine/geo.yaml")})
    script = str(tmp_path / "run.sh")
    with pytest.raises(FileError, match=r"worker\.actor\.model\.model_path: is missing"):
        imported("easyr1", [script], OPTIONS)
    named = replace(OPTIONS, model="qwen2.5-7b")
    (doubt,) = imported("easyr1", [script], named).doubts()
    assert doubt == (
        "config=mine/geo.yaml changes the amount of work (its file is not at hand, and EasyR1's own examples/config.yaml "
        "stands for it) and is not counted"
    )


def test_scripts_and_files_are_told_from_verls(tmp_path):
    verl = "data: {train_batch_size: 64}\nactor_rollout_ref: {rollout: {n: 4}}\ntrainer: {nnodes: 1}\nalgorithm: {gamma: 1.0}\n"
    written(tmp_path, {"run.sh": SCRIPT, "easy.yaml": FILE, "verl.yaml": verl})
    script, easy, other = (str(tmp_path / name) for name in ("run.sh", "easy.yaml", "verl.yaml"))
    assert framework_of([script])[0] == "easyr1"
    assert not starts_of("verl", [script])
    assert framework_of([easy])[0] == "easyr1"
    assert framework_of([other])[0] == "verl"
    with pytest.raises(FileError, match="is verl's own start"):
        imported("easyr1", ["-m", "verl.trainer.main_ppo", "data.train_batch_size=64"], OPTIONS)


def test_a_start_of_another_name_is_taken_for_its_own_with_a_file_or_two_keys(tmp_path):
    other = SCRIPT.replace("verl.trainer.main", "gui.trainer.main_gui")
    written(tmp_path, {"examples/config.yaml": FILE, "run.sh": other})
    found = imported("easyr1", [str(tmp_path / "run.sh")], OPTIONS)
    assert found.job.workload.samples_per_prompt == 8
    assert any(note.startswith("gui.trainer.main_gui is taken as EasyR1's") for note in found.notes)


def test_all_roles_share_the_gpus_and_the_reference_the_actors_batches():
    found = easyr1(f"{A}.ulysses_size=4", "worker.ref.fsdp.enable_cpu_offload=true")
    (pool,) = found.draft.pools
    assert (pool.gpus, pool.roles) == (16, ("actor", "reference"))
    own, other = (found.draft.tasks[f"{role}.compute_log_prob"] for role in ("actor", "reference"))
    assert (own.cp, own.dp, own.token_budget) == (other.cp, other.dp, other.token_budget)
    assert (own.cp, own.dp) == (4, 4)
    assert found.job.trainer("reference") == TrainerOptions(weights="bf16", host_states=True)
    # What lives on the host for good does not move.
    assert not other.offload
    moved = easyr1("worker.ref.offload.offload_params=true").draft.tasks
    assert moved["reference.compute_log_prob"].offload


def test_a_budget_of_tokens_is_so_many_of_the_longest_sequences():
    tasks = easyr1().draft.tasks
    assert tasks["actor.update"].token_budget == 2 * 5120
    assert tasks["actor.compute_log_prob"].token_budget == 4 * 5120
    counted = easyr1(f"{A}.dynamic_batching=false").draft.tasks
    assert (counted["actor.update"].micro_batch, counted["actor.update"].token_budget) == (2, None)


def test_rows_that_keep_their_padding_are_as_long_as_prompts_and_responses_may_be():
    padded = easyr1(f"{A}.padding_free=false").draft.tasks["actor.update"]
    assert padded.engine == "fsdp2-hf-padded-to-limits"
    assert padded.token_budget is None
    # 10,240 tokens hold 16 sequences of the mean 256 + 300, and each is padded.
    assert padded.micro_batch > 2
    critic = easyr1(*CRITIC).draft.tasks
    assert critic["critic.update"].engine == "fsdp2-hf-padded-to-limits"
    assert critic["actor.update"].engine == "fsdp2-hf"


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), TrainerOptions()),
        ((f"{A}.fsdp.torch_dtype=bf16",), TrainerOptions(weights="bf16")),
        (
            (f"{A}.fsdp.torch_dtype=bf16", f"{A}.optim.strategy=adamw_bf16"),
            TrainerOptions(weights="bf16", optimizer="kahan-bf16"),
        ),
        ((f"{A}.offload.offload_params=true",), TrainerOptions(offloads=("weights", "gradients"))),
    ],
)
def test_states_are_of_the_formats_that_it_loads_and_steps(words, options):
    assert easyr1(*words).job.trainer("actor") == options


def test_an_adapter_is_beside_weights_in_bf16_and_its_reference_is_the_actor_without_it():
    found = easyr1(f"{A}.model.lora.rank=64")
    assert found.job.trainer("actor").weights == "bf16"
    assert (found.job.adapter("actor").rank, found.job.adapter("actor").sync) == (64, "adapter")
    assert "reference" not in found.job.models
    assert "reference.compute_log_prob" in found.draft.tasks


def test_the_reference_is_passed_over_whatever_the_penaltys_weight_is():
    weightless = easyr1("algorithm.kl_coef=0")
    assert "reference.compute_log_prob" in weightless.draft.tasks
    rewarded = easyr1("algorithm.use_kl_loss=false")
    assert rewarded.job.hyperparameters.kl_in == "reward"
    off = easyr1("algorithm.disable_kl=true")
    assert "reference" not in off.job.models
    assert off.job.hyperparameters.kl_in == "none"


@pytest.mark.parametrize(
    ("words", "algorithm"),
    [
        ((), "grpo"),
        (("algorithm.disable_kl=true", "algorithm.online_filtering=true"), "dapo"),
        (("algorithm.disable_kl=true", f"{A}.loss_type=gspo_token"), "gspo"),
        (("algorithm.disable_kl=true", f"{A}.loss_type=cispo"), "cispo"),
        (("algorithm.disable_kl=true", f"{A}.loss_type=sapo"), "grpo"),
        (("algorithm.disable_kl=true", f"{A}.loss_type=of_our_own"), "grpo"),
        (("algorithm.adv_estimator=rloo",), "rloo"),
        (("algorithm.adv_estimator=of_our_own",), "grpo"),
        (("algorithm.adv_estimator=reinforce_plus_plus",), "reinforce-plus-plus"),
        (CRITIC, "ppo"),
    ],
)
def test_words_name_algorithms(words, algorithm):
    assert easyr1(*words).job.algorithm == algorithm


def test_a_word_of_a_copy_is_said_to_be_taken_for_another():
    found = easyr1("algorithm.adv_estimator=of_our_own", f"{A}.loss_type=mine")
    assert "algorithm.adv_estimator=of_our_own is not of EasyR1 0.3.3: taken as grpo" in found.notes
    assert f"{A}.fsdp.torch_dtype" in easyr1(f"{A}.fsdp.torch_dtype=null").keys.mapped


def test_groups_are_sampled_again_in_batches():
    filters = ("algorithm.disable_kl=true", "algorithm.online_filtering=true")
    found = easyr1(*filters, "data.mini_rollout_batch_size=128", "trainer.max_try_make_batch=10")
    # Two thirds of the groups are kept: three batches of 128 for 256 prompts, ten at most.
    assert found.job.dynamic_sampling.expected_rounds == 1.5
    assert found.job.dynamic_sampling.max_rounds == 5
    (guess,) = (each for each in found.guesses if "differ in reward" in each)
    assert guess.startswith(
        "3 batches of 128 prompts generated for the 256 that a step learns from"
    )
    compared = easyr1("algorithm.online_filtering=true")
    assert not any("are not counted" in note and "sampled again" in note for note in compared.notes)
    assert (compared.job.algorithm, compared.job.dynamic_sampling.expected_rounds) == ("grpo", 2.0)
    alone = easyr1("algorithm.online_filtering=true", "algorithm.adv_estimator=reinforce_plus_plus")
    assert "algorithm.online_filtering" in alone.keys.changes_work


def test_greedy_responses_are_counted_one_a_sample_and_that_is_said():
    found = easyr1("algorithm.adv_estimator=remax", "algorithm.use_kl_loss=true")
    work = found.job.workload
    assert (found.job.algorithm, work.prompts, work.samples_per_prompt) == ("remax", 2048, 1)
    assert "greedy responses" in found.keys.changes_work["algorithm.adv_estimator"]


def test_batches_that_are_generated_one_by_one_are_said():
    found = easyr1("data.mini_rollout_batch_size=128")
    assert found.keys.not_modelled["data.mini_rollout_batch_size"] == (
        "batches that are generated one after another"
    )
    odd = easyr1("data.mini_rollout_batch_size=96")
    assert odd.keys.changes_work["data.mini_rollout_batch_size"] == (
        "32 prompts that are generated and dropped"
    )


def test_a_critic_with_updates_of_its_own_is_said():
    given = easyr1(*CRITIC, f"{C}.global_batch_size=128")
    assert f"{C}.global_batch_size" in given.keys.changes_work
    usual = easyr1("algorithm.adv_estimator=gae", f"{C}.model.model_path=Qwen/Qwen3-8B")
    assert any("the critic's updates are of 256 prompts" in note for note in usual.notes)


@pytest.mark.parametrize(
    ("gpu", "running"), [("h100-80gb-sxm", 1024), ("a100-80gb-sxm", 256), ("l20", 256)]
)
def test_the_engine_decides_by_its_gpu_how_many_sequences_it_decodes(gpu, running):
    found = easyr1(options=replace(OPTIONS, gpu=gpu))
    assert found.draft.tasks["actor.generate"].max_running == running
    older = easyr1(f"{R}.max_num_seqs=512", options=replace(OPTIONS, gpu=gpu))
    assert older.draft.tasks["actor.generate"].max_running == running
    assert any("max_num_seqs has no effect" in note for note in older.notes)


@pytest.mark.parametrize(
    ("words", "version"),
    [
        ((f"{A}.model.lora.rank=0",), "0.3.3"),
        (("worker.reward.reward_type=batch", f"{A}.dynamic_batching=true"), "0.3.2"),
        (("worker.reward.score_function=math.py:f", "trainer.total_episodes=15"), "0.3"),
        (("worker.reward.compute_score=math", f"{A}.clip_ratio=0.2", f"{R}.do_sample=true"), "0.2"),
    ],
)
def test_versions_are_told_by_keys(words, version):
    settings = easyr1(*words).settings
    assert settings.sheet.version == version


def test_a_whole_file_without_a_later_key_is_of_before_it(tmp_path):
    written(tmp_path, {"config.yaml": FILE.replace("    dynamic_batching: true\n", "")})
    words = [str(tmp_path / "config.yaml")]
    found = imported("easyr1", words, OPTIONS)
    assert found.settings.sheet.version == "0.3.1"
    assert found.settings.version_reason.startswith(
        f"since {A}.padding_free is given without {A}.dynamic_batching, as in configurations up to 0.3.1 ("
    )
    assert found.draft.tasks["actor.update"].token_budget is None
    assert found.draft.tasks["actor.generate"].engine == "vllm-0.8-tokens"
    newest = imported("easyr1", words, replace(OPTIONS, version="0.3.3"))
    assert newest.draft.tasks["actor.update"].token_budget == 4000
    assert easyr1(f"{A}.padding_free=true").settings.sheet.version == "0.3.3"


def test_a_checkout_says_its_version(tmp_path):
    written(tmp_path, {"run.sh": SCRIPT, "verl/__init__.py": '__version__ = "0.3.1.dev0"\n'})
    found = imported("easyr1", [str(tmp_path / "run.sh")], OPTIONS)
    assert found.settings.sheet.version == "0.3.1"
    assert "verl/__init__.py" in found.settings.version_reason


def test_images_are_tokens_of_prompts_and_what_else_they_take_is_said():
    vision = easyr1(
        f"{A}.model.model_path=Qwen/Qwen2.5-VL-7B-Instruct", "data.max_prompt_length=4096"
    )
    # 256 tokens of text, and 512 x 512 pixels in squares of 28 x 28.
    assert vision.job.workload.prompt_tokens.mean == 256 + 334
    assert any("with an image of 334 tokens" in each for each in vision.guesses)
    assert any("passes of the tower are counted" in each for each in vision.guesses)
    assert vision.job.workload.images == PromptImages(tokens=334)
    assert not vision.job.trainer("actor").freezes_tower
    blind = easyr1(
        f"{A}.model.model_path=Qwen/Qwen2.5-VL-7B-Instruct", "data.max_prompt_length=600"
    )
    assert blind.job.workload.images is None  # 300 tokens have no room for 334
    assert any(each.startswith("prompts of text alone, though") for each in blind.guesses)
    assert not any("with an image of" in each for each in blind.guesses)
    frozen = easyr1(
        f"{A}.model.model_path=Qwen/Qwen2.5-VL-7B-Instruct", f"{A}.model.freeze_vision_tower=true"
    )
    assert frozen.job.trainer("actor").freezes_tower
    other = easyr1(f"{A}.model.model_path=gemma-3-4b", f"{A}.model.freeze_vision_tower=true")
    assert not other.job.trainer("actor").freezes_tower
    assert any("gemma-3-4b has no such part" in each for each in other.notes)
    assert not easyr1(f"{A}.model.freeze_vision_tower=true").job.trainer("actor").freezes_tower
    larger = easyr1(f"{A}.model.model_path=Qwen/Qwen3-VL-8B-Instruct", "data.min_pixels=1048576",
                    "data.max_prompt_length=4096")  # fmt: skip
    assert larger.job.workload.prompt_tokens.mean == 256 + 1024
    said = easyr1(
        f"{A}.model.model_path=Qwen/Qwen2.5-VL-7B-Instruct",
        options=replace(OPTIONS, mean_prompt=700),
    )
    assert said.job.workload.prompt_tokens.mean == 700
    assert easyr1().job.workload.prompt_tokens.mean == 256


def test_experts_are_computed_one_by_one_up_to_the_version_that_asks_for_transformers_5():
    words = f"{A}.model.model_path=Qwen/Qwen3-VL-30B-A3B-Instruct"
    before = easyr1(words, options=replace(OPTIONS, version="0.3.2"))
    assert before.job.trainer("actor").experts == "one by one"
    assert {ONE_BY_ONE, IN_ONE_TENSOR} <= set(before.notes)
    since = easyr1(words)
    assert since.job.trainer("actor").experts == "grouped"
    assert TOGETHER in since.notes
    dense = easyr1(options=replace(OPTIONS, version="0.3.2"))
    assert dense.job.trainer("actor").experts == "grouped"
    assert not {ONE_BY_ONE, IN_ONE_TENSOR, TOGETHER} & set(dense.notes)


def test_better_settings_are_in_its_own_keys():
    checked = check_config("easyr1", EASYR1, OPTIONS)
    assert checked.will_run
    assert checked.verdict == "fits"
    known = {key for each in checked.imported.settings.sheet.every_setting() for key in each.keys}
    words = [word.partition("=")[0] for each in checked.better for word in each.arguments]
    assert words
    assert set(words) <= known
    assert not any(".max_num_seqs" in word for word in words)
    json.dumps(checked.document())


def test_what_does_not_fit_is_answered_with_smaller_micro_batches():
    large = (
        f"{A}.micro_batch_size_per_device_for_update=32", f"{A}.padding_free=false", f"{A}.dynamic_batching=false",
    )  # fmt: skip
    checked = check_config("easyr1", [*EASYR1, *large, "data.max_response_length=7000"], OPTIONS)
    assert checked.verdict == "does not fit"
    assert any(
        f"{A}.micro_batch_size_per_device_for_update=" in each.words for each in checked.better
    )


def plan_of(*more):
    found = easyr1(*more)
    return complete(found.draft, found.resolved, load_facts(found.resolved), "run.sh")


@pytest.mark.parametrize(
    "more",
    [(), (f"{A}.ulysses_size=4",), (*CRITIC, f"{C}.padding_free=true"), (f"{A}.model.lora.rank=64",), ("algorithm.disable_kl=true",),
     (f"{A}.fsdp.torch_dtype=bf16", f"{A}.optim.strategy=adamw_bf16"), ("worker.ref.fsdp.enable_cpu_offload=true",),
     (f"{A}.padding_free=false", f"{A}.dynamic_batching=false"), (f"{A}.offload.offload_optimizer=true",)],
)  # fmt: skip
def test_a_plan_is_written_as_it_is_read(more, tmp_path):
    plan = plan_of(*more)
    path = tmp_path / "run.sh"
    path.write_text(exported(plan, "easyr1").text)
    again = imported("easyr1", [str(path)], OPTIONS)
    assert again.keys.unknown == ()
    assert again.draft.tasks == easyr1(*more).draft.tasks


@given(
    prompt=st.integers(1, 3000),
    response=st.integers(1, 9000),
    samples=st.integers(1, 512),
)
def test_searches_try_budgets_of_whole_sequences(prompt, response, samples):
    work = Workload(
        prompts=1, samples_per_prompt=samples, prompt_tokens=prompt, response_tokens=response
    )
    found = [each.token_budget for each in token_budgets(samples, work, of_the_longest=True)]
    assert found[0] == prompt + response
    assert all(later == 2 * before for before, later in itertools.pairwise(found))


def test_budgets_of_parts_of_a_sequence_are_refused():
    plan = plan_of()
    update = replace(plan.tasks["actor.update"], token_budget=8192)
    tasks = plan.tasks.with_item("actor.update", update)
    with pytest.raises(FileError, match=r"no number of the longest sequences of 5,120 tokens"):
        exported(replace(plan, tasks=tasks), "easyr1")


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="EasyR1's examples are not here")
def test_published_configurations_are_read_whole():
    files = [path for path in PUBLISHED.iterdir() if path.suffix in {".sh", ".yaml"}]
    assert len(files) >= 3
    for path in files:
        found = imported("easyr1", [str(path)], OPTIONS)
        assert (found.keys.unknown, found.keys.changes_work) == ((), {})


def test_an_image_is_of_a_usual_size_where_limits_allow_it():
    words = (f"{A}.model.model_path=Qwen/Qwen2.5-VL-7B-Instruct", "data.max_prompt_length=4096")
    for limits, tokens in (
        (("data.min_pixels=3136",), 334),
        (("data.min_pixels=3136", "data.max_pixels=100352"), 128),
        (("data.min_pixels=1003520",), 1280),
    ):
        assert easyr1(*words, *limits).job.workload.images == PromptImages(tokens=tokens)


def test_adapters_of_copies_are_told_by_their_names_in_verl():
    found = easyr1(f"{A}.model.lora_rank=64", f"{A}.model.lora_alpha=128")
    adapter = found.job.adapter("actor")
    assert (adapter.rank, adapter.alpha) == (64, 128)


def test_a_rollout_of_a_copy_is_doubtful():
    found = easyr1("worker.rollout.name=vllm_agent")
    assert any("worker.rollout.name=vllm_agent" in each for each in found.doubts())


@pytest.mark.parametrize(
    ("line", "engine", "most"),
    [
        ("export VLLM_USE_V1=0", "vllm-0.6", 256),
        ("export VLLM_ATTENTION_BACKEND=XFORMERS", "vllm-0.6", 256),
        ("export VLLM_USE_V1=1", "vllm-0.8-tokens", 1024),
    ],
)
def test_vllms_first_engine_has_its_own_limit_where_a_script_asks_for_it(
    tmp_path, line, engine, most
):
    file = FILE.replace("    dynamic_batching: true\n", "")
    written(tmp_path, {"examples/config.yaml": file, "examples/run.sh": f"{line}\n{SCRIPT}"})
    options = replace(OPTIONS, version="0.3.1")
    found = imported("easyr1", [str(tmp_path / "examples" / "run.sh")], options)
    task = found.draft.tasks["actor.generate"]
    assert (task.engine, task.max_running) == (engine, most)
