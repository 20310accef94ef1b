"""Fronts kept on disk: the same results with and without, and never read once anything differs."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from planner.exact import kept_fronts as kept
from planner.exact.kept_fronts import MOST_FILES, KeptFront, kept_fronts
from planner.exact.space import Space
from planner.layouts.role_fronts import RoleTable
from planner.search import search
from profiles.catalog import load_job
from profiles.facts import DeviceFacts, Facts, load_facts
from rlplan.plan import TaskDraft
from rlplan.specs import NO_SPECS, Specs

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ppo-7b-16xa100.yaml"
JOB = load_job(EXAMPLE)
SMALL = replace(JOB, cluster=(replace(JOB.cluster[0], nodes=1),))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RLPLAN_CACHE", "on")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "rlplan" / "fronts"


@pytest.fixture
def made(monkeypatch):
    """Count the fronts that are made, not read."""
    count = []
    front = RoleTable.front
    monkeypatch.setattr(RoleTable, "front", lambda self: count.append(self.role) or front(self))
    return count


def found(job=SMALL):
    """Search with facts of its own, so that no table in memory is shared."""
    return replace(search(job, load_facts(job)), search_seconds=0.0)


def actor_space():
    """Return a space that remembers nothing, and the site of its largest share."""
    space = Space(SMALL, load_facts(SMALL), {}, "throughput", NO_SPECS)
    return space, space.site(max(space.shares, key=lambda share: share.gpus))


def kept_actor():
    """Make the actor's front and keep it; return it with its site."""
    space, site = actor_space()
    options = space.options.role_options("actor", site)
    space.options.kept.save()
    return options, site


def path_of(job=SMALL, facts=None, drafts=None, usable=1.0):
    return kept_fronts(job, facts or load_facts(job), drafts or {}, usable).path


def test_a_search_finds_the_same_from_kept_fronts_and_makes_none(folder, made):
    first = found()
    assert len(made) > 0
    assert len(list(folder.iterdir())) == 1
    made.clear()
    assert found() == first
    assert made == []


def test_a_kept_front_is_the_one_that_was_made(folder):
    space, site = actor_space()
    options = space.options.role_options("actor", site)
    space.options.kept.save()
    again = kept_fronts(SMALL, load_facts(SMALL), {}, 1.0).find("actor", site)
    assert len(options) > 0
    assert again == KeptFront(
        options, space.options.least_bytes("actor", site), space.options.tally
    )


def test_searches_by_other_objectives_limits_and_names_share_a_file(folder):
    other = replace(SMALL, name="another", objective="energy", specs=Specs(gpus=4))
    assert path_of(other) == path_of()


def test_whatever_changes_a_cost_changes_the_file(folder, monkeypatch):
    sheet = load_facts(SMALL).device(SMALL.cluster[0].gpu).sheet
    slower = replace(sheet, memory_bytes_per_second=sheet.memory_bytes_per_second / 2)
    work = SMALL.workload
    paths = [
        path_of(),
        path_of(JOB),
        path_of(replace(SMALL, workload=replace(work, response_tokens=512))),
        path_of(replace(SMALL, workload=replace(work, updates=work.updates * 2))),
        path_of(replace(SMALL, precision="fp16")),
        path_of(usable=0.9),
        path_of(drafts={"actor.update": TaskDraft(tp=2)}),
        path_of(facts=Facts({sheet.name: DeviceFacts(slower)}, "slower")),
    ]
    monkeypatch.setattr(kept, "_sources", lambda: "of another version")
    paths.append(path_of())
    assert len(set(paths)) == len(paths)


def test_a_hash_of_the_sources_follows_their_contents(monkeypatch):
    first = kept._sources.__wrapped__()
    monkeypatch.setattr(kept, "_pricing_files", lambda _: [Path(kept.__file__)])
    assert kept._sources.__wrapped__() != first


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"{}", b"0" * 64 + b"\n{}"])
def test_a_broken_file_is_as_if_it_were_not_there(folder, content):
    options, site = kept_actor()
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    assert kept_fronts(SMALL, load_facts(SMALL), {}, 1.0).find("actor", site) is not None
    path.write_bytes(content or whole[: len(whole) // 2])
    assert kept_fronts(SMALL, load_facts(SMALL), {}, 1.0).find("actor", site) is None
    assert kept_actor() == (options, site)
    assert path.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("RLPLAN_CACHE", "on")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert kept_actor()[0]
    assert (tmp_path / "file").read_text() == "not a folder"


def test_the_oldest_files_go_when_there_are_too_many(folder):
    folder.mkdir(parents=True)
    for number in range(MOST_FILES + 3):
        path = folder / f"{number}.json"
        path.write_text("old")
        os.utime(path, (number, number))
    kept_actor()
    names = {path.name for path in folder.iterdir()}
    assert len(names) == MOST_FILES
    assert names.isdisjoint({"0.json", "1.json", "2.json", "3.json"})


def test_nothing_is_kept_where_it_is_turned_off(folder, monkeypatch):
    monkeypatch.setenv("RLPLAN_CACHE", "off")
    space, site = actor_space()
    assert space.options.kept is None
    assert space.options.role_options("actor", site)
    assert not folder.exists()
