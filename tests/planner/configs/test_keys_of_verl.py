"""No key of verl's is swallowed: changing it changes job or plan, or what becomes of it is said."""

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest
import yaml

from rlplan.errors import UserError
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.reading.sheet import load_config_sheet, spelled
from rlplan.planner.configs.writing.exporting import exported
from rlplan.profiles.facts import load_facts
from rlplan.profiles.sheets import load_framework
from tests.planner.configs.fates import outcome

CATALOGUES = Path(__file__).parent / "data"
OPTIONS = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={"HOME": "~"}
)
SHEET = load_config_sheet("verl")
COMMON = """
-m verl.trainer.main_ppo trainer.n_gpus_per_node=8 trainer.nnodes=2 actor_rollout_ref.rollout.n=8
actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.name=vllm data.train_batch_size=256
actor_rollout_ref.actor.ppo_mini_batch_size=64 data.max_prompt_length=1024 data.max_response_length=4096
actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.actor.use_kl_loss=True
critic.model.path=Qwen/Qwen3-8B
"""
COUNTED = """
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 critic.ppo_micro_batch_size_per_gpu=2
"""
PACKED = "actor_rollout_ref.actor.use_dynamic_bsz=True"
SCORED = """
algorithm.adv_estimator=gae reward.reward_model.enable=True reward.reward_model.enable_resource_pool=True
reward.reward_model.nnodes=1 reward.reward_model.model_path=Qwen/Qwen3-8B distillation.enabled=True
distillation.nnodes=1 distillation.n_gpus_per_node=8
"""
EXPERTS = "actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B critic.model.path=Qwen/Qwen3-30B-A3B"
MOE = f"""
model_engine=megatron {EXPERTS}
actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 actor_rollout_ref.actor.megatron.expert_model_parallel_size=4
critic.megatron.tensor_model_parallel_size=2 critic.megatron.expert_model_parallel_size=4
actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2
"""
CUT = "actor_rollout_ref.actor.megatron.override_transformer_config"
SWITCHES = (
    "qat.enable", "fsdp_config.qat.enable", "fsdp.qat.enable", "megatron.qat.enable", "model.mtp.enable",
    "model.tiled_mlp.enabled",
)  # fmt: skip
BASES = {
    "samples compared": f"{COMMON} {COUNTED} algorithm.adv_estimator=grpo",
    "batches of all GPUs": f"{COMMON} algorithm.adv_estimator=gae actor_rollout_ref.actor.ppo_micro_batch_size=64"
    " actor_rollout_ref.rollout.log_prob_micro_batch_size=64 actor_rollout_ref.ref.log_prob_micro_batch_size=64"
    " critic.ppo_micro_batch_size=64",
    "packed": f"{COMMON} {PACKED} algorithm.adv_estimator=grpo",
    "a critic and a reward model": f"{COMMON} {PACKED} {SCORED}",
    "a critic, counted": f"{COMMON} {COUNTED} {SCORED}",
    "a penalty in rewards": f"{COMMON} {COUNTED} algorithm.adv_estimator=gae algorithm.use_kl_in_reward=True"
    " actor_rollout_ref.actor.use_kl_loss=False",
    "Megatron": f"{COMMON} {COUNTED} {MOE} algorithm.adv_estimator=gae",
    "Megatron, by copies for nodes": f"{COMMON} {COUNTED} {MOE} algorithm.adv_estimator=gae"
    f" +{CUT}.moe_token_dispatcher_type=flex +{CUT}.cuda_graph_impl=transformer_engine",
    "Megatron, packed": f"{COMMON} {PACKED} {MOE} algorithm.adv_estimator=gae",
    # Whose process is laid out by the actor, or by a reference that has sizes of its own.
    "Megatron without a critic": f"{COMMON} {COUNTED} {MOE} algorithm.adv_estimator=grpo",
    "entropies in chunks": f"{COMMON} {COUNTED} algorithm.adv_estimator=grpo actor_rollout_ref.actor.use_torch_compile=False"
    " actor_rollout_ref.actor.entropy_from_logits_with_chunking=True",
    "turbo": f"{COMMON} {COUNTED} algorithm.adv_estimator=grpo actor_rollout_ref.actor.strategy=fsdp_turbo",
    "what is off otherwise": f"{COMMON} {PACKED} algorithm.adv_estimator=gae"
    " actor_rollout_ref.rollout.disaggregation.enabled=True reward.reward_model.rollout.disaggregation.enabled=True"
    " reward.reward_model.enable=True reward.reward_model.model_path=Qwen/Qwen3-8B"
    + "".join(
        f" {role}.{switch}=True"
        for role in (
            "actor_rollout_ref",
            "actor_rollout_ref.actor",
            "actor_rollout_ref.ref",
            "critic",
        )
        for switch in SWITCHES
    ),
    "an adapter": f"{COMMON} {COUNTED} algorithm.adv_estimator=grpo actor_rollout_ref.model.lora_rank=32",
    "dynamic sampling": f"{COMMON} {COUNTED} algorithm.adv_estimator=grpo algorithm.filter_groups.enable=True"
    " actor_rollout_ref.actor.use_kl_loss=False",
    "an older reward model": f"{COMMON} {PACKED} algorithm.adv_estimator=grpo reward_model.enable=True"
    " reward_model.model.path=Qwen/Qwen3-8B reward_model.enable_resource_pool=True reward_model.nnodes=1",
    "asynchronous where it trains": f"{COMMON} {PACKED} trainer.v1.trainer_mode=colocate_async",
    "asynchronous": f"{COMMON} {COUNTED} algorithm.adv_estimator=grpo trainer.v1.trainer_mode=separate_async"
    " actor_rollout_ref.rollout.nnodes=1",
    "a model that reads images": f"{COMMON} {COUNTED} algorithm.adv_estimator=grpo"
    " actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-7B-Instruct",
    "TensorRT-LLM": f"{COMMON} {COUNTED} algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=trtllm"
    " actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B actor_rollout_ref.rollout.expert_parallel_size=2",
    "Megatron, padded": f"{COMMON} {COUNTED} {MOE} algorithm.adv_estimator=gae"
    " actor_rollout_ref.model.use_remove_padding=False critic.model.use_remove_padding=False",
    "Megatron without a critic, padded": f"{COMMON} {COUNTED} {MOE} algorithm.adv_estimator=grpo"
    " actor_rollout_ref.model.use_remove_padding=False",
    # Of 0.6.1 at the latest, where engines are called in the trainer's process.
    "a critic of before": f"{COMMON} {COUNTED} algorithm.adv_estimator=gae critic.model.fsdp_config.param_offload=True"
    " actor_rollout_ref.rollout.mode=sync",
    "rLLM apart": f"{COMMON} {COUNTED} algorithm.adv_estimator=grpo rllm.async_training.enable=true"
    " rllm.async_training.mini_batch_size=16 rollout.nnodes=1 rollout.n_gpus_per_node=8",
}
# Further trainers and an engine, whose keys are in no catalogue.
OTHERS = {
    **{
        name: f"{COMMON} {COUNTED} {EXPERTS} algorithm.adv_estimator=gae {word}"
        for name, word in {
            "veomni": "model_engine=veomni",
            "torchtitan": "model_engine=torchtitan",
            "automodel": "model_engine=automodel",
            "turbo with a critic": "actor_rollout_ref.actor.strategy=fsdp_turbo",
            "mlite": "actor@actor_rollout_ref.actor=mlite_actor actor_rollout_ref.actor.engine.pp=2 critic.engine.pp=2"
            " actor_rollout_ref.actor.engine.ep=2 critic.engine.ep=2",
        }.items()
    },
    "SGLang": f"{COMMON} {COUNTED} algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=sglang",
    "a cache in host memory over turns": f"{COMMON} {COUNTED} algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=sglang"
    " actor_rollout_ref.rollout.multi_turn.enable=True actor_rollout_ref.rollout.multi_turn.max_assistant_turns=4"
    " +actor_rollout_ref.rollout.engine_kwargs.sglang.enable_hierarchical_cache=True",
    "scaled rotations": f"{COMMON} {COUNTED} algorithm.adv_estimator=grpo"
    " +actor_rollout_ref.model.override_config.rope_scaling.factor=4.0"
    " +actor_rollout_ref.model.override_config.rope_scaling.original_max_position_embeddings=32768",
}
# What says which file is read, and what a file says of those beneath it: no key of a command line.
OF_FILES = {"--config-name", "defaults"}
# Of passes that are only the reference's, or only of those that learn.
OF_ONE_ROLE = r"\.(log_prob|ppo_micro|ppo_max|use_dynamic)_"
WORDS = ("actually_other", "Qwen/Qwen2.5-7B", "async")


@cache
def catalogue():
    """Return verl 0.9.1's keys and their defaults, of both engines."""
    found = {}
    for name in ("keys_of_verl_dp.txt", "keys_of_verl_megatron.txt"):
        for line in (CATALOGUES / name).read_text().splitlines():
            if line.startswith("#"):
                continue
            key, _, value = line.partition("=")
            found[key.strip()] = value.strip()
    return found


def changed(key, default):
    """Return values that a key may be changed to, by the type of its default."""
    meant = [
        word
        for setting in SHEET.settings.values()
        if key in (*setting.keys, *setting.over)
        for word in setting.values
    ]
    value = None if "$" in default or default == "???" else yaml.safe_load(default)
    if isinstance(value, bool):
        return [not value, value]
    if isinstance(value, int | float):
        return [value * 2 or 1, value + 1, value / 2, 0.25, 4, 3]
    if isinstance(value, list):
        return ["[0.5, 0.6]"]
    return [*meant, 1, 2, 4, 32, 100, 0.25, 3000, 12000, True, False, *WORDS]


@cache
def base(name):
    """Return a configuration's words, and the job and plan that they are."""
    words = (BASES | OTHERS)[name].split()
    found = imported("verl", words, OPTIONS)
    return words, found.job, found.draft


def reportable(key):
    """Return whether the sheet says what of a key is not counted, unless its value is the usual one."""
    sections = (*SHEET.not_modelled, *SHEET.changes_work)
    return any(fnmatchcase(key, name) for each in sections for name in spelled(each, SHEET.roles))


def told(key, value, name):
    """Return what becomes of a key that is changed; empty where that is not seen in this configuration."""
    words, job, draft = base(name)
    try:
        found = imported("verl", [*words, f"++{key}={value}"], OPTIONS)
    except UserError as error:
        said = str(error)
        return "refused" if key in said and "is no whole number" not in said else ""
    return outcome(found, key, (job, draft))


def fate(key, default, bases=tuple(BASES)):
    """Return what becomes of a key in the first configuration and with the first value that show it."""
    if key in SHEET.harmless():
        return "named"
    seen = "swallowed"
    for name in bases:
        for value in changed(key, default):
            found = told(key, value, name)
            if found in {"acts", "reported"}:
                return found
            if found == "idle" and not reportable(key):  # whatever its value
                break
            seen = found if found == "refused" else seen
    return seen


def own_keys():
    """Return the keys that the sheet maps; which role has which sizes, verl's own names tell."""
    sizes = (setting for trainer in SHEET.trainers.values() for setting in trainer.sizes.values())
    of_roles = {
        key
        for setting in sizes
        for role, prefix in SHEET.roles.items()
        for key in setting.of(prefix).keys
        if (".log_prob_" in key) == (role == "reference") or not re.search(OF_ONE_ROLE, key)
    }
    alone = {key for setting in SHEET.settings.values() for key in (*setting.keys, *setting.over)}
    return sorted((of_roles | alone) - OF_FILES)


@pytest.mark.full
def test_every_key_that_the_sheet_maps_acts():
    bases = (*BASES, *OTHERS)
    swallowed = [key for key in own_keys() if fate(key, "null", bases) == "swallowed"]
    assert swallowed == []


@pytest.mark.full
def test_no_key_is_swallowed(pytestconfig):
    keys = sorted(catalogue())
    chosen = keys if pytestconfig.getoption("full") else keys[::19]
    swallowed = [key for key in chosen if fate(key, catalogue()[key]) == "swallowed"]
    assert swallowed == []


def small(*more):
    """Return a small configuration with further words, imported."""
    return imported("verl", [*BASES["samples compared"].split(), *more], OPTIONS)


def test_nothing_is_ignored_by_a_pattern():
    names = [name for keys in SHEET.without_influence.values() for name in keys]
    assert [name for name in names if re.search(r"[*?\[]", name)] == []


def test_alternatives_in_braces_are_names_of_their_own():
    roles = {"actor": "a.b", "critic": "c"}
    assert list(spelled("x.{y,z}_freq", roles)) == ["x.y_freq", "x.z_freq"]
    assert list(spelled("{role}.{o,p}", roles)) == ["a.b.o", "a.b.p", "c.o", "c.p"]


def test_a_key_that_nobody_knows_is_not_understood():
    found = small("+data.nonsense_key=7", "+trainer.v1.other=1", "+reward_model.other=1")
    assert found.keys.unknown == ("data.nonsense_key", "trainer.v1.other", "reward_model.other")
    assert next(found.unknown()) == "data.nonsense_key=7 (the command line)"


def test_what_the_framework_takes_freely_is_reported_whatever_its_value():
    free = {
        "actor_rollout_ref.model.override_config.made_up": "not_modelled",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.made_up": "unknown",
        "trainer.v1.sampler.sampler_kwargs.made_up": "changes_work",
    }
    found = small(*(f"+{key}=False" for key in free))
    for key, where in free.items():
        assert key in getattr(found.keys, where)


ARGUMENTS = {
    "max_num_seqs=64": ("max_running", 64),
    "gpu_memory_utilization=0.7": ("memory_fraction", 0.7),
    "enforce_eager=True": ("engine", "vllm-0.15-server-eager"),
}


@pytest.mark.parametrize("word", ARGUMENTS)
def test_arguments_of_the_engine_are_laid_over_verls_own(word):
    field, value = ARGUMENTS[word]
    given = f"actor_rollout_ref.rollout.engine_kwargs.vllm.{word}"
    key = given.partition("=")[0]
    found = small("actor_rollout_ref.rollout.max_num_seqs=256", f"+{given}")
    assert getattr(found.draft.tasks["actor.generate"], field) == value
    assert key in found.keys.mapped
    other = small(f"+{given}", "actor_rollout_ref.rollout.name=sglang")
    assert getattr(other.draft.tasks["actor.generate"], field) != value
    assert key in other.keys.without_influence


def test_arguments_of_the_engine_may_be_given_as_one_mapping():
    kwargs = "actor_rollout_ref.rollout.engine_kwargs.vllm"
    found = small(f"+{kwargs}={{max_num_seqs:64,speculative_config:{{method:ngram}}}}")
    assert found.draft.tasks["actor.generate"].max_running == 64
    assert found.keys.not_modelled[f"{kwargs}.speculative_config.method"] == "speculative decoding"


def test_an_argument_of_the_engine_that_is_null_is_none():
    key = "+actor_rollout_ref.rollout.engine_kwargs.vllm.max_num_seqs"
    assert small(f"{key}=null").draft.tasks["actor.generate"].max_running == 256


def test_eager_engines_without_a_sheet_are_said_not_to_be_counted():
    eager = "actor_rollout_ref.rollout.enforce_eager"
    found = small(f"{eager}=True", "actor_rollout_ref.rollout.name=sglang")
    assert eager in found.keys.not_modelled
    assert eager not in found.keys.mapped


def test_what_only_rules_read_is_not_counted():
    key = "actor_rollout_ref.rollout.calculate_log_probs"
    checked = check_config("verl", [*BASES["packed"].split(), f"{key}=False"], OPTIONS)
    assert key in checked.imported.keys.not_modelled


def test_what_a_switch_turns_on_is_counted_with_it():
    mode = "actor_rollout_ref.actor.qat.mode"
    assert mode in small(f"{mode}=w8a8").keys.without_influence
    assert (
        mode in small(f"{mode}=w8a8", "actor_rollout_ref.actor.qat.enable=True").keys.not_modelled
    )


@pytest.mark.parametrize("trainer", sorted(SHEET.trainers))
@pytest.mark.parametrize("role", ["actor", "critic"])
def test_numbers_that_nothing_says_are_verl_s_own(trainer, role):
    words = ["-m", "verl.trainer.main_ppo", *COMMON.split()]
    settings = imported("verl", words, OPTIONS).settings
    own = replace(settings, flat={}).of(trainer, role)
    for name in own.names:
        default = catalogue().get(own.key_of(name), "")
        value = None if "$" in default else yaml.safe_load(default)
        if isinstance(value, int | float) and not isinstance(own.value(name), bool):
            assert own.value(name) in {None, value}, own.key_of(name)


def test_a_composed_file_with_every_default_says_little():
    """Its lists are what the framework has before anybody changes it."""
    words = [
        f"{key}={'null' if value == 'None' else value}"
        for key, value in catalogue().items()
        if "$" not in value
        and value != "???"
        and ".turbo_config." not in key
        and ".megatron." not in key
    ]
    named = [
        "algorithm.adv_estimator=grpo", "actor_rollout_ref.model.path=Qwen/Qwen3-8B", "critic.model.path=Qwen/Qwen3-8B",
        "actor_rollout_ref.rollout.name=vllm",
    ]  # fmt: skip
    keys = imported("verl", [*COMMON.split()[:2], *words, *named, "model_engine=dp"], OPTIONS).keys
    assert (keys.unknown, keys.changes_work) == ((), {})
    assert set(keys.not_modelled) <= {
        "actor_rollout_ref.model.lora.target_modules", "critic.model.lora.target_modules",
    }  # fmt: skip


def test_prompts_of_a_server_are_named_where_they_are_not_those_that_are_forecast():
    key = "async_training.concurrent_samples_per_replica"
    assert load_framework("verl-fully-async").replica_prompts == SHEET.usual[key] == 16
    assert key in small(f"+{key}=64").keys.not_modelled
    assert key not in small(f"+{key}=16").keys.not_modelled


def test_keys_that_change_the_work_make_the_answer_doubtful():
    found = small(
        "actor_rollout_ref.rollout.over_sample_rate=0.2", "+reward_model.model.update=before",
        "actor_rollout_ref.rollout.multi_turn.enable=True", "actor_rollout_ref.rollout.multi_turn.max_user_turns=3",
    )  # fmt: skip
    turns, samples, rewards = sorted(found.doubts())
    assert turns == (
        "actor_rollout_ref.rollout.multi_turn.enable=True, actor_rollout_ref.rollout.multi_turn.max_user_turns=3 "
        "change the amount of work (turns with tools or an environment) and are not counted"
    )
    assert samples.startswith(
        "actor_rollout_ref.rollout.over_sample_rate=0.2 changes the amount of work (samples"
    )
    assert "a reward model that is trained" in rewards
    assert not list(small("actor_rollout_ref.rollout.over_sample_rate=0").doubts())


def test_a_critic_that_learns_otherwise_than_the_actor_makes_the_answer_doubtful():
    ppo = ("algorithm.adv_estimator=gae", "critic.ppo_epochs=2")
    assert "critic.ppo_epochs" in small(*ppo).keys.changes_work
    assert "critic.ppo_epochs" in small(*ppo, "actor_rollout_ref.actor.ppo_epochs=2").keys.mapped


DAPO = ("actor_rollout_ref.actor.use_kl_loss=False", "algorithm.filter_groups.enable=True")


@pytest.mark.parametrize(
    ("words", "expected", "most", "at_once"),
    [
        # Whole batches of 768 for 256 prompts, of which two thirds are kept: one batch, three times the prompts.
        (
            ["data.gen_batch_size=768", "algorithm.filter_groups.max_num_gen_batches=10"],
            3.0,
            30,
            3.0,
        ),
        (["algorithm.filter_groups.max_num_gen_batches=10"], 2.0, 10, 1.0),
        (["data.gen_batch_size=128"], 1.5, 1_000_000, 0.5),
        (["data.gen_batch_size=128", "algorithm.filter_groups.max_num_gen_batches=2"], 1.0, 1, 0.5),
    ],
)
def test_the_recipe_generates_whole_batches_until_enough_groups_differ(
    words, expected, most, at_once
):
    start = ["-m", "recipe.dapo.main_dapo", *BASES["samples compared"].split()[2:], *DAPO, *words]
    found = imported("verl", start, OPTIONS)
    sampling = found.job.dynamic_sampling
    assert (found.job.algorithm, found.job.workload.prompts) == ("dapo", 256)
    assert (sampling.expected_rounds, sampling.max_rounds) == (expected, most)
    assert sampling.batches_at_once == at_once
    assert any("67% of groups" in guess for guess in found.guesses)


def test_a_limit_of_batches_that_there_is_not_is_written_as_none():
    """Verl counts 0 as no limit; a job has a number that no step reaches."""
    found = small(*DAPO, "algorithm.adv_estimator=grpo")
    facts = load_facts(found.resolved)
    plan = complete(found.draft, found.resolved, facts)
    assert exported(plan, "verl").values["algorithm.filter_groups.max_num_gen_batches"] == 0


def test_trainers_that_filter_nothing_learn_from_every_prompt_that_is_read():
    words = [*BASES["samples compared"].split()[2:], "data.gen_batch_size=512"]
    recipe = imported("verl", ["-m", "recipe.dapo.main_dapo", *words], OPTIONS)
    older = imported("verl", ["-m", "verl.trainer.main_ppo", *words], OPTIONS)
    assert (recipe.job.workload.prompts, recipe.job.workload.updates) == (512, 8)
    assert older.job.workload.prompts == 512
    assert any("gen_batch_size" in note for note in older.notes)
    assert small("data.gen_batch_size=128").job.workload.prompts == 256


def test_groups_that_are_sampled_again_and_not_counted_make_the_answer_doubtful():
    found = small("algorithm.filter_groups.enable=True")
    assert found.job.dynamic_sampling is None
    assert "algorithm.filter_groups.enable" in found.keys.changes_work


REPEATING = (
    "actor_rollout_ref.rollout.n_agent",  # Search-R1's
    "actor_rollout_ref.rollout.n_repeat",  # Agent-R1's
    "agent_grpo.n",  # DeepResearcher's
)


@pytest.mark.parametrize("key", REPEATING)
def test_updates_of_repeated_prompts_are_counted_in_rows(key):
    found = small(f"+{key}=5", "actor_rollout_ref.rollout.n=1")
    work = found.job.workload
    assert (work.prompts, work.samples_per_prompt, work.updates) == (256, 5, 20)
    assert found.job.algorithm == "grpo"
    even = small(
        "+actor_rollout_ref.rollout.n_agent=4", "actor_rollout_ref.rollout.n=1",
        "actor_rollout_ref.actor.ppo_mini_batch_size=256",
    )  # fmt: skip
    assert even.job.workload.updates == 4
    uneven = small("actor_rollout_ref.actor.ppo_mini_batch_size=96")
    assert uneven.job.workload.updates == 2
    assert "actor_rollout_ref.actor.ppo_mini_batch_size" in uneven.keys.changes_work


@pytest.mark.parametrize(
    ("version", "said", "place"),
    [
        ("0.3", "actor_rollout_ref.actor.use_kl_loss=False", "reward"),
        ("0.3", "actor_rollout_ref.actor.use_kl_loss=True", "loss"),
        ("0.4", "actor_rollout_ref.actor.use_kl_loss=False", "none"),
        ("0.4", "algorithm.use_kl_in_reward=True", "reward"),
    ],
)
def test_a_reference_is_in_every_run_up_to_0_3(version, said, place):
    """trainer/main_ppo.py of 0.3.0 starts one without a condition, and that of 0.4.0 with one."""
    words = [*COMMON.replace("use_kl_loss=True", "use_kl_loss=False").split(), *COUNTED.split()]
    words += ["algorithm.adv_estimator=grpo", said]
    found = imported("verl", words, replace(OPTIONS, version=version))
    assert found.job.hyperparameters.kl_in == place
    assert ("reference" in dict(found.job.models)) == (place != "none")
    named = any("a reference in every run" in each for each in found.notes)
    assert named == ((version, place) == ("0.3", "reward"))


OF_FORKS = (
    ("recurrent.enable=memory", "in pieces"),
    ("agent.max_turns=5", "turns with tools"),
    ("actor_rollout_ref.env.tool_manager=qwen3", "turns with tools"),
    ("trainer.oversample_multiplier=2", "beyond a batch"),
    ("actor_rollout_ref.rollout.tree_search=True", "branches of trees"),
    ("actor_rollout_ref.actor.self_distillation.alpha=0.5", "its own samples"),
)


@pytest.mark.parametrize(("word", "said"), OF_FORKS)
def test_keys_of_forks_that_change_the_work_make_an_answer_doubtful(word, said):
    words = [*COMMON.split(), *COUNTED.split(), f"+{word}"]
    (doubt,) = imported("verl", words, OPTIONS).doubts()
    assert doubt.startswith(word)
    assert said in doubt


@pytest.mark.parametrize(
    ("words", "version", "doubted"),
    [
        ("=sdpa", "0.7.1", True),
        ("=eager", "0.6.1", True),
        ("=flash_attention_3", "0.9", False),
        # workers/fsdp_workers.py of 0.5.0 takes FlashAttention 2 whatever the model's configuration says.
        ("=sdpa", "0.5", False),
        ("=sdpa model_engine=megatron", "0.9", False),
    ],
)
def test_attention_by_other_kernels_makes_the_answer_doubtful_where_it_is_taken(
    words, version, doubted
):
    key = "actor_rollout_ref.model.override_config.attn_implementation"
    given = [*COMMON.split(), *COUNTED.split(), *f"+{key}{words}".split()]
    found = imported("verl", given, replace(OPTIONS, version=version))
    assert any("FlashAttention" in each for each in found.doubts()) == doubted


def test_a_reference_scores_in_what_it_is_told_of_all_ranks_not_in_what_the_actor_updates():
    """160 and 96 sequences over 16 ranks (workers/fsdp_workers.py of 0.2 to 0.7.1), beside updates of 2 on each."""
    words = (
        f"{COMMON} algorithm.adv_estimator=grpo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"
        " actor_rollout_ref.rollout.log_prob_micro_batch_size=160 actor_rollout_ref.ref.log_prob_micro_batch_size=96"
    )
    tasks = imported("verl", words.split(), OPTIONS).draft.tasks
    names = ("actor.update", "actor.compute_log_prob", "reference.compute_log_prob")
    assert [tasks[name].micro_batch for name in names] == [2, 10, 6]


@pytest.mark.parametrize(("version", "tp"), [("0.3", 2), ("0.4", 1), ("0.5", 1), ("0.6", 2)])
def test_engines_beside_megatron_were_one_gpu_wide_unless_told_otherwise(version, tp):
    words = re.sub(r"\S*rollout.tensor_model_parallel_size=2", "", COMMON).split()
    words += ["--config-name=ppo_megatron_trainer.yaml", "algorithm.adv_estimator=grpo"]
    words += ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"]
    words += ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4"]
    found = imported("verl", words, replace(OPTIONS, version=version))
    assert found.draft.tasks["actor.generate"].tp == tp


def of_script(tmp_path, start, more):
    """Return what is imported of a script with a start of verl's keys."""
    script = tmp_path / "run.sh"
    words = "data.train_batch_size=64 data.max_prompt_length=512 data.max_response_length=512 trainer.nnodes=1 "
    words += "trainer.n_gpus_per_node=8 actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct "
    words += "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=32 "
    words += "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 "
    script.write_text(f"{start} {words}{more}\n", encoding="utf-8")
    return imported("verl", [str(script)], OPTIONS)


def test_a_fork_is_not_refused_for_what_a_reward_s_file_is_called(tmp_path):
    more = "custom_reward_function.path=rewards/main_eval.py"
    found = of_script(tmp_path, "python3 -m mine.main_ppo", more)
    assert any("mine.main_ppo is taken as verl's" in note for note in found.notes)


@pytest.mark.parametrize(("engine", "is_said"), [("sglang", False), ("vllm", True)])
def test_vllms_first_engine_is_said_to_generate_where_it_does_alone(tmp_path, engine, is_said):
    start = "pip install verl==0.4.0\nexport VLLM_USE_V1=0\npython3 -m verl.trainer.main_ppo"
    more = "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 actor_rollout_ref.rollout.name="
    found = of_script(tmp_path, start, f"{more}{engine}")
    assert found.draft.tasks["actor.generate"].engine.startswith(engine)
    assert any("(V0)" in note for note in found.notes) == is_said
