"""AReaL's configurations: allocation strings of each engine and of all, modes, what trains, rules, and its log."""

import re
from dataclasses import replace
from warnings import catch_warnings, simplefilter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError, MissingValueError, MissingValuesError
from rlplan.files.frozen import FrozenDict
from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.frameworks import frameworks_with
from rlplan.planner.configs.importing import imported, settings_of
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.planner.configs.writing.exporting import of_version
from rlplan.planner.frameworks.areal.allocation import Allocation, allocation_of, allocations_of
from rlplan.planner.measured.logs import read_log
from rlplan.profiles.frameworks import DATA_PARTS
from rlplan_cli.config_options import framework_of
from tests.house.tree import ROOT
from tests.planner.configs.test_keys_of_areal import BASES, OPTIONS

PUBLISHED = ROOT.parent / "shared" / "data" / "configs-new" / "areal"
FILE = """
experiment_name: gsm8k
seed: 1
cluster: {n_nodes: 1, n_gpus_per_node: 8}
rollout: {backend: "sglang:d4", max_head_offpolicyness: 2, consumer_batch_size: "${train_dataset.batch_size}"}
gconfig: {n_samples: 4, max_new_tokens: 1024}
actor:
  backend: "fsdp:d4"
  path: Qwen/Qwen2.5-1.5B-Instruct
  dtype: bfloat16
  mb_spec: {max_tokens_per_mb: 10240}
  optimizer: {type: adam, lr: 1.70e-5}
  kl_ctl: 0.0
  ppo_n_minibatches: 2
  use_decoupled_loss: true
  scheduling_spec: [{task_type: worker, port_count: 2, gpu: 1, env_vars: {}}]
ref: {backend: "${actor.backend}", path: "${actor.path}", dtype: "${actor.dtype}"}
train_dataset: {batch_size: 256, max_length: 1024}
"""
# The same as before engines had to say their own: allocation_mode says all of them.
EARLIER = re.sub(r'^  backend: .*\n|backend: "[^"]*", ', "", FILE, flags=re.MULTILINE)


def areal(base, *more, options=OPTIONS):
    return imported("areal", [*BASES[base], *more], options)


def test_it_has_every_part():
    assert "areal" in frameworks_with(*DATA_PARTS, "reading", "writing", "rules")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fsdp:d4p1t1", Allocation(backend="fsdp", dp=4)),
        ("sglang.d8m4p1", Allocation(backend="sglang", dp=8, tp=4)),
        ("megatron:d2p2t4e4", Allocation(backend="megatron", dp=2, pp=2, tp=4, ep=4, expert_tp=1)),
        (
            "megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)",
            Allocation(backend="megatron", dp=4, pp=2, tp=2, cp=2, ep=2, expert_tp=4),
        ),
        ("vllm[actor]:d2t2", Allocation(backend="vllm", dp=2, tp=2)),
    ],
)
def test_allocations_of_an_engine_are_read(text, expected):
    assert allocation_of(text) == expected


@given(st.tuples(*(st.integers(1, 64) for _ in range(4))))
def test_an_engine_has_the_product_of_its_sizes(sizes):
    dp, tp, pp, cp = sizes
    found = allocation_of(f"megatron:d{dp}t{tp}p{pp}c{cp}")
    assert found is not None
    assert found.gpus == dp * tp * pp * cp


def test_allocations_of_all_engines_are_read():
    found = allocations_of("sglang:d4t2 + megatron:(attn:d4p4t2|ffn:d2p4e4)")
    assert (found.generates.gpus, found.trains.gpus, found.shared) == (8, 32, False)
    shared = allocations_of("sglang:d4|fsdp:d4")
    assert shared.shared
    assert allocations_of("sglang.d16p1m1+d8p2m1").trains == Allocation(
        backend="megatron", dp=8, pp=2
    )
    assert allocations_of("sglang:d4+eval").trains is None
    assert allocations_of("d8p1t1").generates is None
    assert allocations_of("x4+y3") is None
    assert allocation_of("fsdp:d0") is None


def test_a_file_is_read_with_what_it_refers_to(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(FILE, encoding="utf-8")
    found = imported("areal", [str(path), "actor.mb_spec.max_tokens_per_mb=8192"], OPTIONS)
    assert found.keys.unknown == ()
    work = found.job.workload
    assert (work.prompts, work.samples_per_prompt, work.updates) == (256, 4, 2)
    assert {pool.name: pool.gpus for pool in found.draft.pools} == {"train": 4, "rollout": 4}
    assert found.draft.tasks["actor.update"].token_budget == 8192
    assert "reference" not in found.job.models
    assert framework_of([str(path)])[0] == "areal"


def test_a_program_with_a_file_is_taken_for_its_start(tmp_path):
    (tmp_path / "config.yaml").write_text(FILE, encoding="utf-8")
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 examples/math/gsm8k_rl.py --config config.yaml actor.path=Qwen/Qwen3-8B\n"
    )
    assert imported("areal", [str(script)], OPTIONS).job.models["actor"] == "qwen3-8b"


@pytest.mark.parametrize(
    ("more", "mode", "staleness"),
    [
        ((), "async", 2.0),
        (("rollout.max_head_offpolicyness=0",), "sync", None),
        (("async_training=false",), "sync", None),
    ],
)
def test_modes_have_their_bound_of_staleness(more, mode, staleness):
    draft = areal("SGLang", *more).draft
    assert (draft.mode, draft.staleness) == (mode, staleness)


def test_roles_are_those_that_it_makes():
    assert areal("a critic").job.algorithm == "ppo"
    referred = areal("a reference")
    assert referred.job.hyperparameters.kl_in == "reward"
    assert [pool.roles for pool in referred.draft.pools] == [("actor", "reference"), ("actor",)]
    apart = areal("a reference", "ref.scheduling_strategy.type=separation")
    assert [pool.name for pool in apart.draft.pools] == ["train", "reference", "rollout"]
    assert "reference" not in areal("a reference", "actor.kl_ctl=0").job.models


def test_the_actors_own_pass_is_left_out_unless_something_asks_for_it():
    ways = {
        (): "engine",
        ("actor.recompute_logprob=true",): "trainer",
        ("actor.use_decoupled_loss=true",): "trainer",
        ("actor.use_decoupled_loss=true", "actor.prox_logp_method=loglinear"): "engine",
        ("actor.use_decoupled_loss=true", "actor.prox_logp_method=reuse_train_logp"): "engine",
    }
    assert {more: areal("SGLang", *more).job.old_log_prob for more in ways} == ways


def test_log_probabilities_of_the_update_itself_want_one_update():
    assert areal("SGLang").job.workload.updates == 4
    assert areal("SGLang", "actor.prox_logp_method=reuse_train_logp").job.workload.updates == 1


def test_what_trains_keeps_weights_as_it_loads_them():
    older = replace(OPTIONS, version="1.0.4")
    assert areal("SGLang", options=older).job.trainer("actor").weights == "bf16"
    kahan = areal("SGLang", "actor.optimizer.type=adam_bf16", options=older)
    assert kahan.job.trainer("actor").optimizer == "kahan-bf16"
    assert areal("SGLang").job.trainer("actor").weights is None
    assert areal("Archon").job.trainer("actor").weights == "bf16"
    pure = ("actor.optimizer_dtype=bfloat16", "actor.optimizer.type=adam_bf16")
    stored = areal("SGLang", *pure).job.trainer("actor")
    assert (stored.weights, stored.optimizer) == ("bf16", "kahan-bf16")
    single = areal("SGLang", "actor.dtype=float32")
    assert single.keys.not_modelled == {"actor.dtype": "passes in fp32"}
    megatron = areal("Megatron")
    assert megatron.job.trainer("actor").weights is None
    assert megatron.draft.tasks["actor.update"].engine == "megatron-core-2025"
    assert areal("experts").draft.tasks["actor.update"].ep == 8


def test_eight_bits_are_of_megatrons_section_and_of_the_checkpoint():
    megatron = ("actor.backend=megatron:d4", "actor.path=Qwen/Qwen3-1.7B-FP8")
    found = areal("SGLang", *megatron, "actor.megatron.fp8_config.mode=hybrid")
    assert (found.job.precision, found.job.rollout_precision) == ("fp8", "fp8")
    blocks = areal("SGLang", *megatron, "actor.megatron.fp8_config.recipe=blockwise")
    assert blocks.job.precision == "fp8"
    plain = areal("SGLang", megatron[0])
    assert (plain.job.precision, plain.job.rollout_precision) == ("bf16", None)
    # FSDP has no such section, and an engine serves what its checkpoint holds.
    other = areal("SGLang", megatron[1], "actor.megatron.fp8_config.mode=hybrid")
    assert (other.job.precision, other.job.rollout_precision) == ("bf16", "fp8")


def test_trees_are_read_for_each_role_and_padded_to_their_budget():
    trees = ("actor.enable_tree_training=true", "actor.pad_to_maximum=true")
    found = areal("SGLang", *trees)
    actor = found.job.trainer("actor")
    assert (actor.shares_prompts, actor.fills_budgets) == (True, True)
    assert broken("SGLang", *trees) == {}
    assert any("FlexAttention" in note for note in found.notes)
    padded = areal("SGLang", "actor.pad_to_maximum=true").job.trainer("actor")
    assert (padded.shares_prompts, padded.fills_budgets) == (False, True)
    unbounded = areal("SGLang", "actor.pad_to_maximum=true", "actor.mb_spec.max_tokens_per_mb=null")
    assert not unbounded.job.trainer("actor").fills_budgets
    assert any("whatever pad_to_maximum says" in note for note in unbounded.notes)


@pytest.mark.parametrize(
    ("version", "named"),
    [
        ("0.5.3", {"allocation_mode": "sglang:d4p1t1+fsdp:d4p1t1"}),
        ("2.0", {"actor.backend": "fsdp:d4p1t1", "rollout.backend": "sglang:d4p1t1"}),
    ],
)
def test_engines_that_nothing_names_are_asked_for_by_words_that_can_be_used(
    tmp_path, version, named
):
    (tmp_path / "open.yaml").write_text(EARLIER.replace("${actor.backend}", "fsdp"))
    words, options = [str(tmp_path / "open.yaml")], replace(OPTIONS, version=version)
    with pytest.raises((MissingValueError, MissingValuesError)) as error:
        imported("areal", words, options)
    assert isinstance(error.value, MissingValueError | MissingValuesError)
    assert [each.options for each in error.value.missing] == [
        ("--set", f"{key}={value}") for key, value in named.items()
    ]
    found = imported("areal", words, replace(options, values=FrozenDict(named)))
    assert {pool.gpus for pool in found.draft.pools} >= {4}


def test_plans_are_told_to_earlier_versions_by_one_allocation_of_all_engines():
    sheet, values = (
        load_config_sheet("areal"),
        {"actor.backend": "fsdp:d4t1", "rollout.backend": "sglang:d2t2"},
    )
    joined = of_version({**values, "seed": 1}, sheet.of("1.0"))
    assert joined == {"seed": 1, "allocation_mode": "sglang:d2t2+fsdp:d4t1"}
    shared = {**values, "rollout.scheduling_strategy.type": "colocation"}
    assert of_version(shared, sheet.of("0.5")) == {"allocation_mode": "sglang:d2t2|fsdp:d4t1"}
    assert of_version(values, sheet) == values


def test_what_trains_otherwise_is_refused_for_what_it_is():
    with pytest.raises(FileError, match=r"is of the system before AReaL-lite, and keys of"):
        areal("SGLang", "exp_ctrl.total_train_epochs=5")
    with pytest.raises(
        FileError, match=r"ppo\.gen\.max_new_tokens: is of the system before AReaL-lite"
    ):
        areal("SGLang", "ppo.gen.max_new_tokens=8192", "group_size=8")
    with pytest.raises(FileError, match=r"rollout\.backend: is missing"):
        imported("areal", ["actor.path=Qwen/Qwen3-8B", "actor.backend=fsdp:d4"], OPTIONS)
    with pytest.raises(FileError, match=r"actor\.backend: is not understood"):
        areal("SGLang", "actor.backend=fsdp:four")


@pytest.mark.parametrize(
    ("more", "pools"),
    [
        ("actor.scheduling_strategy.type=colocation", {"train": 4}),
        ("rollout.scheduling_strategy.type=colocation", {"train": 4}),
        ("actor.weight_update_mode=awex", {"train": 4}),
        ("actor.weight_update_mode=awex actor._version=v2", {"train": 4, "rollout": 4}),
    ],
)
def test_either_place_puts_both_on_the_same_gpus(more, pools):
    found = areal("SGLang", *more.split())
    assert {pool.name: pool.gpus for pool in found.draft.pools} == pools


def test_a_file_is_inherited_from_at_the_top(tmp_path):
    (tmp_path / "base.yaml").write_text(FILE, encoding="utf-8")
    (tmp_path / "own.yaml").write_text(
        "defaults: [base@_global_, _self_]\ngconfig: {n_samples: 8}\n"
    )
    found = imported("areal", [str(tmp_path / "own.yaml")], OPTIONS)
    assert (found.job.workload.prompts, found.job.workload.samples_per_prompt) == (256, 8)
    assert found.keys.unknown == ()


def test_its_own_source_beside_a_file_says_the_version(tmp_path):
    (tmp_path / "examples").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "areal"\nversion = "1.0.2"\n')
    (tmp_path / "examples" / "grpo.yaml").write_text(FILE, encoding="utf-8")
    found = imported("areal", [str(tmp_path / "examples" / "grpo.yaml")], OPTIONS)
    assert any("AReaL 1.0, by" in note for note in found.notes)
    assert found.job.trainer("actor").weights == "bf16"


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("pyproject.toml", '[project]\nversion = "1.0.2"\nname = "areal"\n[tool.x]\nversion = "0.3"\n', "1.0"),
        ("pyproject.toml", '[project]\nname = "areal"\ndynamic = ["version"]\n[tool.x]\nversion = "0.3"\n', "2.0"),
        ("pyproject.toml", '[project]\nname = "areal-tools"\nversion = "0.3"\n', "2.0"),
        ("pyproject.toml", "[project\n", "2.0"),
        ("areal/version.py", 'class VersionInfo:\n    def __init__(self):\n        self.__version__ = "0.4.1"\n', "0.4"),
        ("areal/__init__.py", '__version__ = "0.3.0"\n', "0.3"),
        ("areal/__init__.py", "from .version import __version__\n", "2.0"),
        ("setup.py", 'setup(name="areal", version="0.3.1")\n', "0.3"),
        ("setup.py", 'setuptools.setup(\n    version="0.3.1",\n    name="areal",\n)\n', "0.3"),
        ("setup.py", 'setup(name="areal", version=read())\nother(version="0.3.1")\n', "2.0"),
    ],
)  # fmt: skip
def test_a_version_is_that_of_the_package_in_whichever_way_it_is_written(
    tmp_path, file, text, told
):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text, encoding="utf-8")
    (tmp_path / "grpo.yaml").write_text(FILE, encoding="utf-8")
    found = imported("areal", [str(tmp_path / "grpo.yaml")], OPTIONS)
    assert any(f"AReaL {told}, " in note for note in found.notes)


def test_a_file_without_engines_of_their_own_is_of_before_they_had_to_be(tmp_path):
    (tmp_path / "own.yaml").write_text(f"{EARLIER}allocation_mode: sglang:d4+fsdp:d4\n")
    found = imported("areal", [str(tmp_path / "own.yaml")], OPTIONS)
    assert any("AReaL 1.0, since allocation_mode is given without" in note for note in found.notes)
    assert found.job.trainer("actor").weights == "bf16"


def test_names_of_engines_without_sizes_are_of_before_too(tmp_path):
    path = tmp_path / "own.yaml"
    named = EARLIER.replace("actor:", "actor:\n  backend: fsdp\n  group_adv_norm: false", 1)
    named = named.replace("ref: {", "ref: {backend: fsdp, ")
    path.write_text(f"{named}allocation_mode: sglang:d4+d4\n")
    found = imported("areal", [str(path)], OPTIONS)
    assert any("AReaL 0." in note or "AReaL 1.0, " in note for note in found.notes)
    assert (found.job.trainer("actor").weights, found.keys.unknown) == ("bf16", ())


def test_nothing_warns_of_a_variable_that_is_empty_by_default(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(f"{FILE}stats_logger: {{swanlab: {{api_key: '${{oc.env:NO_SUCH_KEY,}}'}}}}\n")
    with catch_warnings(record=True) as warned:
        simplefilter("always")
        found = imported("areal", [str(path)], OPTIONS)
    assert ([str(each.message) for each in warned], found.keys.unknown) == ([], ())


def test_a_start_that_moved_says_the_version(tmp_path):
    (tmp_path / "own.yaml").write_text(EARLIER, encoding="utf-8")
    start = "python3 -m areal.launcher.local my_rl.py --config own.yaml allocation_mode=sglang:d4+fsdp:d4\n"
    (tmp_path / "run.sh").write_text(start, encoding="utf-8")
    found = imported("areal", [str(tmp_path / "run.sh")], OPTIONS)
    assert any("AReaL 0.5.3, since areal.launcher.local" in note for note in found.notes)
    assert found.keys.unknown == (), "the program that a launcher starts is no key"


def test_versions_have_their_defaults():
    older = replace(OPTIONS, version="0.4")
    assert areal("vLLM", options=older).draft.tasks["actor.generate"].engine.endswith("eager")
    assert not areal("vLLM").draft.tasks["actor.generate"].engine.endswith("eager")


BREAKS = {
    "fsdp-has-no-stages-and-experts": ("SGLang", "actor.backend=fsdp:d2p2"),
    "engines-have-their-gpus": ("SGLang", "cluster.n_nodes=1", "cluster.n_gpus_per_node=4"),
    "expert-ranks-divide-the-gpus": ("experts", "actor.backend=megatron:d2t2e3"),
    "expert-ranks-divide-the-experts": ("experts", "actor.backend=megatron:d3t2e3"),
    "tensor-ranks-divide-the-heads": ("SGLang", "rollout.backend=sglang:d1t3"),
    "chunks-want-stages": ("Megatron", "actor.backend=megatron:d4", "actor.megatron.virtual_pipeline_parallel_size=2"),
    "shared-gpus-take-weights-from-a-disk": ("SGLang", "rollout.scheduling_strategy.type=colocation"),
    "what-leaves-its-gpus-is-switched-on": ("SGLang", "actor.offload=true"),
    "optimizers-are-known": ("SGLang", "actor.optimizer.type=muon"),
    "experts-chosen-before-are-of-sglang": ("vLLM", "rollout.return_routed_experts=true"),
    "adapters-have-a-rank": ("an adapter", "actor.lora_rank=0"),
    "trees-have-what-they-need": ("SGLang", "actor.enable_tree_training=true"),
}  # fmt: skip
# What test_areal_first.py breaks.
OF_THE_FIRST = "first-engines-fill-their-nodes"


def broken(base, *more):
    settings = settings_of("areal", [*BASES[base], *more], OPTIONS)
    return {rule.name: rule.broken(settings) for rule in rules_of("areal") if rule.broken(settings)}


@pytest.mark.parametrize("base", BASES)
def test_sound_configurations_break_no_rule(base):
    assert broken(base) == {}


@pytest.mark.parametrize("name", BREAKS)
def test_rules_are_found_broken(name):
    assert name in broken(*BREAKS[name])


def test_every_rule_is_broken_once():
    assert {rule.name for rule in rules_of("areal")} == {*BREAKS, OF_THE_FIRST}


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="public files are not here")
@pytest.mark.parametrize(
    ("name", "staleness", "algorithm"),
    [
        ("examples__math__boba_grpo.yaml", 4.0, "grpo"),
        ("examples__math__gsm8k_ppo.yaml", 2.0, "ppo"),
    ],
)
def test_published_files_are_read_whole(name, staleness, algorithm):
    found = imported("areal", [str(PUBLISHED / name)], OPTIONS)
    assert found.keys.unknown == ()
    assert (found.draft.staleness, found.job.algorithm) == (staleness, algorithm)


FIGURES = {
    "ppo_actor/prompt_len/avg": 100.0, "ppo_actor/seq_len/avg": 400.0, "timeperf/rollout": 20.5,
    "timeperf/recompute_logp": 2.0, "timeperf/compute_advantage": 0.5, "timeperf/train_step": 12.0,
    "timeperf/update_weights": 3.0,
}  # fmt: skip


def console(steps):
    """Return what its console prints: a line that ends a step, then a table of four pairs of cells a row."""
    lines = []
    for number, step in enumerate(steps, 1):
        lines += [
            f"StatsLogger INFO: Epoch 1/10 Step {number}/29 Train step {number}/290 done.",
            "Stats (1/1):",
        ]
        cells = [f" {name:<30} │ {value:.4e} " for name, value in step.items()]
        lines += [
            "╒════╤════╕",
            *(f"│{'│'.join(cells[at : at + 4])}│" for at in range(0, len(cells), 4)),
        ]
        lines.append("╘════╧════╛")
    return "\n".join(lines) + "\n"


def test_its_console_is_read_and_its_timers_make_up_a_step(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text(console([FIGURES] * 4), encoding="utf-8")
    log = read_log(path)
    assert (log.sheet.name, log.steps, log.step_seconds) == ("areal", 3, 38.0)
    stages = {"generation": 20.5, "old_log_prob": 2.0, "update_actor": 12.0, "weight_sync": 3.0}
    assert dict(log.stage_seconds) == stages
    assert (log.prompt_tokens, log.response_tokens) == (100.0, 300.0)
    assert dict(log.other_seconds) == {"compute_advantage": 0.5}


@pytest.mark.parametrize(("usual", "recompute"), [("True", "full"), ("False", "none")])
def test_a_checkout_says_by_its_code_whether_layers_are_kept(tmp_path, usual, recompute):
    code = f"    gradient_checkpointing: bool = field(\n        default={usual}, metadata={{}}\n    )\n"
    for name, text in (("version.py", '__version__ = "0.3.4"\n'), ("api/cli_args.py", code)):
        path = tmp_path / "areal" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    file = tmp_path / "grpo.yaml"
    file.write_text(EARLIER + "allocation_mode: sglang:d4+fsdp:d4\n", encoding="utf-8")
    task = imported("areal", [str(file)], OPTIONS).draft.tasks["actor.update"]
    assert task.recompute == recompute


def test_a_batch_that_nothing_says_is_of_one_prompt_and_named(tmp_path):
    file = tmp_path / "grpo.yaml"
    file.write_text(FILE.replace("{batch_size: 256, max_length: 1024}", "{max_length: 1024}").replace(
        'consumer_batch_size: "${train_dataset.batch_size}"', "consumer_batch_size: 1"), encoding="utf-8")  # fmt: skip
    found = imported("areal", [str(file)], OPTIONS)
    assert found.job.workload.prompts == 1
    assert any(each.startswith("train_dataset.batch_size is not given") for each in found.notes)


ALONE = re.sub(r"n_gpus_per_node: 8", "n_gpus_per_node: 4", FILE)


@pytest.mark.parametrize(
    ("text", "pools"),
    [
        (ALONE, ["train"]),
        (ALONE.replace("n_nodes: 1", 'n_nodes: "${oc.env:NODES,1}"'), ["train"]),
        (FILE, ["train", "rollout"]),
        (f"{ALONE}scheduler: {{type: slurm}}\n", ["train", "rollout"]),
        (ALONE.replace("n_nodes: 1", "n_nodes: 2"), ["train", "rollout"]),
    ],
)
def test_one_node_too_small_for_both_gives_its_gpus_to_both(tmp_path, text, pools):
    (tmp_path / "own.yaml").write_text(text)
    found = imported("areal", [str(tmp_path / "own.yaml")], OPTIONS)
    assert [pool.name for pool in found.draft.pools if pool.name != "host"] == pools
    assert found.job.engines.sleeps is (len(pools) == 2)
    assert any("neither sleeps" in note for note in found.notes) is (len(pools) == 1)


SHARED = "rollout.scheduling_strategy.type=colocation"
AWEX = "actor.weight_update_mode=awex"


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (ALONE, (SHARED, "actor.weight_update_mode=disk")),
        (ALONE, (AWEX,)),
        (re.sub("n_gpus_per_node: 8", "n_gpus_per_node: 4", EARLIER), ("allocation_mode=sglang:d4|fsdp:d4",)),
    ],
)  # fmt: skip
def test_one_node_whose_gpus_are_asked_to_be_shared_has_engines_that_sleep(tmp_path, text, more):
    (tmp_path / "own.yaml").write_text(text)
    found = imported("areal", [str(tmp_path / "own.yaml"), *more], OPTIONS)
    assert [pool.name for pool in found.draft.pools if pool.name != "host"] == ["train"]
    assert found.job.engines.sleeps
    assert found.draft.tasks["actor.update"].offload
    assert not any("neither sleeps" in note for note in found.notes)


@pytest.mark.parametrize(
    ("version", "backend", "way"),
    [
        ("1.0.3", "megatron:d1t2c2", "gathered"),
        ("1.0.3", "megatron:d2t2", None),
        ("1.0.4", "megatron:d1t2c2", None),
        ("1.0.3", "fsdp:d2c2", None),
    ],
)
def test_megatron_gathered_logits_over_context_parallel_ranks(tmp_path, version, backend, way):
    text = FILE.replace('backend: "fsdp:d4"', f'backend: "{backend}"')
    (tmp_path / "own.yaml").write_text(text)
    options = replace(OPTIONS, version=version)
    found = imported("areal", [str(tmp_path / "own.yaml")], options)
    assert found.job.trainer("actor").logits == way
