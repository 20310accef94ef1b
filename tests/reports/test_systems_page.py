"""The page of compared systems: who takes how long, in which stage, and who cannot run at all."""

from dataclasses import replace

from rlplan.files.frozen import FrozenDict
from rlplan.reports.pages.systems import systems_content, verdict, write_systems_page
from rlplan.reports.tables.comparisons import (
    about_table,
    misfits_table,
    stages_table,
    systems_layout_table,
    systems_memory_table,
    throughput_table,
)
from rlplan.results.accuracy import SystemForecast, SystemsComparison
from tests.reports.samples import gpu_forecast, gpu_plan

STAGES = FrozenDict({"generation": 6.0, "preparation": 1.0, "training": 3.0})


def forecast(factor):
    return replace(
        gpu_forecast(),
        iteration_seconds=10.0 * factor,
        stage_seconds=FrozenDict({name: value * factor for name, value in STAGES.items()}),
        tokens_per_second=1000.0 / factor,
    )


def system(name, factor):
    return SystemForecast(
        name=name,
        about=f"how {name} runs",
        plan=gpu_plan(),
        forecast=forecast(factor),
        considered=7,
    )


OURS = system("rlplan", 1)
SLOW = system("slow-1.0", 3)
UNFIT = SystemForecast(
    name="unfit", about="how unfit runs", reason="does not fit: 3.0 GiB too many"
)
COMPARISON = SystemsComparison(job="ppo", ours=OURS, systems=(SLOW, UNFIT))


def test_speed_ups_are_of_our_plan_over_each_system():
    assert COMPARISON.speed_up(SLOW) == 3.0
    assert COMPARISON.speed_up(UNFIT) is None
    rows = throughput_table(COMPARISON).rows
    assert [row[0] for row in rows] == ["rlplan", "slow-1.0", "unfit"]
    assert rows[0][3:] == ("10.00 s", "1,000", "")
    assert rows[1][3:] == ("30.00 s", "333", "3.00\N{MULTIPLICATION SIGN}")
    assert rows[2][1:] == ("no plan of it fits", "-", "-", "-", "-")


def test_stages_stand_beside_each_other():
    assert stages_table(COMPARISON).rows == (
        ("rlplan", "6.00 s", "1.00 s", "3.00 s", "10.00 s"),
        ("slow-1.0", "18.00 s", "3.00 s", "9.00 s", "30.00 s"),
    )


def test_who_cannot_run_says_why():
    assert misfits_table(COMPARISON).rows == (("unfit", "does not fit: 3.0 GiB too many"),)


def test_memory_layouts_and_manners_are_told_of_every_system_that_runs():
    assert {row[0] for row in systems_memory_table(COMPARISON).rows} == {"rlplan", "slow-1.0"}
    assert {row[0] for row in systems_layout_table(COMPARISON).rows} == {"rlplan", "slow-1.0"}
    assert ("unfit", "how unfit runs", "0") in about_table(COMPARISON).rows


def test_the_verdict_names_the_nearest_and_the_farthest_system():
    twice = replace(COMPARISON, systems=(system("near", 2), SLOW))
    assert verdict(twice) == (
        "Our plan takes 10.00 s an iteration: 2.00 times as fast as near, 3.00 times as fast as slow-1.0."
    )
    assert verdict(COMPARISON).endswith("3.00 times as fast as slow-1.0.")
    alone = replace(COMPARISON, systems=(UNFIT,))
    assert verdict(alone) == "Our plan takes 10.00 s an iteration; none of the other systems fits."
    none = replace(COMPARISON, ours=UNFIT)
    assert verdict(none) == "No plan of ours fits: does not fit: 3.0 GiB too many."


def test_the_page_stands_alone_and_has_its_picture_beside_it(tmp_path):
    page = write_systems_page(tmp_path, COMPARISON, gpu_plan().job)
    text = page.read_text()
    assert page.name == "compare.html"
    assert "<svg" in text
    assert "http" not in text.replace("http://www.w3.org", "").replace("http-equiv", "")
    markdown = (tmp_path / "compare.md").read_text()
    assert "(pictures/systems.svg)" in markdown
    assert "| slow-1.0 |" in markdown
    assert (tmp_path / "pictures" / "systems.svg").read_text().startswith("<?xml")


def test_nothing_is_drawn_when_nothing_fits():
    nothing = SystemsComparison(job="ppo", ours=UNFIT, systems=(UNFIT,))
    content = systems_content(nothing, gpu_plan().job)
    assert content.pictures == ()
    assert not content.is_good
