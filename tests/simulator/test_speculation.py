"""Speculative decoding: what steps that check guesses take, what they give, and where it stops to gain."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlplan.errors import FileError, MissingFactError
from rlplan.files.decoding import decode
from rlplan.job import Job, Speculation
from rlplan.layout import ModelCut
from rlplan.models import Adapter
from rlplan.parts import num_parameters
from rlplan.planner.exact.generation_bounds import BoundedSettings, least_seconds, load_of
from rlplan.profiles.acceptances import published_acceptances
from rlplan.profiles.catalog import load_engine, load_model, resolve_job
from rlplan.profiles.facts import load_facts
from rlplan.reports.tables.plans import step_lines
from rlplan.simulator.generation.generating import clock_of, generated, limits_of, steps_in
from rlplan.simulator.generation.replica import Chunks
from rlplan.simulator.generation.speculation import cache_share
from rlplan.simulator.memory.task_memory import DRAFT
from rlplan.simulator.model import layer_parameters
from rlplan.simulator.placed import PlacedPlan
from rlplan.simulator.simulate import simulate
from rlplan.simulator.timeline.generation_needs import not_known
from rlplan.simulator.timeline.pool_memory import memory_moments
from tests.simulator.placing import replica_setting
from tests.simulator.plans import TINY, priced_plan

MODEL, BLOCKS = load_model("qwen3-8b"), 100_000
USUAL = Speculation(draft_tokens=3, acceptance_length=2.5)


def steps(said=None, engine="vllm-0.11", **sizes):
    setting = replica_setting(MODEL, load_engine(engine), "h100-80gb-sxm", **sizes)
    return steps_in(replace(setting, speculation=said))


def test_guesses_that_are_accepted_one_behind_another_give_a_geometric_sum():
    # Leviathan et al. 2023, equation 1: (1 - 0.8^4) / (1 - 0.8).
    assert Speculation(draft_tokens=3, acceptance=0.8).tokens_per_step == pytest.approx(2.952)
    assert Speculation(draft_tokens=3, acceptance=1.0).tokens_per_step == 4.0
    assert Speculation(draft_tokens=3, acceptance=0.0).tokens_per_step == 1.0
    assert Speculation(draft_tokens=3).tokens_per_step is None


def test_shares_by_position_add_up_to_the_tokens_of_a_step():
    # An EAGLE-3 draft's positions as logged: 71.4, 42.7 and 25.7 %; of two guesses the first two count.
    shares = (0.714, 0.427, 0.257)
    each = (Speculation(draft_tokens=n, acceptance_by_position=shares) for n in (1, 2, 3))
    assert [said.tokens_per_step for said in each] == pytest.approx([1.714, 2.141, 2.398])


def test_an_engine_that_stops_guessing_has_plain_steps_above_and_checked_ones_up_to_there():
    own, always, plain = (
        clock_of(steps(said)) for said in (replace(USUAL, most_running=32), USUAL, None)
    )
    chunks = Chunks(2, 500.0, 0.0)
    for running, other in ((1, always), (32, always), (33, plain), (200, plain)):
        assert own.decode(running, 1000.0) == other.decode(running, 1000.0)
        beside = own.mixed(running, 1000.0, chunks)
        drafted = steps(USUAL).drafted_prefill(set(), chunks) if other is plain else 0.0
        assert beside == pytest.approx(other.mixed(running, 1000.0, chunks) + drafted)


@settings(max_examples=8)
@given(responses=st.lists(st.integers(300, 3000), min_size=140, max_size=160))
def test_an_engine_that_stops_where_guesses_cease_to_pay_off_is_no_slower_than_either(responses):
    # With three guesses of a model of its own a token is slower from some 80 running sequences on.
    said = replace(USUAL, draft=load_model("qwen3-0.6b"))
    limits = limits_of(load_engine("vllm-0.11"), 160, BLOCKS)
    share = ((120,) * len(responses), tuple(responses))

    def seconds(each):
        return sum(part.seconds for part in generated(steps(each), limits, share))

    stops, always, never = map(seconds, (replace(said, most_running=80), said, None))
    assert stops <= 1.03 * min(always, never)  # the draft computes prompts all the same


@pytest.mark.parametrize("engine", ["vllm-0.11", "vllm-0.6", "sglang-0.5"])
def test_a_token_takes_its_share_of_a_step_with_as_many_tokens_as_are_checked(engine):
    said = replace(USUAL, layers=0)
    plain, checking = steps(engine=engine), steps(said, engine)
    notes = set()
    running, cached = 16, 1024
    device = plain.dense_grid(notes, running * 4) + plain.head_grid(notes, running * 4)
    device += checking.decode_grid(notes, running, cached)
    alone = plain.host_seconds(0)
    host = alone + 2.5 * (plain.host_seconds(running) - alone)
    whole = max(device, host) if plain.overlaps else device + host
    assert clock_of(checking).decode(running, cached) == pytest.approx(whole / 2.5)


def test_steps_that_check_guesses_are_filled_up_and_have_adapters_as_others_are():
    filled = [steps(USUAL, "tensorrt-llm-1").stretch(count, 1024, 2048)[0] for count in (20, 32)]
    assert filled[0].fixed == filled[1].fixed
    bare = steps(replace(USUAL, layers=0), "vllm-0.6")
    adapted = replace(bare, setting=replace(bare.setting, adapter=Adapter(rank=32)))
    token = bare.engine.steps.adapter_token_seconds
    slow = replace(
        adapted,
        engine=replace(
            bare.engine, steps=replace(bare.engine.steps, adapter_token_seconds=2 * token)
        ),
    )
    few, many = (each.stretch(16, 1024, 2048)[0].fixed for each in (adapted, slow))
    each = 16 * 4 * bare.model.num_layers * token  # three guesses and a token of each sequence
    assert many - few == pytest.approx(each / USUAL.tokens_per_step)


def test_layers_that_guess_add_as_many_passes_as_there_are_guesses():
    free, drafted = steps(replace(USUAL, layers=0)), steps(USUAL)
    notes = set()
    layer = steps_in(
        replica_setting(replace(MODEL, num_layers=1), load_engine("vllm-0.11"), "h100-80gb-sxm")
    )
    each = (
        layer.dense_grid(notes, 16)
        + layer.head_grid(notes, 16)
        + layer.decode_grid(notes, 16, 1024)
    )
    more = clock_of(drafted).decode(16, 1024) - clock_of(free).decode(16, 1024)
    assert more == pytest.approx(3 * each / 2.5)


@settings(max_examples=25)
@given(
    running=st.integers(1, 400),
    cached=st.integers(1, 8000),
    draft_tokens=st.integers(1, 6),
    share=st.floats(0, 1),
    layers=st.integers(0, 2),
)
def test_a_step_gains_at_most_the_tokens_that_it_gives(
    running, cached, draft_tokens, share, layers
):
    said = Speculation(
        draft_tokens=draft_tokens, acceptance_length=1 + share * draft_tokens, layers=layers
    )
    own, plain = (clock_of(steps(each)) for each in (said, None))
    chunks = Chunks(3, 200.0, 0.0)
    for with_it, without in (
        (own.decode(running, cached), plain.decode(running, cached)),
        (own.mixed(running, cached, chunks), plain.mixed(running, cached, chunks)),
    ):
        assert with_it >= without / said.tokens_per_step * (1 - 1e-9)


def test_prompts_beside_tokens_that_are_checked_add_what_they_take():
    chunks = Chunks(2, 500.0, 0.0)
    clock = clock_of(steps(USUAL))
    alone, both, prompts = (
        clock.decode(64, 1000.0),
        clock.mixed(64, 1000.0, chunks),
        clock.mixed(0, 0.0, chunks),
    )
    assert alone < both < alone + prompts


@settings(max_examples=15)
@given(
    responses=st.lists(st.integers(1, 400), min_size=1, max_size=24),
    running=st.integers(1, 24),
    said=st.sampled_from(
        [
            USUAL,
            replace(USUAL, layers=0),
            replace(USUAL, acceptance_length=1.0),
            replace(USUAL, most_running=3),
        ]
    ),
)
def test_no_generation_beats_the_bound_of_the_search(responses, running, said):
    prompts = (120,) * len(responses)
    own, engine = steps(said), load_engine("vllm-0.11")
    played = generated(own, limits_of(engine, running, BLOCKS), (prompts, tuple(responses)))
    bound = least_seconds(
        own,
        load_of(prompts, tuple(responses), block_tokens=engine.kv_block_tokens),
        BoundedSettings(running),
        np.array([float(BLOCKS)]),
    )
    assert bound[0] <= sum(part.seconds for part in played) * (1 + 1e-9)


def test_an_engine_of_waves_guesses_nothing():
    with pytest.raises(MissingFactError, match="torch-static guesses no tokens ahead"):
        steps(USUAL, "torch-static")


@pytest.fixture(scope="module")
def known():
    plan = priced_plan()
    work = replace(plan.job.workload, prompts=64, response_tokens=256)
    return replace(plan, job=replace(plan.job, workload=work)), load_facts(plan.job)


def forecast(known, said):
    plan, facts = known
    return simulate(replace(plan, job=replace(plan.job, speculation=said)), facts)


def test_a_forecast_says_what_it_gains_and_until_when(known):
    without, found = forecast(known, None), forecast(known, USUAL)
    told = found.speculation
    seconds = {cost.name: cost.seconds for cost in without.costs}
    assert without.speculation is None
    assert told.without_seconds == pytest.approx(seconds["actor.generate"], rel=0.01)
    assert told.generation_seconds < told.without_seconds
    (line,) = (line for line in step_lines(known[0], found, {}) if line.startswith("speculation"))
    assert "2.50 tokens a step" in line
    slow = forecast(known, replace(USUAL, acceptance_length=1.0)).speculation
    assert slow.break_even_running == 1
    assert slow.generation_seconds > slow.without_seconds
    # Where guessing itself stops to pay off does not hang on where the engine stops.
    stops = forecast(known, replace(USUAL, most_running=4)).speculation
    assert stops.break_even_running == told.break_even_running is None
    assert told.generation_seconds < stops.generation_seconds


def test_what_guesses_lies_on_the_gpus_that_generate_and_has_a_cache_of_its_own(known):
    plan, facts = known

    def generating(said):
        placed = PlacedPlan(replace(plan, job=replace(plan.job, speculation=said)), facts)
        moments = memory_moments(placed, plan.pools[0])
        return moments["actor.generate"], cache_share(placed.generate)

    terms, share = generating(USUAL)
    assert terms[DRAFT] == layer_parameters(TINY, ModelCut()) * 2  # bytes of bf16
    assert share == pytest.approx(2 / 3)  # two layers of the model's, one that guesses
    assert DRAFT not in generating(replace(USUAL, layers=0))[0]
    whole, share = generating(replace(USUAL, draft=replace(TINY, num_layers=1)))
    assert whole[DRAFT] == num_parameters(replace(TINY, num_layers=1), "lm") * 2
    assert share == pytest.approx(2 / 3)


def test_without_an_acceptance_generation_is_forecast_without_and_that_is_said(known):
    without, found = forecast(known, None), forecast(known, Speculation(draft_tokens=3))
    assert found.iteration_seconds == without.iteration_seconds
    assert found.speculation is None
    assert any("give speculation.acceptance_length" in warning for warning in found.warnings)


def test_a_draft_is_a_model_by_its_name_and_accepts_no_more_than_it_guesses(known):
    job = known[0].job
    named = resolve_job(replace(job, speculation=replace(USUAL, draft="qwen3-0.6b")), Path())
    assert named.speculation.draft == load_model("qwen3-0.6b")
    assert resolve_job(named, Path()) == named
    for wrong, field in (
        (replace(USUAL, acceptance_length=4.5), r"speculation\.acceptance_length"),
        (replace(USUAL, acceptance=0.5), r"speculation\.acceptance\b"),
        (replace(USUAL, draft="no-such-model"), r"speculation\.draft"),
    ):
        with pytest.raises(FileError, match=field):
            resolve_job(replace(job, speculation=wrong), Path())


def test_what_was_published_of_acceptance_names_known_models_and_never_falls_with_more_guesses():
    for each in published_acceptances():
        assert load_model(each.model).name == each.model
        tokens = [each.tokens_by_guesses[count] for count in sorted(each.tokens_by_guesses)]
        assert tokens == sorted(tokens)
        assert all(1 <= found <= count + 1 for count, found in each.tokens_by_guesses.items())


def test_a_forecast_without_an_acceptance_names_what_was_published_of_the_model():
    assert "published for qwen3-8b: 2.26 with 3 guesses of EAGLE-3" in not_known("qwen3-8b", 5)
    other = not_known("qwen3-14b", 1)
    assert "nothing is published for qwen3-14b; for deepseek-v3: 1.87 with 1 guess" in other


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            {"acceptance": 0.7, "acceptance_by_position": [0.7, 0.5, 0.3]},
            "says the same as acceptance in another way",
        ),
        ({"acceptance_by_position": [0.7, 0.5]}, "has 2, and 3 tokens are guessed"),
        ({"acceptance_by_position": [0.7, 0.8, 0.3]}, "rises"),
    ],
)
def test_shares_that_cannot_be_are_refused(said, words):
    data = {
        "algorithm": "grpo", "models": dict.fromkeys(("actor", "reference", "reward"), "tiny"),
        "workload": {"prompts": 8, "samples_per_prompt": 2, "prompt_tokens": 8, "response_tokens": 8},
        "cluster": [{"gpu": "h100-80gb-sxm", "gpus_per_node": 1}], "speculation": {"draft_tokens": 3, **said},
    }  # fmt: skip
    with pytest.raises(FileError, match=words):
        resolve_job(decode(Job, data, "job.yaml"), Path(), file="job.yaml")
