"""Models in Hugging Face's cache on this machine are found by their ids, and named after them."""

import json
import os
from pathlib import Path

import pytest

from rlplan.errors import FileError
from rlplan.files.decoding import decode
from rlplan.job import Job
from rlplan.planner.configs.models import model_of
from rlplan.profiles.catalog import read_hf_config, resolve_job
from rlplan.profiles.jobs.config.reading import cached_config, cached_name
from rlplan.profiles.sheets import canonical_name
from tests.profiles.test_hf_config import QWEN3_8B

LATER_SECONDS = 10


def small_job(model: str) -> Job:
    data = {
        "algorithm": "grpo",
        "models": dict.fromkeys(("actor", "reference", "reward"), model),
        "workload": {
            "prompts": 8,
            "samples_per_prompt": 2,
            "prompt_tokens": 32,
            "response_tokens": 16,
        },
        "cluster": [{"gpu": "h100", "gpus_per_node": 8}],
    }
    return decode(Job, data, "job.yaml")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def held(hub: Path, name: str, commit: str, config: dict) -> Path:
    path = hub / f"models--{name.replace('/', '--')}" / "snapshots" / commit / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def test_an_id_that_no_sheet_lists_is_read_from_the_cache(hub):
    path = held(hub, "acme/New-8B", "0123abcd", QWEN3_8B | {"num_hidden_layers": 20})
    assert cached_config("acme/New-8B") == path
    read = read_hf_config(path)
    assert (read.name, read.num_layers) == ("New-8B", 20)
    assert model_of("acme/New-8B") == str(path)


def test_the_snapshot_of_the_main_revision_is_taken_else_the_last_one(hub):
    old = held(hub, "acme/new", "old", QWEN3_8B)
    new = held(hub, "acme/new", "new", QWEN3_8B)
    stamp = old.stat().st_mtime + LATER_SECONDS
    os.utime(new, (stamp, stamp))
    assert cached_config("acme/new") == new
    refs = hub / "models--acme--new" / "refs"
    refs.mkdir()
    (refs / "main").write_text("old", encoding="utf-8")
    assert cached_config("acme/new") == old
    (refs / "main").write_text("gone", encoding="utf-8")
    assert cached_config("acme/new") == new


@pytest.mark.parametrize(
    ("told", "folder"),
    [
        ({"HF_HUB_CACHE": "a"}, "a"),
        ({"HUGGINGFACE_HUB_CACHE": "b"}, "b"),
        ({"HF_HOME": "c"}, "c/hub"),
        ({"XDG_CACHE_HOME": "d"}, "d/huggingface/hub"),
    ],
)
def test_the_cache_lies_where_huggingface_hub_looks_for_it(tmp_path, monkeypatch, told, folder):
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for variable, place in told.items():
        monkeypatch.setenv(variable, str(tmp_path / place))
    path = held(tmp_path / folder, "acme/new", "1", QWEN3_8B)
    assert cached_config("acme/new") == path


@pytest.mark.parametrize("name", ["acme/other", "new", "../acme/new", "acme/new/snapshots", ""])
def test_what_is_no_id_of_the_cache_is_not_found(hub, name):
    held(hub, "acme/new", "1", QWEN3_8B)
    assert cached_config(name) is None


def test_a_folder_of_the_cache_means_the_model_that_it_is_called_after():
    folder = "/data/hub/models--Qwen--Qwen3-8B/snapshots/0123abcd"
    assert canonical_name("models", folder) == "qwen3-8b"
    assert model_of(folder) == "qwen3-8b"
    assert cached_name(Path(folder) / "config.json") == "Qwen3-8B"
    assert cached_name(Path("/models/Qwen3-8B/config.json")) is None


def test_a_job_names_a_model_of_the_cache_and_an_unknown_one_is_answered_with_three(hub):
    held(hub, "acme/New-8B", "1", QWEN3_8B)
    assert resolve_job(small_job("acme/New-8B"), Path()).models["actor"].name == "New-8B"
    with pytest.raises(FileError, match="nor an id in the local Hugging Face cache"):
        resolve_job(small_job("acme/Newer-8B"), Path())


@pytest.mark.parametrize(
    ("named", "sheet"),
    [
        ("/data/Qwen3-4B_torch_dist", "qwen3-4b"),
        ("/data/GLM-4.5-355B-A32B", "glm-4.5"),
        ("/data/GLM-4.5-Air-106B-A12B_torch_dist/", "glm-4.5-air"),
        ("Qwen3-999B-A22B", None),
    ],
)
def test_converted_checkpoints_and_sizes_behind_a_name_are_understood(named, sheet):
    assert model_of(named) == sheet
