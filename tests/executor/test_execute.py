"""Whole runs: files, measured traces, refusals, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from rlplan.errors import PlanError, UserError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.execute import execute
from rlplan.files.decoding import read_json, read_yaml
from rlplan.files.frozen import FrozenDict
from rlplan.job import CacheOffload, JudgeModel, NodeGroup, Rewards, Speculation
from rlplan.models import Adapter
from rlplan.plan import Plan
from rlplan.results.measurement import MeasuredRun
from rlplan.trainers import TrainerOptions
from tests.executor.plans import ALL_ROLES, TINY, make_job, make_plan

ROOT = Path(__file__).parents[2]
SHARED = TrainerOptions(shares_prompts=True)


@pytest.fixture(scope="module")
def finished_run(shared_workers, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    plan = make_plan(make_job(), {"p0": (1, ALL_ROLES)})
    told = []
    run = execute(
        plan, out, iterations=3, seed=1, warmup=1, progress=lambda *args: told.append(args)
    )
    return plan, out, run, told


@pytest.mark.ray
def test_a_run_leaves_its_plan_metrics_and_measurements(finished_run):
    plan, out, run, _ = finished_run
    assert read_yaml(Plan, out / "plan.yaml") == plan
    assert read_json(MeasuredRun, out / "measured.json") == run
    assert [row["iteration"] for row in read_metrics(out)] == [0, 1, 2]
    assert list((out / "tensorboard").iterdir())


@pytest.mark.ray
def test_a_run_measures_every_task_of_every_iteration(finished_run):
    plan, out, run, _ = finished_run
    assert run.warmup_iterations == 1
    noted = [row["response_tokens"] for row in read_metrics(out)[1:]]
    assert run.response_tokens == pytest.approx(sum(noted) / len(noted))
    assert run.response_lengths is not None
    assert run.response_lengths.longest >= run.response_lengths.mean
    assert len(run.loop_flops_per_second) == 2
    assert min(run.loop_flops_per_second) > 1e8  # any core does more
    assert run.trace.origin == "measured"
    assert run.trace.iterations[0].start_seconds == 0
    for iteration in range(3):
        assert {span.name for span in run.trace.of_iteration(iteration)} == set(plan.tasks)
    assert set(run.memory_peak_bytes) == {"p0", "host"}
    assert min(run.memory_peak_bytes.values()) > 50e6


@pytest.mark.ray
def test_the_trace_of_a_long_run_is_of_its_last_iterations(shared_workers, tmp_path, monkeypatch):
    monkeypatch.setattr("rlplan.executor.control.run.KEPT_ITERATIONS", 2)
    plan = make_plan(make_job(), {"p0": (1, ALL_ROLES)})
    run = execute(plan, tmp_path, iterations=3, seed=1)
    assert [each.iteration for each in run.trace.iterations] == [1, 2]
    assert {span.iteration for span in run.trace.spans} == {1, 2}
    assert [row["iteration"] for row in read_metrics(tmp_path)] == [0, 1, 2]


@pytest.mark.ray
def test_metrics_say_what_happened(finished_run):
    row = read_metrics(finished_run[1])[-1]
    assert row["response_tokens"] == 5
    assert 0 <= row["rule_reward"] <= 1
    assert row["mean_reward"] == pytest.approx(row["rule_reward"] + row["model_score"])
    assert row["tokens_per_second"] == pytest.approx(8 * (6 + 5) / row["seconds"])
    assert {"kl", "policy_loss", "value_loss", "stage_seconds/training"} <= set(row)


@pytest.mark.ray
def test_progress_is_told_after_the_start_and_each_iteration(finished_run):
    assert [(done, total) for done, total, _ in finished_run[3]] == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.ray
def test_a_rule_that_fails_is_the_users_mistake_and_ends_the_run(shared_workers, tmp_path):
    (tmp_path / "rule.py").write_text("def bad(prompt, response, row):\n    return 1 / 0\n")
    job = replace(make_job(), rewards=Rewards(function="rule.py:bad"))
    plan = make_plan(job, {"p0": (1, ALL_ROLES)})
    with pytest.raises(UserError, match="division by zero"):
        execute(plan, tmp_path / "out", iterations=1, seed=1, folder=tmp_path)
    assert not (tmp_path / "out" / "measured.json").exists()


# Experts, beside which adapters do not stand.
EXPERTS = replace(
    TINY, family="mixtral", num_experts=4, experts_per_token=2, moe_ffn_size=TINY.ffn_size
)


def changed(task="actor.update", **fields):
    plan = make_plan(make_job(), {"p0": (2, ALL_ROLES)})
    return replace(plan, tasks=plan.tasks.with_item(task, replace(plan.tasks[task], **fields)))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            changed("actor.generate", cp=2, dp=1),
            r"tasks\.actor\.generate\.cp is 2: this executor cannot: context parallelism of gener",
        ),
        (
            changed(ep=2),
            r"ep: needs a model with experts that it divides; tiny-test has 0; found 2",
        ),
        (
            changed("critic.compute_values", cp=2, dp=1),
            r"\.dp: differs from critic\.update's, where the weights of critic live; found 1",
        ),
        (
            changed(pp=2, dp=1, chunks=2),
            r"chunks: does not divide the 1 layers of a stage; found 2; allowed: 1",
        ),
        (
            changed("actor.generate", engine="vllm-0.3"),
            r"engine is vllm-0\.3: this executor cannot: .*; it has torch-static, vllm",
        ),
        (changed(engine="fsdp2"), r"engine is fsdp2: this executor cannot: .*; it has torch-tp-dp"),
        (
            changed("actor.generate", zero=3),
            r"zero: is for .*: what generates is not sharded; found 3; allowed: 0",
        ),
        (changed(dp=1), r"covers 1 GPUs, but pool p0 has 2"),
        (
            changed("critic.compute_values", tp=2, dp=1),
            r"tp: differs from critic\.update's, .* found 2; allowed: 1",
        ),
        (
            replace(changed(), mode="streaming"),
            r"mode: hands responses to training while others are generated, but actor\.generate shares",
        ),
        (
            replace(
                changed(),
                job=replace(
                    make_job(model=EXPERTS), adapters=FrozenDict({"critic": Adapter(rank=8)})
                ),
            ),
            r"job\.adapters\.critic\.targets is all-linear: this executor cannot: training by adapters",
        ),
        (
            replace(changed(), job=replace(make_job(), rollout_precision="fp8")),
            r"job\.rollout_precision is fp8: this executor cannot: generating in a number format of",
        ),
        (
            replace(changed(), job=replace(make_job(), speculation=Speculation(draft_tokens=2))),
            r"job\.speculation is on: this executor cannot: guessing tokens ahead",
        ),
        (
            replace(changed(), job=replace(make_job(), kv_offload=CacheOffload(cache_ratio=2.0))),
            r"job\.kv_offload is on: this executor cannot: a KV cache that goes on in host memory",
        ),
        (
            replace(changed(), job=replace(make_job(), trainers=FrozenDict({"actor": SHARED}))),
            r"job\.trainers\.actor\.shares_prompts is true: this executor cannot: attention among",
        ),
        (
            replace(
                changed(),
                job=replace(
                    make_job(),
                    rewards=Rewards(function="digits", judge=JudgeModel(response_tokens=8)),
                ),
            ),
            r"job\.rewards\.judge is on: this executor cannot: reward models that generate",
        ),
        (
            replace(changed(), order=changed().order.with_item("p0", ())),
            r"order\.p0: must name each task of the pool once",
        ),
        (
            make_plan(make_job(prompts=6), {"p0": (4, ALL_ROLES)}),
            r"generate\.dp is 4: .*; 4 does not divide the 6 prompts of an iteration; allowed: 1, 2, 3",
        ),
        (
            make_plan(make_job(), {"p0": (4, ALL_ROLES)}, tp=4),
            r"tp is 4: .*; 4 does not divide the 4 heads and 2 KV heads of tiny-test; allowed: 1, 2",
        ),
        (
            make_plan(make_job(), {"p0": (2, ALL_ROLES)}, tp=2, tp_gen=1, transition="none"),
            r"transition: cannot bring .*; found 'none'; allowed: hybridflow",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_this_engine_does_not_run_is_refused_by_name(plan, message):
    with pytest.raises(UserError, match=message):
        check_runnable(plan)


def test_a_plan_for_gpus_that_are_not_here_is_refused(tmp_path):
    plan = changed()
    pools = tuple(
        pool if pool.is_host else replace(pool, device="h200", gpus=64) for pool in plan.pools
    )
    tasks = {
        name: layout if layout.pool == "host" else replace(layout, dp=64, tp=1)
        for name, layout in plan.tasks.items()
    }
    cluster = (NodeGroup(gpu="h200", gpus_per_node=8, nodes=8, inter_node_gbps=200.0),)
    job = replace(make_job(prompts=64), cluster=cluster)
    with pytest.raises(PlanError, match=r"want 64 GPUs, this machine has"):
        execute(
            replace(plan, job=job, pools=pools, tasks=FrozenDict(tasks)),
            tmp_path,
            iterations=1,
            seed=0,
        )


PROGRAM = """
import sys
from pathlib import Path
from rlplan.executor.execute import execute
from tests.executor.plans import ALL_ROLES, TINY, make_job, make_plan
try:
    execute(make_plan(make_job(), {"p0": (2, ALL_ROLES)}), Path(sys.argv[1]), iterations=10**6, seed=1)
except KeyboardInterrupt as interrupt:
    sys.exit(128 + interrupt.args[0])
"""


def marked_processes(mark):
    """Return the processes that inherited an environment variable of that value."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append((int(folder.name), (folder / "cmdline").read_bytes()[:80]))
        except OSError:
            continue
    return found


# `timeout` signals the process and then its whole group, as batch systems and containers do; a terminal
# signals the group.
# Every pair of moment, signal and addressee.
MOMENTS = [
    ("running", signal.SIGTERM, "group"),
    ("running", signal.SIGINT, "process"),
    ("starting", signal.SIGTERM, "process"),
    ("starting", signal.SIGINT, "group"),
]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")
@pytest.mark.parametrize(
    ("when", "number", "whom"),
    MOMENTS,
    ids=lambda value: value.name if isinstance(value, signal.Signals) else value,
)
def test_an_interrupted_run_leaves_no_process_and_no_half_written_file(
    tmp_path, temporary, when, number, whom
):
    mark, out = uuid.uuid4().hex, tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(out)],
        cwd=ROOT,
        env={**os.environ, "RLPLAN_TEST_MARK": mark, "TMPDIR": temporary},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    lines = out / "metrics.jsonl"
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        started = (out / "plan.yaml").exists() and len(marked_processes(mark)) > 1
        if started and (when == "starting" or (lines.exists() and lines.stat().st_size > 0)):
            break
        time.sleep(0.05)
    process.send_signal(number)
    if whom == "group":
        os.killpg(process.pid, number)
    process.communicate(timeout=90)
    assert process.returncode == 128 + number
    assert marked_processes(mark) == []
    assert list(Path(temporary).glob("rlplan-ray-*")) == []
    assert not (out / "measured.json").exists()
    read_yaml(Plan, out / "plan.yaml")
    for line in lines.read_text().splitlines() if lines.exists() else []:
        json.loads(line)
