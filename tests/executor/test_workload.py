"""Batches of prompts: from verl's files and chats to padded columns, the same rows for rules."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from rlplan.errors import CapabilityError, PlanError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.data.batches import ROUND_STRIDE
from rlplan.executor.data.workload import PromptBatches, first_rows, response_lengths
from rlplan.job import Pretrain, PromptData
from rlplan.workload import Lognormal
from tests.executor.plans import make_job, make_plan
from tests.executor.test_tokenizer import write_tokenizer

TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"


def chat(text, answer):
    return {
        "prompt": [{"role": "user", "content": text}],
        "reward_model": {"style": "rule", "ground_truth": answer},
    }


def test_chats_of_a_parquet_file_become_columns_and_long_ones_are_left_out(tmp_path):
    write_tokenizer(tmp_path / "words", eos_token="<eos>", chat_template=TEMPLATE)
    rows = [chat("one two", "3"), chat("one two one two", "6"), chat("two", "2")]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    job = replace(
        make_job(prompts=2, samples_per_prompt=2, prompt_tokens=3),
        tokenizer="words",
        prompts_file="train.parquet",
        prompt_data=PromptData(too_long="drop"),
    )
    batches = PromptBatches(job, tmp_path)
    assert batches.dropped == 1
    assert batches.too_long == "prompts left out for their length: 1"
    assert [(row["prompt"], row["answer"]) for row in batches.rows] == [
        ("one two ", "3"),
        ("two ", "2"),
    ]
    columns = batches.columns(0)
    found = {
        tuple(tokens[present].tolist())
        for tokens, present in zip(columns["prompt_tokens"], columns["prompt_present"], strict=True)
    }
    assert found == {(2, 3), (3,)}
    assert columns["prompt_tokens"].shape == (4, 2)  # both samples of both prompts
    # As rules are given them; the one that is left out does not count.
    found_rows = [(row["prompt"], row["answer"]) for row in first_rows(job, tmp_path, 2)]
    assert found_rows == [("one two ", "3"), ("two ", "2")]


def test_texts_stand_beside_the_prompts_of_a_job_that_mixes_them_in(tmp_path):
    job = make_job("safe-rlhf")
    assert set(PromptBatches(job, tmp_path).columns(0)) == {"prompt_tokens", "prompt_present"}
    mixed = PromptBatches(replace(job, pretrain=Pretrain()), tmp_path).columns(0)
    assert mixed["pretrain_tokens"].shape[0] == job.workload.sequences


def test_rounds_of_sampling_take_other_prompts_than_any_iteration(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{n:03d}"}) + "\n" for n in range(100)))
    job = replace(make_job(), prompts_file=str(path))
    batches = PromptBatches(job, tmp_path)
    first, again = (batches.columns(n)["prompt_tokens"] for n in (0, ROUND_STRIDE))
    assert not np.array_equal(first, again)
    assert np.array_equal(again, batches.columns(ROUND_STRIDE)["prompt_tokens"])


def test_a_tokenizer_with_more_tokens_than_the_actor_is_refused(tmp_path):
    job = make_job()
    small = replace(job.models["actor"], vocab_size=100)
    models = dict.fromkeys(job.models, small)
    with pytest.raises(PlanError, match="tokenizer bytes has 260 tokens: the actor's vocabulary"):
        PromptBatches(replace(job, models=type(job.models)(models)), tmp_path)


def growing(*means, iterations=100):
    lengths = Lognormal(mean=60, std=20, max=300, training_means=means)
    return replace(make_job("grpo", prompts=400, response_tokens=lengths), iterations=iterations)


def test_responses_grow_over_the_iterations_of_a_job_whoever_draws_them():
    job = growing(30.0, 90.0)
    means = [response_lengths(job, number).mean() for number in (0, 49, 99, 500)]
    assert means == pytest.approx([30.3, 59.7, 89.7, 90.0], rel=0.05)
    assert (response_lengths(job, 49) == response_lengths(growing(30.0, 90.0), 49)).all()


def test_responses_that_are_sampled_again_are_as_long_as_those_of_their_iteration():
    first, again = (response_lengths(growing(30.0, 90.0), n) for n in (0, 2 * ROUND_STRIDE))
    assert again.mean() == pytest.approx(30.3, rel=0.05)
    assert (first != again).any()


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (
            growing(30.0, 90.0, iterations=None),
            r"job\.iterations is none.*over how many iterations",
        ),
        (growing(30.0, 400.0), "training_means is 400: .*from 1 to below 300"),
    ],
)
def test_growth_that_no_iteration_can_be_drawn_from_is_refused(job, words):
    plan = make_plan(job, {"p0": (1, ("actor", "reference"))})
    with pytest.raises(CapabilityError, match=words):
        check_runnable(plan)
