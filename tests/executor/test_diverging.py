"""Runs whose numbers are not finite any more: what is refused, what is left out, and what is said at the end."""

import math
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import ray
import torch
from ray.exceptions import RayTaskError

from rlplan.algorithms import load_algorithm
from rlplan.dataflow import tasks_of
from rlplan.errors import DivergedError, RlplanError
from rlplan.executor.control.checkpoints import find_checkpoint
from rlplan.executor.control.diverging import MOST_WITHOUT_UPDATE, SkippedUpdates
from rlplan.executor.control.feeds.events import Events
from rlplan.executor.control.metrics import read_metrics
from rlplan.executor.control.run import Saving
from rlplan.executor.control.summary import SKIPPED_UPDATES, progress_line
from rlplan.executor.data.finite import check_finite, in_task
from rlplan.executor.execute import execute
from rlplan.executor.rollout.sampling import greedy_tokens, sampled_tokens
from rlplan.executor.workers.stages.generate import generated_outputs
from rlplan.job import Hyperparameters
from tests.executor.plans import ALL_ROLES, make_job, make_plan
from tests.executor.test_offloading import shard_of, step

ZEROS = [0, 1]


def bad_step(shard, value):
    shard.flat.gradients.fill_(1.0)
    shard.flat.gradients[3] = value
    return shard.trainer.clip_and_step(1.0)


@pytest.mark.parametrize("zero", ZEROS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_neither_weights_nor_moments(zero, value):
    disturbed, undisturbed = shard_of(1e-3, zero), shard_of(1e-3, zero)
    for shard in (disturbed, undisturbed):
        step(shard)
    assert not math.isfinite(bad_step(disturbed, value))
    for shard in (disturbed, undisturbed):
        step(shard)
    assert torch.equal(disturbed.flat.values, undisturbed.flat.values)
    assert disturbed.trainer.steps == undisturbed.trainer.steps == 2
    moments = (shard.trainer.whole_moments() for shard in (disturbed, undisturbed))
    for mine, theirs in zip(*(each.values() for each in moments), strict=True):
        assert torch.equal(mine, theirs)


def test_a_rate_that_torch_cannot_step_with_is_named():
    with pytest.raises(DivergedError, match=r"learning rate 1e\+38 is not finite"):
        step(shard_of(1e38))
    step(shard_of(1e37))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_found(value):
    shard = shard_of(1e-3)
    assert shard.trainer.has_finite_weights()
    shard.flat.values[-1] = value
    assert not shard.trainer.has_finite_weights()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("greedy", [True, False])
def test_tokens_of_logits_that_are_not_finite_are_refused(bad, greedy):
    logits = torch.zeros(2, 5)
    logits[1, 2] = bad
    if greedy:
        _, log_probs = greedy_tokens(logits, 1.0)
    else:
        _, log_probs = sampled_tokens(logits, torch.tensor([0.5, 0.5]), 1.0)
    with pytest.raises(DivergedError, match="sampled tokens are not finite in 1 of 2 rows"):
        generated_outputs(("log_probs",), {}, log_probs[:, None].numpy())


def test_what_a_task_hands_on_is_named_where_it_is_not_finite():
    check_finite("tokens", np.arange(3))
    check_finite("values", np.zeros((2, 3), dtype=np.float32))
    with (
        pytest.raises(
            DivergedError, match=r"^critic: values are not .* 2 of 3 rows \(found inf\)$"
        ),
        in_task("critic"),
    ):
        check_finite("values", np.array([[0.0, math.inf], [0.0, 0.0], [math.nan, 0.0]]))


def test_a_model_without_updates_in_several_iterations_after_one_another_ends_the_run():
    job = make_job(updates=2)
    plan = make_plan(job, {"p0": (1, ALL_ROLES)})
    skipped = SkippedUpdates(plan, tasks_of(load_algorithm("ppo"), job))

    def note(actor, critic=0.0):
        skipped.note({f"actor{SKIPPED_UPDATES}": actor, f"critic{SKIPPED_UPDATES}": critic})

    for actor in [2.0] * (MOST_WITHOUT_UPDATE - 1) + [1.0] + [2.0] * (MOST_WITHOUT_UPDATE - 1):
        note(actor, critic=1.0)  # never all of an iteration's
    with pytest.raises(DivergedError, match=r"^actor\.update: no gradient was finite in 3"):
        note(2.0)


def test_skipped_updates_are_in_an_iterations_line():
    metrics = dict.fromkeys(("mean_reward", "response_tokens", "tokens_per_second", "seconds"), 1.0)
    quiet, said = (
        progress_line(0, {**metrics, f"critic{SKIPPED_UPDATES}": count}) for count in (0.0, 2.0)
    )
    assert "skipped" not in quiet
    assert "2 updates of critic skipped" in said


@pytest.mark.parametrize("cause", [DivergedError("values are not finite"), ValueError("other")])
def test_what_a_replica_raises_is_said_without_rays_account_of_it(monkeypatch, cause):
    raised = RayTaskError("roll", "Traceback", cause).as_instanceof_cause()
    events = Events()
    events.when(["reference"], lambda _: None, lambda: pytest.fail("it is there"))
    monkeypatch.setattr(ray, "wait", lambda known, **_: (known, []))
    monkeypatch.setattr(ray, "get", Mock(side_effect=raised))
    with pytest.raises(RlplanError) as found:
        events.wait()
    if isinstance(cause, RlplanError):
        assert found.value is cause
    else:
        assert str(found.value).startswith("a worker failed: ")


@pytest.mark.ray
def test_a_run_that_diverges_says_so_and_leaves_a_checkpoint(shared_workers, tmp_path):
    job = replace(make_job(), hyperparameters=Hyperparameters(learning_rate=1e30))
    plan = make_plan(job, {"p0": (2, ALL_ROLES)})
    words = r"^iteration 1: actor\.generate: .* not finite.*metrics\.jsonl; .*--resume .*-000001"
    with pytest.raises(DivergedError, match=words):
        execute(plan, tmp_path, iterations=3, seed=1, saving=Saving(every=1))
    assert [row["iteration"] for row in read_metrics(tmp_path)] == [0]
    assert not (tmp_path / "measured.json").exists()
    assert find_checkpoint(tmp_path).state.iteration == 1
