"""Numbers without sense: each is refused by its key, whichever framework's key it is, and what makes sense never is."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.planner.configs.frameworks import frameworks_with
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.reading.amounts import AMOUNTS, LOOKED_AT_FIRST, Amount
from rlplan.planner.configs.reading.sheet import load_config_sheet
from tests.planner.configs.test_importing import NEMO, OPENRLHF, VERL
from tests.planner.configs.test_keys_of_easyr1 import BASES as EASYR1
from tests.planner.configs.test_keys_of_skyrl import BASES as SKYRL

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=60, environment={"HOME": "~"})
A, R, T = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "trainer"
GUESSES = "policy.generation.vllm_kwargs.speculative_config"
SHEETS = [load_config_sheet(name) for name in frameworks_with("keys", "reading")]


def refusal(framework, words, key, value):
    """Return what refuses a value that is said beside a configuration."""
    values = FrozenDict({key: value})
    with pytest.raises(FileError) as caught:
        imported(framework, words, replace(OPTIONS, values=values))
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{T}.total_epochs", "-3"),
        (f"{T}.total_epochs", "many"),
        (f"{T}.total_training_steps", "-3"),
        (f"{T}.nnodes", "0"),
        (f"{T}.save_freq", "[1, 2]"),
        (f"{T}.save_freq", "[1, 2, many]"),
        (f"{T}.nnodes", "[8]"),
        (f"{R}.engine_kwargs.vllm.speculative_config.num_speculative_tokens", "-3"),
        (f"{R}.gpu_memory_utilization", "-1"),
        (f"{R}.gpu_memory_utilization", "1.5"),
        (f"{R}.gpu_memory_utilization", "0"),
        (f"{R}.gpu_memory_utilization", ".nan"),
        (f"{R}.max_num_batched_tokens", "0"),
        (f"{R}.engine_kwargs.vllm.max_num_batched_tokens", "-8"),
        (f"{R}.max_num_seqs", "1e12"),
        (f"{R}.tensor_model_parallel_size", "0"),
        (f"{R}.tensor_model_parallel_size", "two"),
        (f"{R}.checkpoint_engine.update_weights_bucket_megabytes", "0"),
        (f"{R}.temperature", "-0.5"),
        (f"{A}.ppo_mini_batch_size", "-64"),
        (f"{A}.ppo_epochs", "0"),
        (f"{A}.fsdp_config.fsdp_size", "2.5"),
        (f"{A}.optim.lr", "-1e-6"),
        ("actor_rollout_ref.model.lora_rank", "-8"),
        ("data.max_response_length", "0"),
    ],
)
def test_a_value_without_sense_is_refused_by_its_key(key, value):
    error = refusal("verl", VERL, key, value)
    assert (error.file, error.field) == ("--set", key)
    assert error.allowed


def test_so_it_is_of_other_frameworks_and_of_files(tmp_path):
    recipe = tmp_path / "run.yaml"
    recipe.write_text(NEMO)
    for key, value in (
        ("policy.sequence_packing.train_mb_tokens", "-3"),
        ("policy.generation.vllm_cfg.gpu_memory_utilization", "2"),
        ("policy.dtensor_cfg.expert_parallel_size", "-3"),
    ):
        assert refusal("nemo-rl", [str(recipe)], key, value).field == key
    recipe.write_text(NEMO.replace("gpu_memory_utilization: 0.6", "gpu_memory_utilization: -0.6"))
    with pytest.raises(FileError, match="share") as caught:
        imported("nemo-rl", [str(recipe)], OPTIONS)
    assert caught.value.file.startswith(str(recipe))
    for key in ("ref.num_gpus_per_node", "critic.num_gpus_per_node", "vllm.num_engines"):
        assert refusal("openrlhf", OPENRLHF, key, "-3").field == key


def test_a_framework_s_own_words_for_no_limit_are_taken(tmp_path):
    recipe = tmp_path / "run.yaml"
    recipe.write_text(NEMO)
    for framework, words, key, value in (
        ("nemo-rl", [str(recipe)], "grpo.max_num_epochs", "-1"),
        ("verl", VERL, f"{T}.total_training_steps", "-1"),
        ("verl", VERL, f"{A}.fsdp_config.fsdp_size", "-1"),
        ("verl", VERL, f"{A}.fsdp_config.fsdp_size", "-3"),
        ("verl", VERL, f"{R}.max_model_len", "null"),
        # As public scripts of these frameworks have them, which they run with.
        ("verl", VERL, f"{T}.test_freq", "10000000000000"),
        ("verl", VERL, f"{T}.save_freq", "-5"),
        ("verl", VERL, f"{A}.ppo_max_token_len_per_gpu", "1000000000000"),
        (
            "easyr1",
            [*EASYR1["samples compared"].split(), "trainer.max_steps=360"],
            f"{T}.total_epochs",
            "-1",
        ),
        ("nemo-rl", [str(recipe)], f"{GUESSES}.num_speculative_tokens", "0"),
        ("skyrl", SKYRL["together"], "generator.weight_transfer_threshold_cuda_ipc_GB", "0"),
    ):
        values = FrozenDict({key: value})
        assert imported(framework, words, replace(OPTIONS, values=values)).draft


def test_a_model_of_a_role_that_is_not_there_is_refused():
    options = replace(OPTIONS, models=FrozenDict({"reward": "llama-3-8b"}))
    with pytest.raises(FileError, match="change nothing") as caught:
        imported("verl", VERL, options)
    assert (caught.value.file, caught.value.value) == ("--model", "reward")
    assert "actor" in caught.value.allowed


@given(
    st.builds(
        Amount,
        least=st.integers(-5, 5),
        most=st.integers(6, 100),
        above=st.booleans(),
        whole=st.booleans(),
    ),
    st.one_of(st.integers(-20, 200), st.floats(), st.floats(-20, 200)),
)
def test_a_number_is_refused_where_it_is_outside_of_the_range_and_nowhere_else(amount, number):
    inside = amount.least <= number <= amount.most
    inside = inside and not (amount.above and number == amount.least) and not math.isnan(number)
    inside = inside and (not amount.whole or number == int(number))
    assert (amount.fault(number) is None) == inside
    assert (amount.fault(str(number)) is None) == (inside or number == math.inf)  # no limit
    assert amount.fault([amount.most, number]) is not None


@pytest.mark.parametrize("left", [None, "auto", "None", "null", ""])
def test_what_is_left_to_the_framework_is_no_fault(left):
    assert Amount(least=1).fault(left) is None


def test_every_name_is_a_setting_s_or_a_size_s_and_every_default_makes_sense():
    known = set()
    for sheet in SHEETS:
        sizes = [each for trainer in sheet.trainers.values() for each in trainer.sizes.items()]
        for name, setting in (*sheet.settings.items(), *sheet.losses.items(), *sizes):
            known.add(name)
            if name in AMOUNTS and not setting.values and not isinstance(setting.default, bool):
                fault = AMOUNTS[name].fault(setting.default, setting.least)
                assert fault is None, (sheet.name, name, setting.default)
    assert AMOUNTS.keys() <= known
    assert set(LOOKED_AT_FIRST) <= AMOUNTS.keys()
