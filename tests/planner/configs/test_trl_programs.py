"""Programs that call TRL's trainers: what their calls, classes, conditions and defaults say."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.planner.configs.importing import imported
from tests.planner.configs.test_trl import OPTIONS

PROGRAM = """
from trl import GRPOConfig, GRPOTrainer
BATCH = 4
config = GRPOConfig(
    output_dir="out", use_vllm=True, vllm_mode="colocate", num_generations=8,
    per_device_train_batch_size=BATCH, gradient_accumulation_steps=2 * BATCH,
    model_init_kwargs={"torch_dtype": torch.bfloat16}, learning_rate=rate,
)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B-Instruct")
trainer = GRPOTrainer(model=model, reward_funcs=[length, "org/scorer"], args=config,
                      peft_config=LoraConfig(r=32, lora_alpha=64), train_dataset=data)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return an empty folder, where the tests are."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_python_program_is_read_by_its_calls(folder):
    program = PROGRAM.replace('"org/scorer"', '"Qwen/Qwen3-0.6B"')
    Path("train.py").write_text(program, encoding="utf-8")
    found = imported("trl", ["train.py", "--num_processes", "4"], OPTIONS)
    assert found.job.models == {"actor": "qwen2.5-1.5b", "reward": "qwen3-0.6b"}
    assert found.job.adapters["actor"].rank == 32
    assert found.job.workload.prompts == 4 * 8 * 4 // 8
    assert found.keys.unevaluated["learning_rate"].endswith("is set nowhere in the program")
    Path("run.sh").write_text("torchrun --nproc-per-node 4 train.py\n", encoding="utf-8")
    again = imported("trl", ["run.sh"], OPTIONS)
    assert again.draft == found.draft


def test_what_the_engine_is_handed_goes_over_trl_s_own_limit_of_responses(folder):
    Path("train.py").write_text(
        "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B', device_map={'': 0})\n"
        "args = GRPOConfig(max_completion_length=512, generation_kwargs={'max_new_tokens': 1024, 'top_p': 0.9})\n"
        "GRPOTrainer(model=model, args=args, tokenizer=tokenizer)\n",
        encoding="utf-8",
    )
    found = imported("trl", ["train.py"], OPTIONS)
    assert found.job.workload.response_tokens.max == 1024
    assert not found.keys.unknown


def test_a_model_that_a_function_loads_is_the_one_that_it_is_given(folder):
    Path("own.py").write_text(
        "model, tokenizer = load(resolved('me/Qwen2.5-0.5B-mine'), adapter=None)\n"
        "args = GRPOConfig(max_completion_length=512)\nGRPOTrainer(model=model, args=args)\n",
        encoding="utf-8",
    )
    found = imported("trl", ["own.py"], OPTIONS)
    assert found.job.models["actor"] == "qwen2.5-0.5b"
    assert any("is given to what returns `model` (line 3)" in note for note in found.notes)


def test_a_model_that_only_a_run_knows_is_asked_for_by_its_option(folder):
    Path("own.py").write_text(
        "args = GRPOConfig(max_completion_length=512)\nGRPOTrainer(model=load(), args=args)\n",
        encoding="utf-8",
    )
    with pytest.raises(
        FileError, match=r"trainer\.model: cannot be evaluated.*or the model by --model"
    ):
        imported("trl", ["own.py"], OPTIONS)
    chosen = replace(OPTIONS, model="qwen3-4b")
    assert imported("trl", ["own.py"], chosen).job.models["actor"] == "qwen3-4b"


def test_a_config_of_one_s_own_that_is_called_as_trl_s_is_not_read_as_it(folder):
    Path("configs.py").write_text("class GRPOConfig:\n    G: int = 16\n", encoding="utf-8")
    Path("own.py").write_text(
        "from configs import GRPOConfig\nconfig = GRPOConfig(G=8)\n", encoding="utf-8"
    )
    with pytest.raises(FileError, match="starts no RL training of TRL"):
        imported("trl", ["own.py"], OPTIONS)


def test_a_program_that_trains_with_rl_behind_texts_is_read(folder):
    Path("both.py").write_text(
        "SFTTrainer(model='a')\nargs = GRPOConfig(max_completion_length=512)\n"
        "GRPOTrainer(model='Qwen/Qwen2.5-0.5B', args=args)\n",
        encoding="utf-8",
    )
    assert imported("trl", ["both.py"], OPTIONS).job.models["actor"] == "qwen2.5-0.5b"


START = (
    "from trl import GRPOConfig\nfrom open_r1.own import {name}\n"
    "args = GRPOConfig('o', per_device_train_batch_size=2, num_generations=8, max_completion_length=512,\n"
    "  gradient_accumulation_steps=1)\n"
    "{name}('Qwen/Qwen2.5-0.5B', args=args)\n"
)


@pytest.mark.parametrize(
    ("base", "body", "version", "prompts"),
    [
        ("Trainer", "prompts = [p for p in prompts for _ in range(n)]", "0.14", 16),
        ("Trainer", "sampler = RepeatRandomSampler(data, n)", "1.16", 2),
        ("trl.GRPOTrainer", "pass", "1.16", 2),
    ],
)
def test_a_copy_of_the_first_trainer_counts_prompts_as_it_did(folder, base, body, version, prompts):
    """Of 8 processes with 2 each: 16 prompts of 8 completions each, or 16 completions of 2 prompts."""
    Path("open_r1").mkdir()
    text = f"import trl\nclass OwnGRPOTrainer({base}):\n    def step(self):\n        {body}\n"
    Path("open_r1/own.py").write_text(text, encoding="utf-8")
    Path("own.py").write_text(START.format(name="OwnGRPOTrainer"), encoding="utf-8")
    found = imported("trl", ["own.py"], replace(OPTIONS, values=FrozenDict(num_processes="8")))
    assert (found.settings.sheet.version, found.job.workload.prompts) == (version, prompts)
    assert found.job.workload.samples_per_prompt == 8
    assert any("OwnGRPOTrainer (own.py)" in note for note in found.notes)


LORA = "GRPOTrainer('Qwen/Qwen2.5-0.5B', args=GRPOConfig('o', max_completion_length=512), peft_config=c)\n"


def test_adapters_have_the_rank_that_peft_gives_them_or_one_that_is_said(folder):
    Path("own.py").write_text(f"c = LoraConfig(task_type='CAUSAL_LM')\n{LORA}", encoding="utf-8")
    assert adapter_rank(imported("trl", ["own.py"], OPTIONS)) == 8
    Path("own.py").write_text(f"c = LoraConfig(r=64)\n{LORA}", encoding="utf-8")
    assert adapter_rank(imported("trl", ["own.py"], OPTIONS)) == 64
    text = "c = None\nm = PeftModel.from_pretrained(base, 'sft', is_trainable=True)\n"
    Path("own.py").write_text(text + LORA, encoding="utf-8")
    found = imported("trl", ["own.py"], OPTIONS)
    assert adapter_rank(found) == 16
    assert any("of those that are loaded is in their own file" in each for each in found.notes)
    said = replace(OPTIONS, values=FrozenDict(lora_r="32"))
    assert adapter_rank(imported("trl", ["own.py"], said)) == 32


def adapter_rank(found):
    """Return the rank of the adapters that are trained."""
    return found.run.adapter.rank


def test_a_condition_that_rules_adapters_out_counts(folder):
    text = "c = None\nif not args.full:\n    c = LoraConfig(r=8)\nparser.add_argument('--full', default={full})\n"
    for full, adapts in (("True", False), ("False", True)):
        Path("own.py").write_text(text.format(full=full) + LORA, encoding="utf-8")
        assert (imported("trl", ["own.py"], OPTIONS).run.adapter is not None) == adapts
    Path("own.py").write_text(text.format(full="compute()") + LORA, encoding="utf-8")
    found = imported("trl", ["own.py"], OPTIONS)
    assert found.run.adapter is not None
    assert any("LoraConfig (own.py:3) is taken to be called" in note for note in found.notes)


def test_defaults_of_a_program_s_own_are_named(folder, monkeypatch):
    Path("own.py").write_text(
        "args = GRPOConfig('o', num_generations=int(os.environ.get('GROUP', '4')), max_completion_length=512)\n"
        "GRPOTrainer('Qwen/Qwen2.5-0.5B', args=args)\n",
        encoding="utf-8",
    )
    found = imported("trl", ["own.py"], OPTIONS)
    assert found.job.workload.samples_per_prompt == 4
    assert "nothing gives what has a default in the program: GROUP 4" in found.notes
    given = replace(OPTIONS, environment={"GROUP": "8"})
    assert imported("trl", ["own.py"], given).job.workload.samples_per_prompt == 8


def test_a_program_whose_settings_are_its_command_line_s_says_that_it_is_given_none(folder):
    Path("own.py").write_text(
        "parser = TrlParser((GRPOConfig, ModelConfig))\nargs, model_args = parser.parse_args_and_config()\n"
        "GRPOTrainer(model_args.model_name_or_path, args=args)\n",
        encoding="utf-8",
    )
    found = imported("trl", ["own.py"], replace(OPTIONS, model="qwen3-4b"))
    assert any("nothing is given to the program" in each for each in found.guesses)
    words = ["own.py", "--num_generations", "4", "--model_name_or_path", "Qwen/Qwen2.5-0.5B"]
    found = imported("trl", words, OPTIONS)
    assert (found.job.workload.samples_per_prompt, found.job.models["actor"]) == (4, "qwen2.5-0.5b")
    assert not any("nothing is given" in each for each in found.guesses)


def test_a_notebook_is_a_program_or_what_it_gives_to_a_shell(folder):
    start = "trl grpo --model_name_or_path Qwen/Qwen2.5-0.5B --num_generations 4 --per_device_train_batch_size 4"
    cells = [
        [f"!{start} \\\n", " --max_completion_length 512"],
        [LORA.replace("peft_config=c", "")],
    ]
    for number, source in enumerate(cells):
        cell = {"cell_type": "code", "source": source}
        Path(f"{number}.ipynb").write_text(json.dumps({"cells": [cell]}), encoding="utf-8")
        found = imported("trl", [f"{number}.ipynb"], OPTIONS)
        assert found.job.models["actor"] == "qwen2.5-0.5b"
        assert found.job.workload.samples_per_prompt == (8 if number else 4)


def test_a_program_by_the_path_of_another_machine_is_found_by_its_end(folder):
    Path("src").mkdir()
    Path("scripts").mkdir()
    Path("src/own.py").write_text(LORA.replace("peft_config=c", ""), encoding="utf-8")
    Path("scripts/run.sh").write_text("python /gpfs/me/src/own.py\n", encoding="utf-8")
    assert imported("trl", ["scripts/run.sh"], OPTIONS).job.models["actor"] == "qwen2.5-0.5b"


@pytest.mark.parametrize("name", ["train", "eval", "to"])
def test_methods_of_the_program_s_own_are_followed_whatever_they_are_called(folder, name):
    Path("train.py").write_text(
        "class Runner:\n    def __init__(self):\n        self.size = 8\n"
        f"    def {name}(self):\n        self.size = 64\n        return self\n"
        f"runner = Runner()\nrunner.{name}()\nconfig = {{'size': runner.size}}\n"
        "def main(config):\n"
        "    args = GRPOConfig(per_device_train_batch_size=config['size'], num_generations=8, max_completion_length=512)\n"
        "    GRPOTrainer(model='Qwen/Qwen2.5-0.5B', args=args)\nmain(config)\n",
        encoding="utf-8",
    )
    assert imported("trl", ["train.py"], OPTIONS).job.workload.prompts == 64 // 8


def test_a_function_of_the_program_s_own_that_is_called_as_peft_s_may_change_what_it_is_given(
    folder,
):
    Path("train.py").write_text(
        "def get_peft_model(config):\n    config['size'] = 64\n    return config\n"
        "config = {'size': 8}\nget_peft_model(config)\ndef main(config):\n"
        "    args = GRPOConfig(per_device_train_batch_size=config['size'], num_generations=8, max_completion_length=512)\n"
        "    GRPOTrainer(model='Qwen/Qwen2.5-0.5B', args=args)\nmain(config)\n",
        encoding="utf-8",
    )
    assert imported("trl", ["train.py"], OPTIONS).job.workload.prompts == 64 // 8


CALLED = """
def train(config):
    args = GRPOConfig(per_device_train_batch_size=config["size"], num_generations=8, max_completion_length=config["length"])
    GRPOTrainer(model="Qwen/Qwen2.5-0.5B", args=args)
config = {"size": 8, "length": 512}
"""


def test_what_is_set_of_a_mapping_above_a_call_counts_in_the_function(folder):
    text = CALLED + 'config["size"] = 64\nfor each in found():\n    train(config)\n'
    Path("train.py").write_text(text, encoding="utf-8")
    assert imported("trl", ["train.py"], OPTIONS).job.workload.prompts == 64 // 8
    Path("train.py").write_text(
        CALLED + 'if found():\n    config["size"] = 64\ntrain(config)\n', encoding="utf-8"
    )
    with pytest.raises(FileError, match="per_device_train_batch_size: cannot be evaluated"):
        imported("trl", ["train.py"], OPTIONS)


@pytest.mark.parametrize(
    "lines",
    [
        "config = {'size': 64, 'length': 9}",
        "other = config\n    other['length'] = 9",
        "def change(held):\n        held['length'] = 9\n    change(config)",
    ],
)
def test_a_branch_that_sets_one_item_and_changes_the_mapping_otherwise_leaves_nothing_known(
    folder, lines
):
    text = f"{CALLED}if found():\n    config['size'] = 16\n    {lines}\ntrain(config)\n"
    Path("train.py").write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match="max_completion_length"):
        imported("trl", ["train.py"], OPTIONS)


def test_of_two_branches_that_lead_to_the_settings_none_is_taken(folder):
    text = (
        "def settings(size):\n    return GRPOConfig(per_device_train_batch_size=size, num_generations=8, max_completion_length=512)\n"
        "if found():\n    args = settings(16)\nelse:\n    args = settings(64)\n"
        "GRPOTrainer(model='Qwen/Qwen2.5-0.5B', args=args)\n"
    )
    Path("train.py").write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match="per_device_train_batch_size: cannot be evaluated"):
        imported("trl", ["train.py"], OPTIONS)
