"""Why the winner won: what every other placement loses, in which stage, and there to what."""

from dataclasses import replace

from rlplan.files.frozen import FrozenDict
from rlplan.plan import ResourcePool
from rlplan.reports.tables.searches import best_of_placements, short_runners_up_table, why_table
from rlplan.results.forecast import Candidate
from tests.reports.samples import gpu_forecast, gpu_plan, gpu_search, task_forecast


def forecast(seconds, decode, bubble):
    return replace(
        gpu_forecast(),
        iteration_seconds=seconds,
        stage_seconds=FrozenDict({"generation": decode, "training": 10.0 + bubble}),
        costs=(
            task_forecast("actor.generate", "p0", decode, {"decode": 1.0}),
            task_forecast(
                "actor.update",
                "p0",
                10.0 + bubble,
                {"forward": 10 / (10 + bubble), "pipeline bubble": bubble / (10 + bubble)},
            ),
        ),
    )


def searched():
    best = Candidate(
        plan=gpu_plan(),
        forecast=forecast(30.0, 20.0, 0.0),
        loses_seconds=0.0,
        loses_to=FrozenDict(),
    )
    alone = ResourcePool(name="p0", device="a100-80gb-sxm", gpus=16, roles=("actor",))
    slower = Candidate(
        plan=replace(gpu_plan(), pools=(alone, *gpu_plan().pools)),
        forecast=forecast(36.0, 19.0, 7.0),
        loses_seconds=6.0,
        loses_to=FrozenDict({"generation": -1.0, "training": 7.0}),
    )
    return replace(gpu_search(), plans=(best, slower))


def test_every_other_placement_tells_its_stages_and_their_causes():
    (training, generation) = why_table(searched()).rows
    assert training[0] == "2"
    assert training[2:] == ("training", "+7.00 s", "pipeline bubble +7.00 s")
    assert generation[:2] == ("", "")
    assert generation[2:] == ("generation", "\N{MINUS SIGN}1.00 s", "decode \N{MINUS SIGN}1.00 s")


def test_the_short_table_names_the_stage_and_its_largest_cause():
    assert short_runners_up_table(searched()).rows[1][-1] == "training +7.00 s: pipeline bubble"


def test_a_copy_that_generates_is_another_placement_than_none():
    copy = gpu_plan().pools[0]
    found = searched()
    twice = replace(found.plans[0], plan=replace(gpu_plan(), pools=(copy, *gpu_plan().pools)))
    assert len(best_of_placements(replace(found, plans=(found.plans[0], twice)))) == 2


def test_a_winner_alone_has_no_one_to_be_compared_with():
    assert why_table(replace(searched(), plans=searched().plans[:1])).rows == ()
