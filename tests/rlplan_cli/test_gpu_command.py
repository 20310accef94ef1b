"""`rlplan gpu`: which sheet a board has, which jobs are tried, and that time's end leaves what is done."""

import time

import pytest

from rlplan.errors import FileError, UnknownNameError
from rlplan.files.writing import write_yaml
from rlplan.profiles.catalog import device_names, load_device, resolve_job
from rlplan.profiles.sheets import sheet_of_board
from rlplan.units import MIB
from rlplan_cli.trials import (
    TimeUpError,
    Trial,
    time_limit,
    trial_job,
    trials_here,
    weights_here,
)


@pytest.mark.parametrize(
    ("board", "memory_mib", "sheet"),
    [
        ("NVIDIA H100 80GB HBM3", 81_559, "h100-80gb-sxm"),
        ("NVIDIA H200", 143_771, "h200"),
        ("NVIDIA H20", 97_871, "h20"),
        ("NVIDIA A100-SXM4-40GB", 40_960, "a100-40gb-sxm"),
        ("NVIDIA A100-SXM4-80GB", 81_920, "a100-80gb-sxm"),
        ("NVIDIA B200", 183_359, "b200"),
        ("NVIDIA GB200", 189_471, "gb200"),
        ("NVIDIA L40S", 46_068, "l40s"),
        ("NVIDIA A10G", 23_028, "a10g"),
        ("NVIDIA GeForce RTX 4090", 24_564, "rtx-4090"),
        ("NVIDIA RTX A6000", 49_140, "rtx-a6000"),
        ("AMD Instinct MI300X", 196_592, "mi300x"),
        ("AMD Instinct MI350X", 294_896, "mi350x"),
        ("AMD Instinct MI355X", 294_896, "mi355x"),
        ("NVIDIA B300 SXM6 AC", 275_040, "b300"),
        ("NVIDIA GB300", 284_208, "gb300"),
        ("NVIDIA H20-3e", 143_771, "h20-3e"),
        ("NVIDIA L4", 23_034, "l4"),
        ("NVIDIA GeForce RTX 5090", 32_607, "rtx-5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97_887, "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97_887, "rtx-pro-6000-workstation"),
    ],
)
def test_a_board_s_sheet_is_found_by_the_driver_s_name(board, memory_mib, sheet):
    assert sheet_of_board(board, memory_mib * MIB).name == sheet


@pytest.mark.parametrize("board", ["NVIDIA GeForce RTX 3090", "NVIDIA L40"])
def test_a_board_without_a_sheet_is_named(board):
    with pytest.raises(UnknownNameError, match=board):
        sheet_of_board(board, 24_576 * MIB)


@pytest.mark.parametrize("device", device_names())
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_trials_resolve_on_every_device(device, algorithm, tmp_path):
    trial = Trial(algorithm, "torch-static")
    job = resolve_job(trial_job(trial, load_device(device), devices=1, cores=3), tmp_path)
    assert job.cluster[0].cpu_cores == 3
    assert job.engines.generate == "torch-static"


def sleep_in_a_library_that_raises_its_own():
    try:
        time.sleep(5)
    except KeyboardInterrupt:
        raise KeyboardInterrupt from None


def test_work_ends_when_its_time_is_over_and_a_user_s_interruption_stays_one():
    with pytest.raises(TimeUpError), time_limit(0.01):
        time.sleep(5)
    with pytest.raises(TimeUpError), time_limit(0.01):
        sleep_in_a_library_that_raises_its_own()
    with pytest.raises(KeyboardInterrupt), time_limit(5):
        raise KeyboardInterrupt


@pytest.mark.full
def test_one_trial_starts_from_a_folder_of_weights_that_is_made_once(tmp_path):
    from safetensors.torch import load_file

    made = weights_here(None, tmp_path, load_device("cpu"))
    assert made == tmp_path / "weights"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["weights"]  # nothing beside it
    begun = (made / "model.safetensors").stat().st_mtime_ns
    assert weights_here(None, tmp_path, load_device("cpu")) == made
    assert (made / "model.safetensors").stat().st_mtime_ns == begun
    assert {str(values.dtype) for values in load_file(made / "model.safetensors").values()} == {
        "torch.bfloat16"
    }

    trials = trials_here(made)
    assert [each.name for each in trials if each.weights] == ["grpo-torch-static-from-weights"]
    assert len({each.name for each in trials}) == len(trials)
    (trial,) = (each for each in trials if each.weights)
    job = resolve_job(trial_job(trial, load_device("cpu"), devices=2, cores=2), tmp_path)
    assert job.weights_of("actor") == job.weights_of("reference") == str(made)


def test_a_model_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    from transformers import PreTrainedModel

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    with pytest.raises(OSError, match="No space"):
        weights_here(None, tmp_path / "out", load_device("cpu"))
    assert list((tmp_path / "out").iterdir()) == []


def test_weights_that_a_user_names_are_checked_before_anything_starts(tmp_path):
    cpu = load_device("cpu")
    with pytest.raises(FileError, match=r"--weights: is no folder with config\.json and \*\.safe"):
        weights_here(tmp_path / "none", tmp_path / "out", cpu)
    own = weights_here(None, tmp_path / "mine", cpu)
    assert weights_here(own, tmp_path / "out", cpu) == own

    trial = trials_here(own)[2]
    job = trial_job(trial, cpu, devices=2, cores=2)
    folder = tmp_path / "out" / trial.name
    folder.mkdir(parents=True)
    write_yaml(folder / "job.yaml", job)
    assert weights_here(own, tmp_path / "out", cpu) == own
    other = weights_here(None, tmp_path / "others", cpu)
    with pytest.raises(FileError, match="has the name of another folder"):
        weights_here(other, tmp_path / "out", cpu)
