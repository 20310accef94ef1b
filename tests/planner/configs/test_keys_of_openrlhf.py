"""No flag of OpenRLHF's is swallowed: changing it changes job or plan, or what becomes of it is said."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import UserError
from rlplan.planner.configs.importing import ImportOptions, imported, settings_of
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.planner.frameworks.openrlhf.reading import ADAPTER_NOTE
from tests.planner.configs.fates import first_fate, outcome

CATALOGUE = Path(__file__).parent / "data" / "flags_of_openrlhf.txt"
OPTIONS = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={"HOME": "~"}
)
SHEET = load_config_sheet("openrlhf")
COMMON = """
-m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-8B --actor.num_gpus_per_node 8
--ref.num_gpus_per_node 8 --critic.num_gpus_per_node 8 --reward.num_gpus_per_node 8 --vllm.num_engines 4
--vllm.tensor_parallel_size 2 --rollout.batch_size 128 --rollout.n_samples_per_prompt 4 --train.batch_size 128
--rollout.micro_batch_size 4 --train.micro_batch_size 2 --data.max_len 4096
"""
PADDED = f"{COMMON} --reward.model_name_or_path Qwen/Qwen3-4B"
PACKED = (
    f"{PADDED} --ds.packing_samples --train.dynamic_batch_enable --rollout.max_tokens_per_gpu 16384"
)
GROUPS = "--algo.advantage.estimator group_norm"
OLDER = """
-m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen3-8B --actor_num_gpus_per_node 8 --ref_num_gpus_per_node 8
--critic_num_gpus_per_node 8 --reward_num_gpus_per_node 8 --vllm_num_engines 4 --vllm_tensor_parallel_size 2
--rollout_batch_size 128 --n_samples_per_prompt 4 --train_batch_size 128 --micro_train_batch_size 2
--micro_rollout_batch_size 4 --reward_pretrain Qwen/Qwen3-4B
"""
BASES = {
    "a critic and a reward model": PADDED,
    "packed": PACKED,
    "samples compared": f"{COMMON} {GROUPS}",
    "samples compared, no penalty": f"{COMMON} {GROUPS} --algo.kl.init_coef 0",
    "fully sharded": f"{COMMON} {GROUPS} --ds.zero_stage 3",
    "colocated": f"{PADDED} --train.colocate_all --ds.enable_sleep",
    "an adapter": f"{COMMON} {GROUPS} --ds.lora.rank 32",
    "a ring": f"{PADDED} --ds.packing_samples --ds.ring_attn_size 2",
    "asynchronous": f"{PADDED} --train.async_enable --train.async_queue_size 2",
    "lengths apart": f"{OLDER} --prompt_max_len 1024 --generate_max_len 2048",
    "older names": OLDER,
}


def catalogue():
    """Return OpenRLHF's flags: whether each is a switch, a pair or of a type, and its default."""
    lines = (
        line.split("\t")
        for line in CATALOGUE.read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    return {flag: (kind, default) for flag, _, _, kind, default in lines}


def changed(flag, kind, default):
    """Return the words that a flag may be given, by its type."""
    key = SHEET.older.get(flag, flag)
    settings = (*SHEET.settings.values(), *SHEET.losses.values())
    meant = [[word] for setting in settings if key in setting.keys for word in setting.values]
    if kind == "switch":
        return [[]]
    if kind == "pair":
        return [["0.1", "0.3"]]
    numbers = [[f"{each}"] for each in (1, 2, 4, 8, 16, 64, 512, 3000, 0.25, 0.7)]
    addresses = [["http://localhost:5000"], ["Qwen/Qwen2.5-7B"], ["other_word"]]
    return [*meant, *numbers, *addresses] if default != "None" else [*meant, *addresses, *numbers]


@pytest.fixture(scope="module")
def before():
    """Return the job and plan of each base as it is."""
    found = {name: imported("openrlhf", words.split(), OPTIONS) for name, words in BASES.items()}
    return {name: (each.job, each.draft) for name, each in found.items()}


def told(flag, words, name, before):
    """Return what becomes of a flag that is given: idle where nothing reads it, empty where that is not seen."""
    key = SHEET.older.get(flag, flag)
    try:
        found = imported("openrlhf", [*BASES[name].split(), f"--{flag}", *words], OPTIONS)
    except UserError as error:
        said = str(error)
        return "refused" if flag in said and "is no " not in said else ""
    return outcome(found, key, before[name])


def fate(flag, described, before):
    """Return what becomes of a flag in the first configuration and with the first words that show it."""
    kind, default = described
    if SHEET.older.get(flag, flag) in SHEET.harmless():
        return "named"
    given = changed(flag, kind, default)
    return first_fate(told(flag, words, name, before) for name in BASES for words in given)


def test_no_flag_is_swallowed(pytestconfig, before):
    flags = catalogue()
    chosen = list(flags) if pytestconfig.getoption("full") else list(flags)[::11]
    assert [flag for flag in chosen if fate(flag, flags[flag], before) == "swallowed"] == []


def test_every_flag_that_was_renamed_is_still_known():
    assert set(SHEET.older) | set(SHEET.older.values()) <= set(catalogue())


def test_nothing_is_said_or_ignored_by_a_pattern():
    names = (*SHEET.harmless(), *SHEET.not_modelled, *SHEET.changes_work)
    assert [name for name in names if "*" in name] == []


def small(*more):
    """Return a small configuration with further words, imported."""
    return imported("openrlhf", [*BASES["samples compared"].split(), *more], OPTIONS)


def test_a_flag_that_nobody_knows_is_not_understood():
    assert small("--rollout.nonsense", "7").keys.unknown == ("rollout.nonsense",)


@pytest.mark.parametrize(
    ("prompts", "samples", "update", "updates", "doubted"),
    [(15, 16, 60, 4, False), (64, 8, 128, 4, False), (8, 4, 64, 1, True), (15, 16, 100, 2, True)],
)
def test_updates_are_counted_in_samples(prompts, samples, update, updates, doubted):
    found = small(
        "--rollout.batch_size", f"{prompts}", "--rollout.n_samples_per_prompt", f"{samples}",
        "--train.batch_size", f"{update}", "--actor.num_gpus_per_node", "4",
    )  # fmt: skip
    assert found.job.workload.updates == updates
    assert ("train.batch_size" in found.keys.changes_work) == doubted


def test_token_budgets_pack_whether_packing_is_asked_for_or_not():
    budget = small("--train.dynamic_batch_enable", "--ds.zero_stage", "3")
    assert budget.job.engines.train == small("--ds.packing_samples").job.engines.train
    assert budget.job.engines.train != small("--ds.zero_stage", "3").job.engines.train


def test_what_answers_the_model_makes_the_answer_doubtful():
    agent = small("--train.agent_func_path", "agent.py")
    said = "changes the amount of work (turns and observations of an agent) and is not counted"
    assert list(agent.doubts()) == [f"train.agent_func_path=agent.py {said}"]
    server = small("--reward.remote_url", "http://localhost:5000")
    assert "reward.remote_url" in server.keys.changes_work
    named = small("--reward.remote_url", "org/PRM-7B", "--reward.model_name_or_path", "org/PRM-7B")
    assert "reward.remote_url" in named.keys.changes_work  # asked as a server would be
    said = "no reward model is loaded: reward.model_name_or_path has no effect beside reward.remote_url"
    assert said in named.notes
    assert said not in server.notes
    assert "reward.remote_url" in small("--reward.remote_url", "reward.py").keys.mapped
    rloo = small(
        "--algo.advantage.estimator", "rloo", "--algo.dynamic_filtering_enable",
        "--reward.remote_url", "reward.py",
    )  # fmt: skip
    assert "algo.dynamic_filtering_enable" in rloo.keys.changes_work


def test_a_partition_of_zero_plus_plus_is_said_not_to_be_counted():
    assert "ds.zpg" in small("--ds.zpg", "8").keys.not_modelled
    assert "ds.zpg" in small("--ds.zpg", "1").keys.without_influence


def test_beside_an_adapter_the_reference_is_a_model_of_its_own_and_the_critic_has_one_too():
    """cli/train_ppo_ray.py, ReferenceModelActor without lora; trainer/ray/ppo_critic.py, of ds.lora.rank."""
    estimator = ("--algo.advantage.estimator", "gae")
    job = small("--ds.lora.rank", "8", "--algo.kl.init_coef", "0.01", *estimator).job
    assert {"reference", "critic"} <= set(job.models)
    assert not job.adapter("actor").shares_reference
    assert job.adapter("critic").rank == 8
    assert "reference" not in small("--ds.lora.rank", "8", "--algo.kl.init_coef", "0").job.models


def test_adapters_are_said_to_reach_the_engine_by_a_changed_copy_alone():
    """Issues 546, 991, 1349: vLLM refuses the names of what broadcast_to_vllm sends."""
    assert ADAPTER_NOTE in small("--ds.lora.rank", "8").notes
    assert ADAPTER_NOTE not in small().notes


def test_an_engine_beside_adapters_reads_gpt_oss_in_the_format_in_which_it_is_published():
    named, adapted = "--actor.model_name_or_path", ("--ds.lora.rank", "8")
    published = small(named, "openai/gpt-oss-20b", *adapted)
    assert published.job.rollout_precision == "mxfp4"
    assert "the engine has weights in mxfp4, as openai/gpt-oss-20b is published" in published.notes
    assert small(named, "openai/gpt-oss-20b").job.rollout_precision is None
    assert small(named, "mine/gpt-oss-20b-bf16", *adapted).job.rollout_precision is None


LEFT = OLDER.replace("--micro_train_batch_size 2", "").replace("--micro_rollout_batch_size 4", "")


def sizes(found):
    tasks = found.draft.tasks
    return tuple(tasks[name].micro_batch for name in ("actor.update", "reference.compute_log_prob"))


@pytest.mark.parametrize(
    ("version", "more", "wanted"),
    [
        (None, "--prompt_max_len 1024", (4, 8)),
        (None, "", (1, 1)),
        ("0.9", "", (4, 8)),
        ("0.5.9", "", (4, 8)),
    ],
)
def test_micro_batches_that_nobody_gives_are_those_of_the_version(version, more, wanted):
    """4 and 8 sequences up to 0.9.10, one since 0.10 (openrlhf/cli/train_ppo_ray.py); lengths apart end with 0.9.7."""
    options = replace(OPTIONS, version=version)
    assert sizes(imported("openrlhf", f"{LEFT} {more}".split(), options)) == wanted


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"version.txt": "0.8.5.post1\n", "openrlhf/__init__.py": ""}, "0.8.3"),
        ({"OpenRLHF/version.txt": "0.6.2\n", "OpenRLHF/openrlhf/__init__.py": ""}, "0.6.1"),
        # A fork with later code than its number says.
        (
            {
                "version.txt": "0.6.0.post2\n",
                "openrlhf/cli/train_ppo_ray.py": 'add("--async_train")\n',
            },
            "0.8",
        ),
        ({"version.txt": "0.8.5\n"}, "0.10"),  # another project's
        ({"requirements.txt": "openrlhf[vllm]==0.9.4\n"}, "0.9.3"),
        ({"requirements.txt": "git+https://github.com/OpenRLHF/OpenRLHF.git@v0.9.4\n"}, "0.9.3"),
        ({"requirements.txt": "OpenRLHF<0.9.3\n"}, "0.9.2"),
    ],
)
def test_a_checkout_and_pins_say_the_release(tmp_path, files, version):
    script = tmp_path / "examples" / "run.sh"
    for name, text in {**files, "examples/run.sh": f"python3 {' '.join(LEFT.split())}\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / ".git").mkdir()
    found = imported("openrlhf", [str(script)], OPTIONS)
    assert found.document()["version"] == version
    assert sizes(found) == ((1, 1) if version == "0.10" else (4, 8))


def test_what_lies_beside_a_reward_function_says_no_release(tmp_path):
    reward = tmp_path / "reward.py"
    reward.touch()
    (tmp_path / "requirements.txt").write_text("openrlhf==0.8.5\n")
    start = "python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen3-4B --vllm_num_engines 2"
    words = [*start.split(), "--remote_rm_url", str(reward)]
    assert settings_of("openrlhf", words, OPTIONS).sheet.version == "0.10"


@pytest.mark.parametrize(
    ("version", "more", "share", "engine"),
    [
        ("0.5.9", "", 0.9, "vllm-0.6"),
        ("0.6.0", "--colocate_all_models", 0.4, "vllm-0.6"),
        ("0.6.3", "--colocate_all_models", 0.9, "vllm-0.8"),
        ("0.8.3", "", 0.95, "vllm-0.8"),
        ("0.9.2", "", 0.95, "vllm-0.11"),
        ("0.11.2", "", 0.95, "vllm-0.15"),
    ],
)
def test_engines_and_their_share_are_those_of_the_version(version, more, share, engine):
    """cli/train_ppo_ray.py and the vLLM of setup.py, tags v0.5.9, v0.6.0, v0.6.3, v0.8.3, v0.9.2 and v0.11.0."""
    words = [*LEFT.split(), *more.split()]
    draft = imported("openrlhf", words, replace(OPTIONS, version=version)).draft
    task = draft.tasks["actor.generate"]
    assert (task.memory_fraction, task.engine) == (share, engine)


@pytest.mark.parametrize(
    ("version", "weight", "logits"),
    [
        ("0.8.3", "0.0", "entropy"),
        ("0.8.2", "0.0", None),
        (None, "0.0", "entropy"),
        (None, "0.01", "entropy"),
    ],
)
def test_a_weight_of_0_still_computes_entropies(version, weight, logits):
    """trainer/ray/ppo_actor.py: return_entropy where the weight is not None, since commit db57d18c (0.8.3)."""
    options = replace(OPTIONS, version=version)
    found = imported("openrlhf", [*LEFT.split(), "--entropy_loss_coef", weight], options)
    assert found.job.trainer("actor").logits == logits


@pytest.mark.parametrize(
    ("version", "more", "named"),
    [
        ("0.8.3", "", {"forecast in bf16", "forecast with FlashAttention"}),
        ("0.8.3", "--bf16 --packing_samples", set()),
        ("0.8.3", "--bf16 --flash_attn", set()),
        ("0.9", "--bf16", set()),
        ("0.9.0", "", {"forecast in bf16"}),
        ("0.10", "", set()),
    ],
)
def test_what_earlier_releases_do_only_where_it_is_asked_for_is_named(version, more, named):
    """models/actor.py of v0.8.9 and v0.8.10; --bf16 is gone since 0.9.2."""
    found = imported("openrlhf", [*LEFT.split(), *more.split()], replace(OPTIONS, version=version))
    said = {note.split(",")[0] for note in found.notes if note.startswith("forecast ")}
    assert said == named
