"""Programs of TRL whose settings, models and adapters are made in modules beside them, or behind calls that hand them back."""

import pytest

from rlplan.errors import FileError
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan_cli.config_options import framework_of

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=64.0, environment={})
TRAINED = "GRPOTrainer({}, args=GRPOConfig('o', max_completion_length=512), peft_config={})\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder in which a test writes programs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_adapters_of_a_module_to_which_the_statements_lead_are_taken_and_said(folder):
    text = "def adapters(config):\n    if config['peft']['off']:\n        return None\n"
    text += "    return LoraConfig(r=config['peft']['rank'], lora_alpha=8)\n"
    (folder / "adapting.py").write_text(text, encoding="utf-8")
    (folder / "c.yaml").write_text("peft: {off: false, rank: 48}\n", encoding="utf-8")
    text = "from adapting import adapters\nconfig = yaml.safe_load(open('c.yaml'))\n"
    made = TRAINED.format("'Qwen/Qwen2.5-0.5B'", "lora")
    for condition in ("lora = adapters(config)\n", "if asked():\n    lora = adapters(config)\n"):
        (folder / "own.py").write_text(text + condition + made, encoding="utf-8")
        found = imported("trl", ["own.py"], OPTIONS)
        assert (found.run.adapter.rank, found.run.adapter.alpha) == (48, 8)
        assert any("peft.r, peft.lora_alpha are as the program" in each for each in found.notes)


def test_a_file_that_hydra_composes_is_followed_into_functions(folder):
    (folder / "c.yaml").write_text("model: Qwen/Qwen3-4B\nlora: {r: 24}\n", encoding="utf-8")
    text = "def adapters(held):\n    return LoraConfig(r=held.r)\n"
    (folder / "adapting.py").write_text(text, encoding="utf-8")
    text = "from adapting import adapters\n@hydra.main(config_path='.', config_name='c')\ndef main(cfg):\n"
    text += f"    lora = adapters(cfg.lora)\n    {TRAINED.format('cfg.model', 'lora')}main()\n"
    (folder / "own.py").write_text(text, encoding="utf-8")
    run = imported("trl", ["own.py"], OPTIONS).run
    assert (run.models["actor"], run.adapter.rank) == ("Qwen/Qwen3-4B", 24)


@pytest.mark.parametrize(
    "made",
    [
        "get_peft_model(base, LoraConfig(r=4))",
        "base.to(device)",
        "get_peft_model(prepare_model_for_kbit_training(base), LoraConfig(r=4)).eval()",
    ],
)
def test_a_model_that_calls_hand_back_is_the_one_that_they_are_given(folder, made):
    text = "args = parser.parse_args()\nparser.add_argument('--base', default='Qwen/Qwen3-4B')\n"
    text += "other = AutoModelForCausalLM.from_pretrained('Qwen/Qwen3-8B')\n"
    text += f"base = AutoModelForCausalLM.from_pretrained(args.base)\nmodel = {made}\n"
    (folder / "own.py").write_text(text + TRAINED.format("model", "None"), encoding="utf-8")
    assert imported("trl", ["own.py"], OPTIONS).run.models["actor"] == "Qwen/Qwen3-4B"


def test_settings_of_a_class_of_one_s_own_are_none_of_trls_but_what_it_hands_on(folder):
    text = "from trl import GRPOConfig as Base, GRPOTrainer as BaseTrainer\n@dataclass\nclass GRPOConfig:\n"
    text += "    name: str = 'Qwen/Qwen3-8B'\n    group: int = 8\nclass OwnGRPOTrainer:\n"
    text += "    def __init__(self, config):\n        self.config = config\n    def run(self):\n"
    text += "        args = TheGRPOConfig('o', num_generations=self.config.group, max_completion_length=256)\n"
    text += "        TheGRPOTrainer(self.config.name, args=args)\n"
    text = text.replace("as Base,", "as TheGRPOConfig,").replace(
        "as BaseTrainer", "as TheGRPOTrainer"
    )
    (folder / "wrapping.py").write_text(text, encoding="utf-8")
    text = "from wrapping import GRPOConfig, OwnGRPOTrainer\n"
    text += "OwnGRPOTrainer(GRPOConfig(name='Qwen/Qwen3-4B', group=4)).run()\n"
    (folder / "own.py").write_text(text, encoding="utf-8")
    found = imported("trl", ["own.py"], OPTIONS)
    assert found.run.models["actor"] == "Qwen/Qwen3-4B"
    assert found.job.workload.samples_per_prompt == 4


def test_a_program_of_another_machine_is_found_above_its_script(folder):
    (folder / "scripts").mkdir()
    made = TRAINED.format("'Qwen/Qwen2.5-0.5B'", "None")
    (folder / "training.py").write_text(f"from trl import GRPOTrainer\n{made}", encoding="utf-8")
    text = 'ROOT=${ROOT:-/home/her/work}\nPROGRAM=${PROGRAM:-$ROOT/training.py}\ncd "$ROOT"\n'
    text += 'accelerate launch --num_processes 2 "$PROGRAM"\n'
    script = folder / "scripts" / "run.sh"
    script.write_text(text, encoding="utf-8")
    assert framework_of([str(script)])[0] == "trl"
    found = imported("trl", [str(script)], OPTIONS)
    assert found.run.pools[0].gpus == 2
    assert any("training.py is taken to be it" in note for note in found.notes)


OWN = "from trl import GRPOTrainer, GRPOConfig as TheGRPOConfig\nfrom own_settings import GRPOConfig\n"


def test_settings_of_a_module_s_own_class_count_for_none_of_trls(folder):
    text = "class GRPOConfig(BaseModel):\n    num_generations: int = 2\n"
    (folder / "own_settings.py").write_text(text, encoding="utf-8")
    text = f"{OWN}config = GRPOConfig(num_generations=3, model_name='m')\n"
    made = "GRPOTrainer('Qwen/Qwen3-4B', args={})\n"
    given = "TheGRPOConfig('o', num_generations=4, max_completion_length=256)"
    (folder / "own.py").write_text(text + made.format(given), encoding="utf-8")
    assert imported("trl", ["own.py"], OPTIONS).job.workload.samples_per_prompt == 4
    (folder / "own.py").write_text(text + made.format("config"), encoding="utf-8")
    with pytest.raises(FileError, match="its settings are of GRPOConfig, a class of the program's"):
        imported("trl", ["own.py"], OPTIONS)


def test_an_option_that_is_set_on_an_unknown_condition_leaves_the_others_known(folder):
    text = "def settings(held):\n    return GRPOConfig('o', num_generations=held.group, max_completion_length=256)\n"
    text += "def main():\n    parser = argparse.ArgumentParser()\n"
    text += "    parser.add_argument('--group', type=int, default=4)\n"
    text += "    parser.add_argument('--other', default=None)\n    args = parser.parse_args()\n"
    text += "    if exists():\n        args.{} = find()\n"
    text += "    GRPOTrainer('Qwen/Qwen3-4B', args=settings(args))\nmain()\n"
    (folder / "own.py").write_text(text.format("other"), encoding="utf-8")
    assert imported("trl", ["own.py"], OPTIONS).job.workload.samples_per_prompt == 4
    (folder / "own.py").write_text(text.format("group"), encoding="utf-8")
    with pytest.raises(FileError, match="num_generations"):
        imported("trl", ["own.py"], OPTIONS)


def test_what_an_object_has_that_another_program_makes_is_not_its_class_s_default(folder):
    text = "from trl import GRPOConfig, GRPOTrainer\nclass Settings:\n    group: int = 8\nclass Training:\n"
    text += "    def __init__(self):\n        self.held = Settings()\n    def run(self):\n"
    text += "        args = GRPOConfig('o', num_generations=self.held.group, max_completion_length=256)\n"
    text += "        GRPOTrainer('Qwen/Qwen3-4B', args=args)\n"
    (folder / "training.py").write_text(text, encoding="utf-8")
    started = "from training import Training\ntraining = Training()\n{}training.run()\n"
    (folder / "own.py").write_text(started.format(""), encoding="utf-8")
    assert imported("trl", ["own.py"], OPTIONS).job.workload.samples_per_prompt == 8
    (folder / "own.py").write_text(started.format("training.held = read()\n"), encoding="utf-8")
    with pytest.raises(FileError, match="num_generations"):
        imported("trl", ["own.py"], OPTIONS)


@pytest.mark.parametrize("place", ["my", "trl"])
def test_a_class_of_one_s_own_is_none_of_trls_in_whatever_folder_it_stands(folder, place):
    (folder / place).mkdir()
    (folder / place / "own.py").write_text("class GRPOConfig:\n    size: int = 4\n")
    text = "from own import GRPOConfig\nfrom trl import GRPOTrainer\nargs = GRPOConfig(size=8)\n"
    text += "GRPOTrainer(model='Qwen/Qwen2.5-0.5B', args=args)\n"
    (folder / place / "train.py").write_text(text, encoding="utf-8")
    with pytest.raises(FileError, match="its settings are of GRPOConfig, a class of the program's"):
        imported("trl", [f"{place}/train.py"], OPTIONS)


SETTINGS = """
from trl import GRPOConfig
def settings(size, held):
    return GRPOConfig(num_generations=8, per_device_train_batch_size=size, **held)
def others():
    return GRPOConfig(max_completion_length=64, num_generations=2)
"""


def of_module(folder, lines, module=SETTINGS):
    """Return what is imported of a program that has its settings of a module."""
    (folder / "parts.py").write_text(module, encoding="utf-8")
    text = f"from trl import GRPOTrainer\nfrom parts import settings, others\n{lines}\n"
    text += "GRPOTrainer(model='Qwen/Qwen2.5-0.5B', args=args)\n"
    (folder / "own.py").write_text(text, encoding="utf-8")
    return imported("trl", ["own.py"], OPTIONS)


def test_settings_that_a_module_makes_have_what_its_mapping_holds(folder):
    found = of_module(folder, "args = settings(16, {'max_completion_length': 2048})")
    assert found.job.workload.response_tokens.max == 2048
    assert found.job.workload.prompts == 16 // 8
    with pytest.raises(FileError, match=r"max_completion_length .*may be what `\*\*held`"):
        of_module(folder, "args = settings(16, read())")


@pytest.mark.parametrize(
    "later",
    [
        "args.num_generations = 4",
        "args = dataclasses.replace(args, num_generations=4)",
        "for each in names:\n    setattr(args, each, 4)",
    ],
)
def test_settings_that_a_module_makes_may_be_changed_later(folder, later):
    with pytest.raises(FileError, match="num_generations"):
        of_module(folder, f"args = settings(16, {{'max_completion_length': 2048}})\n{later}")


def test_of_several_settings_that_modules_make_none_are_mixed(folder):
    with pytest.raises(FileError, match="are made by several calls in modules"):
        of_module(folder, "quick = others()\nargs = settings(16, {})")


def test_what_a_module_loads_a_model_with_may_hold_what_is_not_known(folder):
    module = "def load(name):\n    held = {'torch_dtype': read()}\n"
    module += "    return AutoModelForCausalLM.from_pretrained(name, **held)\n"
    (folder / "parts.py").write_text(module, encoding="utf-8")
    text = "from trl import GRPOConfig, GRPOTrainer\nfrom parts import load\nmodel = load('Qwen/Qwen2.5-0.5B')\n"
    text += "args = GRPOConfig(num_generations=8, max_completion_length=256)\nGRPOTrainer(model=model, args=args)\n"
    (folder / "own.py").write_text(text, encoding="utf-8")
    assert imported("trl", ["own.py"], OPTIONS).job.models["actor"] == "qwen2.5-0.5b"
