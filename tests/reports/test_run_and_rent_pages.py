"""The page of what to rent, and the panel and lines of a whole run."""

from dataclasses import replace
from typing import Any

import pytest

from rlplan.files.frozen import FrozenDict
from rlplan.reports.pages.renting import rent_content, renting_picture, write_rent_page
from rlplan.reports.pages.report import markdown
from rlplan.reports.panels import Subject
from rlplan.reports.panels.run import section
from rlplan.reports.tables.renting import answer_lines, offers_table, search_words
from rlplan.reports.tables.run import parts_table, run_lines, run_table
from rlplan.results.renting import LeftOut, RentalAnswer, RentalLimits, RentalOffer
from rlplan.results.run import RunForecast, RunPoint
from tests.reports.run_samples import cpu_report
from tests.reports.samples import gpu_plan

HOUR = 3600.0


def run_of(hours=100.0, usd=5000.0, **changes):
    seconds = hours * HOUR
    fields: dict[str, Any] = {
        "steps": 400,
        "points": (
            RunPoint(step=1, response_tokens=500.0, seconds=400.0, interval_seconds=(300.0, 500.0)),
            RunPoint(
                step=400, response_tokens=2000.0, seconds=1200.0, interval_seconds=(900.0, 1500.0)
            ),
        ),
        "seconds": seconds,
        "interval_seconds": (seconds * 0.8, seconds * 1.2),
        "parts": FrozenDict(
            steps=seconds * 0.9,
            validation=seconds * 0.04,
            checkpoints=seconds * 0.01,
            failures=seconds * 0.05,
        ),
        "usd_per_hour": usd / hours,
        "usd": usd,
        "interval_usd": (usd * 0.8, usd * 1.2),
        "failures": 2.5,
        "validations": 41,
        "checkpoints": 20,
    }
    return RunForecast(**(fields | changes))


def offer_of(name, hours, usd, **changes):
    fields: dict[str, Any] = {
        "provider": "aws",
        "name": name,
        "gpu": "h100-80gb-sxm",
        "instances": 2,
        "gpus": 16,
        "price_date": "2026-11-09",
        "region": "us-east-1",
        "plan": gpu_plan(),
        "run": run_of(hours, usd),
        "gap": 0.0,
    }
    return RentalOffer(**(fields | changes))


def answer_of(**changes):
    fields: dict[str, Any] = {
        "job": "grpo",
        "steps": 400,
        "limits": RentalLimits(),
        "front": (
            offer_of("p5.48xlarge", 50.0, 9000.0),
            offer_of("<small>", 100.0, 5000.0, price_date=None, assumed=("cores",)),
        ),
        "chosen": None,
        "beaten": (offer_of("p4d.24xlarge", 200.0, 7000.0),),
        "left_out": (
            LeftOut(provider="aws", name="p5.4xlarge", instances=1, reason="does not fit"),
        ),
        "searched": 3,
        "reused": 1,
        "pruned": 0,
        "search_seconds": 12.0,
        "not_counted": ("storage",),
        "notes": ("prices are list prices",),
    }
    return RentalAnswer(**(fields | changes))


def test_without_a_limit_both_ends_of_the_front_are_the_answer():
    lines = answer_lines(answer_of())
    assert lines[0] == "fastest: 2 x p5.48xlarge of aws"
    assert "cheapest: 2 x <small> of aws" in lines
    assert (
        "  9,000 USD (p10 to p90: 7,200 to 10,800 USD) at 180.00 USD an hour, price of 2026-11-09"
        in lines
    )
    assert any("a date that is not known" in line for line in lines)
    assert lines[-1] == "  assumed as on the GPU's usual node: cores"


@pytest.mark.parametrize(
    ("limits", "chosen", "first"),
    [
        (
            RentalLimits(budget_usd=12000.0),
            0,
            "fastest: 2 x p5.48xlarge of aws, within 12,000 USD at p90",
        ),
        (
            RentalLimits(budget_usd=12000.0, deadline_seconds=5 * 24 * HOUR),
            1,
            "cheapest: 2 x <small> of aws, within 12,000 USD and 5 d 0 h at p90",
        ),
    ],
)
def test_the_answer_says_what_was_asked(limits, chosen, first):
    assert answer_lines(answer_of(limits=limits, chosen=chosen))[0] == first


def test_the_table_has_a_row_an_offer_and_undated_prices_say_so():
    table = offers_table(answer_of().front, chosen=1)
    assert [row[:2] for row in table.rows] == [
        ("1", "2 x p5.48xlarge of aws"),
        ("2", "2 x <small> of aws"),
    ]
    assert [row[-1] for row in table.rows] == ["2026-11-09", "not dated"]
    assert table.strong_rows == {1}
    assert search_words(answer_of()).startswith("4 clusters: 3 searched, 1 like others")


def test_the_page_has_the_front_the_run_and_what_is_not_counted(tmp_path):
    page = write_rent_page(tmp_path, answer_of(limits=RentalLimits(budget_usd=1e4), chosen=0))
    text = page.read_text(encoding="utf-8")
    assert "&lt;small&gt;" in text
    assert "<small>" not in text
    assert "not counted: storage" in text
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"renting.svg", "run.svg"}
    assert "does not fit" in markdown(rent_content(answer_of()))


def test_the_picture_names_every_offer_of_the_front():
    limits = RentalLimits(budget_usd=8000.0, deadline_seconds=80 * HOUR)
    shown = renting_picture(answer_of(limits=limits)).svg
    assert "2 x p5.48xlarge of aws" in shown
    assert renting_picture(answer_of(beaten=())).svg != shown


def test_a_whole_run_is_told_with_what_stands_beside_its_steps():
    lines = run_lines(run_of())
    assert lines[0] == "run:  400 steps in 4 d 4 h (p10 to p90: 3 d 8 h to 5 d 0 h)"
    told = "\n".join(lines)
    assert "41 validations, 4.0 h" in told
    assert "2.5 failures expected" in told
    assert "responses of 500 tokens at first and 2,000 at last" in told
    rows = parts_table(run_of()).rows
    assert [row[0] for row in rows] == [
        "400 steps",
        "41 validations",
        "20 checkpoints",
        "2.5 failures expected",
        "all",
    ]
    assert [row[0] for row in run_table(run_of()).rows] == ["1", "400"]


def test_a_report_has_a_panel_of_the_run_where_one_was_asked_for():
    subject = Subject(**cpu_report())
    assert section(subject) is None
    forecast = replace(subject.forecast, run=run_of())
    found = section(replace(subject, forecast=forecast))
    assert found.points[0].startswith("400 steps in 4 d 4 h")
    assert "A run of 400 steps" in found.picture.svg
