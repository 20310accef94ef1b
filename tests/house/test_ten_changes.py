"""The ten changes of docs/architecture.md, each tried: a small one is added as one file and does its work.

Objectives are tried in tests/planner/test_objectives.py. A kind of task has a file in each room that reads
it: what it is, what it costs, how it runs.
"""

import sys
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import rlplan.algorithms
import rlplan.evals.tables
import rlplan.executor.workers.stages
import rlplan.executor.workers.transports
import rlplan.parts
import rlplan.profiles.sheets
import rlplan.reports.panels
import rlplan.simulator.stages
import rlplan.stages
import rlplan.transfers
import rlplan.transports
from rlplan.algorithms import load_algorithm
from rlplan.evals.annealing import NeighbourDraws
from rlplan.evals.tables import READERS
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.workers.stages import STAGES as EXECUTED
from rlplan.executor.workers.transports import TRANSPORTS
from rlplan.files.frozen import FrozenDict
from rlplan.job import NodeGroup, Rewards
from rlplan.parts import layer_parameters, num_parameters
from rlplan.plan import TaskPlan
from rlplan.planner.search import search
from rlplan.profiles.catalog import load_device, load_engine, load_model
from rlplan.profiles.facts import load_facts
from rlplan.profiles.sheets import load_transition
from rlplan.reports.panels import PANELS, Subject, sections_of
from rlplan.reports.tables.wording import layout_words
from rlplan.rules import check_plan
from rlplan.rules.flow import transitions
from rlplan.simulator.placed import PlacedTask, Site
from rlplan.simulator.simulate import simulate
from rlplan.simulator.stages import STAGES as COSTED
from rlplan.simulator.stages import task_cost
from rlplan.transports import KNOWN_TRANSPORTS
from tests.executor.plans import make_job, make_plan
from tests.reports.samples import gpu_forecast, gpu_plan
from tests.simulator.golden.plans import PLANS

PLAN = PLANS["ppo 7b, colocated on 16 a100"]()


@contextmanager
def one_file(package, plug_ins, folder, name, text):
    """Put one file into a folder of plug-ins, as far as this test goes."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(text)
    package.__path__.append(str(folder))
    try:
        yield
    finally:
        package.__path__.remove(str(folder))
        sys.modules.pop(f"{package.__name__}.{name}", None)
        for known in list(plug_ins._loaded):
            if known.replace("-", "_") == name:
                del plug_ins._loaded[known]


def test_an_algorithm_is_one_file(tmp_path):
    text = (
        "from dataclasses import replace\n"
        "from rlplan.algorithms.grpo import ALGORITHM as GRPO\n"
        "ALGORITHM = replace(GRPO, name='my-grpo', paper='nowhere')\n"
    )
    plug_ins = rlplan.algorithms.ALGORITHMS
    with one_file(rlplan.algorithms, plug_ins, tmp_path, "my_grpo", text):
        assert load_algorithm("my-grpo").groups
        plan = PLANS["grpo 7b, long answers on 8 h100"]()
        changed = replace(plan, job=replace(plan.job, algorithm="my-grpo"))
        facts = load_facts(plan.job)
        assert simulate(changed, facts).iteration_seconds == (
            simulate(plan, facts).iteration_seconds
        )


@pytest.fixture
def sheets(tmp_path, monkeypatch):
    """Read sheets from a copy of nothing but one folder's files, with one more."""

    def add(folder, like, name, changes):
        source = rlplan.profiles.sheets._path(folder)
        target = tmp_path / folder
        target.mkdir()
        for path in source.glob("*.yaml"):
            (target / path.name).write_text(path.read_text())
        text = (source / f"{like}.yaml").read_text().replace(f"name: {like}\n", f"name: {name}\n")
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
        (target / f"{name}.yaml").write_text(text)
        known = rlplan.profiles.sheets._path
        monkeypatch.setattr(
            rlplan.profiles.sheets, "_path", lambda each: target if each == folder else known(each)
        )
        caches = (
            rlplan.profiles.sheets._files,
            load_device,
            load_engine,
            load_model,
            load_transition,
        )
        for cache in caches:
            cache.cache_clear()

    yield add
    monkeypatch.undo()
    for cache in (rlplan.profiles.sheets._files, load_device, load_engine, load_model):
        cache.cache_clear()


def test_a_gpu_is_one_file(sheets):
    sheets("devices", "h100-80gb-sxm", "h100-next", {})
    device = load_device("h100-next")
    assert device.name == "h100-next"
    pools = tuple(replace(pool, device="h100-next") for pool in PLAN.pools)
    cluster = (NodeGroup(gpu="h100-next", gpus_per_node=8, nodes=2, inter_node_gbps=200.0),)
    generates = replace(
        PLAN.tasks["actor.generate"], memory_fraction=0.6
    )  # NVSwitch's buffers lie beside it
    tasks = PLAN.tasks.with_item("actor.generate", generates)
    plan = replace(PLAN, pools=pools, tasks=tasks, job=replace(PLAN.job, cluster=cluster))
    assert simulate(plan, load_facts(plan.job)).feasible


def test_an_engine_is_one_file(sheets):
    sheets("engines", "vllm", "vllm-next", {})
    assert load_engine("vllm-next").role == "generate"
    tasks = PLAN.tasks.with_item(
        "actor.generate", replace(PLAN.tasks["actor.generate"], engine="vllm-next")
    )
    plan = replace(PLAN, tasks=tasks)
    assert simulate(plan, load_facts(plan.job)).feasible


NARROW = '''
"""Grouped attention whose values are half as wide: a stand-in for a kind of its own."""

from rlplan.parts.grouped_attention import core, kept_bytes, operators
from rlplan.parts import grouped_attention


def parameters(model, tp, ep):
    return grouped_attention.parameters(model, tp, ep) // 2


def cached_values_per_token(model, tp):
    return grouped_attention.cached_values_per_token(model, tp) // 2
'''


def test_a_kind_of_model_part_is_one_file(tmp_path):
    plain = load_model("llama-2-7b")
    with one_file(rlplan.parts, rlplan.parts.PARTS, tmp_path, "narrow_attention", NARROW):
        narrow = replace(plain, name="narrow", attention="narrow-attention")
        assert layer_parameters(narrow) < layer_parameters(plain)
        assert num_parameters(narrow) < num_parameters(plain)
        models: Any = FrozenDict(dict.fromkeys(PLAN.job.models, narrow))
        plan = replace(PLAN, job=replace(PLAN.job, models=models))
        before, after = (simulate(each, load_facts(each.job)) for each in (PLAN, plan))
        weights = "actor weights"
        assert after.memory[0].terms[weights] < before.memory[0].terms[weights]
        assert after.iteration_seconds < before.iteration_seconds


COSTS = """
from rlplan.estimate import Estimate
from rlplan.simulator.costs.taskcost import TaskCost
from rlplan.simulator.memory.terms import TaskMemory


def cost(placed, kv_bytes=None):
    return TaskCost((("turns", Estimate(12.0)),))


def memory(placed):
    return TaskMemory()
"""
RUNS = """
from rlplan.executor.parallel.positions import train_positions

PROTOCOL = "dp"


def positions(plan, task):
    return train_positions(1, plan.pool_of(task.name).gpus)


class Stage:
    pass
"""


def test_a_kind_of_task_is_one_file_for_each_of_its_readers(tmp_path):
    kind = "from rlplan.stages import StageKind\nKIND = StageKind(stage='generation')\n"
    known = rlplan.stages.STAGE_KINDS
    with (
        one_file(rlplan.stages, known, tmp_path / "kinds", "environment", kind),
        one_file(rlplan.simulator.stages, COSTED, tmp_path / "costs", "environment", COSTS),
        one_file(rlplan.executor.workers.stages, EXECUTED, tmp_path / "runs", "environment", RUNS),
    ):
        rule = next(task for task in load_algorithm("grpo").tasks if task.kind == "rule")
        task = replace(rule, kind="environment")
        assert task.stage == "generation"
        assert not task.has_model
        site = Site("host", 8, 8, 1e9)
        job = replace(PLAN.job, rewards=Rewards(function="digits"))
        placed = PlacedTask(task, TaskPlan(pool="cpu", dp=8), site, job, load_facts(PLAN.job))
        assert task_cost(placed).total.seconds == 12.0
        assert EXECUTED.load("environment").PROTOCOL == "dp"


JUDGED = """
from dataclasses import replace
from rlplan.algorithms.grpo import ALGORITHM as GRPO

TASKS = tuple(replace(t, kind="judge") if t.kind == "rule" else t for t in GRPO.tasks)
ALGORITHM = replace(GRPO, name="judged", tasks=TASKS)
"""


def test_a_kind_of_task_without_a_model_is_planned_searched_and_run(tmp_path):
    kind = "from rlplan.stages import StageKind\nKIND = StageKind(stage='preparation')\n"
    kinds, algorithms = rlplan.stages.STAGE_KINDS, rlplan.algorithms.ALGORITHMS
    with (
        one_file(rlplan.stages, kinds, tmp_path / "kinds", "judge", kind),
        one_file(rlplan.simulator.stages, COSTED, tmp_path / "costs", "judge", COSTS),
        one_file(rlplan.executor.workers.stages, EXECUTED, tmp_path / "runs", "judge", RUNS),
        one_file(rlplan.algorithms, algorithms, tmp_path / "algorithms", "judged", JUDGED),
    ):
        plan = PLANS["grpo 7b, long answers on 8 h100"]()
        plan = replace(plan, job=replace(plan.job, algorithm="judged"))
        facts = load_facts(plan.job)
        costs = {cost.name: cost.seconds for cost in simulate(plan, facts).costs}
        assert costs["rule.compute_reward"] == 12.0
        found = search(plan.job, facts, seconds=2).plans[0]
        assert {cost.name for cost in found.forecast.costs} >= {"rule.compute_reward"}
        assert found.plan.pool_of("rule.compute_reward").is_host
        check_plan(found.plan)
        assert layout_words(found.plan.tasks["rule.compute_reward"], "judge").endswith("processes")
        walk = NeighbourDraws(plan.job, facts, Random(0), ("sync",))
        state = walk.first()
        assert state is not None
        assert walk.plan(state, "test").pool_of("rule.compute_reward").is_host
        tiny = make_job("grpo", samples_per_prompt=2)
        small = make_plan(replace(tiny, algorithm="judged"), {"p0": (1, ("actor", "reference"))})
        assert {task.kind for task in check_runnable(small)} >= {"judge"}


LAZY = """
from rlplan.transfers import Transition, divides
from rlplan.transfers.hybridflow import volume

TRANSITION = Transition(words="gathered late", volume=volume, reaches=divides, place=9)
"""


def test_a_transition_is_its_file_and_the_sheet_of_its_software(tmp_path, sheets):
    sheets("transitions", "hybridflow", "lazy", {})
    with one_file(rlplan.transfers, rlplan.transfers.TRANSFERS, tmp_path, "lazy", LAZY):
        train, generate = PLAN.tasks["actor.update"], PLAN.tasks["actor.generate"]
        assert transitions(train, generate)[-1] == "lazy"
        plan = replace(PLAN, transition="lazy")
        facts = load_facts(plan.job)
        check_plan(plan)
        whole = simulate(plan, facts).stage_seconds["transition"]
        assert whole > simulate(PLAN, facts).stage_seconds["transition"] * 0.5


POST = """
from rlplan.transports import Transport, serves_all

TRANSPORT = Transport(words="by post", probed=False, lacks=serves_all)
"""
CARRIES = """
class Endpoint:
    pass


def send(source, target, leaders, shards, bucket_bytes):
    return {}, {}
"""


def test_a_transport_is_a_file_for_plans_and_one_that_carries_it_out(tmp_path):
    """A run with another one is in tests/executor/test_transports.py."""
    apart = {"p0": (1, ("actor", "reference")), "generator": (1, ("actor",))}
    plan = make_plan(make_job("grpo"), apart, transition="two-copies")
    with (
        one_file(rlplan.transports, KNOWN_TRANSPORTS, tmp_path / "kinds", "post", POST),
        one_file(
            rlplan.executor.workers.transports, TRANSPORTS, tmp_path / "runs", "post", CARRIES
        ),
    ):
        assert check_runnable(replace(plan, transport="post"))
        assert TRANSPORTS.load("post").send(None, None, (), (), 1) == ({}, {})


TABLE = """
from rlplan.planner.measured.rows import TableReader, forecast_row
from rlplan.estimate import Estimate


def rows_of(record):
    yield forecast_row(record["who"], float(record["nap_seconds"]), Estimate(2.0), kind="nap", fitted=False)


READER = TableReader(about="Naps.", columns=frozenset({"who", "nap_seconds"}), rows_of=rows_of)
"""


def test_an_accuracy_table_is_one_file(tmp_path):
    from rlplan.evals.reading import read_table

    with one_file(rlplan.evals.tables, READERS, tmp_path / "tables", "naps", TABLE):
        (tmp_path / "naps.csv").write_text("who,nap_seconds\ncat,4.0\n")
        (row,) = read_table(tmp_path / "naps.csv")
        assert (row.label, row.measured_seconds, row.forecast.seconds) == ("cat", 4.0, 2.0)


PANEL = """
from rlplan.reports.panels import Section

ORDER = 5


def section(subject):
    return Section(key="hello", title="Hello", short="Hello", words=(subject.plan.job.name,))
"""


def keys_of_the_report():
    subject = Subject(plan=gpu_plan(), forecast=gpu_forecast())
    return [section.key for section in sections_of(subject)]


def test_a_panel_of_the_report_is_one_file(tmp_path):
    with one_file(rlplan.reports.panels, PANELS, tmp_path, "hello", PANEL):
        assert "hello" in keys_of_the_report()
    assert "hello" not in keys_of_the_report()
