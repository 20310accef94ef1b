"""Groups of devices of several nodes, and profiles of clusters."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import FileError
from rlplan.estimate import Source
from rlplan.profiles.catalog import load_device
from rlplan.profiles.facts import DeviceFacts, load_facts
from rlplan.profiles.probes import load_probe
from rlplan.profiles.probes.bench.contract import Settings
from rlplan.profiles.probes.bench.processes import layouts, members
from rlplan.profiles.sheets import load_network
from rlplan.profiles.tables.table import new_profile, read_profiles
from tests.executor.plans import make_job

SETTINGS = Settings(
    kind="cpu", devices=4, nodes=3, precision="fp32", memory_bytes=2**31, quick=True
)


@given(st.integers(1, 9), st.integers(1, 6))
def test_groups_of_a_layout_share_no_rank_and_stand_on_as_many_nodes_as_they_say(devices, nodes):
    for layout in layouts(devices, nodes):
        ranks, inside = layout
        groups = members(layout, devices, nodes)
        assert groups
        taken = [rank for group in groups for rank in group]
        assert len(taken) == len(set(taken))
        assert set(taken) <= set(range(devices * nodes))
        for group in groups:
            assert list(group) == sorted(group)
            on_nodes = Counter(rank // devices for rank in group)
            assert len(group) == ranks
            assert set(on_nodes.values()) == {inside}
            assert len(on_nodes) == ranks // inside


EFA = {"ranks_per_node": 8, "inter_node_bytes_per_second": 50e9, "network": "efa"}


@pytest.mark.parametrize(
    ("nodes", "mebibytes", "published_gb_per_s"),
    [(4, 64, 44.5), (4, 512, 55.6), (16, 64, 26.3), (16, 1024, 42.7)],
)
def test_all_to_alls_over_efa_take_what_was_measured_between_nodes_that_nothing_was_fitted_on(
    nodes, mebibytes, published_gb_per_s
):
    num_bytes = mebibytes * 2**20
    found = h100().collective("all_to_all", num_bytes, 8 * nodes, **EFA)
    assert found.seconds == pytest.approx(num_bytes / published_gb_per_s / 1e9, rel=0.15)
    assert found.source is Source.FITTED


@pytest.mark.parametrize(
    ("nodes", "factor", "spread"),
    [(2, 1, 0.3), (4, 1.324, 0.3972), (16, 1.324, 0.3972 + 12 * 0.081)],
)
def test_exchanges_within_steps_slow_no_further_than_they_were_found_to_and_are_less_sure_beyond(
    nodes, factor, spread
):
    own = load_network("efa").within_steps["b300"]
    assert own.slowed(nodes) == pytest.approx((factor, spread))
    found = device_facts("b300").collective("all_to_all", 2**28, 8 * nodes, **EFA)
    assert found.outside_range is (nodes > 4)


@given(st.integers(2, 16), st.floats(1, 1e9))
def test_a_network_of_its_own_changes_all_to_alls_between_nodes_and_nothing_else(nodes, num_bytes):
    device, plain = h100(), {**EFA, "network": None}
    seconds = device.collective("all_to_all", num_bytes, 8 * nodes, **EFA).seconds
    assert seconds >= 2.26e-4 + 8 * (nodes - 1) * 3.7e-6
    assert seconds < device.collective("all_to_all", 2 * num_bytes, 8 * nodes, **EFA).seconds
    for kind, ranks in (("all_gather", 8 * nodes), ("all_to_all", 8)):
        assert device.collective(kind, num_bytes, ranks, **EFA) == device.collective(
            kind, num_bytes, ranks, **plain
        )


def test_all_to_alls_over_efa_are_no_fit_on_gpus_on_whose_nodes_nothing_was_measured():
    fitted, b200 = (
        device.collective("all_to_all", 2.0**29, 32, **EFA)
        for device in (h100(), device_facts("b200"))
    )
    assert b200.seconds == fitted.seconds
    assert (fitted.source, b200.source) == (Source.FITTED, Source.DATASHEET)
    assert b200.spread_seconds >= fitted.spread_seconds


def test_all_to_alls_within_steps_on_b300_slow_down_with_every_further_node():
    two, four = (
        device_facts("b300").collective(
            "all_to_all", 1e8, ranks, **{**EFA, "inter_node_bytes_per_second": 100e9}
        )
        for ranks in (16, 32)
    )
    # Half of the bytes leave one of two nodes, three quarters one of four.
    assert two.seconds == pytest.approx(5e7 / 52.5e9 + 2.26e-4 + 8 * 3.7e-6)
    assert four.seconds == pytest.approx(7.5e7 / 52.5e9 * 1.324 + 2.26e-4 + 24 * 3.7e-6)
    assert (four.source, four.spread_seconds) == (Source.FITTED, pytest.approx(0.3 * four.seconds))


def h100():
    return device_facts("h100-80gb-sxm")


def device_facts(name):
    return DeviceFacts(load_device(name))


def test_between_nodes_every_number_of_nodes_and_of_their_devices_is_measured():
    assert layouts(4) == ((2, 2), (4, 4))
    assert layouts(4, 3) == ((2, 1), (4, 2), (8, 4), (3, 1), (6, 2), (12, 4))
    assert layouts(1, 2) == ((2, 1),)
    assert members((4, 2), 4, 3) == ((0, 1, 4, 5), (2, 3, 6, 7))
    for name, wanted in (("collective", set(layouts(4, 3))), ("send_recv", {(2, 1)})):
        points = load_probe(name).points(None, SETTINGS)
        assert {(each["ranks"], each["ranks_per_node"]) for each in points} == wanted
        assert len({each["num_bytes"] for each in points}) > 2
    assert not load_probe("send_recv").points(None, replace(SETTINGS, devices=1, nodes=1))


LINK: dict[str, str | int] = {"kind": "all_reduce", "ranks": 2, "ranks_per_node": 1}


def linked(device):
    made = new_profile("ours", device, {"fingerprint": "abc"}, {})
    for num_bytes, seconds in ((1000, 0.001), (1_000_000, 0.1)):
        made.add("collective", {**LINK, "num_bytes": num_bytes}, [seconds])
    made.note_nodes(["10.0.0.1", "10.0.0.2"], {"backend": "gloo", "10.0.0.1": "eth0"})
    made.finish()
    return made


def test_what_was_measured_between_nodes_answers_for_plans_of_several(tmp_path):
    linked("cpu").write(tmp_path / "ours")
    (read,) = read_profiles(tmp_path / "ours")
    assert read.header.nodes == ("10.0.0.1", "10.0.0.2")
    assert read.header.network == {"backend": "gloo", "10.0.0.1": "eth0"}
    device = load_facts(make_job(), tmp_path / "ours").device("cpu")

    def all_reduce(per_node):
        return device.collective(
            "all_reduce", 1000, 2, ranks_per_node=per_node, inter_node_bytes_per_second=1e9
        )

    assert all_reduce(1).seconds == pytest.approx(0.001)
    assert all_reduce(1).source == Source.MEASURED
    assert all_reduce(2).source == Source.DATASHEET
    assert device.measured_by_node


def test_a_cluster_of_several_devices_has_one_profile_with_a_folder_for_each(tmp_path):
    folder = tmp_path / "ours"
    for device in ("cpu", "l40s"):
        linked(device).write(folder / device)
    assert [each.header.device for each in read_profiles(folder)] == ["cpu", "l40s"]
    facts = load_facts(make_job(), folder)
    assert facts.label == "profile ours (cpu)"
    assert facts.device("cpu").measured_by_node
    (folder / "cpu").rename(folder / "other")
    linked("cpu").write(folder / "cpu")
    with pytest.raises(FileError, match=r"other.profile.yaml: device: is a second profile"):
        read_profiles(folder)


def test_a_profile_of_devices_that_the_job_has_not_is_refused_by_name(tmp_path):
    for device in ("h100-80gb-sxm", "l40s"):
        linked(device).write(tmp_path / device)
    with pytest.raises(FileError, match=r"another device .*found 'h100-80gb-sxm, l40s'"):
        load_facts(make_job(), tmp_path)
