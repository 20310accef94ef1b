"""The page of a reproduced evaluation: claims marked, published values beside forecasts."""

from rlplan.reports.pages.reproduction import curves_of, write_reproduction_page
from rlplan.reports.tables.accuracy import claims_table, points_table, series_table
from rlplan.results.accuracy import Claim, Point, Reproduction


def point(series, gpus, forecast, published=None, figure="Fig 9", **more):
    return Point(
        figure=figure, panel="PPO 7B", series=series, gpus=gpus, quantity="tokens_per_second",
        forecast=forecast, published=published, **more,
    )  # fmt: skip


POINTS = (
    point("ours", 8, 110.0, 100.0, plan="all on 8"),
    point("ours", 16, 180.0, 200.0),
    point("theirs", 8, None, 50.0, reason="does not fit"),
    point("theirs", 16, 40.0),
)
CLAIMS = (
    Claim(where="section 1", text="ours is faster", holds=True, evidence="2 of 2"),
    Claim(where="section 2", text="theirs fits", holds=False, evidence="on 16 GPUs | only"),
)


def test_errors_are_of_points_with_both_values():
    assert POINTS[0].error_fraction == 0.1
    assert POINTS[2].error_fraction is None
    assert POINTS[3].error_fraction is None
    assert series_table(POINTS).rows == (("Fig 9", "ours", "2", "10 %", "+0.0 %", "+10.0 %"),)


def test_points_tell_their_plan_or_why_there_is_none():
    rows = points_table(POINTS).rows
    assert rows[0] == ("PPO 7B", "ours", "8", "110 tokens/s", "100 tokens/s", "+10.0 %", "all on 8")
    assert rows[2] == ("PPO 7B", "theirs", "8", "-", "50 tokens/s", "-", "does not fit")


def test_claims_are_marked():
    assert [row[2] for row in claims_table(CLAIMS).rows] == ["holds", "fails"]


def test_curves_by_tensor_parallelism_have_it_on_the_axis():
    by_tp = [point(f"generation, TP {tp}", 16, 10.0 * tp) for tp in (8, 4)]
    curves, counted = curves_of(by_tp)
    assert counted == "generation TP"
    assert [mark.x for mark in curves["PPO 7B"]["generation"]] == [8, 4]
    assert curves_of(POINTS)[1] == "GPUs"


def test_the_page_holds_claims_notes_errors_and_a_picture_for_every_figure(tmp_path):
    found = Reproduction(
        name="paper", title="A paper", source="Somebody 2025", notes=("Sizes are assumed.",),
        points=(*POINTS, point("ours", 8, 5.0, figure="Fig 10")), claims=CLAIMS,
    )  # fmt: skip
    page = write_reproduction_page(tmp_path, found, "rlplan reproduce paper")
    text = page.read_text()
    assert page.name == "paper.md"
    assert "1 of 2 claims of the paper hold in the forecasts." in text
    assert "| theirs fits | section 2 | fails | on 16 GPUs \\| only |" in text
    assert "- Sizes are assumed." in text
    assert "(paper/reproduction-fig-9.svg)" in text
    assert (tmp_path / "paper" / "reproduction-fig-10.svg").exists()
