"""Python programs that hand a training to a shell, as launchers of slime and miles do: read statement by statement."""

import pytest

from rlplan.errors import FileError
from rlplan.planner.configs.importing import ImportOptions, imported
from rlplan.planner.configs.reading.python import launcher as python_launcher
from rlplan.planner.configs.reading.python.launcher import is_launcher
from rlplan.planner.configs.reading.python.launching import launched_by
from rlplan.planner.configs.reading.telling import starts_of

OPTIONS = ImportOptions(gpu="h100-80gb-sxm", mean_response=1000, environment={"HOME": "~"})
LAUNCHER = """
from dataclasses import dataclass
from typing import Literal
import os
import typer
import miles.utils.external_utils.command_utils as U

FLAGS = "--advantage-estimator grpo --use-kl-loss "


@dataclass
class ScriptArgs(U.ExecuteTrainConfig):
    hardware: Literal["H100", "GB200"] = "H100"
    run_id: str = U.create_run_id()
    num_gpus_per_node: int | None = None
    prompts: int = 32
    no_colocate: bool = False
    extra_args: str = ""

    def __post_init__(self):
        self.num_gpus_per_node = self.num_gpus_per_node or U.NUM_GPUS_OF_HARDWARE[self.hardware]


def execute(args: ScriptArgs):
    rollout_args = (
        f"--rollout-batch-size {args.prompts} "
        "--n-samples-per-prompt 8 "
        f"--rollout-max-response-len {2 * 4096} "
        f"--global-batch-size {args.prompts * 8} "
    )
    perf_args = "--use-dynamic-batch-size --max-tokens-per-gpu 9216 "
    match (args.hardware, args.num_nodes):
        case ("H100", 1):
            perf_args += "--tensor-model-parallel-size 4 --sequence-parallel "
        case ("GB200" | "GB300", 1 | 2):
            perf_args += f"--tensor-model-parallel-size {min(2, args.num_gpus_per_node)} --sequence-parallel "
        case _:
            raise NotImplementedError("no layout")
    if args.no_colocate:
        perf_args += "--rollout-num-gpus 4 "
    else:
        perf_args += "--colocate "
    perf_args += f"--sglang-cuda-graph-bs {' '.join(map(str, [1, 2] + list(range(8, 17, 8))))} "
    perf_args += f"--update-weight-buffer-size {2 * 1024 ** 2} "
    for name in ("attention", "hidden"):
        perf_args += f"--{name}-dropout 0.0 "
    misc_args = f"--actor-num-nodes {args.num_nodes} --actor-num-gpus-per-node {args.num_gpus_per_node} "
    U.execute_train(
        train_args=(
            f"--hf-checkpoint /models/Qwen3-4B --ref-load /models/{args.run_id} --num-rollout 10 "
            f"{rollout_args} {perf_args} {FLAGS} {U.get_default_wandb_args(__file__, run_id=args.run_id)} "
            f"{misc_args} {args.extra_args}"
        ),
        num_gpus_per_node=args.num_gpus_per_node,
        megatron_model_type="qwen3-4B",
    )


@U.dataclass_cli
def main(args: ScriptArgs):
    U.exec_command("pkill -9 sglang")
    execute(args)


if __name__ == "__main__":
    typer.run(main)
"""


def read(tmp_path, text, *words, framework="miles", environment=None):
    path = tmp_path / "run.py"
    path.write_text(text)
    options = OPTIONS if environment is None else ImportOptions(
        gpu="h100-80gb-sxm", mean_response=1000, environment=environment
    )  # fmt: skip
    return imported(framework, [str(path), *words], options)


def value(found, key):
    return found.settings.flat[key].value


def test_a_launcher_is_read_with_the_defaults_of_its_options(tmp_path):
    found = read(tmp_path, LAUNCHER)
    assert found.job.workload.prompts == 32
    assert value(found, "tensor-model-parallel-size") == 4
    assert value(found, "actor-num-gpus-per-node") == 8
    assert value(found, "rollout-max-response-len") == 8192
    assert value(found, "hidden-dropout") == 0.0
    assert value(found, "sglang-cuda-graph-bs") == [1, 2, 8, 16]
    assert value(found, "update-weight-buffer-size") == 2**21
    assert any("hardware=H100" in each and "num_nodes=1" in each for each in found.notes)


def test_options_behind_a_launcher_are_its_own(tmp_path):
    found = read(tmp_path, LAUNCHER, "--hardware", "GB200", "--no-colocate", "--prompts=64")
    assert value(found, "tensor-model-parallel-size") == 2
    assert value(found, "actor-num-gpus-per-node") == 4
    assert value(found, "global-batch-size") == 512
    assert "colocate" not in found.settings.flat
    more = read(tmp_path, LAUNCHER, "--extra-args", "--update-weights-interval 2")
    assert value(more, "update-weights-interval") == 2


def test_variables_give_options_values_and_nodes(tmp_path):
    found = read(tmp_path, LAUNCHER, environment={"MILES_SCRIPT_PROMPTS": "16", "HOME": "~"})
    assert value(found, "rollout-batch-size") == 16
    with pytest.raises(FileError, match="the program stops here: raise NotImplementedError"):
        read(tmp_path, LAUNCHER, environment={"SLURM_JOB_NUM_NODES": "3"})


def test_an_option_that_a_launcher_does_not_have_is_refused(tmp_path):
    with pytest.raises(FileError, match="has no option --promts") as caught:
        read(tmp_path, LAUNCHER, "--promts", "3")
    assert "prompts" in str(caught.value)


def test_flags_stand_on_the_line_that_hands_them_on(tmp_path):
    found = read(tmp_path, LAUNCHER)
    line = LAUNCHER[: LAUNCHER.index("U.execute_train(")].count("\n") + 1
    assert found.settings.flat["colocate"].where.endswith(f"run.py:{line}")


def test_what_is_not_known_is_named_where_a_key_depends_on_it(tmp_path):
    text = LAUNCHER.replace("{args.prompts * 8}", "{os.environ['BATCH']}")
    with pytest.raises(FileError, match=r"global-batch-size.*the variable BATCH, which is not set"):
        read(tmp_path, text)
    assert value(read(tmp_path, text, environment={"BATCH": "64"}), "global-batch-size") == 64


def test_flags_that_are_not_known_are_not_left_out_silently(tmp_path):
    text = LAUNCHER.replace('perf_args = "', 'perf_args = layout() + "')
    with pytest.raises(FileError, match="the flags"):
        read(tmp_path, text)


def test_what_is_added_where_only_a_run_would_decide_is_named(tmp_path):
    text = LAUNCHER.replace(
        "    for name in",
        "    if torch.cuda.is_available():\n        perf_args += '--fp16 '\n    for name in",
    )
    found = read(tmp_path, text)
    assert "fp16" not in found.settings.flat
    assert any("torch.cuda.is_available()" in str(each) for each in found.settings.gaps)


def test_flags_of_a_model_are_read_from_its_file_beside(tmp_path):
    models = tmp_path / "scripts" / "models"
    models.mkdir(parents=True)
    (models / "qwen3-4B.py").write_text(
        "import os\nfrom model_args_utils import moe_layer_freq\n\n"
        "def model_args(nlayers=None):\n"
        "    nlayers = nlayers if nlayers is not None else int(os.environ.get('N') or 36)\n"
        "    return f'--num-layers {nlayers} --hidden-size 2560 --swiglu '"
        " f'--moe-layer-freq {moe_layer_freq(nlayers=3, first_k_dense_replace=1)} '\n"
    )
    path = tmp_path / "run.py"
    path.write_text(LAUNCHER)
    text = launched_by(path, [], {}).text
    assert "--num-layers 36 --hidden-size 2560 --swiglu --moe-layer-freq '[0,1,1]'" in text
    (models / "qwen3-4B.sh").write_text("MODEL_ARGS=(--num-layers 36)\n")
    assert str(models / "qwen3-4B.sh") in launched_by(path, [], {}).text


def test_a_script_that_starts_a_launcher_is_followed(tmp_path):
    (tmp_path / "launch.py").write_text(LAUNCHER)
    script = tmp_path / "run.sh"
    script.write_text("export MILES_SCRIPT_PROMPTS=8\npython launch.py --hardware GB200\n")
    found = imported("miles", [str(script)], OPTIONS)
    assert value(found, "rollout-batch-size") == 8
    assert value(found, "tensor-model-parallel-size") == 2


def test_a_command_of_subprocess_is_one_of_a_shell(tmp_path):
    flags = [
        "--hf-checkpoint", "/models/Qwen3-4B", "--rollout-batch-size", "4", "--colocate", "--num-rollout", "3",
        "--rollout-max-response-len", "2048", "--global-batch-size", "4",
    ]  # fmt: skip
    text = f"import subprocess, sys\ncmd = [sys.executable, 'slime/train.py', *{flags!r}]\nsubprocess.run(cmd, check=True)\n"
    found = read(tmp_path, text.replace(f"*{flags!r}", repr(flags)[1:-1]), framework="slime")
    assert value(found, "rollout-batch-size") == 4


def test_options_of_argparse_and_several_commands_are_known(tmp_path):
    text = """
import argparse
import typer
import slime.utils.external_utils.command_utils as U
app = typer.Typer()

@app.command()
def prepare(model: str = "x"):
    U.exec_command("echo nothing")

@app.command()
def train(prompts: int = 4):
    flags = " ".join(["--rollout-batch-size", str(prompts)])
    U.execute_train(train_args=flags, num_gpus_per_node=8, megatron_model_type=None, train_script="train_async.py")

if __name__ == "__main__":
    app()
"""
    path = tmp_path / "run.py"
    path.write_text(text)
    assert launched_by(path, ["train", "--prompts", "6"], {}).text.endswith(
        "python3 train_async.py  --rollout-batch-size 6"
    )
    assert launched_by(path, [], {}).text.endswith("--rollout-batch-size 4")
    path.write_text(
        "import argparse, os\np = argparse.ArgumentParser()\np.add_argument('--n', type=int, default=3)\n"
        "p.add_argument('--fast', action='store_true')\na = p.parse_args()\n"
        "os.system(f'python train.py --rollout-batch-size {a.n}' + (' --colocate' if a.fast else ''))\n"
    )
    assert (
        launched_by(path, ["--fast"], {}).text.strip()
        == "python train.py --rollout-batch-size 3 --colocate"
    )


def test_a_framework_is_told_by_the_module_that_its_launcher_imports(tmp_path):
    path = tmp_path / "run.py"
    path.write_text(LAUNCHER)
    assert is_launcher(path)
    assert starts_of("miles", [str(path)])
    assert not starts_of("slime", [str(path)])
    path.write_text("print(1)\n")
    assert not is_launcher(path)
    with pytest.raises(FileError, match="is a Python program, of which nothing is run"):
        imported("miles", [str(path)], OPTIONS)


def test_a_launcher_that_lies_beside_a_framework_s_sources_is_its_own(tmp_path):
    program = tmp_path / "scripts" / "run.py"
    program.parent.mkdir()
    flags = "--hf-checkpoint /models/x --rollout-batch-size 4 --rollout-max-response-len 4096 --colocate"
    program.write_text(
        f"import command_utils as U\nU.execute_train(train_args='{flags}', num_gpus=8, model_type='qwen3-4B')\n"
    )
    assert not starts_of("slime", [str(program)])
    sources = tmp_path / "slime" / "utils" / "arguments.py"
    sources.parent.mkdir(parents=True)
    sources.touch()
    assert starts_of("slime", [str(program)])
    assert not starts_of("miles", [str(program)])
    # The model is the one whose file of flags the call names.
    assert (
        imported("slime", [str(program)], OPTIONS).resolved.architecture("actor").name == "qwen3-4b"
    )


def test_a_command_of_a_shell_that_is_started_is_read(tmp_path):
    command = "export A=1 && ray job submit -- python3 train.py --rollout-batch-size 4"
    path = tmp_path / "run.py"
    path.write_text(f"import subprocess\nsubprocess.run(['bash', '-c', {command!r}], check=True)\n")
    assert launched_by(path, [], {}).text.strip() == command


def flags_of(tmp_path, text):
    """Return the flags `--x` that a program of a few lines hands on."""
    path = tmp_path / "short.py"
    path.write_text(f"{text}\nexecute_train(train_args=f'--x {{x}}')\n")
    found = launched_by(path, [], {})
    shown = {f"${{{name}}}": text.value for name, text in found.variables.items()}
    given = found.text.strip().partition("--x ")[2]
    return shown.get(given, given)


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("n = 5\nf = lambda n: n\nx = f(7)", "7"),
        ("x = 5\ny = [x for x in range(3)]", "5"),
        ("n = 8\ndef h():\n    return n\ndef m():\n    n = 4\n    return h()\nx = m()", "8"),
        ("def m():\n    n = 4\n    def h():\n        return n\n    return h()\nx = m()", "4"),
        ("x = 8\ndef h():\n    global x\n    x = 4\nh()", "4"),
        ("def f(a, b=2):\n    return a\nx = f(*[1, 2])", "1"),
        ("y = ['b', 'c']\ny.remove('c')\ny.insert(0, 'a')\nx = ' '.join(y)", "a b"),
        ("x = 'a,b,c'.split(',')[-1]", "c"),
        ("x = f'{\"a b\"!r}'", "'a b'"),
        ("x = 1\nfor i in [1]:\n    pass\nelse:\n    x = 2", "2"),
        ("import os\nos.environ['X'] = '3'\nx = os.environ.get('X', '1')", "3"),
        ("try:\n    x = int(os.environ['NO'])\nexcept KeyError:\n    x = 8", "8"),
        (
            "try:\n    x = os.environ['NO']\nexcept (ValueError, LookupError):\n    x = 8\nfinally:\n    x += 1",
            "9",
        ),
        ("try:\n    x = 4\n    raise OwnError('no')\nexcept Exception:\n    x += 1", "5"),
        (
            "def f():\n    raise ValueError\ntry:\n    x = 1\n    f()\nexcept KeyError:\n    x = 2\nexcept ValueError:\n    x = 3",
            "3",
        ),
        ("try:\n    import json\n    x = 4\nexcept ImportError:\n    x = 1\nelse:\n    x = 6", "6"),
    ],
)
def test_names_and_values_are_those_of_python(tmp_path, text, flags):
    assert flags_of(tmp_path, text) == flags


@pytest.mark.parametrize(
    "text",
    [
        "x = 'a,b,c'.split(',', maxsplit=1)[1]",
        "x = sorted([1, 2], reverse=True)[0]",
        "def f(a=1):\n    return a\nx = f(**given())",
        "def f():\n    if given():\n        return 'a'\n    return 'b'\nx = f()",
        "x = ['b']\nfor i in given():\n    x.append('c')",
        "x = 8\ntry:\n    import never_heard_of\nexcept ImportError:\n    x = 4",
        "x = 8\ntry:\n    probe()\nexcept RuntimeError:\n    x = 4",
        "def f():\n    try:\n        probe()\n    except OSError:\n        return 1\n    return 2\nx = f()",
        "x = ['b']\nwhile given():\n    x.append('c')",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--x', required=True)\nx = p.parse_args().x",
    ],
)
def test_what_is_not_known_is_not_taken_for_a_part_of_it(tmp_path, text):
    assert flags_of(tmp_path, text).startswith("${")


def test_an_error_that_nothing_handles_stops_the_program(tmp_path):
    text = "try:\n    raise ValueError('bad')\nexcept KeyError:\n    pass\nx = 1"
    with pytest.raises(FileError, match="the program stops here: raise ValueError"):
        flags_of(tmp_path, text)


@pytest.mark.parametrize("change", ["append(given())", "extend(given())"])
def test_flags_that_are_added_and_not_known_stop_the_program(tmp_path, change):
    with pytest.raises(FileError, match="are not known: is what a call returns"):
        flags_of(tmp_path, f"y = ['1', '--b 1']\ny.{change}\nx = ' '.join(y)")


@pytest.mark.parametrize(
    "text",
    [
        "x = [1]\nfor i in range(99):\n    x.extend(x)",
        "x = [1]\nfor i in range(99):\n    x = x + x",
        "x = 'a'\nfor i in range(99):\n    x = x.replace('a', 'aa')",
        "x = 2\nfor i in range(99):\n    x = x ** 64",
        "x = f'{1:>2000000000}'",
        "x = '{:>2000000000}'.format(1)",
        "x = '{} {}'.format(1)",
        "x = '{a}'.format(1)",
        "import re\nx = re.search('(a+)+$', '" + "a" * 40 + "!').group()",
        "import re\nx = re.search('(', 'a').group()",
        "x = given().map(f)",
        "x = 'a'.split('')",
    ],
)
def test_what_would_be_too_long_or_fail_is_not_known(tmp_path, text):
    assert flags_of(tmp_path, text).startswith("${")


@pytest.mark.parametrize("text", ["x = 1\nreturn x", "x = 1\nbreak"])
def test_what_has_only_the_form_of_python_is_refused(tmp_path, text):
    with pytest.raises(FileError, match="is not Python"):
        flags_of(tmp_path, text)


def test_a_program_of_very_many_parts_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(python_launcher, "MOST_PARTS", 100_000)  # a tenth, in a tenth of the time
    text = "x = 1\nfor i in range(400):\n    y = [[0 for a in range(400)] for b in range(200)]"
    with pytest.raises(FileError, match="too long to be followed"):
        flags_of(tmp_path, text)


def test_a_start_whose_end_is_handed_on_is_followed(tmp_path):
    text = LAUNCHER.replace(
        "    typer.run(main)", "    import sys\n    sys.exit(main(ScriptArgs()))"
    )
    assert value(read(tmp_path, text), "tensor-model-parallel-size") == 4


@pytest.mark.parametrize(
    "call",
    ["os.system(f'python3 train.py --x 1 {y}')", "run(['python3', 'train.py', '--x', '1', *y])"],
)
def test_flags_of_a_command_that_are_not_known_stop_the_program(tmp_path, call):
    path = tmp_path / "short.py"
    path.write_text(f"y = given()\n{call}\n")
    with pytest.raises(FileError, match="are not known: is what a call returns"):
        launched_by(path, [], {})


def test_flags_of_a_models_file_in_a_command_are_named_where_it_is_not_at_hand(tmp_path):
    path = tmp_path / "short.py"
    path.write_text("run(f\"python3 train.py {shell_safe_model_args('m')} --x 1\")\n")
    found = launched_by(path, [], {})
    assert found.text == "python3 train.py  --x 1"
    assert [each.reason for each in found.gaps] == ["is not at hand"]
    (tmp_path / "scripts/models").mkdir(parents=True)
    program = "def model_args():\n    return '--num-layers 4'\n"
    (tmp_path / "scripts/models/m.py").write_text(program)
    assert launched_by(path, [], {}).text == "python3 train.py --num-layers 4 --x 1"


FOUR_BITS = "OPEN_TRAINING_INT4_FAKE_QAT_FLAG"


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        (f'{{"{FOUR_BITS}": "1", "A-B": "1", "C": os.getpid()}}', True),
        ("{}", False),
        ("None", False),
    ],
)
def test_variables_of_a_start_are_those_of_its_command(variables, named, tmp_path):
    """As run_qwen3_30b_a3b.py of miles gives them with --rollout-int4."""
    own = LAUNCHER.replace(
        "        train_args=(", f"        extra_env_vars={variables},\n        train_args=("
    )
    assert (FOUR_BITS in read(tmp_path, own).keys.not_modelled) == named


def test_variables_of_a_job_are_named_where_they_act(tmp_path):
    """As scripts/low_precision of slime give them: weights of experts are rounded in each forward pass."""
    script = tmp_path / "run.sh"
    script.write_text(
        f"""ray job submit --runtime-env-json='{{"env_vars": {{"{FOUR_BITS}": "1"}}}}' -- python3 slime/train.py --colocate """
        "--hf-checkpoint Qwen/Qwen3-4B --rollout-batch-size 8 --n-samples-per-prompt 8 --global-batch-size 64 --rollout-max-response-len 4096"
    )
    assert FOUR_BITS in imported("slime", [str(script)], OPTIONS).keys.not_modelled
