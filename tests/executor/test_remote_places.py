"""Checkpoints, exports and weights behind URLs: as in folders, and what cannot be reached is said before the start."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlplan.errors import FileError
from rlplan.executor.control.checkpoints import find_checkpoint, model_of
from rlplan.executor.control.run import Saving
from rlplan.executor.data.remote_folders import RemoteFolder, fetched_folder
from rlplan.executor.execute import execute
from rlplan.executor.weights.stored_shards import whole_weights
from rlplan.executor.workers.cluster.looking import check_reached
from rlplan.files.decoding import is_url
from rlplan.files.frozen import FrozenDict
from tests.executor.plans import ALL_ROLES, make_job, make_plan
from tests.executor.test_checkpoints import assert_same
from tests.executor.test_weights_of_runs import folder, job_of, plan_of, weights_in

__all__ = ["folder"]  # a fixture

SEED, ITERATIONS = 1, 3
POOLS = {"p0": (2, ALL_ROLES)}


def url_of(path):
    return f"file://{path}"


@pytest.mark.parametrize(
    ("place", "found"),
    [("s3://bucket/run", True), ("gs://b", True), ("/tmp/x", False), ("runs/s3:/x", False)],
)
def test_a_url_is_told_from_a_path(place, found):
    assert is_url(place) == found


class TestAFolderBehindAUrl:
    @pytest.fixture
    def remote(self, tmp_path):
        return RemoteFolder(f"memory://{tmp_path.name}/run/")

    def test_gives_back_what_was_sent(self, remote, tmp_path):
        (tmp_path / "a" / "deep").mkdir(parents=True)
        (tmp_path / "a" / "deep" / "x.bin").write_bytes(b"\0\1")
        (tmp_path / "a" / "end.json").write_text("{}")
        assert remote.names() == []
        remote.send(tmp_path / "a", last="end.json")
        assert remote.names() == ["deep/x.bin", "end.json"]
        remote.fetch(tmp_path / "b")
        assert (tmp_path / "b" / "deep" / "x.bin").read_bytes() == b"\0\1"
        remote.remove("deep")
        assert remote.names() == ["end.json"]
        remote.remove("")
        remote.remove("deep")  # is not there
        assert remote.names() == []

    def test_sends_the_file_that_makes_it_whole_at_the_end(self, remote, tmp_path, monkeypatch):
        sent = []
        for name in ("a", "m", "z"):
            (tmp_path / name).write_text("")
        monkeypatch.setattr(remote, "_put", lambda _, name: sent.append(name))
        remote.send(tmp_path, last="a")
        assert sent == ["m", "z", "a"]

    def test_has_another_state_once_a_file_changed(self, tmp_path):
        remote = RemoteFolder(url_of(tmp_path))
        (tmp_path / "x").write_text("1")
        before = remote.state()
        assert remote.state() == before
        (tmp_path / "x").write_text("12")
        assert remote.state() != before

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("nowhere://bucket/x", "nowhere://bucket/x: --export: cannot be reached: Protocol not"),
            ("file:///proc/none/x", "cannot be written: No such file"),
        ],
    )
    def test_that_cannot_be_reached_is_told_in_a_line(self, url, words):
        with pytest.raises(FileError) as refusal:
            check_reached((), url, "--export")
        assert words in str(refusal.value)
        assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.full
@pytest.mark.ray
def test_a_run_with_its_checkpoints_behind_a_url_goes_on_in_another_layout(
    shared_workers, tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # where this process fetches to
    there, out = tmp_path / "storage", tmp_path / "out"
    plan = make_plan(make_job(), POOLS, tp=2)
    local = Saving(every=1, export=tmp_path / "actor")
    execute(plan, tmp_path / "calm", iterations=ITERATIONS, seed=SEED, warmup=0, saving=local)
    remote = Saving(every=1, keep=1, checkpoints=url_of(there))
    execute(plan, out, iterations=2, seed=SEED, warmup=0, saving=remote)
    assert [path.name for path in there.iterdir()] == ["iteration-000002"]
    assert not list(out.rglob("*.safetensors"))
    with pytest.raises(FileError, match="holds checkpoints of an earlier run"):
        execute(plan, tmp_path / "other", iterations=2, seed=SEED, warmup=0, saving=remote)
    assert not (tmp_path / "other").exists()
    shutil.rmtree(out)  # the machine of the command is another one
    rest = replace(remote, resume=url_of(there), export=url_of(tmp_path / "exported"))
    second = make_plan(make_job(), POOLS, zero=3)
    execute(second, out, iterations=ITERATIONS, seed=SEED, warmup=0, saving=rest)
    assert [path.name for path in there.iterdir()] == ["iteration-000003"]
    found, calm = find_checkpoint(out), find_checkpoint(tmp_path / "calm")
    assert replace(found.state, url="") == calm.state
    for role in ("actor", "critic"):
        with model_of(found, role) as model:
            assert [each.name for each in model.parent.iterdir()] == [role]
            assert_same(whole_weights(model), whole_weights(calm.folder / role), 1e-4)
    first, last = weights_in(tmp_path / "actor"), weights_in(tmp_path / "exported")
    assert first.keys() == last.keys()
    assert all(torch.allclose(last[name], first[name], atol=1e-4) for name in first)
    assert not list(tmp_path.glob("rlplan-fetched-*/*[!k]"))  # but locks


@pytest.mark.ray
def test_a_checkpoint_that_changed_behind_its_url_is_refused(shared_workers, tmp_path):
    there = tmp_path / "storage"
    plan = make_plan(make_job(), POOLS)
    saving = Saving(every=2, checkpoints=url_of(there))
    execute(plan, tmp_path / "out", iterations=2, seed=SEED, warmup=0, saving=saving)
    first, second = min(there.rglob("actor/*.safetensors")), next(there.rglob("random/*"))
    first.write_bytes(first.read_bytes()[:-1] + b"\7")
    resumed = replace(saving, resume=tmp_path / "out")
    with pytest.raises(FileError, match=rf"actor/{first.name}: is not as it was written"):
        execute(plan, tmp_path / "out", iterations=3, seed=SEED, warmup=0, saving=resumed)
    second.unlink()
    with pytest.raises(FileError, match=rf"random/{second.name}: is missing"):
        find_checkpoint(tmp_path / "out")


@pytest.mark.full
@pytest.mark.ray
def test_weights_behind_a_url_are_those_of_the_folder(
    folder, shared_workers, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job, url = job_of(folder), url_of(folder)
    run = execute_with(plan_of(job), tmp_path / "first")
    there = replace(job, weights=FrozenDict(dict.fromkeys(job.models, url)))
    again = execute_with(plan_of(there), tmp_path / "second")
    assert again.plan.job.weights == FrozenDict({"actor": url, "reference": url})
    first, second = weights_in(tmp_path / "first" / "actor"), weights_in(tmp_path / "second/actor")
    assert all(torch.equal(second[name], first[name]) for name in first)
    assert run.plan.job.weights != again.plan.job.weights
    assert (
        len([path for path in (tmp_path / "cache/rlplan/fetched").iterdir() if path.is_dir()]) == 1
    )


def execute_with(plan, out):
    saving = Saving(export=out / "actor")
    return execute(plan, out, iterations=1, seed=SEED, warmup=0, saving=saving)


def test_what_is_fetched_once_is_fetched_anew_where_it_has_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    there = tmp_path / "there"
    there.mkdir()
    (there / "x").write_text("1")
    first = fetched_folder(url_of(there))
    (there / "x").write_text("12")
    assert fetched_folder(url_of(there)) == first  # a process looks once
    fetched_folder.cache_clear()
    second = fetched_folder(url_of(there))
    assert [(each / "x").read_text() for each in (first, second)] == ["1", "12"]
    with pytest.raises(FileError, match="no such folder"):
        fetched_folder(url_of(tmp_path / "none"), "weights.actor")


def test_a_folder_of_checkpoints_without_any_is_told(tmp_path):
    with pytest.raises(FileError, match="holds no checkpoint"):
        find_checkpoint(url_of(tmp_path))
    assert not list(Path(tmp_path).iterdir())
