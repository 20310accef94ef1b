"""TRL's GKD as jobs and plans: whole distributions of a teacher, and texts at hand for a share of micro-batches."""

from pathlib import Path

import pytest

from rlplan.errors import FileError
from rlplan.planner.answers.completion import complete
from rlplan.planner.configs.broken import rules_of
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.writing.exporting import exported
from rlplan.profiles.facts import load_facts
from rlplan.simulator.simulate import simulate

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=100, mean_prompt=50)
ZERO = """
compute_environment: LOCAL_MACHINE
deepspeed_config:
  zero_stage: {stage}
distributed_type: DEEPSPEED
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
PROGRAM = """
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", torch_dtype="bfloat16")
teacher = AutoModelForCausalLM.from_pretrained("{teacher}", torch_dtype="bfloat16")
args = GKDConfig("out", per_device_train_batch_size=4, gradient_accumulation_steps=8{more})
{trainer}(model=model, teacher_model=teacher, args=args)
"""
SCRIPT = """
parser = TrlParser((ScriptArguments, GKDConfig, ModelConfig))
script_args, training_args, model_args = parser.parse_args_and_config()
trainer = GKDTrainer(
    model=model_args.model_name_or_path,
    teacher_model=training_args.teacher_model_name_or_path,
    args=training_args,
)
"""
RUN = (
    "accelerate launch --config_file {config} own.py --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct "
    "--teacher_model_name_or_path Qwen/Qwen2.5-1.5B-Instruct --per_device_train_batch_size 4 "
    "--gradient_accumulation_steps 8 --bf16"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for stage in (2, 3):
        Path(f"zero{stage}.yaml").write_text(ZERO.format(stage=stage), encoding="utf-8")
    Path("own.py").write_text(SCRIPT, encoding="utf-8")
    return tmp_path


def program(more="", *, teacher="Qwen/Qwen2.5-1.5B-Instruct", trainer="GKDTrainer"):
    """Return what a program amounts to that gives its configuration more."""
    text = PROGRAM.format(teacher=teacher, trainer=trainer, more=f", {more}" if more else "")
    Path("distil.py").write_text(text, encoding="utf-8")
    return imported("trl", ["distil.py"], OPTIONS)


def started(config):
    Path("run.sh").write_text(RUN.format(config=config), encoding="utf-8")
    return imported("trl", ["run.sh"], OPTIONS)


def test_a_step_learns_from_rows_of_all_processes_of_which_half_are_texts(folder):
    """4 rows x 8 micro-batches of one process; its own defaults: lmbda 0.5, 128 new tokens, 1,024 of a text."""
    job = program().resolved
    assert job.algorithm == "on-policy-distillation"
    assert {role: model.name for role, model in job.models.items()} == {
        "actor": "qwen2.5-0.5b",
        "teacher": "qwen2.5-1.5b",
    }
    work = job.workload
    assert (work.prompts, work.samples_per_prompt, work.updates, work.epochs) == (32, 1, 1, 1)
    assert work.texts.share == 0.5
    assert work.response_tokens.max == 128
    assert work.texts.response_tokens.max == 1024
    assert job.teacher.top_tokens == "all"
    assert job.rewards is None
    assert (job.hyperparameters.learning_rate, job.hyperparameters.temperature) == (2e-5, 0.9)


@pytest.mark.parametrize(
    ("more", "share"), [("lmbda=0.75", 0.25), ("lmbda=0.1", 0.9), ("lmbda=1.0", None)]
)
def test_lambda_is_the_share_that_the_student_writes(folder, more, share):
    texts = program(more).job.workload.texts
    assert (None if texts is None else texts.share) == share


@pytest.mark.parametrize(
    ("more", "way"),
    [
        ("", "jensen-shannon"),
        ("beta=0.0", "forward-kl"),
        ("beta=1.0", "reverse-kl"),
        ("beta=1.0, use_liger_kernel=True", "fused-jensen-shannon"),
    ],
)
def test_beta_says_which_divergence_is_held_in_memory(folder, more, way):
    job = program(more).job
    assert {role: options.logits for role, options in job.trainers.items()} == {
        "actor": way,
        "teacher": way,
    }
    assert job.hyperparameters.kl_in == "none"


def test_a_cache_is_kept_where_gradients_are_not_checkpointed(folder):
    """GKD gives `generate` use_cache=False where they are, as they are by default since 0.22."""
    without, kept = (program(more) for more in ("", "gradient_checkpointing=False"))
    for found, engine in ((without, "transformers-no-cache"), (kept, "transformers-static")):
        assert found.draft.tasks["actor.generate"].engine == engine
        assert found.draft.tasks["actor.generate"].max_running == 4
    said = "without a cache"
    assert any(said in each for each in without.notes)
    assert not any(said in each for each in kept.notes)


@pytest.mark.parametrize(("stage", "teacher"), [(2, 0), (3, 3)])
def test_a_teacher_is_sharded_by_deepspeed_s_last_stage_alone(folder, stage, teacher):
    """trl/models/utils.py, prepare_deepspeed: stage 0 in place of any other."""
    found = started(f"zero{stage}.yaml")
    tasks = found.draft.tasks
    assert tasks["actor.update"].zero == stage
    assert tasks["teacher.compute_log_prob"].zero == teacher
    assert found.resolved.workload.prompts == 4 * 8 * 8
    gathers = any("weights are gathered for each of the 4 micro-batches" in n for n in found.notes)
    assert gathers == (stage == 3)


def test_what_is_imported_runs_and_is_forecast(folder):
    found = started("zero2.yaml")
    facts = load_facts(found.resolved)
    plan = complete(found.draft, found.resolved, facts, "plan")
    forecast = simulate(plan, facts)
    assert forecast.feasible
    names = [cost.name for cost in forecast.costs if cost.seconds]
    assert names == ["actor.generate", "teacher.compute_log_prob", "actor.update"]
    broken = [each for rule in rules_of("trl") for each in rule.broken(found.settings)]
    assert not broken


@pytest.mark.parametrize(
    ("more", "key", "words"),
    [
        ("lmbda=0.0", "lmbda", "no response of its own"),
        ("seq_kd=True", "seq_kd", "lets the teacher write"),
        ("beta=1.5", "beta", "no share"),
        ("use_vllm=True", "use_vllm", "none of GKD's keys"),
        ("max_length=None", "max_length", "without a limit"),
    ],
)
def test_what_no_job_says_is_refused_by_its_key(folder, more, key, words):
    with pytest.raises(FileError, match=words) as caught:
        program(more)
    assert caught.value.field == key


def test_a_teacher_of_another_vocabulary_is_refused_as_the_trainer_refuses_it(folder):
    """151,936 and 152,064 entries: GKDTrainer raises a ValueError."""
    with pytest.raises(FileError, match="151,936 and 152,064") as caught:
        program(teacher="Qwen/Qwen2.5-7B-Instruct")
    assert caught.value.field == "trainer.teacher_model"


def test_keys_of_the_other_trainer_are_doubtful(folder):
    found = program("num_generations=4")
    assert "num_generations" in found.settings.doubts
    Path("grpo.py").write_text(
        "args = GRPOConfig(max_length=512, lmbda=0.5)\n"
        "GRPOTrainer(model='Qwen/Qwen2.5-0.5B-Instruct', args=args)\n",
        encoding="utf-8",
    )
    grpo = imported("trl", ["grpo.py"], OPTIONS)
    assert {"max_length", "lmbda"} <= set(grpo.settings.doubts)
    assert grpo.job.algorithm == "grpo"


def test_a_trainer_of_one_s_own_has_a_loop_that_is_not_known(folder):
    Path("mine.py").write_text(
        "args = GKDConfig(teacher_model_name_or_path='Qwen/Qwen2.5-1.5B-Instruct')\n"
        "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B-Instruct')\n"
        "OwnTrainer(model=model, args=args)\n",
        encoding="utf-8",
    )
    found = imported("trl", ["mine.py"], OPTIONS)
    assert any("its loop is not known" in why for why in found.settings.doubts.values())


def test_a_plan_of_it_is_exported_to_no_framework_by_name(folder):
    found = started("zero2.yaml")
    plan = complete(found.draft, found.resolved, load_facts(found.resolved), "plan")
    with pytest.raises(FileError, match="is no role of it"):
        exported(plan, "trl")
