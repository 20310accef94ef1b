"""What frameworks' configurations have beside their steps, in job and forecast."""

from dataclasses import replace

import pytest

from rlplan.job import CacheOffload, Checkpoints, Speculation
from rlplan.planner.configs.environments import GivenEnvironments
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.workload import Evaluation
from tests.planner.configs.test_importing import NEMO
from tests.planner.configs.test_keys_of_skyrl import BASES as SKYRL_BASES

OPTIONS = ImportOptions(
    gpu="h100-80gb-sxm", mean_response=300, mean_prompt=100, environment={"HOME": "~"}
)
VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 "
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct"
)
SLIME = """python3 train.py --hf-checkpoint /models/Qwen3-4B --ref-load /models/Qwen3-4B_torch_dist
--num-rollout 100 --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 8192
--rollout-num-gpus-per-engine 2 --attention-dropout 0.0 --hidden-dropout 0.0 --colocate --global-batch-size 256"""
TRL = "trl grpo --model_name_or_path Qwen/Qwen2.5-7B-Instruct --num_generations 8 --num_iterations 2 --max_steps 1000"
CASES = {
    "verl": (
        "verl",
        (f"{VERL} trainer.test_freq=5 trainer.save_freq=20 data.val_max_samples=500 trainer.total_training_steps=100 "
        "actor_rollout_ref.rollout.val_kwargs.n=4 actor_rollout_ref.actor.checkpoint.save_contents=[model,extra]"),
        Evaluation(every=5, prompts=500, samples_per_prompt=4),
        Checkpoints(every=20, states=("weights",)),
        100,
    ),
    "verl never": ("verl", f"{VERL} trainer.test_freq=-1 trainer.save_freq=-1", None, None, None),
    "slime": (
        "slime",
        (f"{SLIME} --eval-interval 20 --eval-prompt-data aime /x.jsonl --n-samples-per-eval-prompt 16 --save /x "
        "--save-interval 40 --async-save"),
        Evaluation(every=20, samples_per_prompt=16, after_last=False),
        Checkpoints(every=40, in_background=True),
        100,
    ),
    "slime with data that nothing asks for": (
        "slime", f"{SLIME} --eval-prompt-data aime /x.jsonl --n-samples-per-eval-prompt 16", None, None, 100,
    ),
    "slime without data": ("slime", f"{SLIME} --eval-interval 20 --save-interval 40", None, None, 100),
    "skyrl": (
        "skyrl",
        ("python -m skyrl.train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen3-4B data.val_data=['x.parquet'] "
        "trainer.eval_interval=50 trainer.eval_before_train=false trainer.ckpt_interval=20 trainer.eval_batch_size=256"),
        Evaluation(every=50, before_first=False, after_last=True, prompts_at_a_time=256),
        Checkpoints(every=20),
        None,
    ),
    "prime-rl": (
        "prime-rl",
        ("uv run rl --model.name Qwen/Qwen3-4B --orchestrator.batch_size 512 --trainer.model.ac.freq 2 --ckpt.interval 100 "
        "--seq_len 4096"),
        None,
        Checkpoints(every=100),
        None,
    ),
    # TRL counts updates, of which an iteration has two here.
    "trl": (
        "trl",
        f"{TRL} --eval_strategy steps --eval_steps 100 --save_steps 50 --save_only_model",
        Evaluation(every=50, before_first=False, after_last=False),
        Checkpoints(every=25, states=("weights",)),
        500,
    ),
    "trl as transformers saves where nothing says how often": (
        "trl", TRL, None, Checkpoints(every=250), 500,
    ),
    "trl by shares of all 1,000 updates": (
        "trl", f"{TRL} --eval_strategy steps --eval_steps 0.1 --save_steps 0.05",
        Evaluation(every=50, before_first=False, after_last=False), Checkpoints(every=25), 500,
    ),
    "trl evaluates as often as it logs where nothing says how often": (
        "trl", f"{TRL} --eval_strategy steps --logging_steps 40",
        Evaluation(every=20, before_first=False, after_last=False), Checkpoints(every=250), 500,
    ),
    "trl logs every tenth update": (
        "trl", f"{TRL} --eval_strategy steps",
        Evaluation(every=5, before_first=False, after_last=False), Checkpoints(every=250), 500,
    ),
    # One more behind the last step, unless that had one.
    "easyr1": (
        "easyr1",
        ("-m verl.trainer.main worker.actor.model.model_path=Qwen/Qwen2.5-7B-Instruct trainer.val_freq=20 "
        "trainer.max_steps=90 trainer.save_freq=30"),
        Evaluation(every=20, after_last=True),
        Checkpoints(every=30),
        90,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_validation_and_checkpoints_come_as_often_as_keys_say(name):
    framework, text, evaluation, checkpoints, iterations = CASES[name]
    found = imported(framework, text.split(), OPTIONS)
    job = found.job
    assert (job.evaluation, job.checkpoints, job.iterations) == (
        evaluation,
        checkpoints,
        iterations,
    )
    unknown = evaluation is not None and evaluation.prompts is None
    assert any("evaluation.prompts" in note for note in found.notes) == unknown


def test_a_frequency_that_cannot_be_evaluated_is_told_and_refuses_nothing(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(f"{VERL} trainer.test_freq=$EVERY trainer.save_freq=20\n", encoding="utf-8")
    found = imported("verl", [str(script)], OPTIONS)
    assert found.job.evaluation is None
    assert found.job.checkpoints == Checkpoints(every=20)
    assert any(note.startswith("trainer.test_freq cannot be evaluated") for note in found.notes)


EAGLE = "--sglang-speculative-algorithm EAGLE --sglang-speculative-num-steps 3 --sglang-speculative-num-draft-tokens 4"
BATCHES = "+actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config.num_speculative_tokens_per_batch_size"
VLLM = "+actor_rollout_ref.rollout.engine_kwargs.vllm.speculative_config"
SKYRL = " ".join(SKYRL_BASES["together"])


@pytest.mark.parametrize(
    ("framework", "text", "expected"),
    [
        ("slime", f"{SLIME} {EAGLE}", Speculation(draft_tokens=3)),
        ("slime", SLIME, None),
        ("skyrl", f"{SKYRL} trainer.mtp.enabled=true trainer.mtp.num_speculative_tokens=3", Speculation(draft_tokens=3)),
        ("skyrl", f"{SKYRL} trainer.mtp.num_speculative_tokens=3", None),
        ("verl", f"{VERL} actor_rollout_ref.model.mtp.enable_rollout=True", Speculation(draft_tokens=1)),
        ("verl", f"{VERL} actor_rollout_ref.model.mtp.num_speculative_tokens=2", None),
        (
            "verl",
            f"{VERL} {VLLM}.method=ngram {VLLM}.num_speculative_tokens=5",
            Speculation(draft_tokens=5, layers=0),
        ),
        (
            "verl",
            f"{VERL} {VLLM}.model=Qwen/Qwen3-0.6B {VLLM}.num_speculative_tokens=4",
            Speculation(draft_tokens=4, draft="qwen3-0.6b"),
        ),
        (
            "verl",
            f"{VERL} {VLLM}.method=ngram {VLLM}.num_speculative_tokens=3 {BATCHES}=[[1,64,3],[65,256,0]]",
            Speculation(draft_tokens=3, layers=0, most_running=64),
        ),
        # Between two rows, and behind the last, the guesses of the row before: vLLM never stops here.
        (
            "verl",
            f"{VERL} {VLLM}.method=ngram {VLLM}.num_speculative_tokens=3 {BATCHES}=[[1,32,3],[65,256,3]]",
            Speculation(draft_tokens=3, layers=0),
        ),
    ],
)  # fmt: skip
def test_guesses_are_read_and_not_counted_until_it_is_known_how_many_are_accepted(
    framework, text, expected
):
    found = imported(framework, text.split(), OPTIONS)
    assert found.job.speculation == expected
    told = any("acceptance_length" in what for what in found.keys.not_modelled.values())
    assert told == (expected is not None)


@pytest.mark.parametrize(
    ("rows", "most", "noted"),
    [
        ("[[1,4,5],[5,16,2],[17,64,0]]", 16, True),  # two of five guesses at some batches
        ("[[1,4,5],[5,16,0],[17,64,5]]", 4, True),  # guesses again at larger ones
        ("[[1,16,1,4096,5],[1,16,4097,99999,0],[17,64,1,4096,0],[17,64,4097,99999,0]]", 16, True),
        ("[[1,16,7],[17,64,0]]", 16, False),  # no more than all that are guessed
        ("[[1,64,0]]", None, False),
        ("nothing", None, False),
    ],
)
def test_a_table_of_guesses_by_batch_says_where_an_engine_stops(rows, most, noted):
    words = f"{VERL} {VLLM}.method=ngram {VLLM}.num_speculative_tokens=5 {BATCHES}={rows}"
    found = imported("verl", words.split(), OPTIONS)
    assert found.job.speculation.most_running == most
    assert any("has other guesses" in note for note in found.notes) == noted


KWARGS = "+actor_rollout_ref.rollout.engine_kwargs"
STORE = f"{KWARGS}.vllm.kv_transfer_config.kv_connector"
TOOLS = GivenEnvironments(turns=3.0, observation_tokens=20.0, tool_seconds=1.0)


@pytest.mark.parametrize(
    ("framework", "text", "expected"),
    [
        ("verl", f"{VERL} {KWARGS}.vllm.kv_offloading_size=64", CacheOffload(replica_bytes=64 * 2**30)),
        (
            "verl",
            f"{VERL} {STORE}=OffloadingConnector {KWARGS}.vllm.kv_transfer_config.kv_connector_extra_config.cpu_bytes_to_use=8000000000",
            CacheOffload(replica_bytes=8e9),
        ),
        ("verl", f"{VERL} {STORE}=MooncakeStoreConnector", None),
        ("verl", f"{VERL} {KWARGS}.vllm.kv_offloading_size=64 {KWARGS}.vllm.kv_offloading_backend=lmcache", None),
        # SGLang's sizes are a rank's, of two here, and a switch turns them on.
        ("slime", f"{SLIME} --sglang-enable-hierarchical-cache --sglang-hicache-size 50", CacheOffload(replica_bytes=100e9)),
        ("slime", f"{SLIME} --sglang-enable-hierarchical-cache", CacheOffload(cache_ratio=2.0)),
        ("miles", f"{SLIME} --sglang-enable-hierarchical-cache --sglang-hicache-ratio 4", CacheOffload(cache_ratio=4.0)),
        ("slime", f"{SLIME} --sglang-hicache-size 50", None),
        (
            "prime-rl",
            ("uv run rl --model.name Qwen/Qwen3-4B --orchestrator.batch_size 512 --seq_len 4096 "
            "--inference.kv_cache_offload.type native --inference.kv_cache_offload.cpu.num_bytes 128000000000"),
            CacheOffload(replica_bytes=128e9),
        ),
    ],
)  # fmt: skip
def test_host_memory_for_a_cache_is_read_where_turns_read_it_again(framework, text, expected):
    found = imported(framework, text.split(), replace(OPTIONS, environments=TOOLS))
    assert found.job.kv_offload == expected
    told = [
        what for what in found.keys.not_modelled.values() if "a KV cache that goes on in" in what
    ]
    assert bool(told) == ("kv_connector=Moon" in text or "lmcache" in text)
    # Of one turn nothing is read again: the keys are named, and not counted.
    alone = imported(framework, text.split(), OPTIONS)
    assert alone.job.kv_offload is None
    if expected is not None:
        assert any(
            "until the job has environments" in what for what in alone.keys.not_modelled.values()
        )


SKYRL = "python -m skyrl.train.entrypoints.main_base trainer.policy.model.path=Qwen/Qwen3-4B data.val_data=['x.parquet']"
AREAL = """
experiment_name: a
trial_name: b
allocation_mode: sglang:d4+fsdp:d4
cluster: {n_nodes: 1, n_gpus_per_node: 8}
gconfig: {n_samples: 4, max_new_tokens: 1024}
rollout: {max_head_offpolicyness: 2}
actor: {path: Qwen/Qwen2.5-7B-Instruct, mb_spec: {max_tokens_per_mb: 10240}}
train_dataset: {batch_size: 64}
evaluator: {freq_epochs: 1, freq_steps: null, freq_secs: null}
saver: {freq_epochs: 2, freq_steps: 10, freq_secs: 3600}
"""


def test_skyrl_validates_before_the_first_step_only_where_it_does_so_between_steps():
    """skyrl/train/trainer.py: `eval_interval > 0 and eval_before_train`."""
    words = f"{SKYRL} trainer.eval_interval=-1 trainer.eval_before_train=true".split()
    assert imported("skyrl", words[1:], OPTIONS).job.evaluation is None


@pytest.mark.parametrize("framework", ["trl", "ms-swift"])
def test_shares_of_all_steps_are_named_as_not_counted_where_nobody_says_how_many_these_are(
    framework,
):
    shares = "--eval_strategy steps --eval_steps 0.1 --save_steps 0.2"
    swift = (
        "swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --NPROC_PER_NODE 8 --num_generations 8"
    )
    words = {"trl": TRL.replace(" --max_steps 1000", ""), "ms-swift": swift}[framework]
    found = imported(framework, f"{words} {shares}".split(), OPTIONS)
    said = {note.split(" ")[0] for note in found.notes if "is a share of all steps" in note}
    assert said == {"eval_steps=0.1", "save_steps=0.2"}
    assert (found.job.evaluation, found.job.checkpoints) == (None, None)


@pytest.mark.parametrize("framework", ["areal", "trl", "ms-swift"])
def test_frequencies_by_epochs_and_seconds_are_named_as_not_counted(framework, tmp_path):
    file = tmp_path / "areal.yaml"
    file.write_text(AREAL)
    by_epochs = "--eval_strategy epoch --save_strategy epoch"
    swift = f"swift rlhf --rlhf_type grpo --model Qwen/Qwen3-8B --NPROC_PER_NODE 8 --num_generations 8 {by_epochs}"
    words, keys = {
        "areal": (
            [str(file)],
            {"evaluator.freq_epochs=1", "saver.freq_epochs=2", "saver.freq_secs=3600"},
        ),
        "trl": (f"{TRL} {by_epochs}".split(), {"eval_strategy=epoch", "save_strategy=epoch"}),
        "ms-swift": (swift.split(), {"eval_strategy=epoch", "save_strategy=epoch"}),
    }[framework]
    notes = imported(framework, words, OPTIONS).notes
    said = {note.split(" ")[0] for note in notes if "no key says how many steps" in note}
    assert said == keys


@pytest.mark.parametrize(
    ("mode", "named"),
    [
        (
            "on",
            "recover.freq_steps=10, recover.freq_secs=3600: weights and optimizer are saved to start again from",
        ),
        ("off", None),
        ("disabled", None),
    ],
)
def test_states_that_areal_saves_to_start_again_from_are_named(mode, named, tmp_path):
    """utils/recover.py returns at once in the modes disabled and off."""
    file = tmp_path / "areal.yaml"
    file.write_text(
        f"{AREAL}recover: {{mode: '{mode}', freq_steps: 10, freq_epochs: null, freq_secs: 3600}}\n"
    )
    notes = imported("areal", [str(file)], OPTIONS).notes
    said = [note for note in notes if note.startswith("recover.")]
    assert [note.split(", beside")[0] for note in said] == ([named] if named else [])


def test_areal_validates_before_the_first_step_where_it_is_asked_to(tmp_path):
    file = tmp_path / "areal.yaml"
    file.write_text(AREAL)
    words = [str(file), "evaluator.freq_steps=5", "+evaluator.eval_before_train=true"]
    found = imported("areal", words, OPTIONS).job.evaluation
    assert (found.every, found.before_first) == (5, True)


def test_easyr1_and_nemo_rl_validate_behind_the_last_step_without_any_between(tmp_path):
    """verl/trainer/ray_trainer.py (`val_freq <= 0 or ...`); nemo_rl/algorithms/grpo.py (`val_at_end and is_last_step`)."""
    easyr1 = "-m verl.trainer.main worker.actor.model.model_path=Qwen/Qwen2.5-7B-Instruct trainer.val_freq=-1"
    found = imported("easyr1", f"{easyr1} trainer.val_before_train=true".split(), OPTIONS).job
    assert (found.evaluation.every, found.evaluation.due(90)) == (None, 2)
    assert imported("easyr1", easyr1.split(), OPTIONS).job.evaluation is None
    recipe = tmp_path / "grpo.yaml"
    recipe.write_text(NEMO)
    nemo = [str(recipe), "grpo.val_period=0"]
    assert imported("nemo-rl", nemo, OPTIONS).job.evaluation is None
    last = imported("nemo-rl", [*nemo, "grpo.val_at_end=true"], OPTIONS).job.evaluation
    assert (last.every, last.before_first, last.after_last) == (None, False, True)


def test_a_folder_of_checkpoints_that_cannot_be_evaluated_is_one_all_the_same(tmp_path):
    script = tmp_path / "run.sh"
    text = f'D=$(curl http://host)\n{SLIME} --save "$D" --save-interval 40\n'.replace("\n--", " --")
    script.write_text(text, encoding="utf-8")
    assert imported("slime", [str(script)], OPTIONS).job.checkpoints == Checkpoints(every=40)
