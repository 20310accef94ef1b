"""Passes: every kind is timed on workers of a job's making."""

from itertools import accumulate

import pytest

from rlplan.errors import PlanError
from rlplan.executor.pass_runner import RayPassRunner, beside_work
from rlplan.executor.probing import WORK_SECONDS
from rlplan.files.frozen import FrozenDict
from rlplan.job import Job, NodeGroup
from rlplan.probing import ModelPass
from rlplan.workload import Workload
from tests.executor.plans import TINY

pytestmark = pytest.mark.ray
JOB = Job(
    algorithm="ppo",
    models=FrozenDict(dict.fromkeys(("actor", "critic", "reference", "reward"), TINY)),
    workload=Workload(prompts=8, prompt_tokens=6, response_tokens=5, updates=2),
    cluster=(NodeGroup(gpu="cpu", gpus_per_node=2, inter_node_gbps=200.0),),
)


@pytest.fixture(scope="module")
def runner(shared_workers):
    with RayPassRunner(devices=2, job=JOB) as runner:
        yield runner


def make_pass(name, **fields):
    return ModelPass(**({"name": name, "model": TINY, "head": "lm", "precision": "fp32"} | fields))


PASSES = [
    make_pass("infer", sequences=4, tokens=11),
    make_pass("infer", sequences=4, tokens=11, tp=2),
    make_pass("train", sequences=4, tokens=11),
    make_pass("train", sequences=4, tokens=11, head="scalar"),
    make_pass("train", sequences=2, tokens=11, tp=2),
    make_pass("prefill", sequences=4, tokens=6),
    make_pass("decode", sequences=4, tokens=8),
    make_pass("prefill_uneven", sequences=4, tokens=6),
    make_pass("decode_uneven", sequences=4, tokens=8),
    make_pass("decode", sequences=4, tokens=8, dp=2),
    make_pass("decode", sequences=4, tokens=8, tp=2),
    make_pass("train", sequences=2, tokens=11, dp=2),
    make_pass("infer_usual", sequences=4, tokens=11),
    make_pass("fetch", tokens=100_000),
    make_pass("queue_call", tokens=10_000),
    make_pass("optimizer"),
    make_pass("optimizer", head="scalar", tp=2),
    make_pass("gradient_reduction", dp=2),
    make_pass("experience", sequences=8, tokens=11),
    make_pass("experience", sequences=4, tokens=11, dp=2, head="scalar"),
    make_pass("weight_sync"),
    make_pass("weight_sync", tp=2),
    make_pass("call", tokens=100_000),
]


@pytest.mark.parametrize("model_pass", PASSES, ids=lambda p: f"{p.name}-{p.head}-tp{p.tp}-dp{p.dp}")
def test_a_pass_gives_the_seconds_of_each_repeat(runner, model_pass):
    seconds = runner.run(model_pass, repeats=3)
    # A pass of one rank, or a call, is timed on both devices; one that ranks run together once; so
    # is one replica's generation, beside which the other device stands idle.
    alone = ("infer", "infer_usual", "train", "optimizer", "experience", "call")
    by_both = (model_pass.tp * model_pass.dp == 1 and model_pass.name in alone) or (
        model_pass.name in ("prefill", "decode") and model_pass.dp == 2
    )
    assert len(seconds) == (6 if by_both else 3)
    assert all(0 < each < 5 for each in seconds)


def test_a_worker_says_what_it_holds(runner):
    # Python, torch and ray take some hundred MiB.
    assert 2**27 < runner.held_bytes() < 2**31


def test_longer_work_takes_longer(runner):
    # 240 times the tokens: a neighbour on the machine does not make up for that.
    short = min(runner.run(make_pass("infer", sequences=1, tokens=8), repeats=5))
    long = min(runner.run(make_pass("infer", sequences=32, tokens=60), repeats=5))
    assert long > short


def test_a_pass_on_more_devices_than_were_started_is_refused(runner):
    with pytest.raises(PlanError, match="needs more than the 2 devices"):
        runner.run(make_pass("infer", tp=4), repeats=1)


def test_handing_a_call_over_leaves_the_work_of_calls_out():
    seconds = [WORK_SECONDS + beside for beside in (0.5, 0.004, 0.003, 0.002)]
    ends = list(accumulate(seconds, initial=100.0))
    assert beside_work(ends, warmups=2) == pytest.approx((0.003, 0.002))
