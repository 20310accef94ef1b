"""`rlplan execute --resume`: a run that goes on in its own folder reads as if it had never stopped."""

from dataclasses import replace

import pytest

from rlplan.executor.control.metrics import read_metrics
from rlplan.files.decoding import read_json
from rlplan.files.frozen import FrozenDict
from rlplan.files.writing import write_yaml
from rlplan.results.measurement import MeasuredRun
from rlplan_cli.main import run as run_cli
from tests.executor.plans import ALL_ROLES, make_job, make_plan

pytestmark = pytest.mark.ray

LOSSES = ("policy_loss", "value_loss", "mean_reward", "actor_gradient_norm")


def priced_plan():
    """Return a plan whose rule has a price and whose tasks name engines, as a forecast wants it."""
    job = make_job()
    job = replace(job, rewards=replace(job.rewards, function_seconds_per_sample=1e-4))
    plan = make_plan(job, {"p0": (1, ALL_ROLES)})
    engines = {"actor.generate": "torch-static", "rule.compute_reward": "python"}
    tasks = {
        name: replace(layout, engine=engines.get(name, "torch-tp-dp"))
        for name, layout in plan.tasks.items()
    }
    return replace(plan, tasks=FrozenDict(tasks))


@pytest.fixture(scope="module")
def resumed(shared_workers, tmp_path_factory):
    """Run two iterations, then on to four, into one folder; return it and what was said."""
    folder = tmp_path_factory.mktemp("resumed")
    write_yaml(folder / "plan.yaml", priced_plan())
    command = ["execute", str(folder / "plan.yaml"), "--out", str(folder / "run"), "--warmup", "0"]
    command += ["--checkpoint-every", "1"]
    assert run_cli([*command, "--iterations", "2"]) == 0
    refused = run_cli([*command, "--iterations", "4"])
    assert run_cli([*command, "--iterations", "4", "--resume", str(folder / "run")]) == 0
    return folder / "run", refused


@pytest.mark.full
def test_metrics_go_on_without_gaps_or_duplicates(resumed):
    assert [row["iteration"] for row in read_metrics(resumed[0])] == [0, 1, 2, 3]


@pytest.mark.full
def test_losses_are_those_of_an_undisturbed_run(resumed, worker_pool):
    plan = priced_plan()
    undisturbed = worker_pool.run(plan, iterations=4, seed=plan.job.seed).metrics
    for row, expected in zip(read_metrics(resumed[0]), undisturbed, strict=True):
        for name in LOSSES:
            assert row[name] == pytest.approx(expected[name], abs=1e-6), name


def test_what_is_measured_is_what_was_run_after_the_checkpoint(resumed):
    run = read_json(MeasuredRun, resumed[0] / "measured.json")
    assert [each.iteration for each in run.trace.iterations] == [2, 3]


def test_the_folder_of_a_finished_run_is_refused_without_a_resume(resumed):
    assert resumed[1] == 2
