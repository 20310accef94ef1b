"""Tracking services: what W&B and MLflow are told of a run, and that no failure of theirs ends it."""

import json
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from rlplan.errors import FileError, UnknownNameError, UserError
from rlplan.executor.control import services, tracking
from rlplan.executor.control.metrics import MetricsWriter
from rlplan.executor.control.services import (
    SERVICES,
    TrackedRow,
    TrackedRun,
    check_services,
)
from rlplan.executor.control.services.mlflow import flattened
from rlplan.executor.control.tracking import TRACKING_FILE, tracked
from rlplan.executor.execute import execute
from rlplan_cli.main import run as run_cli
from tests.executor.evaluated import HELD_OUT, plan_of, write_held_out
from tests.executor.plans import ALL_ROLES, make_job, make_plan

ROW = TrackedRow(iteration=3, time_seconds=1000.5, metrics={"kl": 0.25, "timing_s/step": 2.0})


def install(monkeypatch, name, **found):
    """Let a module of that name be imported, as if it were installed."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, origin="here")
    for key, value in found.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)


class Wandb:
    """Be W&B's module, as far as it is used, and note what it is told."""

    def __init__(self):
        self.began, self.logged, self.ended, self.axes = [], [], [], []

    def init(self, **arguments):
        self.began.append(arguments)
        return SimpleNamespace(
            id=arguments["id"] or f"run-{len(self.began)}",
            dir=f"{arguments['dir']}/wandb",
            offline=True,
            url=None,
            log=self.logged.append,
            finish=self.finish,
            define_metric=lambda name, step_metric=None: self.axes.append((name, step_metric)),
        )

    def finish(self, exit_code):
        self.ended.append(exit_code)


@pytest.fixture
def wandb(monkeypatch):
    for name in ("WANDB_PROJECT", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    found = Wandb()
    install(monkeypatch, "wandb", init=found.init, Settings=lambda **given: given)
    return found


class Store:
    """Be MLflow's client, as far as it is used, and note what it is told."""

    def __init__(self):
        self.experiments, self.runs, self.batches, self.status = {}, {}, [], {}

    def get_run(self, run_id):
        if run_id not in self.runs:
            raise ValueError(f"Run '{run_id}' not found\nand more")
        return self.runs[run_id]

    def update_run(self, run_id, status):
        self.status[run_id] = status

    def get_experiment_by_name(self, name):
        return self.experiments.get(name)

    def create_experiment(self, name):
        self.experiments[name] = SimpleNamespace(experiment_id=f"of {name}")
        return f"of {name}"

    def create_run(self, experiment, run_name):
        self.runs["m1"] = (experiment, run_name)
        return SimpleNamespace(info=SimpleNamespace(run_id="m1"))

    def log_batch(self, run_id, metrics=(), params=()):
        self.batches.append((run_id, list(metrics), list(params)))

    def set_terminated(self, run_id, status):
        self.status[run_id] = status


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    found = Store()
    install(monkeypatch, "mlflow")
    install(monkeypatch, "mlflow.tracking", MlflowClient=lambda: found)
    install(monkeypatch, "mlflow.entities", Metric=lambda *each: each, Param=lambda *each: each)
    return found


def tiny_plan():
    return make_plan(make_job(), {"p0": (1, ALL_ROLES)})


def run_of(folder, run_id=None):
    configuration = {"job": {"name": "sums", "models": [{"name": "a"}]}, "plan": {"tp": 2}}
    return TrackedRun(name="first", folder=folder, configuration=configuration, run_id=run_id)


def test_each_service_says_its_package_and_starts():
    assert SERVICES.names() == ("mlflow", "wandb")
    for name in SERVICES.names():
        service = SERVICES.load(name)
        assert name == service.PACKAGE
        assert callable(service.start)


def test_a_service_that_is_not_there_is_refused():
    with pytest.raises(UnknownNameError, match="wandb"):
        check_services(["wandbb"])


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    # W&B keeps its files in a folder of its name, which Python takes for a package without code.
    for found in (None, ModuleSpec("wandb", None)):
        monkeypatch.setattr(services, "find_spec", lambda _, found=found: found)
        with pytest.raises(UserError, match=r"--log-to wandb needs.*pip install 'rlplan\[wandb\]'"):
            check_services(["wandb"])


def test_wandb_is_told_of_a_run(wandb, tmp_path):
    begun = SERVICES.load("wandb").start(run_of(tmp_path))
    (arguments,) = wandb.began
    assert arguments["project"] == "rlplan"
    assert arguments["dir"] == str(tmp_path)
    assert arguments["config"]["job"]["name"] == "sums"
    assert arguments["resume"] is None
    assert arguments["settings"]["x_disable_stats"]
    assert (begun.run_id, begun.where) == ("run-1", f"offline in {tmp_path}/wandb")
    begun.log([ROW])
    begun.close(failed=True)
    assert wandb.logged == [{"kl": 0.25, "timing_s/step": 2.0, "iteration": 3}]
    assert wandb.axes == [("iteration", None), ("*", "iteration")]
    assert wandb.ended == [1]


def test_wandb_goes_on_in_the_run_that_it_had(wandb, tmp_path):
    SERVICES.load("wandb").start(run_of(tmp_path, "run-7"))
    assert (wandb.began[0]["id"], wandb.began[0]["resume"]) == ("run-7", "allow")


def test_mlflow_is_told_of_a_run(store, tmp_path):
    begun = SERVICES.load("mlflow").start(run_of(tmp_path))
    assert begun.where == "run m1 of experiment rlplan"
    assert store.runs == {"m1": ("of rlplan", "first")}
    assert store.batches == [
        ("m1", [], [("job.name", "sums"), ("job.models.0.name", "a"), ("plan.tp", "2")])
    ]
    begun.log([ROW])
    assert store.batches[1:] == [
        ("m1", [("kl", 0.25, 1_000_500, 3), ("timing_s/step", 2.0, 1_000_500, 3)], [])
    ]
    begun.close(failed=False)
    assert store.status == {"m1": "FINISHED"}


def test_mlflow_goes_on_in_the_run_that_it_had(store, tmp_path):
    start = SERVICES.load("mlflow").start
    start(run_of(tmp_path)).close(failed=True)
    start(run_of(tmp_path, "m1"))
    assert store.status == {"m1": "RUNNING"}
    assert len(store.batches) == 1  # the configuration stays the first one
    with pytest.raises(ValueError, match="'gone' not found"):
        start(run_of(tmp_path, "gone"))


def test_mlflow_takes_many_metrics_in_several_calls(store, tmp_path):
    begun = SERVICES.load("mlflow").start(run_of(tmp_path))
    many = TrackedRow(iteration=0, time_seconds=1.0, metrics={f"m{i}": i for i in range(1500)})
    begun.log([many, many])
    assert [len(metrics) for _, metrics, _ in store.batches[1:]] == [1000, 1000, 1000]


def test_nested_values_are_flattened():
    value = {"a": {"b": 1, "c": None}, "d": [1, 2], "e": [{"f": "g"}], "h": []}
    expected = {"a.b": "1", "a.c": "null", "d": "[1, 2]", "e.0.f": "g", "h": "[]"}
    assert dict(flattened(value)) == expected


def test_what_is_written_is_handed_over_and_the_run_is_gone_on_with(wandb, store, tmp_path):
    plan, told = tiny_plan(), []
    names = ["wandb", "mlflow", "wandb"]
    with (
        tracked(names, tmp_path, plan, goes_on=False, tell=told.append) as to,
        MetricsWriter(tmp_path, to) as writer,
    ):
        writer.write(0, {"kl": 1.0})
        writer.show(1, {"evaluation/accuracy": 0.5})
    assert told == [
        f"wandb: offline in {tmp_path}/wandb",
        "mlflow: run m1 of experiment rlplan",
    ]
    expected = [{"kl": 1.0, "iteration": 0}, {"evaluation/accuracy": 0.5, "iteration": 1}]
    assert wandb.logged == expected
    assert [each[:2] for _, metrics, _ in store.batches for each in metrics] == [
        ("kl", 1.0),
        ("evaluation/accuracy", 0.5),
    ]
    assert wandb.ended == [0]
    kept = json.loads((tmp_path / TRACKING_FILE).read_text(encoding="utf-8"))
    assert kept["run_ids"] == {"wandb": "run-1", "mlflow": "m1"}

    with tracked(["wandb"], tmp_path, plan, goes_on=True):
        pass
    assert wandb.began[-1]["id"] == "run-1"
    kept = json.loads((tmp_path / TRACKING_FILE).read_text(encoding="utf-8"))
    assert kept["run_ids"]["mlflow"] == "m1"
    with tracked([], tmp_path, plan, goes_on=False):
        assert not (tmp_path / TRACKING_FILE).exists()


def test_a_run_that_fails_is_so_in_its_services(wandb, store, tmp_path):
    with (
        pytest.raises(FileError, match="broke"),
        tracked(["wandb", "mlflow"], tmp_path, tiny_plan(), goes_on=False),
    ):
        raise FileError("plan", "broke")
    assert wandb.ended == [1]
    assert store.status == {"m1": "FAILED"}


def test_a_service_that_cannot_be_started_is_one_message(monkeypatch, wandb, tmp_path):
    def refused(**_):
        raise RuntimeError("no API key\nconfigured")

    monkeypatch.setattr(sys.modules["wandb"], "init", refused)
    with (
        pytest.raises(UserError, match=r"^--log-to wandb: cannot be started: no API key$"),
        tracked(["wandb"], tmp_path, tiny_plan(), goes_on=False),
    ):
        pass


def test_a_run_of_the_service_that_is_gone_is_named(store, tmp_path):
    plan = tiny_plan()
    with tracked(["mlflow"], tmp_path, plan, goes_on=False):
        pass
    store.runs.clear()
    with (
        pytest.raises(
            UserError, match=rf"with run m1, which .*{TRACKING_FILE} names: Run 'm1' not"
        ),
        tracked(["mlflow"], tmp_path, plan, goes_on=True),
    ):
        pass


def test_a_service_that_fails_meanwhile_is_left(wandb, monkeypatch, tmp_path, logged):
    def broken(_):
        raise ConnectionError("no route")

    monkeypatch.setattr(tracking, "HAND_OVER_SECONDS", 0.001)
    with tracked(["wandb"], tmp_path, tiny_plan(), goes_on=False) as to:
        begun = to._threads[0]
        monkeypatch.setattr(begun._service, "log", broken)
        to.add(0, {"kl": 1.0})
        begun._thread.join(30)
        to.add(1, {"kl": 1.0})
        assert not begun._rows
    assert logged == ["wandb: no more metrics: no route"]


def test_a_service_that_takes_too_long_is_not_waited_for(wandb, monkeypatch, tmp_path, logged):
    held = threading.Event()
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 0.01)
    with tracked(["wandb"], tmp_path, tiny_plan(), goes_on=False) as to:
        monkeypatch.setattr(to._threads[0]._service, "close", lambda **_: held.wait(30))
    assert logged == ["wandb: did not take all metrics in time"]
    held.set()


@pytest.mark.ray
def test_a_run_is_logged(shared_workers, wandb, tmp_path):
    folder = write_held_out(tmp_path)
    plan = plan_of({"p0": (1, ALL_ROLES)}, HELD_OUT)
    execute(plan, folder / "run", iterations=2, seed=1, folder=folder, log_to=["wandb"])
    (began,) = wandb.began
    assert began["name"] == "run"
    assert began["config"]["plan"]["pools"][0]["name"] == "p0"
    shown = [(row["iteration"], "mean_reward" in row) for row in wandb.logged]
    assert sorted(shown) == [(0, False), (0, True), (1, True), (2, False)]
    assert wandb.ended == [0]


def test_the_command_refuses_what_is_not_there_before_anything_else(capsys, tmp_path):
    command = ["execute", "none.yaml", "--out", str(tmp_path / "run")]
    assert run_cli([*command, "--log-to", "tensorboar"]) == 2
    assert "tracking service" in capsys.readouterr().err
    assert run_cli([*command, "--stop-when", "reward"]) == 2
    assert "--stop-when: is no condition" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
