"""How passes are timed: decode steps among steps, on a cache as long as the job's."""

from types import SimpleNamespace

import pytest
import torch

from executor.probing import passes
from executor.probing.passes import STEPS_TOGETHER, PassBench
from executor.rollout.engines import torch_static
from executor.rollout.engines.torch_static import Wave
from rlplan.probing import ModelPass
from tests.executor.plans import TINY, make_job

JOB = make_job(prompt_tokens=6, response_tokens=40)


@pytest.fixture
def steps(monkeypatch):
    """Count decode steps, and let a clock go by one second for each of them."""
    taken = []
    advance = Wave.advance

    def counted(wave):
        taken.append(wave)
        return advance(wave)

    clock = SimpleNamespace(perf_counter=lambda: float(len(taken)), thread_time=lambda: 0.0)
    monkeypatch.setattr(Wave, "advance", counted)
    monkeypatch.setattr(passes, "time", clock)
    return taken


def decode(job, tokens):
    step = ModelPass(
        name="decode", model=TINY, head="lm", precision="fp32", sequences=3, tokens=tokens
    )
    return PassBench(0, 1, torch.device("cpu"), job).run(step, repeats=4)


@pytest.mark.parametrize("tokens", [6, 26, 46])
def test_the_seconds_of_a_decode_step_are_those_of_one_among_others(steps, tokens):
    assert decode(JOB, tokens) == (1.0, 1.0, 1.0, 1.0)
    assert len(steps) == STEPS_TOGETHER * (passes.WARMUP_RUNS + 4)


@pytest.mark.parametrize(
    ("job", "tokens", "room"),
    [(JOB, 6, 46), (JOB, 46, 46 + STEPS_TOGETHER + 1), (None, 6, 6 + STEPS_TOGETHER + 1)],
    ids=["the job's longest", "beyond it", "no job"],
)
def test_a_cache_has_room_for_the_longest_sequence_and_for_the_steps(
    monkeypatch, job, tokens, room
):
    found = []
    cache = torch_static.KeyValueCache

    def noted(layers, capacity_tokens, sources):
        found.append(capacity_tokens)
        return cache(layers, capacity_tokens, sources)

    monkeypatch.setattr(torch_static, "KeyValueCache", noted)
    decode(job, tokens)
    assert found == [room]


def test_a_wave_that_is_rewound_begins_where_its_prompts_end(steps):
    decode(JOB, 6)
    (wave,) = set(steps)
    assert wave._cache.length == 6 + STEPS_TOGETHER
    wave.rewind()
    assert (wave._cache.length, wave._step) == (6, 0)
