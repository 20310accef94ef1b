"""Evaluations: what a run's actor answers to held-out prompts, and that training goes on as without them."""

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlplan.errors import CapabilityError
from rlplan.executor.control.capabilities import check_runnable
from rlplan.executor.control.checkpoints import find_checkpoint
from rlplan.executor.control.evaluating import Answer, found_numbers, pass_at
from rlplan.executor.control.evaluations import Evaluations
from rlplan.executor.control.run import Saving
from rlplan.executor.execute import execute
from rlplan.files.decoding import read_json
from rlplan.job import Rewards
from rlplan.results.measurement import MeasuredRun
from tests.executor.evaluated import APART, HELD_OUT, evaluations, learnt, plan_of, write_held_out
from tests.executor.plans import ALL_ROLES
from tests.executor.test_checkpoints import assert_same, stored_weights

SAMPLED = replace(HELD_OUT, samples_per_prompt=4, temperature=1.0)


@pytest.fixture
def folder(tmp_path):
    return write_held_out(tmp_path)


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "weights that are moved to generation": ({"p0": (2, ALL_ROLES)}, {"tp": 2, "tp_gen": 1}),
    "one step off": (APART, {"mode": "one-step-off"}),
    "streaming": (APART, {"mode": "streaming"}),
    "one process": ({"p0": (1, ALL_ROLES)}, {}),
    "fully sharded": ({"p0": (2, ALL_ROLES)}, {"zero": 3}),
    "a pipeline": ({"p0": (2, ALL_ROLES)}, {"pp": 2}),
    "pools apart": (APART, {}),
}


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("case", list(CASES))
def test_a_run_learns_what_it_learns_without_evaluations(shared_workers, folder, case):
    pools, sizes = CASES[case]
    plan = plan_of(pools, **sizes)
    run = execute(plan, folder / "judged", iterations=4, seed=1, folder=folder)
    unjudged = replace(plan, job=replace(plan.job, evaluation=None))
    execute(unjudged, folder / "unjudged", iterations=4, seed=1, folder=folder)
    for found, expected in zip(learnt(folder / "judged"), learnt(folder / "unjudged"), strict=True):
        assert found == expected
    rows = evaluations(folder / "judged")
    assert [row["iteration"] for row in rows] == [0, 2, 4]
    assert run.evaluation_seconds == tuple(row["seconds"] for row in rows)
    assert read_json(MeasuredRun, folder / "judged" / "measured.json") == run


@pytest.mark.full
@pytest.mark.ray
def test_layouts_and_modes_find_the_same_at_the_same_weights(shared_workers, folder):
    found = []
    for case in ("one process", "weights that are moved to generation", "pools apart"):
        pools, sizes = CASES[case]
        plan = plan_of(pools, SAMPLED, **sizes)
        execute(plan, folder / case, iterations=1, seed=1, folder=folder)
        lines = (folder / case / "samples.jsonl").read_text().splitlines()
        found.append([line for line in lines if json.loads(line)["iteration"] == 0])
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == SAMPLED.samples_per_prompt * SAMPLED.shown_prompts
    assert len(set(found[0])) > SAMPLED.shown_prompts  # samples of a prompt differ


@pytest.mark.ray
def test_what_is_written_is_what_was_said_and_judged(shared_workers, folder):
    (folder / "own.py").write_text("def long(prompt, response, row): return len(row['prompt'])\n")
    judged = replace(HELD_OUT, function="own.py:long", correct_from=3, shown_prompts=9)
    told: list[str] = []
    execute(
        plan_of({"p0": (1, ALL_ROLES)}, judged),
        folder / "run",
        iterations=2,
        seed=1,
        folder=folder,
        progress=lambda *arguments: told.append(arguments[2]),
    )
    rows = [
        json.loads(line) for line in (folder / "run" / "samples.jsonl").read_text().splitlines()
    ]
    assert [row["prompt"] for row in rows] == [f"{number}+1" for number in range(5)] * 2
    assert all(row["score"] == len(row["prompt"]) for row in rows)
    assert all(row["tokens"] <= 5 for row in rows)
    assert [row["accuracy"] for row in evaluations(folder / "run")] == [1.0, 1.0]
    lines = [message for message in told if message.startswith("evaluation after")]
    assert len(lines) == 2
    assert "accuracy 1.000" in lines[0]
    assert "'0+1' -> " in lines[0]


@pytest.mark.full
@pytest.mark.ray
@pytest.mark.parametrize("mode", ["sync", "one-step-off"])
def test_a_run_that_goes_on_evaluates_no_weights_twice(shared_workers, folder, mode):
    pools = {"p0": (1, ALL_ROLES)} if mode == "sync" else APART
    plan, saving = plan_of(pools, mode=mode), Saving(every=2, keep=9)
    execute(plan, folder / "whole", iterations=5, seed=1, folder=folder, saving=saving)
    execute(plan, folder / "halves", iterations=3, seed=1, folder=folder, saving=saving)
    again = replace(saving, resume=folder / "halves" / "checkpoints" / "iteration-000002")
    execute(plan, folder / "halves", iterations=5, seed=1, folder=folder, saving=again)
    assert learnt(folder / "halves") == learnt(folder / "whole")
    wanted = [row["accuracy"] for row in evaluations(folder / "whole")]
    found = evaluations(folder / "halves")
    assert [row["iteration"] for row in found] == [0, 2, 4, 5]
    assert [row["accuracy"] for row in found] == wanted
    last = (find_checkpoint(folder / name) for name in ("whole", "halves"))
    assert_same(*(stored_weights(each) for each in last))


@pytest.mark.ray
def test_the_best_checkpoint_is_kept_and_exported(shared_workers, folder, monkeypatch):
    accuracies = iter([0.9, 0.2, 0.8, 0.8, 0.1, 0.1])

    def drawn(*arguments):
        return {**found_numbers(*arguments), "accuracy": next(accuracies)}

    monkeypatch.setattr("rlplan.executor.control.evaluating.found_numbers", drawn)
    saving = Saving(every=1, keep=1, export=folder / "last", export_best=folder / "best")
    plan = plan_of({"p0": (1, ALL_ROLES)}, replace(HELD_OUT, every=1))
    execute(plan, folder / "run", iterations=5, seed=1, folder=folder, saving=saving)
    kept = sorted(path.name for path in (folder / "run" / "checkpoints").iterdir())
    # Before the first iteration there is nothing to keep; of equals the first is best.
    assert kept == ["iteration-000002", "iteration-000005"]
    weights = [(folder / name / "model.safetensors").read_bytes() for name in ("last", "best")]
    assert weights[0] != weights[1]


@pytest.mark.full
@pytest.mark.ray
def test_fewer_prompts_than_replicas_and_a_function_with_limits(shared_workers, folder):
    (folder / "held-out.jsonl").write_text('{"prompt": "a"}', encoding="utf-8")
    plan = plan_of({"p0": (2, ALL_ROLES)})
    limited = Rewards(function="digits", limit_seconds=5.0)
    plan = replace(plan, job=replace(plan.job, rewards=limited))
    execute(plan, folder / "run", iterations=1, seed=1, folder=folder)
    assert [row["iteration"] for row in evaluations(folder / "run")] == [0, 1]


def test_an_evaluation_between_two_syncs_is_refused():
    plan = replace(plan_of(APART, mode="async"), sync_every=4, staleness=4)
    with pytest.raises(CapabilityError, match=r"evaluations between two syncs.*a multiple"):
        check_runnable(plan)


def answers_of(rights):
    """Return answers and scores of prompts, each with so many right of four."""
    scores = [float(sample < right) for right in rights for sample in range(4)]
    answers = [
        Answer(prompt=index // 4, text="", tokens=index % 3, is_cut=index % 3 == 2)
        for index in range(len(scores))
    ]
    return answers, scores


def test_the_numbers_of_an_evaluation():
    found = found_numbers(replace(SAMPLED, correct_from=1.0), *answers_of([0, 1, 4]))
    assert found == {
        "accuracy": pytest.approx(5 / 12),
        "pass@2": pytest.approx((0 + 1 / 2 + 1) / 3),
        "pass@4": pytest.approx(2 / 3),
        "score": pytest.approx(5 / 12),
        "response_tokens": pytest.approx(1.0),
        "cut": pytest.approx(1 / 3),
    }


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_choices_with_a_right_one(samples, data):
    right, count = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    choices = list(combinations([index < right for index in range(samples)], count))
    expected = np.mean([any(choice) for choice in choices])
    assert pass_at(count, samples, right) == pytest.approx(expected)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_more_samples_never_pass_less_often(rights):
    found = found_numbers(replace(SAMPLED, correct_from=1.0), *answers_of(rights))
    assert found["accuracy"] <= found["pass@2"] + 1e-12
    assert found["pass@2"] <= found["pass@4"] + 1e-12


@given(st.integers(1, 30), st.integers(1, 7))
def test_the_start_the_end_and_every_so_many_are_due(iterations, every):
    due = Evaluations(replace(HELD_OUT, every=every), Path("nowhere"), iterations)
    found = [done for done in range(iterations + 1) if due.is_due(done)]
    assert found == sorted({0, *range(0, iterations + 1, every), iterations})
