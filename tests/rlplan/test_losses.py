"""What an iteration loses to another's: stages and causes add up to the loss."""

from dataclasses import replace

from rlplan.files.frozen import FrozenDict
from rlplan.results.forecast import WAITING, TaskForecast, losses
from tests.reports.samples import gpu_forecast


def task(name, pool, stage, **parts):
    seconds = sum(parts.values())
    return TaskForecast(
        name=name, pool=pool, activity="task", stage=stage, seconds=seconds,
        interval_seconds=(seconds, seconds), source="datasheet", outside_range=False,
        parts=FrozenDict(parts),
    )  # fmt: skip


def forecast(costs, **stages):
    return replace(
        gpu_forecast(),
        iteration_seconds=sum(stages.values()),
        stage_seconds=FrozenDict(stages),
        costs=tuple(costs),
    )


FAST = forecast(
    [
        task("actor.generate", "p0", "generation", prefill=1.0, decode=4.0),
        task("actor.update", "p0", "training", forward=2.0, bubble=0.5),
        task("critic.update", "p0", "training", forward=1.0),
    ],
    generation=5.0,
    training=3.5,
)
SLOW = forecast(
    [
        task("actor.generate", "p0", "generation", prefill=1.0, decode=3.0),
        task("actor.update", "p0", "training", forward=4.0, bubble=3.0),
        task("critic.update", "p1", "training", forward=5.0),
    ],
    generation=4.0,
    training=7.5,
)


def test_stages_are_told_by_loss_and_causes_of_the_busiest_pool_add_up():
    training, generation = losses(SLOW, FAST)
    assert (training.stage, training.seconds) == ("training", 4.0)
    assert training.causes == (("bubble", 2.5), ("forward", 1.0), (WAITING, 0.5))
    assert (generation.stage, generation.seconds) == ("generation", -1.0)
    assert generation.causes == (("decode", -1.0),)
    for loss in (training, generation):
        assert abs(sum(seconds for _, seconds in loss.causes) - loss.seconds) < 1e-12


def test_main_causes_push_the_stage_the_way_it_went():
    slower = forecast(
        [task("actor.update", "p0", "training", forward=9.0, bubble=0.1, optimizer=0.0)],
        generation=5.0,
        training=9.1,
    )
    (training, *_) = losses(slower, FAST)
    assert training.main_causes == (("forward", 6.0),)


def test_nothing_is_lost_to_oneself():
    assert all(loss.seconds == 0 and loss.causes == () for loss in losses(FAST, FAST))
