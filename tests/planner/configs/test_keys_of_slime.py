"""No flag of slime's or miles' is swallowed: changing it changes job or plan, or what becomes of it is said."""

from pathlib import Path

import pytest

from rlplan.errors import UserError
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.reading.settings import fits_any
from rlplan.planner.configs.reading.sheet import load_config_sheet
from tests.planner.configs.fates import first_fate, outcome

FRAMEWORKS = ("slime", "miles")
OPTIONS = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={"HOME": "~"}
)
COMMON = """
python3 train.py --hf-checkpoint /models/Qwen3-4B --ref-load /models/Qwen3-4B_torch_dist
--num-rollout 100 --rollout-batch-size 32 --n-samples-per-prompt 8
--rollout-max-response-len 8192 --rollout-num-gpus-per-engine 2 --attention-dropout 0.0 --hidden-dropout 0.0
"""
SHARED = f"{COMMON} --colocate --global-batch-size 256"
PACKED = f"{SHARED} --use-dynamic-batch-size --max-tokens-per-gpu 9216 --tensor-model-parallel-size 2 --use-kl-loss"
DENSE = """
--swiglu --num-layers 36 --hidden-size 2560 --ffn-hidden-size 9728 --num-attention-heads 32
--group-query-attention --num-query-groups 8 --disable-bias-linear --vocab-size 151936 --kv-channels 128 --qk-layernorm
"""
OWN = COMMON.replace("/models/Qwen3-4B ", "/models/my-own ")
APART = COMMON + "--rollout-num-gpus 8 --global-batch-size 128"
EXPERTS = f"""{OWN} --colocate --global-batch-size 256 {DENSE} --num-experts 64 --moe-router-topk 4
--moe-ffn-hidden-size 1024 --moe-layer-freq [0]*1+[1]*35 --expert-model-parallel-size 8 --pipeline-model-parallel-size 2
--actor-num-nodes 2 --micro-batch-size 2 --sglang-enable-dp-attention --sglang-ep-size 2 --optimizer-cpu-offload
--recompute-granularity full"""
LATENT = (
    f"{OWN} --colocate --global-batch-size 256 {DENSE} --multi-latent-attention --q-lora-rank 512"
)
BASES = {
    "colocated": SHARED,
    "packed, with a reference": PACKED,
    "apart": APART,
    "ahead": APART.replace("train.py", "train_async.py"),
    "a critic": f"{SHARED} --advantage-estimator ppo",
    "a penalty in rewards": f"{SHARED} --kl-coef 0.01",
    "a budget that waits for packing": f"{SHARED} --max-tokens-per-gpu 9216",
    "groups of requests": f"{SHARED} --sglang-dp-size 2",
    "the engine's log-probabilities": f"{SHARED} --use-rollout-logprobs",
    "other sizes than its sheet's": f"{SHARED} {DENSE} --num-layers 30",
    "a model by its flags": f"{OWN} --colocate --global-batch-size 256 {DENSE}",
    "experts": EXPERTS,
    "latent attention": LATENT,
    "bytes of eight bits": f"{SHARED} --fp8-format e4m3",
    "batches without a size": f"{COMMON} --colocate",
    "a teacher on servers": f"{SHARED} --use-opd --opd-type sglang",
    "an adapter": f"{SHARED} --lora-rank 16",
    "never stopping": f"{APART} --fully-async".replace("train.py", "train_async.py"),
    "FSDP": f"{SHARED} --train-backend fsdp",
    "a linear attention of its own": f"{PACKED} --spec plugins.models get_qwen3_5_spec".replace(
        "/models/Qwen3-4B ", "/models/Qwen3.5-9B "
    ),
}


def catalogue(framework):
    """Return a framework's flags: the kind of each, and its default."""
    path = Path(__file__).parent / "data" / f"flags_of_{framework}.txt"
    lines = (
        line.split("\t")
        for line in path.read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    return {flag: (kind, default) for flag, kind, default in lines}


def bases(framework):
    """Return the configurations in which a framework's flags are changed."""
    own = {"an adapter", "never stopping", "FSDP"}
    return {name: text for name, text in BASES.items() if framework == "miles" or name not in own}


def changed(sheet, flag, kind):
    """Return the words that a flag may be given, by its kind."""
    settings = [*sheet.settings.values(), *sheet.losses.values()]
    meant = [[word] for each in settings if flag in each.keys for word in each.values]
    if kind in {"switch", "pair"}:
        return [[]]
    numbers = [[f"{each}"] for each in (1, 2, 4, 8, 16, 64, 512, 3000, 0.25, 0.7)]
    words = [["other_word"], ["full"], ["selective"], ["/models/Qwen3-8B"], ["a.b.fully_async"]]
    return [*meant, *numbers, *words, [], ["[1]*36"]]


@pytest.fixture(scope="module")
def before():
    """Return the job and plan of each base of each framework as it is."""
    found = {
        (framework, name): imported(framework, text.split(), OPTIONS)
        for framework in FRAMEWORKS
        for name, text in bases(framework).items()
    }
    return {key: (each.job, each.draft) for key, each in found.items()}


def told(framework, flag, words, name, before):
    """Return what becomes of a flag that is given: idle where nothing reads it, empty where that is not seen."""
    try:
        found = imported(framework, [*BASES[name].split(), f"--{flag}", *words], OPTIONS)
    except UserError as error:
        return "refused" if flag in str(error) else ""
    return outcome(found, flag, before[framework, name])


def fate(framework, flag, kind, before):
    """Return what becomes of a flag in the first configuration and with the first words that show it."""
    sheet = load_config_sheet(framework)
    if flag in sheet.harmless() or fits_any(
        flag, [each for each in sheet.harmless() if "*" in each]
    ):
        return "named"
    return first_fate(
        told(framework, flag, words, name, before)
        for name in bases(framework)
        for words in changed(sheet, flag, kind)
    )


@pytest.mark.full
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_flag_is_swallowed(framework, pytestconfig, before):
    flags = catalogue(framework)
    chosen = list(flags) if pytestconfig.getoption("full") else list(flags)[::23]
    found = {flag: fate(framework, flag, flags[flag][0], before) for flag in chosen}
    assert [flag for flag, what in found.items() if what == "swallowed"] == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_flag_of_its_parsers_is_named(framework):
    sheet = load_config_sheet(framework)
    named = set(sheet.named())
    patterns = [each for each in (*sheet.harmless(), *sheet.not_modelled) if "*" in each]
    unknown = [
        each for each in catalogue(framework) if each not in named and not fits_any(each, patterns)
    ]
    assert unknown == []


def test_a_fork_s_sheet_has_what_its_own_was_forked_from_but_for_what_it_says_itself():
    own, base = load_config_sheet("miles"), load_config_sheet("slime")
    assert own.settings["prompts"] == base.settings["prompts"]
    assert own.settings["rollout_function"] != base.settings["rollout_function"]
    assert "sync_mode" in base.settings
    assert "sync_mode" not in own.settings
    assert (own.name, own.ranges, own.plain_starts) == ("miles", (), base.plain_starts)


def test_flags_of_versions_before_are_still_named():
    sheet = load_config_sheet("slime")
    older = {key for each in sheet.ranges if each.until is not None for key in each.keys}
    assert older <= set(sheet.named())
    assert len(older) > 10


def test_only_what_another_program_takes_is_said_by_a_pattern():
    patterns = {
        framework: set(load_config_sheet(framework).named_patterns()) for framework in FRAMEWORKS
    }
    mappings = {"apply-chat-template-kwargs.*", "train-env-vars.*", "multimodal-keys.*"}
    assert patterns["slime"] == {"sglang-*", "router-*", "server.*", "ray.*"} | mappings
    printed = "$(python3 *miles/utils/external_utils*"  # no flag: what prints flags
    own = {"dashboard-*", "eval-sglang-*", "mooncake-store-init-kwargs.*", printed}
    assert patterns["miles"] == patterns["slime"] | own


def test_a_flag_that_nobody_knows_is_said_with_the_one_that_may_be_meant():
    found = imported(
        "slime", [*SHARED.split(), "--rolout-batch-size", "7", "--made-up", "1"], OPTIONS
    )
    assert list(found.unknown()) == [
        "rolout-batch-size=7 (the command line)",
        "made-up=1 (the command line)",
    ]
    found = imported("slime", [*SHARED.split(), "--recompute-granularitty", "full"], OPTIONS)
    assert list(found.unknown()) == [
        "recompute-granularitty=full (the command line); did you mean recompute-granularity?"
    ]


@pytest.mark.parametrize(("word", "named"), [("dapo", False), ("boxed_math", False), ("llm_judge", True), ("remote_rm", True)])  # fmt: skip
def test_rewards_that_are_no_rule_of_its_own_are_named(word, named):
    found = imported("slime", [*SHARED.split(), "--rm-type", word], OPTIONS)
    assert ("rm-type" in found.keys.not_modelled) is named
