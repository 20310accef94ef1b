"""Python programs that hand a command to a shell, or call a training of a module beside them, whatever the framework."""

import pytest

from rlplan.errors import MissingValueError
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.reading.python.handing import commands_handed_by, is_handing
from rlplan.planner.configs.reading.python.literals import program_that_starts
from rlplan.planner.configs.reading.scripts import launched_as_script
from rlplan.planner.configs.reading.sheet import load_config_sheet
from rlplan.planner.configs.reading.telling import starts_of

TRAINER = """
from trl import GRPOConfig, GRPOTrainer
def main(size=4):
    config = GRPOConfig("out", per_device_train_batch_size=size, num_generations=2, max_completion_length=256)
    GRPOTrainer("Qwen/Qwen2.5-0.5B", args=config).train()
if __name__ == "__main__":
    main()
"""
MODAL = """
import os, subprocess
import modal
app = modal.App("grpo")
PROCESSES = 2
@app.function(gpu="L4:3", image=modal.Image.debian_slim())
def train(model="Qwen/Qwen2.5-0.5B"):
    subprocess.Popen(["trl", "vllm-serve", "--model", model])
    command = ["accelerate", "launch", "--num_processes", str(PROCESSES), "worker.py"]
    subprocess.run(command, check=True)
"""
ENTRY = "@app.local_entrypoint()\ndef main():\n    train.remote()\n"
OTHERS = {
    "os": "import os\nos.system(f'accelerate launch --num_processes {2} worker.py')\n",
    "script": "import subprocess\nsubprocess.check_call('bash run.sh', shell=True)\n",
    "modal": MODAL + ENTRY,
    "modal run": MODAL,
}


def found(tmp_path, text):
    """Return the import of a program beside a trainer and a script."""
    (tmp_path / "worker.py").write_text(TRAINER, encoding="utf-8")
    script = "accelerate launch --num_processes 2 worker.py\n"
    (tmp_path / "run.sh").write_text(script, encoding="utf-8")
    path = tmp_path / "launch.py"
    path.write_text(text, encoding="utf-8")
    assert is_handing(path)
    assert starts_of("trl", [str(path)])
    assert not starts_of("verl", [str(path)])
    return imported(
        "trl", [str(path)], ImportOptions(gpu="h100", mean_response=100.0, environment={})
    )


@pytest.mark.parametrize("name", OTHERS)
def test_a_command_that_a_program_hands_to_a_shell_is_read(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    run = found(tmp_path, OTHERS[name])
    assert run.run.models["actor"] == "Qwen/Qwen2.5-0.5B"
    assert max(pool.gpus for pool in run.run.pools) == 2


def test_a_program_without_such_a_command_hands_nothing_on(tmp_path):
    path = tmp_path / "launch.py"
    path.write_text("import subprocess\nsubprocess.run(['nvidia-smi'])\n", encoding="utf-8")
    assert not commands_handed_by(path, ())
    assert not starts_of("trl", [str(path)])


def test_a_program_that_calls_a_module_s_training_is_read_by_that(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.py").write_text(TRAINER, encoding="utf-8")
    path = tmp_path / "main.py"
    path.write_text("from pipeline import main\nmain()\n", encoding="utf-8")
    assert starts_of("trl", [str(path)])
    options = ImportOptions(gpu="h100", mean_response=100.0, environment={})
    run = imported("trl", [str(path)], options)
    assert run.job.workload.samples_per_prompt == 2
    assert any("pipeline.py, which is read in its place" in each for each in run.notes)
    path.write_text("from pipeline import other\nmain()\n", encoding="utf-8")
    assert not starts_of("trl", [str(path)])


LOOP = """
from trl import GRPOConfig, GRPOTrainer
from transformers import AutoModelForCausalLM
from pack.settings import Settings
def start(settings: Settings):
    model = AutoModelForCausalLM.from_pretrained(settings.model.name)
    config = GRPOConfig(
        "out", per_device_train_batch_size=settings.batch, num_generations=settings.group, max_completion_length=256)
    GRPOTrainer(model, args=config).train()
"""
SETTINGS = """
from dataclasses import dataclass
@dataclass
class ModelConfig:
    name: str
@dataclass
class Settings:
    model: ModelConfig
    group: int = 8
    batch: int = 4
"""
ENTRY_OF_ONES_OWN = """
import argparse, yaml
from pack.loop import start
from pack.settings import ModelConfig, Settings
def read(path):
    with open(path, encoding="utf-8") as file:
        raw = yaml.safe_load(file)
    kept = {key: held for key, held in raw["run"].items() if key in Settings.__annotations__}
    return Settings(model=ModelConfig(**raw["model"]), **kept)
def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    args = parser.parse_args(argv)
    start(read(args.config))
if __name__ == "__main__":
    main()
"""


def test_a_file_s_values_are_followed_through_modules_to_the_trainer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pack").mkdir()
    texts = {"loop": LOOP, "settings": SETTINGS, "entry": ENTRY_OF_ONES_OWN, "__init__": ""}
    for name, text in texts.items():
        (tmp_path / "pack" / f"{name}.py").write_text(text, encoding="utf-8")
    config = "model: {name: Qwen/Qwen3-0.6B}\nrun: {group: 2, batch: 6, color: red}\n"
    (tmp_path / "run.yaml").write_text(config, encoding="utf-8")
    script = tmp_path / "run.sh"
    text = 'accelerate launch --num_processes 2 -m pack.entry --config "${1:-run.yaml}"\n'
    script.write_text(text, encoding="utf-8")
    assert starts_of("trl", [str(script)])
    options = ImportOptions(gpu="h100", mean_response=100.0, environment={})
    found = imported("trl", [str(script)], options)
    work = found.job.workload
    assert (work.samples_per_prompt, work.prompts) == (2, 6)  # of 2 x 6 completions
    assert found.run.models["actor"] == "Qwen/Qwen3-0.6B"
    assert not any("color" in each for each in found.notes)


def test_a_library_s_sources_beside_a_program_are_not_followed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trl").mkdir()
    (tmp_path / "trl" / "__init__.py").write_text("SIZE = 4\n", encoding="utf-8")
    text = "import trl, subprocess\nsubprocess.run(f'trl grpo --num_processes {trl.SIZE}', shell=True)\n"
    path = tmp_path / "launch.py"
    path.write_text(text, encoding="utf-8")
    assert "$" in commands_handed_by(path, ())


VERL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct data.train_batch_size=${BATCH:-96}"
SET = {
    "copied": "env = os.environ.copy()\nenv['BATCH'] = '64'\nsubprocess.run(['bash', 'run.sh'], env=env)",
    "spread": "subprocess.run('cd . && bash run.sh', shell=True, env={**os.environ, 'BATCH': '64'})",
    "set": "os.environ['BATCH'] = '64'\nsubprocess.run(['bash', 'run.sh'])",
    "told": "os.environ.setdefault('BATCH', '64')\nsubprocess.run(['bash', 'run.sh'])",
}


@pytest.mark.parametrize("way", SET)
def test_a_command_has_the_variables_that_a_program_sets_for_it(tmp_path, way):
    (tmp_path / "run.sh").write_text(VERL, encoding="utf-8")
    path = tmp_path / "launch.py"
    path.write_text(f"import os, subprocess\n{SET[way]}\n", encoding="utf-8")
    options = ImportOptions(gpu="h100", mean_response=100.0, environment={})
    assert imported("verl", [str(path)], options).job.workload.prompts == 64


def test_a_variable_that_is_known_where_it_runs_is_not_the_script_s_default(tmp_path):
    (tmp_path / "run.sh").write_text(VERL, encoding="utf-8")
    text = "import os, subprocess\nsubprocess.run(['bash', 'run.sh'], env={**os.environ, 'BATCH': pick()})\n"
    path = tmp_path / "launch.py"
    path.write_text(text, encoding="utf-8")
    options = ImportOptions(gpu="h100", mean_response=100.0, environment={})
    with pytest.raises(MissingValueError, match="train_batch_size"):
        imported("verl", [str(path)], options)


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("os.environ['VLLM_USE_V1'] = '0'", "vllm-0.6-eager"),
        ("os.environ['VLLM_USE_V1'] = '1'", "vllm-0.8-tokens-eager"),
        ("", "vllm-0.8-tokens-eager"),
    ],
)
def test_a_program_says_which_of_two_engines_a_version_has(tmp_path, line, engine):
    path = tmp_path / "launch.py"
    words = VERL.replace("${BATCH:-96}", "96").split()
    path.write_text(f"import os, subprocess\n{line}\nsubprocess.run({words})\n", encoding="utf-8")
    options = ImportOptions(gpu="h100", mean_response=100.0, environment={}, version="0.4")
    assert imported("verl", [str(path)], options).job.engines.generate == engine


def test_a_program_that_only_loads_something_of_a_trainer_s_module_starts_none(tmp_path):
    (tmp_path / "common.py").write_text(
        "from trl import GRPOTrainer\nfrom datasets import load_dataset\ndef load(name):\n    return name\ndef train(model):\n    GRPOTrainer(model=model).train()\n"
        "def main(name):\n    train(load(name))\n",
        encoding="utf-8",
    )
    launch = load_config_sheet("trl").launch
    tuned = tmp_path / "sft.py"
    tuned.write_text(
        "from trl import SFTTrainer\nfrom common import load_dataset\nSFTTrainer(load_dataset('a')).train()\n"
    )
    assert program_that_starts(launch, tuned) is None
    tuned.write_text(
        "from trl import SFTTrainer\nfrom common import load\nSFTTrainer(model=load('a')).train()\n"
    )
    assert program_that_starts(launch, tuned) is None
    trained = tmp_path / "rl.py"
    trained.write_text("from common import main\nmain('a')\n")
    assert program_that_starts(launch, trained) == tmp_path / "common.py"


def test_a_program_of_molecules_is_no_other_framework_s(tmp_path):
    path = tmp_path / "launch.py"
    path.write_text("import os\nos.system('trl grpo --dataset_name smiles')\n", encoding="utf-8")
    assert (
        "smiles" in launched_as_script(path, (), {}, {}, lambda _: True).commands[0].words[-1].value
    )


def test_a_program_that_is_written_anew_is_read_anew(tmp_path):
    path = tmp_path / "launch.py"
    for name in ("one", "another"):
        path.write_text(f"import os\nos.system('python {name}.py')\n", encoding="utf-8")
        assert name in commands_handed_by(path, ())
