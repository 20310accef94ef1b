"""Every probe keeps the contract, and measures seconds."""

import json
import math
from typing import Any

import pytest

from rlplan.errors import UnknownNameError, UserError
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup, Rewards
from rlplan.profiles.probes import load_probe, probe_names
from rlplan.profiles.probes.bench.clock import MOST_REPEATS, measure_within_budget
from rlplan.profiles.probes.bench.contract import (
    DeviceProbe,
    HostBench,
    HostProbe,
    JobRules,
    Settings,
)
from rlplan.profiles.probes.bench.processes import DeviceProcesses, ProbeError
from rlplan.profiles.sheets import load_model
from rlplan.profiles.tables.table import ALLOWED_TEXT, TABLES, key_of
from rlplan.workload import Workload

DEVICE_PROBES = [name for name in probe_names() if isinstance(load_probe(name), DeviceProbe)]
SETTINGS = Settings(
    kind="cpu",
    devices=2,
    precision="fp32",
    memory_bytes=2**31,
    quick=True,
    rules=("exact", "longer"),
    passes=True,
)


class LinearRunner:
    """Runs nothing, and takes a microsecond a token."""

    def run(self, model_pass, repeats):
        return (1e-6 * model_pass.sequences * model_pass.tokens,) * repeats


@pytest.fixture
def job(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"copy {n}"}) + "\n" for n in range(5)))
    tiny = load_model("tiny")
    return Job(
        algorithm="ppo",
        models=FrozenDict(dict.fromkeys(("actor", "critic", "reference", "reward"), tiny)),
        workload=Workload(prompts=8, prompt_tokens=8, response_tokens=8, updates=2),
        cluster=(NodeGroup(gpu="cpu", gpus_per_node=2, inter_node_gbps=200.0),),
        rewards=Rewards(function="exact"),
        prompts_file=str(prompts),
    )


@pytest.fixture(scope="module")
def processes():
    with DeviceProcesses("cpu", 2) as processes:
        yield processes


def test_probes_are_the_files_of_their_folder():
    assert {"attention", "collective", "copy", "embedding", "gemm"} < set(probe_names())
    assert {"model_pass", "norm", "optimizer", "process_start", "rule"} < set(probe_names())
    assert not {"bench", "session"} & set(probe_names())
    with pytest.raises(UnknownNameError, match="did you mean 'gemm'"):
        load_probe("gem")


@pytest.mark.parametrize("with_job", [True, False], ids=["job", "no-job"])
@pytest.mark.parametrize("name", probe_names())
def test_every_probe_asks_for_distinct_points_of_its_table(name, with_job, job):
    probe = load_probe(name)
    assert isinstance(probe, DeviceProbe | HostProbe)
    assert probe.name == name
    points = list(probe.points(job if with_job else None, SETTINGS))
    keys = [key_of(probe.table, point) for point in points]
    assert len(keys) == len(set(keys))
    assert points or not with_job
    for point in points:
        for column, kind in TABLES[probe.table].items():
            assert type(point[column]) is kind
            allowed = ALLOWED_TEXT.get((probe.table, column))
            assert allowed is None or point[column] in allowed
    assert points == list(probe.points(job if with_job else None, SETTINGS)), "the same every time"


@pytest.mark.full
@pytest.mark.parametrize("name", DEVICE_PROBES)
def test_every_device_probe_measures_positive_finite_seconds(name, job, processes):
    probe = load_probe(name)
    points = probe.points(job, SETTINGS)
    groups = {(point.get("kind"), point.get("direction")): point for point in reversed(points)}
    assert groups
    for point in groups.values():
        seconds = processes.measure(probe, point, 2)
        assert len(seconds) == 2
        assert all(math.isfinite(each) and 0 < each < 10 for each in seconds)


@pytest.mark.parametrize("name", sorted(set(probe_names()) - set(DEVICE_PROBES)))
def test_every_host_probe_measures_positive_finite_seconds(name, job):
    probe: Any = load_probe(name)
    runner: Any = LinearRunner()
    bench = HostBench(
        job=job,
        settings=SETTINGS,
        runner=runner,
        rules=JobRules(
            {
                "exact": lambda prompt, response, row: float(prompt == response) + len(row),
                "longer": lambda prompt, response, row: float(
                    len(response) > len(prompt) + len(row)
                ),
            },
            [{"prompt": f"copy {n}"} for n in range(5)],
        ),
    )
    point = probe.points(job, SETTINGS)[0]
    seconds = probe.measure(bench, point, 2)
    assert len(seconds) == 2
    assert all(math.isfinite(each) and 0 < each < 10 for each in seconds)


def test_every_function_of_a_job_is_a_point(job):
    kinds = [point["kind"] for point in load_probe("rule").points(job, SETTINGS)]
    assert kinds == ["rule:exact", "rule:longer"]


def test_a_function_takes_what_judging_a_response_takes_as_a_worker_does(job):
    judged = []

    def judge(name):
        judged.append(name)
        return 4

    bench = HostBench(job=job, settings=SETTINGS, rules=JobRules({}, [], judge))
    rule: Any = load_probe("rule")
    seconds = rule.measure(bench, {"kind": "rule:exact", "num_bytes": 0}, 3)
    assert judged == ["exact"] * 4  # the first is left out
    assert len(seconds) == 3


def test_a_larger_product_takes_longer(processes):
    gemm: Any = load_probe("gemm")
    small, large = (
        min(processes.measure(gemm, {"precision": "fp32", "m": m, "k": 256, "n": 256}, 5))
        for m in (1, 1024)
    )
    assert large > 5 * small


def test_a_probe_that_fails_says_which_point_and_why():
    gemm: Any = load_probe("gemm")
    with (
        DeviceProcesses("cpu", 1) as processes,
        pytest.raises(ProbeError, match=r"gemm .*'m': -1.*RuntimeError"),
    ):
        processes.measure(gemm, {"precision": "fp32", "m": -1, "k": 4, "n": 4}, 1)


@pytest.mark.full
def test_more_gpus_than_the_machine_has_are_refused():
    with pytest.raises(UserError, match="GPUs asked for: 17; torch finds"):
        DeviceProcesses("gpu", 17).__enter__()


def test_a_lone_device_has_no_collectives(job):
    alone = Settings(kind="cpu", devices=1, precision="fp32", memory_bytes=2**31)
    assert load_probe("collective").points(job, alone) == []
    assert load_probe("send_recv").points(job, alone) == []


def test_fast_points_are_repeated_more_often_than_slow_ones():
    assert len(measure_within_budget(lambda repeats: (1e-6,) * repeats)) == MOST_REPEATS
    assert len(measure_within_budget(lambda repeats: (0.02,) * repeats)) == 10
    assert len(measure_within_budget(lambda repeats: (0.05,) * repeats)) == 3
    assert len(measure_within_budget(lambda repeats: (1.0,) * repeats)) == 3
    assert len(measure_within_budget(lambda repeats: (0.0,) * repeats)) == MOST_REPEATS
