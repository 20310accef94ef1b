"""prime-rl's configurations: one TOML file or three, flags over them, its versions, modes and the log of its trainer."""

import json
from dataclasses import replace

import pytest

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Speculation
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.checking import check_config
from rlplan.planner.configs.frameworks import frameworks_with
from rlplan.planner.configs.importing import imported
from rlplan.planner.configs.reading.laid_over import laid_over
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.planner.configs.reading.toml_files import toml_keys
from rlplan.planner.configs.shell.text import Text
from rlplan.planner.configs.writing.exporting import exported
from rlplan.planner.measured.logs import read_log
from rlplan.profiles.catalog import load_engine
from rlplan.profiles.facts import load_facts
from rlplan.profiles.frameworks import DATA_PARTS
from rlplan.profiles.sheets import load_framework
from rlplan.workload import mean_length
from rlplan_cli.config_options import framework_of
from tests.house.tree import ROOT
from tests.planner.configs.test_keys_of_prime_rl import BASES, OPTIONS

PUBLISHED = ROOT.parent / "shared" / "data" / "configs-new" / "prime-rl"
WHOLE = """
seq_len = 4096
[model]
name = "Qwen/Qwen3-4B-Instruct-2507"
[deployment]
num_train_gpus = 2
num_infer_gpus = 6
[trainer.model.compile]
[orchestrator]
batch_size = 512
group_size = 16
[[orchestrator.train.source]]
name = "math"
curriculum = { gates = { zero = { type = "advantage_range" } } }
[inference.vllm]
tensor_parallel_size = 2
"""
PARTS = {
    "train.toml": '[model]\nname = "Qwen/Qwen3-4B-Instruct-2507"\nseq_len = 4096\n',
    "orch.toml": (
        'batch_size = 512\ngroup_size = 16\nseq_len = 4096\n[model]\nname = "Qwen/Qwen3-4B-Instruct-2507"\n'
    ),
    "infer.toml": '[vllm]\nmodel = "Qwen/Qwen3-4B-Instruct-2507"\ntensor_parallel_size = 2\ndata_parallel_size = 3\n',
}  # fmt: skip


def prime(base, more=""):
    return imported("prime-rl", [*BASES[base], *more.split()], OPTIONS)


def written(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture
def whole(tmp_path):
    return written(tmp_path, "rl.toml", WHOLE)


@pytest.mark.parametrize(("prompt", "response"), [(96, 4000), (95.5, 4000), (96, 3999)])
def test_mean_lengths_may_fill_what_there_is_for_a_prompt_and_its_response(whole, prompt, response):
    options = replace(OPTIONS, mean_prompt=prompt, mean_response=response)
    work = imported("prime-rl", [whole], options).resolved.workload
    assert mean_length(work.response_tokens) == pytest.approx(response, rel=1e-6)


def test_mean_lengths_beyond_what_there_is_for_both_are_refused(whole):
    """The prompts were taken for shorter ones."""
    options = replace(OPTIONS, mean_prompt=200, mean_response=4000)
    with pytest.raises(FileError, match=r"--mean-prompt: .* found 200; allowed: at most 96"):
        imported("prime-rl", [whole], options)


def test_it_has_every_part():
    assert "prime-rl" in frameworks_with(*DATA_PARTS, "reading", "writing", "rules")


def test_one_file_is_read_with_all_of_its_tables(whole):
    found = imported("prime-rl", [whole], OPTIONS)
    assert found.keys.unknown == ()
    assert "orchestrator.train.source.0.name" in found.keys.not_modelled
    work = found.job.workload
    assert (work.prompts, work.samples_per_prompt, work.max_total_tokens) == (32, 16, 4096)
    assert {pool.name: pool.gpus for pool in found.draft.pools} == {"train": 2, "rollout": 6}
    generate, update = (found.draft.tasks[name] for name in ("actor.generate", "actor.update"))
    assert (generate.tp, generate.dp) == (2, 3)
    assert (update.token_budget, update.zero, update.recompute) == (4096, 3, "full-offload")
    assert (found.draft.mode, found.draft.staleness, found.draft.in_flight) == (
        "async",
        8.0,
        "keep",
    )


def test_three_files_are_of_the_parts_that_their_names_say(tmp_path, whole):
    files = [written(tmp_path, name, text) for name, text in PARTS.items()]
    found = imported("prime-rl", files, OPTIONS)
    assert found.keys.unknown == ()
    assert found.job.workload == imported("prime-rl", [whole], OPTIONS).job.workload
    assert {pool.name: pool.gpus for pool in found.draft.pools} == {"train": 1, "rollout": 6}
    named = ["uv", "run", "rl", "--trainer", "@", files[0], "--orchestrator", "@", files[1]]
    again = imported("prime-rl", [*named, "--inference", "@", files[2]], OPTIONS)
    assert again.draft == found.draft


def test_one_part_brings_the_others_beside_it_and_none_of_which_there_are_several(tmp_path):
    for name, text in PARTS.items():
        written(tmp_path, name, text)
    path = str(tmp_path / "orch.toml")
    alone = imported("prime-rl", [path], OPTIONS)
    whole = imported("prime-rl", [str(tmp_path / name) for name in PARTS], OPTIONS)
    assert alone.job.workload == whole.job.workload
    assert alone.draft.tasks == whole.draft.tasks
    assert "infer.toml beside orch.toml are read with it" in " ".join(alone.notes)
    assert framework_of([path])[0] == "prime-rl"
    started = toml_keys(load_config_sheet("prime-rl"), [Text(path)], tmp_path, path, "orchestrator")
    assert started
    assert all(each.where == path for each in started.values())
    written(tmp_path, "train_of_others.toml", "[model]\nname = 'Qwen/Qwen3-0.6B'\n")
    assert not any("train.toml" in note for note in imported("prime-rl", [path], OPTIONS).notes)


def test_gpus_that_no_file_says_are_no_firm_verdict(tmp_path):
    large = PARTS["orch.toml"].replace("Qwen3-4B-Instruct-2507", "Qwen3-32B")
    checked = check_config("prime-rl", [written(tmp_path, "orch.toml", large)], OPTIONS)
    assert checked.verdict == "may not fit"
    assert "whose GPUs nothing at hand says" in " ".join(checked.remarks)


def test_engines_that_are_started_apart_have_gpus_that_nothing_says(tmp_path):
    apart = "trainer_gpu_ids = [1, 2, 3]\n[model]\nname = 'Qwen/Qwen3-4B'\n[orchestrator]\nbatch_size = 64\n"
    found = imported("prime-rl", [written(tmp_path, "rl.toml", apart)], OPTIONS)
    assert found.run.assumed_pools == ("rollout",)
    assert any("no file has a section of engines" in each for each in found.run.guesses)
    beside = f"{apart}[inference]\nseed = 1\n"
    found = imported("prime-rl", [written(tmp_path, "rl.toml", beside)], OPTIONS)
    assert found.run.assumed_pools == ()


def test_later_files_and_flags_are_laid_over_a_file(tmp_path, whole):
    over = written(tmp_path, "more.toml", "[orchestrator]\nbatch_size = 256\n")
    words = ["uv", "run", "rl", "@", whole, "@", over, "--orchestrator.group-size", "8"]
    work = imported("prime-rl", words, OPTIONS).job.workload
    assert (work.prompts, work.samples_per_prompt) == (32, 8)
    script = written(
        tmp_path, "run.sh", f'uv run rl @ {whole} --orchestrator.max_off_policy_steps 2 "$@"\n'
    )
    assert imported("prime-rl", [script], OPTIONS).draft.staleness == 2.0


def test_it_is_told_by_its_file(whole):
    assert framework_of([whole])[0] == "prime-rl"


def test_nothing_older_than_the_weights_waits_for_them():
    assert prime("a node", "--orchestrator.max_off_policy_steps 0").draft.mode == "sync"


def test_versions_are_told_by_keys_and_have_their_defaults(tmp_path):
    older = (
        WHOLE.replace("group_size", "rollouts_per_example")
        .replace("[deployment]", "")
        .replace("num_train_gpus = 2\nnum_infer_gpus = 6", "")
        .replace(
            "seq_len = 4096",
            "seq_len = 4096\ntrainer_gpu_ids = [6, 7]\ninference_gpu_ids = [0, 1, 2, 3, 4, 5]",
            1,
        )
    )
    older = older.replace("[inference.vllm]\ntensor_parallel_size", "[inference.parallel]\ntp")
    found = imported("prime-rl", [written(tmp_path, "old.toml", older)], OPTIONS)
    assert found.settings.sheet.version == "0.4"
    assert {pool.name: pool.gpus for pool in found.draft.pools} == {"train": 2, "rollout": 6}
    assert (found.draft.staleness, found.draft.tasks["actor.update"].recompute) == (1.0, "none")
    assert not found.draft.tasks["actor.update"].offload


def test_files_of_before_its_tags_have_their_gpus_and_rows(tmp_path):
    files = {
        "rl.toml": "trainer_gpus = 2\ninference_gpus = 4\n",
        "train.toml": '[model]\nname = "Qwen/Qwen3-4B"\n[monitor.wandb]\nproject = "math"\n',
        "orch.toml": (
            "batch_size = 512\nrollouts_per_prompt = 16\nmicro_batch_size = 2\nseq_len = 3072\nasync_level = 3\n"
            '[model]\nname = "Qwen/Qwen3-4B"\n[environment]\nid = "math"\n'
        ),
        "infer.toml": '[model]\nname = "Qwen/Qwen3-4B"\n[parallel]\ntp = 2\ndp = 2\n',
    }
    found = imported("prime-rl", [written(tmp_path, *each) for each in files.items()], OPTIONS)
    assert (found.settings.sheet.version, found.keys.unknown) == ("0.1", ())
    assert {pool.name: pool.gpus for pool in found.draft.pools} == {"train": 2, "rollout": 4}
    assert (found.job.workload.prompts, found.job.workload.samples_per_prompt) == (32, 16)
    assert (found.draft.tasks["actor.update"].token_budget, found.draft.staleness) == (6144, 3.0)
    assert found.job.framework == "prime-rl-0.1"  # its head made no logits in parts yet


def test_logits_were_whole_until_its_head_made_them_in_parts(whole):
    """60ab908c7 has four tensors of logits in fp32 at a time, v0.2 three; v0.3 brought trainer/models/layers/lm_head.py."""

    def way(version):
        options = replace(OPTIONS, version=version)
        return load_framework(imported("prime-rl", [whole], options).job.framework).logits.usual

    assert {version: way(version) for version in ("0.1", "0.2", "0.3", "0.8.1")} == {
        "0.1": "whole", "0.2": "whole-compiled", "0.3": None, "0.8.1": None,
    }  # fmt: skip
    memory = load_engine("prime-rl").memory
    assert memory.logit_ways["whole"].logits_bytes(10, 100, trains=True) == 4 * 4 * 1000
    assert memory.logit_ways["whole-compiled"].logits_bytes(10, 100, trains=True) == 3 * 4 * 1000


def test_samples_are_packed_whole_where_no_file_says_up_to_what(tmp_path):
    files = {name: PARTS[name] for name in ("orch.toml", "infer.toml")}
    found = imported("prime-rl", [written(tmp_path, *each) for each in files.items()], OPTIONS)
    assert found.draft.tasks["actor.update"].token_budget == 4096
    assert any("no file says trainer.model.seq_len" in note for note in found.notes)
    assert any("no file says how many GPUs train: one" in note for note in found.notes)


def test_of_versions_that_lack_a_key_the_nearest_is_taken_and_doubts_are_of_its_filters(tmp_path):
    text = """
        max_async_level = 0
        [orchestrator]
        group_size = 8
        training_mode = "rl"
        [orchestrator.train.sampling]
        temperature = 0.7
        [orchestrator.renderer]
        name = "auto"
        [[orchestrator.pre_batch_filters]]
        type = "zero_advantage"
        enforce = true
    """
    found = imported("prime-rl", [written(tmp_path, "rl.toml", text)], OPTIONS)
    assert (found.settings.sheet.version, found.draft.mode) == ("0.6", "sync")
    assert found.draft.tasks["actor.update"].recompute == "none"
    assert ["pre_batch_filters.0.enforce" in doubt for doubt in found.doubts()] == [True]
    assert any("no key names the model: Qwen/Qwen3-0.6B" in note for note in found.notes)


def test_samples_without_an_advantage_are_said_to_be_counted(tmp_path, whole):
    said = "leaves those of groups of equal rewards out"
    assert any(said in each for each in imported("prime-rl", [whole], OPTIONS).run.guesses)
    for words in (
        "--orchestrator.train.filter_zero_advantages false",
        "--orchestrator.group_size 1",
    ):
        assert not any(said in each for each in prime("a node", words).run.guesses)
    older = [whole, "--orchestrator.max_async_level", "2"]
    options = replace(OPTIONS, version="0.5")
    assert not any(said in each for each in imported("prime-rl", older, options).run.guesses)


def test_a_flag_takes_the_place_of_a_table(tmp_path):
    text = WHOLE + "[trainer.model.ac]\nfreq = 1\n"
    path = written(tmp_path, "rl.toml", text)
    off = ["--trainer.model.ac", "None", "--trainer.model.ac-offloading", "None"]
    found = imported("prime-rl", [path], OPTIONS)
    assert found.draft.tasks["actor.update"].recompute == "full-offload"
    typed = laid_over(found.settings, ["--trainer.model.ac", "None"])
    assert (typed.given("trainer.model.ac"), "trainer.model.ac.freq" in typed.flat) == (None, False)
    told = imported("prime-rl", [path, *off], OPTIONS)
    assert told.draft.tasks["actor.update"].recompute == "none"
    values = {"trainer.model.ac": "None", "trainer.model.ac_offloading": "None"}
    beside = imported("prime-rl", [path], replace(OPTIONS, values=FrozenDict(values)))
    assert beside.draft.tasks["actor.update"].recompute == "none"


def test_an_engine_serves_the_checkpoint_that_its_own_section_names():
    found = prime("a node", "--inference.vllm.model Qwen/Qwen3-4B-Instruct-2507-FP8")
    assert found.job.rollout_precision == "fp8"
    assert "inference.vllm.model" in found.keys.mapped
    assert prime("a node").job.rollout_precision is None


def test_layers_of_its_own_are_no_other_layers():
    assert (
        "trainer.model.impl" not in prime("a node", "--trainer.model.impl custom").keys.not_modelled
    )
    assert "trainer.model.impl" in prime("a node", "--trainer.model.impl hf").keys.not_modelled


def test_experts_go_to_eight_ranks_where_nobody_says_it():
    assert prime("experts").draft.tasks["actor.update"].ep == 8
    assert prime("several nodes").draft.tasks["actor.update"].ep == 1
    assert prime("experts of the engine").draft.tasks["actor.generate"].ep == 8


def test_nodes_of_engines_are_those_of_their_own_section():
    pools = {pool.name: pool.gpus for pool in prime("readers apart").draft.pools}
    assert pools == {"train": 16, "rollout": 16}
    assert "inference.deployment.type" in prime("readers apart").keys.not_modelled


def test_states_wait_where_it_keeps_them():
    options = prime("a node").job.trainer("actor")
    assert options.offloads == ("optimizer",)
    full = prime(
        "a node", "--trainer.model.optim_cpu_offload false --trainer.model.full_offload true"
    )
    assert full.job.trainer("actor").host_optimizer == 1.0


def test_adapters_are_read_where_they_were_until_december_2025():
    found = prime("a node", "--trainer.model.experimental.lora.rank 8")
    adapter = found.job.adapter("actor")
    assert (adapter.rank, adapter.sync) == (8, "adapter")
    assert found.keys.unknown == ()


def test_adapters_and_other_ways_to_send_weights():
    assert prime("an adapter").job.adapter("actor").sync == "adapter"
    nixl = prime("a node", "--weight_broadcast.type nixl")
    assert nixl.job.weight_sync.between_pools == "prime-rl-nixl"
    files = prime("a node", "--weight_broadcast.type filesystem")
    assert "weight_broadcast.type" in files.keys.not_modelled


@pytest.mark.parametrize(
    ("words", "key", "what"),
    [
        ("--orchestrator.algo.type opd", "orchestrator.algo.type", "rewards.service"),
        ("--orchestrator.training-mode opd", "orchestrator.training_mode", "rewards.service"),
        ("--orchestrator.algo.type opsd", "orchestrator.algo.type", "behind a demonstration"),
    ],
)
def test_what_scores_samples_is_doubted_for_what_it_does(words, key, what):
    assert what in prime("a node", words).keys.changes_work[key]


def test_a_source_may_have_a_teacher_of_its_own(tmp_path, whole):
    text = WHOLE.replace(
        "[inference", '[orchestrator.train.source.algo]\ntype = "opd"\n[inference', 1
    )
    found = imported("prime-rl", [written(tmp_path, "rl.toml", text)], OPTIONS)
    assert "rewards.service" in found.keys.changes_work["orchestrator.train.source.0.algo.type"]


@pytest.mark.parametrize("key", ["algo.type", "training-mode"])
def test_what_another_model_writes_is_refused(key):
    with pytest.raises(FileError, match="learns what another model writes"):
        prime("a node", f"--orchestrator.{key} sft")


def test_a_run_without_engines_is_refused():
    with pytest.raises(FileError, match=r"deployment\.num_infer_gpus: leaves no GPU to generation"):
        prime(next(iter(BASES)), "--deployment.num-infer-gpus 0")


def test_what_trains_otherwise_is_refused_for_what_it_is(tmp_path):
    sft = written(
        tmp_path, "sft.toml", '[data]\nname = "texts"\n[model]\nname = "Qwen/Qwen3-0.6B"\n'
    )
    with pytest.raises(FileError, match="is of no part that trains with RL"):
        imported("prime-rl", [sft], OPTIONS)
    hosted = 'model = "Qwen/Qwen3-4B"\nbatch_size = 128\nrollouts_per_example = 8\n[[env]]\nid = "gsm8k"\n'
    with pytest.raises(FileError, match="is a run on Prime Intellect's own machines"):
        imported("prime-rl", [written(tmp_path, "hosted.toml", hosted)], OPTIONS)
    with pytest.raises(FileError, match="is of the engines alone"):
        imported("prime-rl", [written(tmp_path, "infer.toml", PARTS["infer.toml"])], OPTIONS)
    alone = imported("prime-rl", [written(tmp_path, "train.toml", PARTS["train.toml"])], OPTIONS)
    assert any("no file is of the orchestrator: 128 samples" in note for note in alone.notes)
    over = '[deployment]\nnum_train_gpus = 4\n[slurm]\njob_name = "rl"\n'
    with pytest.raises(FileError, match=r"is laid over another file.*BASE\.toml"):
        imported("prime-rl", [written(tmp_path, "over.toml", over)], OPTIONS)
    with pytest.raises(FileError, match="counts a step's tokens"):
        prime("a node", "--orchestrator.token_batch_size 100000")
    broken = written(tmp_path, "broken.toml", "[model\n")
    with pytest.raises(FileError, match="is not TOML"):
        imported("prime-rl", [broken], OPTIONS)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="public files are not here")
@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("examples__advanced__qwen3-30b-a3b__math.toml", [16, 16]),
        ("examples__basic__wiki-search__rl.toml", [2, 6]),
    ],
)
def test_published_files_are_read_whole(name, gpus):
    found = imported("prime-rl", [str(PUBLISHED / name)], replace(OPTIONS, mean_response=400))
    assert found.keys.unknown == ()
    assert [pool.gpus for pool in found.draft.pools] == gpus


def test_the_metrics_of_its_trainer_are_read(tmp_path):
    times = {
        "time/step": 40.0,
        "time/wait_for_batch": 9.0,
        "time/forward_backward": 25.5,
        "time/broadcast_weights": 3.0,
    }
    rows = [
        row
        for step in range(4)
        for row in ({"step": step, "perf/mfu": 30.0}, {"step": step, **times})
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    log = read_log(path)
    assert (log.sheet.name, log.steps, log.step_seconds) == ("prime-rl", 3, 40.0)
    assert dict(log.stage_seconds) == {"update_actor": 25.5, "weight_sync": 3.0}
    assert dict(log.other_seconds) == {"wait_for_batch": 9.0}


@pytest.mark.parametrize(
    ("version", "attention", "engine"),
    [
        ("0.8.1", "", "prime-rl"),
        ("0.7", "", "prime-rl-flash-2"),
        ("0.8.1", "flash_attention_2", "prime-rl-flash-2"),
        ("0.7", "flash_attention_3", "prime-rl"),
    ],
)
def test_the_trainer_is_of_the_attention_that_is_asked_for_or_usual(
    tmp_path, version, attention, engine
):
    told = f'attn = "{attention}"\n' if attention else ""
    text = WHOLE.replace(
        "[trainer.model.compile]", f"[trainer.model]\n{told}[trainer.model.compile]"
    )
    text = (
        text.replace("[inference.vllm]\ntensor_parallel_size = 2\n", "")
        if version < "0.8"
        else text
    )
    text = text.replace('curriculum = { gates = { zero = { type = "advantage_range" } } }\n', "")
    text = (
        text.replace("[[orchestrator.train.source]]", "[[orchestrator.train.env]]")
        if version < "0.8"
        else text
    )
    path = written(tmp_path, "rl.toml", text)
    found = imported("prime-rl", [path], replace(OPTIONS, version=version))
    assert found.draft.tasks["actor.update"].engine == engine


def test_an_engine_that_casts_weights_and_guesses_is_read(whole):
    told = ["--inference.vllm.quantization", "fp8", "--inference.vllm.speculative_config.method", "ngram",
            "--inference.vllm.speculative_config.num_speculative_tokens", "4"]  # fmt: skip
    found = imported("prime-rl", [whole, *told], OPTIONS)
    assert found.job.rollout_precision == "fp8"
    assert found.job.speculation == Speculation(draft_tokens=4, layers=0)


@pytest.mark.parametrize(
    ("version", "more", "way"),
    [
        (None, "", None),
        (None, "--trainer.model.fused_lm_head_token_chunk_size disabled", "whole-compiled"),
        ("0.7", "", None),
        ("0.6", "", "whole-compiled"),  # whose default is no chunk
        ("0.6", "--trainer.model.fused_lm_head_token_chunk_size 8192", None),
        ("0.4", "", None),
    ],
)
def test_a_head_without_chunks_makes_logits_of_all_tokens(version, more, way):
    options = replace(OPTIONS, version=version)
    found = imported("prime-rl", [*BASES["a node"], *more.split()], options)
    assert found.job.trainer("actor").logits == way


def test_other_chunks_of_logits_than_usual_are_said_not_to_be_counted():
    flag = "--trainer.model.fused_lm_head_token_chunk_size"
    key = flag.removeprefix("--")
    for usual in ("1024", "8192", "disabled"):
        assert key in prime("a node", f"{flag} {usual}").keys.mapped
    assert key in prime("a node", f"{flag} 65536").keys.not_modelled
    for none in ("0", "-5", "many"):
        with pytest.raises(FileError, match="no number of tokens") as caught:
            prime("a node", f"{flag} {none}")
        assert caught.value.field == key


@pytest.mark.parametrize(("told", "words"), [("flash_attention_2", 1), ("flash_attention_3", 0)])
def test_a_plan_is_written_with_its_attention(whole, told, words):
    found = imported("prime-rl", [whole, "--trainer.model.attn", told], OPTIONS)
    plan = complete(found.draft, found.resolved, load_facts(found.resolved))
    assert exported(plan, "prime-rl").text.count('attn = "flash_attention_2"') == words


@pytest.mark.parametrize(
    ("filters", "leaves_out"),
    [
        ('[[orchestrator.post_batch_filters]]\ntype = "zero_advantage"\nenforce = false\n', False),
        ('[[orchestrator.post_batch_filters]]\ntype = "gibberish"\n', False),
        ('[[orchestrator.post_batch_filters]]\ntype = "zero_advantage"\n', True),
    ],
)
def test_filters_of_a_configuration_take_the_place_of_the_one_for_samples_without_an_advantage(
    tmp_path, filters, leaves_out
):
    path = written(tmp_path, "rl.toml", WHOLE + filters)
    found = imported("prime-rl", [path], replace(OPTIONS, version="0.7"))
    said = "leaves those of groups of equal rewards out"
    assert any(said in each for each in found.run.guesses) is leaves_out


@pytest.mark.parametrize(
    ("number", "file", "text", "version", "age", "recompute"),
    [
        # Tag 0.5.0 says 0.4.0, and code of the weeks after 0.6.0 says that number with the defaults of 0.7.
        (
            "0.4.0",
            "src/prime_rl/configs/trainer.py",
            "    fused_lm_head_token_chunk_size: Annotated[\n",
            "0.5",
            1.0,
            "none",
        ),
        (  # of 5 to 19 May 2026
            "0.4.0",
            "packages/prime-rl-configs/src/prime_rl/configs/trainer.py",
            "    fused_lm_head_token_chunk_size: Annotated[\n",
            "0.5",
            1.0,
            "none",
        ),
        (
            "0.6.0",
            "packages/prime-rl-configs/src/prime_rl/configs/trainer.py",
            "    optim_cpu_offload: bool = True\n",
            "0.7",
            8.0,
            "full-offload",
        ),
        ("0.6.0", "README.md", "", "0.6", 8.0, "none"),
    ],
)
def test_a_file_of_a_checkout_is_of_the_version_whose_code_that_has(
    tmp_path, number, file, text, version, age, recompute
):
    (tmp_path / ".git").mkdir()
    written(tmp_path, "pyproject.toml", f'[project]\nname = "prime-rl"\nversion = "{number}"\n')
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    own = written(
        tmp_path,
        "rl.toml",
        'seq_len = 4096\n[model]\nname = "Qwen/Qwen3-4B-Instruct-2507"\n[orchestrator]\nbatch_size = 512\n'
        'rollouts_per_example = 16\noversampling_factor = 2.0\n[[orchestrator.train.env]]\nid = "math-env"\n',
    )
    found = imported("prime-rl", [own], OPTIONS)
    assert found.settings.sheet.version == version
    assert found.draft.staleness == age
    assert found.draft.tasks["actor.update"].recompute == recompute
    assert "orchestrator.oversampling_factor" in found.keys.not_modelled


def test_experts_of_engines_that_write_apart_are_spread_over_one_of_them(tmp_path):
    own = written(
        tmp_path,
        "rl.toml",
        'seq_len = 4096\n[model]\nname = "Qwen/Qwen3-30B-A3B"\n[deployment]\ntype = "multi_node"\nnum_train_nodes = 2\n'
        "num_infer_nodes = 4\nnum_infer_replicas = 2\n[inference]\nenable_expert_parallel = true\n[inference.deployment]\n"
        'type = "disaggregated"\nnum_prefill_nodes = 2\nnum_decode_nodes = 2\n[orchestrator]\nbatch_size = 512\ngroup_size = 16\n',
    )
    layout = imported("prime-rl", [own], OPTIONS).draft.tasks["actor.generate"]
    assert (layout.tp, layout.dp, layout.ep) == (1, 64, 16)


def test_what_runs_beside_a_run_is_named_and_the_orchestrators_bound_holds(tmp_path):
    """tags v0.3.0 and v0.4.0: trainer/rl/config.py, max_concurrent_runs; orchestrator/scheduler.py reads its own max_async_level."""
    files = {
        "train.toml": "max_concurrent_runs = 2\nmax_async_level = 5\n[model]\nname = 'Qwen/Qwen3-0.6B'\n[model.lora]\nrank = 8\n",
        "orch.toml": "batch_size = 128\nrollouts_per_example = 16\n[model]\nname = 'Qwen/Qwen3-0.6B'\n[val]\ninterval = 1\n",
    }
    words = [written(tmp_path, *each) for each in files.items()]
    found = imported("prime-rl", words, replace(OPTIONS, version="0.4"))
    assert found.draft.staleness == 1.0
    assert any("trainer.max_concurrent_runs=2" in doubt for doubt in found.doubts())
    assert "orchestrator.val.interval" in found.keys.not_modelled
