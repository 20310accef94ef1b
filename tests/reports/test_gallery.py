"""The published gallery: its pages are those of its JSON, forecasts are those of now, and the page is searched in a browser."""

import csv
import re
from dataclasses import replace

import pytest

from benchmarks.gallery import case_of, recipe_cases, step_of
from rlplan.evals.reading import HELD, all_tables
from rlplan.files.decoding import read_json
from rlplan.planner.measured.reading import load_table
from rlplan.reports.pages.gallery import (
    SCHEMES,
    Gallery,
    Recipe,
    gallery_html,
    gallery_markdown,
    measured,
    steps_svg,
)
from tests.cases import first
from tests.house.tree import ROOT
from tests.reports.browser import CHROMIUM, Browser

PUBLISHED = ROOT / "reports" / "published"
GALLERY = read_json(Gallery, PUBLISHED / "gallery.json")
HOSTILE = "<img src=x onerror=alert(1)>"


def test_the_published_pages_are_those_of_the_published_forecasts():
    folder = PUBLISHED / "gallery"
    assert (folder / "index.html").read_text("utf-8") == gallery_html(GALLERY)
    assert (PUBLISHED / "gallery.md").read_text("utf-8") == gallery_markdown(GALLERY)
    for scheme in SCHEMES:
        svg = (folder / f"gallery-steps-{scheme}.svg").read_text("utf-8")
        assert svg == steps_svg(measured(GALLERY), scheme)


def test_every_recipe_has_a_forecast_or_a_reason_and_a_source():
    assert len(GALLERY.recipes) > 150
    for recipe in GALLERY.recipes:
        has_answer = recipe.forecast_seconds is not None or recipe.said in (
            "does not fit",
            "may not fit",
        )
        assert has_answer != bool(recipe.refused), recipe.name
        assert recipe.source, recipe.name


def test_the_page_asks_nothing_of_a_network_and_shows_names_as_text():
    page = gallery_html(GALLERY)
    assert "default-src 'none'" in page
    assert re.findall(r'(?:src|@import|url\()\s*=?\s*"?https?:', page) == []
    hostile = replace(GALLERY.recipes[0], model=HOSTILE, name=HOSTILE, source=f"https://{HOSTILE}")
    shown = gallery_html(Gallery(recipes=(hostile,)))
    assert HOSTILE not in shown
    assert HOSTILE not in steps_svg((replace(MEASURED, model=HOSTILE),), "dark")


MEASURED = Recipe(
    name="a",
    framework="verl",
    version="",
    algorithm="GRPO",
    model="qwen3-8b",
    gpu="h100-80gb-sxm",
    gpus=8,
    mode="sync",
    work="",
    layout="",
    forecast_seconds=75.0,
    interval_seconds=(60.0, 90.0),
    measured_seconds=100.0,
    source="a report",
)


def test_a_forecast_of_three_quarters_is_a_quarter_too_short_and_just_within_the_band():
    assert MEASURED.error_fraction == pytest.approx(-0.25)
    assert "1 of 1 measured steps are forecast within 25 %" in steps_svg((MEASURED,), "light")


NEMO = "rl_steps_nemo"


@pytest.mark.parametrize("index", first(1, (35, *range(35))))
def test_a_published_step_is_forecast_as_it_is_now(index):
    path = HELD / f"{NEMO}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        records = list(csv.DictReader(file))
    reader = all_tables().readers["rl_steps"]
    _, loaded = load_table(path)
    row = next(iter(reader.rows_of(loaded[index])))
    now = step_of(records[index], row)
    published = next(each for each in GALLERY.recipes if each.name == records[index]["id"])
    assert published.forecast_seconds == pytest.approx(now.forecast_seconds, rel=0.02)
    assert published.work == now.work


@pytest.mark.full
@pytest.mark.parametrize("index", range(0, 90, 15))
def test_a_reported_run_is_forecast_as_it_is_now(index):
    cases = recipe_cases()
    now, published = case_of(cases[index]), GALLERY.recipes[index - len(cases)]
    assert (published.name, published.said, published.work) == (now.name, now.said, now.work)


@pytest.mark.full
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_is_searched_and_sorted_without_a_complaint(tmp_path, width, dark):
    with Browser(tmp_path) as browser:
        browser.open(PUBLISHED / "gallery" / "index.html", width, dark=dark)
        shown = "document.querySelectorAll('.recipes tbody tr:not([hidden])').length"
        assert browser.value(shown) == len(GALLERY.recipes)
        typed = "const s = document.getElementById('search'); s.value = 'gb200 deepseek'; s.form.dispatchEvent(new Event('input'))"
        browser.value(typed)
        found = [
            each for each in GALLERY.recipes if each.gpu == "gb200" and "DeepSeek" in each.model
        ]
        assert browser.value(shown) == len(found) > 0
        browser.value("document.querySelector('[data-key=error]').click()")
        top = "document.querySelector('.recipes tbody tr:not([hidden])').dataset.error"
        least = min(abs(each.error_fraction) for each in found)
        assert float(browser.value(top)) == pytest.approx(least, abs=1e-4)
        assert browser.value("document.documentElement.scrollWidth <= innerWidth")
        assert browser.complaints == []
