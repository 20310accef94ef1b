"""Every kind of page in a browser: nothing to complain of, no sideways scrolling, all of it by keys."""

import pytest

from rlplan.reports.pages.report import write_report
from rlplan.reports.pages.step_check import write_step_check_page
from rlplan.reports.panels import Subject
from rlplan.results.measurement import StageCheck, StepCheck
from tests.reports.browser import CHROMIUM, Browser
from tests.reports.run_samples import cpu_report
from tests.reports.samples import gpu_details, gpu_forecast, gpu_plan, gpu_search

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
]
TAB, RIGHT, END = 9, 39, 35
STAGE = StageCheck(
    name="generation",
    measured_seconds=90.0,
    forecast_seconds=60.0,
    normal_seconds=(50.0, 75.0),
    verdict="slow",
    causes=("tail: the longest response has 4,096 tokens",),
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Return a plan's page, a run's and a checked step's."""
    folder = tmp_path_factory.mktemp("pages")
    plan, forecast = gpu_plan(), gpu_forecast()
    of_plan = Subject(plan=plan, forecast=forecast, search=gpu_search(), details=gpu_details())
    check = StepCheck(
        source="verl",
        steps=9,
        prompt_tokens=512.0,
        response_tokens=700.0,
        step=None,
        stages=(STAGE,),
    )
    return {
        "plan": write_report(folder / "plan", of_plan),
        "run": write_report(folder / "run", Subject(**cpu_report())),
        "check-step": write_step_check_page(folder / "check", check, plan, forecast),
    }


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("kind", ["plan", "run", "check-step"])
def test_a_page_fits_its_window_and_the_console_stays_silent(browser, pages, kind, width, dark):
    browser.open(pages[kind], width, dark=dark)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.complaints == []
    colour = browser.value("getComputedStyle(document.querySelector('section')).backgroundColor")
    assert (colour == "rgb(255, 255, 255)") != dark


def test_the_timeline_is_reached_by_tab_and_walked_and_zoomed_by_keys(browser, pages):
    browser.open(pages["plan"], 1280)
    for _ in range(60):
        browser.press("Tab", TAB)
        if browser.value("document.activeElement.classList.contains('bar')"):
            break
    first = browser.value("document.activeElement.title")
    told = "document.querySelector('.told').textContent"
    assert first
    assert browser.value(told) == first
    browser.press("ArrowRight", RIGHT)
    assert browser.value("document.activeElement.title") not in ("", first)
    assert browser.value(told) == browser.value("document.activeElement.title")
    browser.press("End", END)
    bars = "[...document.querySelectorAll('.bar')]"
    assert browser.value(f"{bars}.at(-1) === document.activeElement")
    inner = "document.querySelector('.inner').clientWidth"
    narrow = browser.value(inner)
    browser.press("+")
    assert browser.value(inner) == pytest.approx(2 * narrow, rel=0.02)
    browser.press("0")
    assert browser.value(inner) == narrow
