"""How passes are timed: decode steps among steps, on a cache as long as the job's."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlplan.executor import probing
from rlplan.executor.data.batches import PADDING, RESPONSE
from rlplan.executor.data.packing import prompt_leaders
from rlplan.executor.probing import STEPS_BEFORE, STEPS_TOGETHER, PassBench, usual_batch
from rlplan.executor.rollout.engines import torch_static
from rlplan.executor.rollout.engines.torch_static import Wave
from rlplan.probing import ModelPass
from rlplan.workload import Lognormal, Uniform
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
    monkeypatch.setattr(probing, "time", clock)
    return taken


def decode(job, tokens):
    step = ModelPass(
        name="decode", model=TINY, head="lm", precision="fp32", sequences=3, tokens=tokens
    )
    return PassBench(0, 1, torch.device("cpu"), job).run(step, repeats=4)


@pytest.mark.full
@pytest.mark.parametrize("tokens", [6, 26, 46])
def test_the_seconds_of_a_decode_step_are_those_of_one_among_others(steps, tokens):
    assert decode(JOB, tokens) == (1.0, 1.0, 1.0, 1.0)
    assert len(steps) == (STEPS_BEFORE + STEPS_TOGETHER) * (probing.WARMUP_RUNS + 4)


@pytest.mark.full
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
    assert (wave._cache.length, wave._step) == (6 - STEPS_BEFORE, 0)


@pytest.mark.parametrize(
    ("name", "prompts"),
    [("decode", 1), ("decode_uneven", 3), ("prefill", 3), ("prefill_uneven", 3)],
)
def test_the_caches_of_decode_steps_are_filled_by_one_prompt_of_each_length(
    monkeypatch, name, prompts
):
    rows = []
    run = Wave._pass
    monkeypatch.setattr(
        Wave,
        "_pass",
        lambda wave, tokens, *rest: rows.append(tokens.shape) or run(wave, tokens, *rest),
    )
    step = ModelPass(name=name, model=TINY, head="lm", precision="fp32", sequences=3, tokens=12)
    PassBench(0, 1, torch.device("cpu"), JOB).run(step, repeats=1)
    assert rows[0][0] == prompts
    assert {shape for shape in rows[1:] if shape[1] == 1} <= {(3, 1)}


def test_of_long_steps_fewer_are_timed_and_of_all_ranks_as_many():
    large = replace(TINY, hidden_size=1024, ffn_size=4096, num_layers=30)
    step = ModelPass(name="decode", model=large, head="lm", precision="fp32", sequences=1, tokens=9)
    whole = (STEPS_BEFORE, STEPS_TOGETHER)
    assert probing.steps_of(step, "cpu") == whole
    many = replace(step, sequences=64)
    assert probing.steps_of(many, "cpu") == (1, 2)
    assert probing.steps_of(many, "cuda") == whole
    assert probing.steps_of(replace(many, tp=1000), "cpu") == whole


@given(
    st.sampled_from([1, 2, 3, 8, 16]),
    st.integers(1, 4),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([8, Uniform(low=4, high=12)]),
    st.sampled_from([Lognormal(mean=24.0, std=24.0, max=128), Uniform(low=8, high=40), 24]),
)
def test_a_usual_micro_batch_has_the_jobs_spread_about_the_mean(
    count, micro_batches, samples, prompts, responses
):
    work = replace(
        JOB.workload, samples_per_prompt=samples, prompt_tokens=prompts, response_tokens=responses
    )
    asked = ModelPass(
        name="infer_usual", model=TINY, head="lm", precision="fp32", sequences=count, tokens=32
    )
    shard: Any = SimpleNamespace(device=torch.device("cpu"))
    batch = usual_batch(shard, asked, work, micro_batches)
    lengths = (batch["parts"] == RESPONSE).sum(dim=1)
    rows = micro_batches * count
    assert int((batch["parts"] != PADDING).sum()) == pytest.approx(32 * rows, abs=rows)
    assert int(lengths.min()) >= 1
    leaders = prompt_leaders(batch["tokens"], batch["parts"])
    assert leaders.tolist() == [row // samples * samples for row in range(rows)]
    if rows >= 8 and responses != 24:
        assert int(lengths.max()) > 1.5 * int(lengths.min())


@pytest.mark.full
def test_a_usual_micro_batch_is_timed():
    job = replace(
        JOB,
        workload=replace(
            JOB.workload, response_tokens=Uniform(low=2, high=40), samples_per_prompt=2
        ),
    )
    bench = PassBench(0, 1, torch.device("cpu"), job)
    for name in ("infer_usual", "train_usual"):
        asked = ModelPass(
            name=name, model=TINY, head="lm", precision="fp32", sequences=4, tokens=27
        )
        assert len(bench.run(asked, repeats=2)) == 2
