"""Programs of TRL of which a part is not known: what is taken for it is said, and never silent."""

from dataclasses import replace

import pytest

from rlplan.errors import FileError, MissingValueError, MissingValuesError
from rlplan.files.frozen import FrozenDict
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan_cli.config_options import framework_of

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=64.0, environment={})


TRAINED = "GRPOTrainer('Qwen/Qwen2.5-0.5B', args=GRPOConfig('o', max_completion_length=512))\n"


@pytest.fixture
def program(tmp_path):
    """Return a file whose text a test writes."""
    return tmp_path / "own.py"


def test_adapters_that_may_be_merged_or_trained_are_no_silent_full_training(program):
    text = "m = PeftModel.from_pretrained(base, 'sft')\n" + TRAINED
    program.write_text(text, encoding="utf-8")
    found = imported("trl", [str(program)], OPTIONS)
    assert any("merged or trained is not known" in each for each in found.doubts())
    merged = FrozenDict({"adapter.is_trainable": "False"})
    assert not [*imported("trl", [str(program)], replace(OPTIONS, values=merged)).doubts()]
    trained = FrozenDict({"adapter.is_trainable": "True", "lora_r": "32"})
    assert imported("trl", [str(program)], replace(OPTIONS, values=trained)).run.adapter.rank == 32


def test_adapters_of_which_nothing_is_said_are_peft_s_own(program):
    for made in ("peft_config=LoraConfig()", "peft_config=lora"):
        text = "lora = LoraConfig()\n" + TRAINED.replace("args=", f"{made}, args=")
        program.write_text(text, encoding="utf-8")
        run = imported("trl", [str(program)], OPTIONS).run
        assert (run.adapter.rank, run.adapter.alpha, [*run.models]) == (8, 8, ["actor"])
    program.write_text(TRAINED.replace("args=", "peft_config=None, args="), encoding="utf-8")
    assert imported("trl", [str(program)], OPTIONS).run.adapter is None


def test_a_program_on_a_command_line_is_read_as_one_in_a_script(program, monkeypatch):
    monkeypatch.chdir(program.parent)
    program.write_text(TRAINED.replace("=512", "=512, num_generations=4"), encoding="utf-8")
    words = ["accelerate", "launch", "--num_processes", "2", "own.py", "--learning_rate", "1e-5"]
    found = imported("trl", words, OPTIONS)
    assert (found.job.workload.samples_per_prompt, found.run.pools[0].gpus) == (4, 2)
    for text, what in (("x = 1\n", "starts no RL training"), (None, "is not at hand")):
        program.write_text(text, encoding="utf-8") if text else program.unlink()
        with pytest.raises(FileError, match=rf"its program {what}.*--as own.py"):
            imported("trl", words, OPTIONS)


def test_a_trainer_of_trl_s_own_checkout_is_no_copy_of_it(program):
    package = program.parent / "trl" / "trainer"
    package.mkdir(parents=True)
    (package / "grpo_trainer.py").write_text("class GRPOTrainer(Base):\n    pass\n", "utf-8")
    text = "from trl.trainer.grpo_trainer import GRPOTrainer\n" + TRAINED
    program.write_text(text, encoding="utf-8")
    assert not any("in place of" in each for each in imported("trl", [str(program)], OPTIONS).notes)


def test_what_a_mapping_of_settings_may_hold_of_the_work_is_asked_for_where_it_is_not_known(
    program,
):
    text = (
        "GRPOTrainer('Qwen/Qwen3-8B', args=GRPOConfig(gradient_accumulation_steps=2, **kwargs))\n"
    )
    program.write_text(text, encoding="utf-8")
    with pytest.raises(MissingValuesError, match=r"\*\*kwargs` \(line 1\)") as caught:
        imported("trl", [str(program)], OPTIONS)
    asked = {
        "per_device_train_batch_size": "8",
        "num_generations": "8",
        "max_completion_length": "512",
    }
    assert [each.key for each in caught.value.missing] == [*asked]
    found = imported("trl", [str(program)], replace(OPTIONS, values=FrozenDict(asked)))
    assert found.keys.changes_work == {"**kwargs": "what it holds is not known"}
    assert found.job.workload.samples_per_prompt == 8


def test_settings_of_which_none_is_known_are_no_silent_defaults(program):
    text = "args, _ = parser.parse_dict(composed)\nGRPOTrainer('Qwen/Qwen2.5-0.5B', args=args)\n"
    program.write_text(text, encoding="utf-8")
    found = imported("trl", [str(program)], OPTIONS)
    assert any("trainer.args=" in each and "not known" in each for each in found.doubts())
    given = FrozenDict({"num_generations": "4"})
    said = replace(OPTIONS, values=given)
    assert not [*imported("trl", [str(program)], said).doubts()]


def test_scripts_beside_a_program_that_start_it_are_named_where_it_leaves_values_open(program):
    text = "args = parser.parse_args()\nGRPOTrainer(args.model, args=GRPOConfig(num_generations=args.n))\n"
    program.write_text(text, encoding="utf-8")
    with pytest.raises(MissingValuesError) as untold:
        imported("trl", [str(program)], OPTIONS)
    assert not untold.value.hint
    script, other = program.parent / "run.sh", program.parent / "eval.sh"
    start = f"accelerate launch --num_processes 2 {program.name} --model Qwen/Qwen2.5-0.5B --n 4\n"
    script.write_text(start, encoding="utf-8")
    other.write_text(
        f"# {program.name} comes first\npython test_{program.name}\n", encoding="utf-8"
    )
    with pytest.raises(
        MissingValuesError, match=r"or read \S*run\.sh in its place, which starts it"
    ):
        imported("trl", [str(program)], OPTIONS)
    found = imported("trl", [str(script)], OPTIONS)
    assert (found.job.models["actor"], found.job.workload.samples_per_prompt) == ("qwen2.5-0.5b", 4)


TRAINER = "GRPOTrainer('Qwen/Qwen3-8B', args=GRPOConfig('o', max_completion_length=512), peft_config={})\n"


@pytest.mark.parametrize(
    "text",
    [
        TRAINER.format("adapters_of(settings)"),
        "lora = adapters_of(settings)\n" + TRAINER.format("lora"),
        "lora = LoraConfig(**read())\n" + TRAINER.format("lora"),
    ],
)
def test_adapters_that_are_not_known_are_asked_for(program, text):
    program.write_text(text, encoding="utf-8")
    with pytest.raises(MissingValueError, match="of adapters may be what") as caught:
        imported("trl", [str(program)], OPTIONS)
    assert caught.value.options == ("--set", "lora_r=16")
    ranks = {"8": 8, "0": None}
    for given, rank in ranks.items():
        said = replace(OPTIONS, values=FrozenDict({"lora_r": given}))
        adapter = imported("trl", [str(program)], said).run.adapter
        assert (None if adapter is None else adapter.rank) == rank


def test_trls_own_function_makes_adapters_where_a_flag_asks_for_them(program):
    program.write_text(TRAINER.format("get_peft_config(model_args)"), encoding="utf-8")
    assert imported("trl", [str(program)], OPTIONS).run.adapter is None
    adapter = imported("trl", [str(program), "--use_peft", "--lora_r", "4"], OPTIONS).run.adapter
    assert adapter.rank == 4


@pytest.mark.parametrize(
    "text",
    [
        "lora = None\nif asked():\n    lora = LoraConfig(r=4)\n" + TRAINER.format("lora"),
        "lora = LoraConfig(r=4) if asked() else None\n" + TRAINER.format("lora"),
    ],
)
def test_adapters_on_a_condition_that_is_not_known_are_said_to_be_assumed(program, text):
    program.write_text(text, encoding="utf-8")
    found = imported("trl", [str(program)], OPTIONS)
    assert found.run.adapter.rank == 4
    assert any("adapters are trained, since `lora`" in each for each in found.run.guesses)
    without = replace(OPTIONS, values=FrozenDict({"lora_r": "0"}))
    assert imported("trl", [str(program)], without).run.adapter is None


def test_adapters_of_a_module_that_loads_the_model_are_asked_for(program):
    beside = "def load(name):\n    return get_peft_model(read(name), LoraConfig(r=rank()))\n"
    (program.parent / "loading.py").write_text(beside, encoding="utf-8")
    text = "from loading import load\nmodel = load('Qwen/Qwen3-8B')\nGRPOTrainer(model, args=GRPOConfig('o'))\n"
    program.write_text(text, encoding="utf-8")
    with pytest.raises(MissingValueError, match=r"peft.r|LoraConfig is given"):
        imported("trl", [str(program)], OPTIONS)
    said = replace(OPTIONS, values=FrozenDict({"lora_r": "4"}))
    assert imported("trl", [str(program)], said).run.adapter.rank == 4
    named = text.replace("GRPOTrainer(model", "GRPOTrainer('Qwen/Qwen3-8B'")
    program.write_text(named, encoding="utf-8")
    assert imported("trl", [str(program)], OPTIONS).run.adapter is None


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("AsyncGRPO", "trains by AsyncGRPO"),
        ("GRPOWithReplayBuffer", "an experiment of TRL's"),
        ("GFPO", "an experiment of TRL's"),
        ("OnlineDPO", "online DPO"),
        ("NashMD", "online DPO"),
        ("PPO", "trains with PPO"),
        ("SSD", "generates itself"),
    ],
)
def test_trainers_with_loops_of_their_own_are_refused_by_name_and_never_taken_for_grpo(
    program, name, named
):
    text = f"from trl import {name}Config, {name}Trainer\n"
    program.write_text(f"{text}{name}Trainer('Qwen/Qwen3-8B', args={name}Config('o'))\n", "utf-8")
    with pytest.raises(FileError, match=named):
        imported("trl", [str(program)], OPTIONS)


def test_classes_of_a_program_s_own_that_are_called_like_trls_are_none_of_them(program):
    text = "class GRPOConfig:\n    n = 4\nclass GRPOTrainer:\n    pass\n" + TRAINED
    program.write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match="starts no RL training of TRL"):
        imported("trl", [str(program)], OPTIONS)
    program.write_text("from trl import ModelConfig\n" + text, encoding="utf-8")
    assert imported("trl", [str(program)], OPTIONS).run.trainer == "ddp"


def test_a_teacher_that_is_not_known_is_named_as_the_refusal_says(program):
    text = "GKDTrainer('Qwen/Qwen3-0.6B', teacher_model=load(), args=GKDConfig('o'))\n"
    program.write_text(text, encoding="utf-8")
    with pytest.raises(MissingValueError) as caught:
        imported("trl", [str(program)], OPTIONS)
    option, said = caught.value.options
    role, _, _ = said.partition("=")
    assert (option, role) == ("--model", "teacher")
    name = "Qwen/Qwen3-1.7B"  # of the student's vocabulary
    found = imported("trl", [str(program)], replace(OPTIONS, models=FrozenDict({role: name})))
    assert found.run.models["teacher"] == name


def test_a_trainer_that_is_not_at_hand_is_said_to_stand_in_place_of_trls(program):
    text = "from kept_away import ToolGRPOTrainer\n" + TRAINED.replace("GRPOT", "ToolGRPOT")
    program.write_text(text, encoding="utf-8")
    assert any("ToolGRPOTrainer (own.py) stands in place of" in each for each in said_of(program))
    program.write_text(f"ToolGRPOTrainer = GRPOTrainer\n{TRAINED}", encoding="utf-8")
    assert not any("in place of" in each for each in said_of(program))


def said_of(program):
    """Return what is said of how a program was read."""
    found = imported("trl", [str(program)], OPTIONS)
    return (*found.notes, *found.run.notes, *found.run.guesses)


def test_a_zero_stage_that_nothing_says_is_said_to_be_assumed(program):
    files = {"my.json": True, "ds_stage3.json": False, "zero2.json": False}
    for file, assumed in files.items():
        program.write_text(TRAINED.replace("'o'", f"'o', deepspeed='{file}'"), encoding="utf-8")
        assert any("ZeRO stage 2, since" in each for each in said_of(program)) == assumed, file
    said = replace(OPTIONS, values=FrozenDict({"zero_stage": "3"}))
    program.write_text(TRAINED.replace("'o'", "'o', deepspeed='my.json'"), encoding="utf-8")
    assert imported("trl", [str(program)], said).run.trainers["actor"].zero_stage == 3


def test_accelerate_starts_a_module_by_a_flag_of_its_own(program):
    program.write_text(TRAINED, encoding="utf-8")
    script = program.parent / "run.sh"
    script.write_text("accelerate launch --num_processes 4 --module own\n", encoding="utf-8")
    assert imported("trl", [str(script)], OPTIONS).run.pools[0].gpus == 4


# Every trainer of TRL 1.10 (huggingface/trl@f2cd57710, July 2026) that is not GRPO's, RLOO's or GKD's.
OTHERS = (
    "A2PO AsyncGRPO BCO CPO DPO Distillation GMPO GOLD GRPOWithReplayBuffer IWOPD KTO MiniLLM NashMD ORPO OnlineDPO PPO "
    "PRM Reward SDFT SDPO SFT SSD ServerDistillation TPO XPO"
)


@pytest.mark.parametrize("name", OTHERS.split())
def test_every_other_trainer_of_trl_is_refused_by_what_it_does(tmp_path, name):
    program = tmp_path / "train.py"
    program.write_text(
        f"from trl import {name}Config, {name}Trainer\n"
        f"trainer = {name}Trainer(model='Qwen/Qwen3-4B', args={name}Config(output_dir='x'))\ntrainer.train()\n"
    )
    with pytest.raises(FileError) as refused:
        framework_of([str(program)])
    assert "of no framework" not in str(refused.value)
    assert refused.value.problem.startswith(("trains", "distils"))


def test_a_variable_behind_a_switch_that_takes_a_value_is_its_value(tmp_path):
    script = tmp_path / "run.sh"
    words = "trl grpo --model_name_or_path Qwen/Qwen2.5-0.5B --per_device_train_batch_size 8 --use_peft $USE_PEFT"
    script.write_text(f"{words}\n", encoding="utf-8")
    with pytest.raises(FileError, match="use_peft: cannot be evaluated"):
        imported("trl", [str(script)], OPTIONS)
