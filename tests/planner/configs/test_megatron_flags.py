"""slime's and miles' command lines as jobs and plans: pools, batches, modes, and models that Megatron's flags write out."""

from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.parts import num_parameters
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.megatron.model import layers_with_experts, written_model
from rlplan.planner.configs.reading.telling import most_named, starts_of
from rlplan.planner.configs.writing.exporting import exported
from rlplan.profiles.catalog import load_model, model_names
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate
from rlplan_cli.config_options import framework_of
from tests.house.tree import ROOT

PUBLISHED = ROOT.parent / "shared" / "data" / "configs-new" / "slime"
OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=1000, environment={})
# As slime's scripts are written: arrays of flags, the model's in a file of its own, a start behind `ray job submit`.
MODEL = """
N_DENSE=1
LAYERS=4
arr=()
for ((i=0; i<LAYERS; i++)); do
  if (( i < N_DENSE )); then arr+=(0); else arr+=(1); fi
done
printf -v FREQUENCY "[%s]" "$(IFS=', '; echo "${arr[*]}")"
MODEL_ARGS=(
   --num-layers $LAYERS --hidden-size 512 --ffn-hidden-size 1536 --num-attention-heads 8
   --group-query-attention --num-query-groups 2 --kv-channels 64 --vocab-size 32000 --swiglu
   --disable-bias-linear --untie-embeddings-and-output-weights --rotary-base "${BASE:-1000000}"
   --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 256 --moe-layer-freq "$FREQUENCY"
)
"""
SCRIPT = """
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/small.sh"
CKPT_ARGS=(
   --hf-checkpoint /models/small-moe
   #--hf-checkpoint /models/Qwen3-4B
   --ref-load /models/small-moe_torch_dist
   --save /models/small_slime/
)
ROLLOUT_ARGS=(
   --num-rollout 3000
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --rollout-max-response-len 8192

   --global-batch-size 64
)
PERF_ARGS=(
   --tensor-model-parallel-size 2
   --sequence-parallel
   --context-parallel-size 2
   --expert-model-parallel-size 4
   --expert-tensor-parallel-size 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 9216
   # --micro-batch-size 1
)
ray job submit --address="http://127.0.0.1:8265" \\
   --runtime-env-json="{\\"env_vars\\": {\\"A\\": \\"1\\"}}" \\
   -- python3 train.py \\
   --actor-num-nodes 2 \\
   --actor-num-gpus-per-node 8 \\
   --colocate \\
   ${MODEL_ARGS[@]} \\
   ${CKPT_ARGS[@]} \\
   "${ROLLOUT_ARGS[@]}" \\
   ${PERF_ARGS[@]} \\
   --rollout-num-gpus-per-engine 4 \\
   --sglang-mem-fraction-static 0.7
"""
COMMON = (
    "--hf-checkpoint /models/Qwen3-4B --ref-load /models/ref --num-rollout 10 --rollout-batch-size 32 "
    "--n-samples-per-prompt 8 --rollout-max-response-len 8192 --attention-dropout 0 --hidden-dropout 0"
)
SHARED = f"train.py {COMMON} --colocate --global-batch-size 256"
APART = f"{COMMON} --rollout-num-gpus 8 --global-batch-size 256"


def read(words, framework="slime", **options):
    """Return a command line, imported."""
    return imported(
        framework,
        words.split(),
        ImportOptions(gpu="h100-80gb-sxm", mean_response=1000, environment={}, **options),
    )


@pytest.fixture
def script(tmp_path):
    """Return the path of a script with its model's file beside it."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.sh").write_text(MODEL)
    path = tmp_path / "run-small.sh"
    path.write_text(SCRIPT)
    return path


def test_arrays_of_flags_and_the_model_s_file_amount_to_a_job_and_a_plan(script):
    found = imported("slime", [str(script)], OPTIONS)
    assert found.keys.unknown == ()
    assert found.settings.gaps == ()
    update, generate = found.draft.tasks["actor.update"], found.draft.tasks["actor.generate"]
    sizes = (update.tp, update.pp, update.cp, update.dp, update.ep, update.expert_tp)
    assert sizes == (2, 1, 2, 4, 4, 1)
    # --max-tokens-per-gpu is of each context-parallel rank.
    assert (update.token_budget, update.zero, update.offload) == (18432, 1, True)
    assert (generate.tp, generate.dp, generate.memory_fraction) == (4, 4, 0.7)
    assert (generate.engine, update.engine) == ("sglang-0.5.6", "megatron-core-2025-flash-3")
    work = found.job.workload
    assert (work.prompts, work.samples_per_prompt, work.updates) == (32, 8, 4)
    assert [(group.gpus_per_node, group.nodes) for group in found.job.cluster] == [(8, 2)]


def test_a_model_that_no_sheet_is_of_is_as_the_flags_write_it_out(script):
    model = imported("slime", [str(script)], OPTIONS).resolved.architecture("actor")
    assert (model.name, model.num_layers, model.hidden_size) == ("small-moe", 4, 512)
    assert (model.num_experts, model.experts_per_token, model.moe_ffn_size) == (8, 2, 256)
    assert [(run.count, run.kinds) for run in model.layer_runs] == [
        (1, ("dense",)),
        (3, ("experts",)),
    ]
    attention = 512 * (8 + 2 * 2) * 64 + 8 * 64 * 512
    dense, experts = 3 * 512 * 1536, 8 * 3 * 512 * 256 + 512 * 8
    norms = 4 * 2 * 512 + 512
    assert num_parameters(model) == 2 * 32000 * 512 + 4 * attention + dense + 3 * experts + norms


def test_flags_of_a_known_model_agree_with_its_sheet_or_count_in_its_place():
    qwen = "--swiglu --num-layers {} --hidden-size 2560 --ffn-hidden-size 9728 --num-attention-heads 32 --vocab-size 151936"
    same = read(
        f"{SHARED} {qwen.format(36)} --group-query-attention --num-query-groups 8 --kv-channels 128"
    )
    assert same.resolved.architecture("actor") == load_model("qwen3-4b")
    assert not same.run.architectures
    other = read(
        f"{SHARED} {qwen.format(20)} --group-query-attention --num-query-groups 8 --kv-channels 128"
    )
    assert other.resolved.architecture("actor").num_layers == 20
    assert (
        "the model is taken as the flags write it out: the sheet of qwen3-4b has other sizes"
        in other.notes
    )


def test_a_model_that_is_named_by_an_option_counts_before_flags():
    words = f"{SHARED} --num-layers 2 --hidden-size 64 --num-attention-heads 2 --vocab-size 100".replace(
        "/models/Qwen3-4B", "/models/x"
    )
    assert read(words).resolved.architecture("actor").hidden_size == 64
    assert read(words, model="qwen3-8b").resolved.architecture("actor") == load_model("qwen3-8b")


def test_a_checkpoint_that_nobody_knows_is_the_model_whose_file_a_script_reads_in(tmp_path):
    path = tmp_path / "run.sh"
    words = SHARED.replace("/models/Qwen3-4B", "${CHECKPOINT}")
    path.write_text(
        f'source "${{HERE}}/scripts/models/qwen2.5-7B.sh"\npython3 {words} ${{MODEL_ARGS[@]}}\n'
    )
    found = imported("slime", [str(path)], OPTIONS)
    assert found.resolved.architecture("actor") == load_model("qwen2.5-7b")
    assert "the model is taken for qwen2.5-7B, whose flags line 1 reads in" in found.notes


def test_a_model_s_flags_that_a_program_of_miles_prints_are_those_of_its_sheet(tmp_path):
    path = tmp_path / "run.sh"
    words = SHARED.removeprefix("train.py ")
    path.write_text(
        'ARGS_LINE="$(python3 "${HERE}/../../miles/utils/external_utils/model_args_utils.py" "qwen3-4B")" || exit 1\n'
        'read -ra MODEL_ARGS <<< "${ARGS_LINE}"\n'
        f"python3 train.py {words} ${{MODEL_ARGS[@]}}\n"
    )
    found = imported("miles", [str(path)], OPTIONS)
    assert found.resolved.architecture("actor") == load_model("qwen3-4b")
    assert not found.keys.unknown


@pytest.mark.parametrize("own", ["--spec slime_plugins.models.new get_spec", "--window-size 128,0"])
def test_a_model_of_layers_that_flags_do_not_write_out_and_no_sheet_is_of_is_refused(own):
    words = f"{SHARED} {own} --num-layers 2 --hidden-size 64 --num-attention-heads 2"
    with pytest.raises(FileError, match="no sheet is of the model /models/never-seen"):
        read(f"{words} --vocab-size 100".replace("/models/Qwen3-4B", "/models/never-seen"))


@pytest.mark.parametrize(
    ("framework", "plugins", "more", "computed"),
    [
        ("slime", "slime_plugins", "", "all"),
        ("miles", "miles_plugins", "", "tokens"),
        ("miles", "miles_plugins", "--megatron-to-hf-mode bridge", "heads"),
        ("slime", None, "", "heads"),
    ],
)  # fmt: skip
def test_linear_attention_of_a_frameworks_own_layers_is_not_shared_by_heads(
    framework, plugins, more, computed
):
    spec = f"--spec {plugins}.models.qwen3_5 get_qwen3_5_spec" if plugins else ""
    found = read(f"{SHARED} {spec} {more}".replace("Qwen3-4B", "Qwen3.5-9B"), framework)
    trainers = found.job.trainers or {}
    usual = trainers["actor"].linear_attention if "actor" in trainers else "heads"
    assert usual == computed


def test_a_list_of_layers_with_experts_has_to_be_as_long_as_there_are_layers():
    words = f"{SHARED} --num-layers 4 --hidden-size 64 --num-attention-heads 2 --vocab-size 100 --num-experts 4"
    with pytest.raises(FileError, match=r"moe-layer-freq: is no list of 0 and 1 for 4 layers"):
        read(f"{words} --moe-layer-freq [1]*3")


@pytest.mark.parametrize(
    ("flags", "updates", "doubted"),
    [
        ("--global-batch-size 256", 1, False),
        ("--global-batch-size 64", 4, False),
        ("--global-batch-size 100", 2, True),
        ("--num-steps-per-rollout 2", 2, False),
        ("--num-steps-per-rollout 3", 2, True),
        # Megatron's default: a micro-batch for every copy of the model.
        ("--tensor-model-parallel-size 2", 64, False),
    ],
)
def test_updates_of_a_step(flags, updates, doubted):
    found = read(f"train.py {COMMON} --colocate {flags}")
    assert found.job.workload.updates == updates
    assert bool(found.keys.changes_work) == doubted


@pytest.mark.parametrize(
    ("flags", "framework", "version", "source"),
    [
        ("", "slime", None, "engine"),
        ("", "slime", "0.2", "trainer"),
        ("--num-steps-per-rollout 2", "slime", None, "trainer"),
        ("--advantage-estimator gspo", "slime", None, "trainer"),
        ("--kl-coef 0.01", "slime", None, "trainer"),
        ("--use-routing-replay", "slime", None, "trainer"),
        ("--use-routing-replay --use-rollout-routing-replay", "slime", None, "engine"),
        ("--num-steps-per-rollout 2 --use-rollout-logprobs", "slime", None, "engine"),
        ("", "miles", None, "trainer"),
        ("--skip-actor-forward-only", "miles", None, "engine"),
    ],
)
def test_where_old_log_probabilities_come_from(flags, framework, version, source):
    batch = "" if "steps" in flags else "--global-batch-size 256"
    found = read(f"train.py {COMMON} --colocate {batch} {flags}", framework, version=version)
    assert found.job.old_log_prob == source
    assert ("actor.compute_log_prob" in found.draft.tasks) == (source == "trainer")


def test_a_reference_is_passed_over_with_a_weight_of_0_too_and_lies_on_the_host():
    found = read(f"{SHARED} --use-kl-loss --kl-loss-coef 0.00")
    assert found.draft.tasks["reference.compute_log_prob"].offload
    assert "reference" not in read(f"{SHARED} --kl-loss-coef 0.01").job.models


def test_engines_apart_have_their_own_pool_and_no_states_leave():
    found = read(f"train.py {APART} --actor-num-gpus-per-node 8")
    assert [(pool.name, pool.gpus) for pool in found.draft.pools] == [("train", 8), ("rollout", 8)]
    assert [(group.gpus_per_node, group.nodes) for group in found.job.cluster] == [(8, 2)]
    assert (found.draft.mode, found.draft.tasks["actor.update"].offload) == ("sync", False)
    few = read(f"train.py {APART} --actor-num-gpus-per-node 4".replace("gpus 8", "gpus 4"))
    assert [(group.gpus_per_node, group.nodes) for group in few.job.cluster] == [(8, 1)]
    with pytest.raises(FileError, match="rollout-num-gpus: is missing"):
        read(f"train.py {COMMON} --global-batch-size 256")


def test_an_asynchronous_start_is_one_batch_ahead_or_never_stops():
    ahead = read(f"train_async.py {APART}")
    assert (ahead.draft.mode, ahead.draft.staleness) == ("one-step-off", 1.0)
    rollout = (
        "--rollout-function-path slime.rollout.fully_async_rollout.generate_rollout_fully_async"
    )
    endless = read(
        f"train_async.py {APART} {rollout} --sglang-server-concurrency 7 --rollout-num-gpus-per-engine 2"
    )
    # 28 samples run at four engines, and 28 groups of eight may wait: 252 of a step's 256, beside the step that is learnt from.
    assert (endless.draft.mode, endless.draft.staleness, endless.draft.in_flight) == (
        "async",
        2.0,
        "recompute",
    )
    assert read(f"train.py {APART} {rollout}").draft.mode == "sync"
    own = read(f"train_async.py {APART} --fully-async --pause-generation-mode in_place", "miles")
    assert (own.draft.mode, own.draft.staleness, own.draft.in_flight) == ("async", 3.0, "keep")
    assert (
        read(
            f"train_async.py {APART} --fully-async --max-weight-staleness 2", "miles"
        ).draft.staleness
        == 2.0
    )


def test_groups_that_are_filtered_are_sampled_again_of_those_that_are_begun():
    flags = "--dynamic-sampling-filter-path a.b --over-sampling-batch-size 96"
    found = read(f"{SHARED} {flags}")
    assert found.job.algorithm == "dapo"
    # Of 96 prompts that are begun 48 are waited for, since two groups of three are taken to differ in reward.
    assert found.job.workload.over_provisioning == 2.0
    assert found.job.dynamic_sampling.expected_rounds == 1.5
    assert found.resolved.dynamic_sampling.together
    assert found.resolved.dynamic_sampling.filters_first
    # Batches of 40, or of 32 where nothing says it, are begun until 48 are waited for: two of either.
    for begun, more in (("--over-sampling-batch-size 40", 80 / 48), ("", 64 / 48)):
        other = read(f"{SHARED} --dynamic-sampling-filter-path a.b {begun}")
        assert other.job.workload.over_provisioning == pytest.approx(more)
    compared = read(f"{SHARED} {flags} --use-kl-loss")
    assert compared.job.algorithm == "grpo"
    assert compared.resolved.dynamic_sampling == found.resolved.dynamic_sampling
    assert compared.job.workload.over_provisioning == 2.0
    alone = read(
        f"{SHARED} {flags} --advantage-estimator reinforce_plus_plus --normalize-advantages"
    )
    assert "dynamic-sampling-filter-path" in alone.keys.changes_work


def test_attention_of_groups_and_experts_over_all_of_an_engine_s_ranks():
    flags = "--rollout-num-gpus-per-engine 8 --sglang-enable-dp-attention --sglang-dp-size 4"
    spread = read(f"{SHARED} {flags} --sglang-ep-size 8".replace("Qwen3-4B", "Qwen3-30B-A3B"))
    layout = spread.draft.tasks["actor.generate"]
    assert (layout.tp, layout.dp, layout.ep, layout.expert_tp) == (2, 4, 8, 1)
    together = read(f"{SHARED} {flags}".replace("Qwen3-4B", "Qwen3-30B-A3B"))
    assert together.draft.tasks["actor.generate"].tp == 2
    assert "forecast as spread" in together.keys.not_modelled["sglang-enable-dp-attention"]
    dense = read(f"{SHARED} {flags}")
    assert dense.draft.tasks["actor.generate"].tp == 8
    assert "sglang-enable-dp-attention" in together.keys.not_modelled


@pytest.mark.parametrize(
    ("checkpoint", "precision"),
    [
        ("Qwen3-4B", None), ("Qwen3-4B-FP8", "fp8"), ("DeepSeek-R1", "fp8"), ("DeepSeek-R1-bf16", None),
        ("Qwen3-30B-A3B-INT4", "int4"), ("Kimi-K2-Thinking", "int4"), ("DeepSeek-V4-Flash", "mxfp4"),
        ("DeepSeek-V4-Flash-Base", "fp8"), ("DeepSeek-V4-Flash-bf16", None),
    ],
)  # fmt: skip
def test_the_engine_s_weights_are_as_the_checkpoint_has_them(checkpoint, precision):
    assert read(SHARED.replace("Qwen3-4B", checkpoint)).job.rollout_precision == precision


def test_states_leave_colocated_trainers_unless_somebody_says_otherwise():
    assert read(SHARED).draft.tasks["actor.update"].offload
    kept = read(f"{SHARED} --no-offload-train --no-offload-rollout")
    assert not kept.draft.tasks["actor.update"].offload
    assert not kept.job.engines.sleeps
    assert list(kept.keys.not_modelled) == ["no-offload-rollout"]
    host = read(f"{SHARED} --optimizer-cpu-offload --optimizer-offload-fraction 0.5")
    assert host.job.trainers["actor"].host_optimizer == 0.5
    assert host.draft.tasks["actor.update"].offload


@pytest.mark.parametrize(("framework", "leaves"), [("slime", True), ("miles", False)])
def test_a_trainer_with_a_critic_leaves_its_gpus_whatever_slime_is_told_and_stays_in_miles(
    framework, leaves
):
    critic = f"{SHARED} --advantage-estimator ppo"
    assert read(critic, framework).draft.tasks["actor.update"].offload
    told = read(f"{critic} --no-offload-train", framework)
    assert told.draft.tasks["actor.update"].offload == leaves


@pytest.mark.parametrize(("framework", "doubtful"), [("slime", 1), ("miles", 0)])
def test_colocated_engines_on_other_gpus_are_doubtful_where_the_framework_lets_them_be(
    framework, doubtful
):
    found = read(f"{SHARED} --rollout-num-gpus 4", framework)
    assert len(tuple(found.doubts())) == doubtful
    assert found.keys.unknown == ()


def test_gpus_that_a_script_counts_are_taken_for_eight_and_said(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "NUM_GPUS=${NUM_GPUS:-$(nvidia-smi -L | wc -l)}\n"
        f"python3 {SHARED} --actor-num-gpus-per-node ${{NUM_GPUS}}\n"
    )
    found = imported("slime", [str(path)], OPTIONS)
    assert found.job.gpus == 8
    assert any(
        each.startswith("8 GPUs a node: the script counts those of the machine")
        for each in found.notes
    )
    told = ImportOptions(gpu="h100-80gb-sxm", mean_response=1000, environment={"NUM_GPUS": "4"})
    assert imported("slime", [str(path)], told).job.gpus == 4


def test_flags_that_another_program_would_print_are_named_and_no_value_of_the_flag_before(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        'read -ra MODEL_ARGS <<< "$(python3 model_args.py qwen3-4B)"\n'
        f"python3 {SHARED} --use-rollout-logprobs ${{MODEL_ARGS[@]}} --actor-num-nodes 1\n"
    )
    found = imported("miles", [str(path)], OPTIONS)
    assert found.job.old_log_prob == "engine"
    assert found.keys.unknown == ("$(python3 model_args.py qwen3-4B)",)


def test_what_miles_has_beside_slime_is_read():
    adapted = read(f"{SHARED} --lora-rank 32 --lora-alpha 64 --target-modules all-linear", "miles")
    assert (adapted.job.adapters["actor"].rank, adapted.job.framework) == (32, "miles")
    remote = read(f"train.py {APART} --update-weight-transfer-mode p2p", "miles")
    assert remote.job.weight_sync.between_pools == "miles-p2p"
    sharded = read(
        f"{SHARED} --train-backend fsdp --gradient-checkpointing --micro-batch-size 2", "miles"
    )
    update = sharded.draft.tasks["actor.update"]
    assert (sharded.job.framework, update.engine) == ("miles-fsdp", "fsdp2-hf")
    assert (update.zero, update.dp, update.recompute, update.micro_batch) == (3, 8, "full", 2)


def test_fsdp_trains_in_slime_up_to_its_0_2():
    found = read(f"{SHARED} --train-backend fsdp --gradient-checkpointing --use-kl-loss", "slime")
    update, reference = (
        found.draft.tasks[f"{role}"] for role in ("actor.update", "reference.compute_log_prob")
    )
    assert (found.job.framework, found.job.old_log_prob) == ("slime-fsdp", "trainer")
    assert (update.engine, update.zero, update.dp, update.recompute) == ("fsdp2-hf", 3, 8, "full")
    assert (reference.zero, reference.offload) == (3, True)
    assert any(note.startswith("slime 0.2, since train-backend=fsdp") for note in found.notes)
    with pytest.raises(
        FileError, match=r"train-backend: is of slime before 0\.3.*--framework-version 0\.2"
    ):
        imported("slime", f"{SHARED} --train-backend fsdp".split(), replace(OPTIONS, version="0.3"))


@pytest.mark.parametrize(
    ("version", "name", "passes"),
    [
        ("0.2.1", "0.2", "trainer"),
        ("0.0.1", "0.1", "trainer"),
        ("0.3.1", "main of August 2026", "engine"),
    ],
)
def test_its_own_setup_py_says_the_version_and_with_it_whether_the_actor_passes_once_more(
    tmp_path, version, name, passes
):
    (tmp_path / ".git").mkdir()
    (tmp_path / "setup.py").write_text(
        f'from setuptools import setup\nsetup(\n    author="it",\n    name="slime",\n    version="{version}",\n)\n'
    )
    script = tmp_path / "a" / "b" / "c" / "d" / "e" / "run.sh"
    script.parent.mkdir(parents=True)
    script.write_text(f"python3 {SHARED.strip()}\n")
    found = imported("slime", [str(script)], OPTIONS)
    assert found.job.old_log_prob == passes
    assert any(note.startswith(f'slime {name}, by "{version}"') for note in found.notes)


def test_engines_beside_shared_gpus_are_those_that_train_up_to_0_2():
    words = f"{SHARED} --rollout-num-gpus 0".split()
    older = imported("slime", words, replace(OPTIONS, version="0.2"))
    assert "rollout-num-gpus" not in older.keys.changes_work
    assert "rollout-num-gpus" in imported("slime", words, OPTIONS).keys.changes_work


def test_training_without_generation_is_refused_for_what_it_is():
    with pytest.raises(FileError, match=r"debug-train-only: only trains"):
        read(f"{SHARED} --debug-train-only")


def test_a_run_without_steps_is_refused_for_what_it_is():
    with pytest.raises(FileError, match=r"num-rollout: trains no step, and only validates"):
        read(f"{SHARED} --num-rollout 0 --eval-interval 1")


def test_a_start_whose_name_says_nothing_is_told_by_its_flags_and_a_fork_by_its_name(tmp_path):
    words = SHARED.split()
    assert starts_of("slime", words)
    assert not starts_of("slime", "train.py --config x --epochs 3".split())
    assert most_named(("miles", "slime"), [*words, "--save", "/models/Qwen3-4B_slime/"]) == [
        "slime"
    ]
    assert framework_of([*words, "--save", "/models/Qwen3-4B_miles/"])[0] == "miles"
    with pytest.raises(FileError, match="may be of miles or of slime"):
        framework_of(words)


def test_a_python_launcher_is_not_run():
    path = Path(__file__)
    with pytest.raises(FileError, match="is a Python program, of which nothing is run"):
        imported("miles", [str(path)], OPTIONS)


TWIN_OF_VERL = """
-m verl.trainer.main_ppo model_engine=megatron algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8 trainer.nnodes=2
actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.n=8
data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=16 data.max_prompt_length=1024
data.max_response_length=4096 actor_rollout_ref.actor.use_dynamic_bsz=True
actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 actor_rollout_ref.rollout.tensor_model_parallel_size=2
actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 actor_rollout_ref.actor.use_kl_loss=True
actor_rollout_ref.actor.megatron.context_parallel_size=2 actor_rollout_ref.rollout.gpu_memory_utilization=0.7
actor_rollout_ref.actor.kl_loss_coef=0.001 actor_rollout_ref.actor.optim.lr=2e-6
"""
TWIN_OF_SLIME = """
train.py --actor-num-nodes 2 --actor-num-gpus-per-node 8 --colocate --hf-checkpoint Qwen/Qwen3-8B --ref-load /models/ref
--num-rollout 10 --rollout-batch-size 64 --n-samples-per-prompt 8 --global-batch-size 128 --rollout-max-prompt-len 1024
--rollout-max-response-len 4096 --use-dynamic-batch-size --max-tokens-per-gpu 16384 --rollout-num-gpus-per-engine 2
--tensor-model-parallel-size 4 --context-parallel-size 2 --use-kl-loss --sglang-mem-fraction-static 0.7
--kl-loss-coef 0.001 --lr 2e-6 --kl-loss-type low_var_kl
"""


def test_a_script_of_verl_and_its_twin_of_slime_are_the_same_job():
    own, other = read(TWIN_OF_VERL, "verl"), read(TWIN_OF_SLIME)
    for name in ("algorithm", "models", "workload", "cluster", "adapters"):
        assert getattr(own.resolved, name) == getattr(other.resolved, name), name
    for name in ("learning_rate", "kl_coefficient", "kl_in", "kl_estimator"):
        found = [getattr(each.job.hyperparameters, name) for each in (own, other)]
        assert found[0] == found[1], name
    assert [(pool.gpus, pool.roles) for pool in own.draft.pools] == [
        (pool.gpus, pool.roles) for pool in other.draft.pools
    ]
    sizes = ("tp", "pp", "cp", "dp", "ep", "token_budget", "memory_fraction")
    for name in ("actor.generate", "reference.compute_log_prob", "actor.update"):
        pair = [each.draft.tasks[name] for each in (own, other)]
        assert [getattr(pair[0], size) for size in sizes] == [
            getattr(pair[1], size) for size in sizes
        ], name


def layout_of(folder, name):
    """Return a published script, in a folder where its model's file stands as in its repository."""
    for path in PUBLISHED.glob("*.sh"):
        place = folder.joinpath(*path.stem.split("__")).with_suffix(".sh")
        if "models" not in path.stem:
            place = folder.joinpath(*path.name.split("__"))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(path.read_text(encoding="utf-8"))
    return folder.joinpath(*name.split("__"))


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the framework's scripts are not here")
def test_published_scripts_are_read_whole(tmp_path):
    found = imported("slime", [str(layout_of(tmp_path, "scripts__run-qwen3-4B.sh"))], OPTIONS)
    assert found.keys.unknown == ()
    assert not found.keys.not_modelled
    assert list(found.doubts()) == []
    assert written_model(found.settings).differences == ()
    update, generate = found.draft.tasks["actor.update"], found.draft.tasks["actor.generate"]
    assert (update.tp, update.dp, update.token_budget, update.recompute) == (2, 4, 9216, "full")
    assert (generate.tp, generate.dp, generate.memory_fraction) == (2, 4, 0.7)
    assert sorted(found.draft.tasks) == [
        "actor.generate",
        "actor.update",
        "reference.compute_log_prob",
    ]
    path = layout_of(tmp_path, "examples__fully_async__run-qwen3.5-9B-fully_async.sh")
    endless = imported("slime", [str(path)], OPTIONS)
    assert [(pool.name, pool.gpus) for pool in endless.draft.pools] == [
        ("train", 4),
        ("rollout", 4),
    ]
    assert endless.draft.mode == "async"
    assert endless.resolved.architecture("actor").name in model_names()


def test_distillation_of_slime_0_2_is_told_by_its_estimator_and_its_teacher_is_not_counted():
    found = read(f"{SHARED} --advantage-estimator on_policy_distillation --rm-url http://teacher")
    assert found.settings.sheet.version in {"0.1", "0.2"}
    assert found.job.algorithm == "grpo"
    assert any("passes of a teacher on servers" in each for each in found.doubts())


def test_an_estimator_of_a_copy_has_the_passes_of_grpo_which_is_said():
    found = read(f"{SHARED} --advantage-estimator entropic")
    assert found.job.algorithm == "grpo"
    assert any("advantage-estimator=entropic is not of slime" in each for each in found.notes)


def test_flags_whose_value_is_a_mapping_are_known():
    kwargs = '--apply-chat-template-kwargs {"enable_thinking":false} --train-env-vars {"A":"1"}'
    assert not list(read(f"{SHARED} {kwargs}").unknown())


def test_adapters_of_copies_of_slime_are_those_of_miles_and_that_is_said():
    found = read(f"{SHARED} --lora-rank 32 --lora-alpha 64 --target-modules all-linear")
    adapter = found.job.adapter("actor")
    assert (adapter.rank, adapter.alpha) == (32, 64)
    assert any("lora-rank is of a copy of slime" in each for each in found.notes)
    assert read(f"{SHARED} --lora-rank 0").job.adapter("actor") is None


def test_images_among_keys_are_doubtful_however_they_are_given():
    found = read(f'{SHARED} --multimodal-keys {{"image":"images"}}')
    assert any("multimodal-keys" in each for each in found.doubts())


def test_flags_without_positions_write_no_model_of_an_unknown_name():
    sizes = "--num-layers 42 --hidden-size 3136 --ffn-hidden-size 12544 --num-attention-heads 40 --vocab-size 131072"
    words = SHARED.replace("/models/Qwen3-4B ", "/models/some-hybrid ")
    assert read(f"{words} {sizes}").job.models["actor"].num_layers == 42
    with pytest.raises(FileError, match="no sheet is of"):
        read(f"{words} {sizes} --position-embedding-type none", "miles")


@pytest.mark.parametrize("written", ["([1]*4)", "[1,1]*2", "([1]+[1]*3)", "[1,1,1,1]"])
def test_lists_of_layers_are_what_python_makes_of_them(written):
    words = f"{SHARED} --num-experts 8 --moe-router-topk 2"
    settings = read(f"{words} --moe-layer-freq {written}").settings
    assert layers_with_experts(settings, 4) == (True,) * 4


@pytest.mark.parametrize(
    ("told", "more", "framework"),
    [
        ('{\\"A\\": \\"${NOT_SET}\\", \\"SLIME_BACKEND\\": \\"fsdp\\"}', "", "slime-fsdp"),
        ('{\\"SLIME_BACKEND\\": \\"fsdp\\"}', "--train-backend megatron", "slime-0.1"),
        ('{\\"A\\": \\"1\\"}', "", "slime"),
    ],
)
def test_a_variable_of_the_ray_job_says_what_trained_before_a_flag_did(
    tmp_path, told, more, framework
):
    path = tmp_path / "run.sh"
    job = f'ray job submit --runtime-env-json="{{\\"env_vars\\": {told}}}" --'
    path.write_text(f"{job} python3 {SHARED} {more}\n")
    found = imported("slime", [str(path)], OPTIONS)
    assert found.job.framework == framework
    assert not found.keys.unknown
    path.write_text(f"{job} python3 {SHARED}\n".replace("fsdp", "veomni"))
    if "SLIME_BACKEND" in told:
        with pytest.raises(FileError, match="SLIME_BACKEND: is not known"):
            imported("slime", [str(path)], OPTIONS)


@pytest.mark.parametrize(
    ("flags", "tp", "ep", "left"),
    [
        ("", 8, 1, False),
        ("--sglang-ep-size 4", 8, 4, False),
        ("--sglang-moe-a2a-backend none --sglang-ep-size 4", 8, 4, False),
        ("--sglang-moe-a2a-backend deepep", 8, 8, True),
        ("--sglang-moe-a2a-backend mooncake --sglang-ep-size 4", 8, 8, True),
        ("--sglang-enable-deepep-moe", 8, 8, True),
        ("--sglang-enable-ep-moe", 8, 8, False),
        ("--sglang-enable-ep-moe --sglang-enable-dp-attention --sglang-dp-size 4", 2, 8, False),
        # Attention of a group's requests on two ranks, and of every expert a part on all eight, forecast as whole ones.
        ("--sglang-enable-dp-attention --sglang-dp-size 4", 2, 8, False),
    ],
)
def test_engines_that_send_tokens_to_experts_spread_them_over_all_their_ranks(flags, tp, ep, left):
    """By sglang/srt/server_args.py: "The expert parallel size is adjusted to be the same as the tensor parallel size"."""
    words = SHARED.replace("Qwen3-4B", "Qwen3-30B-A3B")
    found = read(f"{words} --rollout-num-gpus-per-engine 8 {flags}")
    layout = found.draft.tasks["actor.generate"]
    assert (layout.tp, layout.ep, layout.dp * layout.tp) == (tp, ep, 8)
    assert (
        any("send tokens to experts" in each for each in found.settings.left_out.values()) == left
    )


SERVED = """
CUDA_VISIBLE_DEVICES=6,7 python3 -m sglang.launch_server --model-path /models/Qwen3-14B --host 0.0.0.0 \\
    --port 13141 --tp 2 --chunked-prefill-size 4096 --mem-fraction-static 0.6 > log 2>&1 &
ray job submit -- python3 train.py {flags} --actor-num-gpus-per-node 4 --rollout-num-gpus 2 --global-batch-size 256 \\
    --rm-url http://127.0.0.1:13141/generate {more}
"""


def served(tmp_path, more, framework="slime"):
    """Return a script that starts a teacher's server beside its training, imported."""
    path = tmp_path / "run.sh"
    path.write_text(SERVED.format(flags=COMMON, more=more))
    return imported(framework, [str(path)], OPTIONS)


@pytest.mark.parametrize(
    ("framework", "more"),
    [
        ("slime", "--use-opd --opd-type sglang --opd-kl-coef 0.5"),
        ("miles", "--use-opd --opd-type sglang --opd-kl-coef 0.5"),
        ("slime", "--advantage-estimator on_policy_distillation"),
    ],
)
def test_a_teacher_whose_server_the_script_starts_has_a_pool_and_an_engine(
    tmp_path, framework, more
):
    found = served(tmp_path, more, framework)
    assert dict(found.job.models)["teacher"] == "qwen3-14b"
    teacher = found.job.teacher
    assert (teacher.engine, teacher.memory_fraction) == ("sglang-0.5.6", 0.6)
    pools = [(pool.name, pool.gpus, pool.roles) for pool in found.draft.pools]
    assert pools[1:] == [("rollout", 2, ("actor",)), ("teacher", 2, ("teacher",))]
    assert [(group.gpus_per_node, group.nodes) for group in found.job.cluster] == [(8, 1)]
    assert found.draft.tasks["teacher.compute_log_prob"].tp == 2
    assert not found.keys.changes_work
    assert not found.keys.unknown
    weight = 0.5 if "0.5" in more else 1.0
    assert found.job.hyperparameters.teacher_coefficient == weight


def test_a_teacher_that_has_no_room_on_the_node_that_trains_has_one_of_its_own(tmp_path):
    found = served(tmp_path, "--use-opd --opd-type sglang --colocate --actor-num-gpus-per-node 8")
    assert [(group.gpus_per_node, group.nodes) for group in found.job.cluster] == [(8, 1), (2, 1)]
    assert found.draft.tasks["actor.generate"].pool == "train"


def test_a_teacher_s_pass_is_forecast_on_its_server(tmp_path):
    found = served(tmp_path, "--use-opd --opd-type sglang")
    facts = load_facts(found.resolved)
    forecast = simulate(complete(found.draft, found.resolved, facts), facts)
    cost = next(each for each in forecast.costs if each.name == "teacher.compute_log_prob")
    assert {"prefill", "prompt log-probabilities"} <= set(cost.parts)


def test_teachers_of_which_the_script_starts_one_stay_doubtful(tmp_path):
    urls = "math=http://h1:1/g code=http://h2:2/g"
    found = served(tmp_path, f"--use-opd --opd-type sglang --opd-teacher-urls {urls}", "miles")
    assert "teacher" not in found.job.models
    assert "use-opd" in found.keys.changes_work


@pytest.mark.parametrize("whose", ["only-student", "union"])
def test_a_teacher_is_asked_for_likeliest_tokens(tmp_path, whose):
    """Whoever else's tokens are asked for, the student's engine passes over the responses again (reward_func)."""
    more = f"--use-opd --opd-type sglang --opd-log-prob-top-k 16 --opd-top-k-strategy {whose}"
    found = served(tmp_path, more, "miles")
    assert found.job.teacher.top_tokens == 16
    assert list(found.keys.changes_work) == (["opd-top-k-strategy"] if whose == "union" else [])


# As examples/on_policy_distillation/run-qwen3-8B-opd-multi-teacher.sh of miles starts its two.
SEVERAL = """
serve() {{
    CUDA_VISIBLE_DEVICES=$1 python3 -m sglang.launch_server --model-path "$2" --port "$3" --tp {tp} > log 2>&1 &
    echo "log $3"
}}
MATH=$(serve 6 /models/Qwen3-14B 13141)
CODE=$(serve 7 /models/Qwen3-4B 13142)
ray job submit -- python3 train.py {flags} --actor-num-gpus-per-node 4 --rollout-num-gpus 2 --global-batch-size 256 \\
    --use-opd --opd-type sglang --opd-teacher-urls math=http://127.0.0.1:13141/generate \\
    code=http://127.0.0.1:13142/generate default=http://127.0.0.1:13141/generate
"""


def test_several_teachers_alike_are_the_largest_on_all_of_their_gpus(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(SEVERAL.format(flags=COMMON, tp=1))
    found = imported("miles", [str(path)], OPTIONS)
    assert dict(found.job.models)["teacher"] == "qwen3-14b"
    layout = found.draft.tasks["teacher.compute_log_prob"]
    assert (layout.tp, layout.dp) == (1, 2)
    assert [pool.gpus for pool in found.draft.pools] == [4, 2, 2]
    assert any("teacher.imbalance" in each for each in found.guesses)
    assert not found.keys.changes_work


def test_a_server_of_a_judge_is_no_teacher(tmp_path):
    found = served(tmp_path, "")
    assert "teacher" not in found.job.models
    assert "rm-url" in found.keys.changes_work
    assert len(found.draft.pools) == 2


@pytest.mark.parametrize(
    ("flags", "most"),
    [
        ("", None),
        ("--sglang-cuda-graph-max-bs 16", 16),
        ("--sglang-cuda-graph-bs 1 2 4 8", 8),
        ("--sglang-cuda-graph-bs 32", 32),
        ("--sglang-cuda-graph-max-bs 16 --sglang-disable-cuda-graph", 0),
    ],
)
def test_an_engine_captures_graphs_as_it_is_told(flags, most):
    found = read(f"{SHARED} {flags}")
    assert found.job.engines.graph_sequences == most
    assert not [key for key in found.keys.not_modelled if "graph" in key]


def test_an_adapter_of_miles_is_handed_on_by_itself():
    """By update_weight_from_tensor.py: load_lora_adapter_from_tensors."""
    words = f"miles/{SHARED} --micro-batch-size 1 --lora-rank 16 --target-modules all-linear"
    found = imported("miles", words.split(), OPTIONS)
    adapter = found.job.adapter("actor")
    assert (adapter.rank, adapter.sync) == (16, "adapter")
    plan = complete(found.draft, found.resolved, load_facts(found.resolved), "plan")
    written = exported(plan, "miles")
    assert (written.values["lora-rank"], written.values["target-modules"]) == (16, "all-linear")
    merged = replace(
        plan, job=replace(plan.job, adapters=FrozenDict({"actor": replace(adapter, sync="merged")}))
    )
    with pytest.raises(FileError, match="merges adapters before engines get them"):
        exported(merged, "miles")
