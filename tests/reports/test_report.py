"""The whole report: every section, alone in the world, safe against what users write."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from rlplan.errors import FileError
from rlplan.files.frozen import FrozenDict
from rlplan.plan import Plan, ResourcePool
from rlplan.reports.pages.report import as_markdown, write_report
from rlplan.reports.panels import PANELS, Subject, sections_of
from rlplan.results.forecast import Forecast
from tests.house.tree import ROOT
from tests.reports.run_samples import cpu_evaluations, cpu_report
from tests.reports.samples import gpu_details, gpu_forecast, gpu_plan, gpu_report, gpu_search
from tests.reports.test_run_and_rent_pages import run_of

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Outline(HTMLParser):
    """Collect ids and headings of a page, and check that its elements close in order."""

    def __init__(self):
        super().__init__()
        self.ids, self.open, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def outline(page):
    found = Outline()
    found.feed(page)
    assert not found.open
    return found


@pytest.fixture(scope="module")
def cpu_page(tmp_path_factory):
    return write_report(tmp_path_factory.mktemp("cpu"), Subject(**cpu_report()))


@pytest.fixture(scope="module")
def gpu_page(tmp_path_factory):
    return write_report(tmp_path_factory.mktemp("gpu"), Subject(**gpu_report()))


@pytest.mark.full
def test_a_run_with_everything_has_every_section(tmp_path):
    page = write_report(tmp_path, Subject(**cpu_report(), search=gpu_search()))
    assert page == tmp_path / "report.html"
    sections = [key for key in outline(page.read_text()).ids if key.isalpha()]
    assert sections == [
        "summary", "plan", "timelines", "errors", "memory", "search", "parts", "learning",
        "evaluations", "warnings", "sources",
    ]  # fmt: skip


def test_a_forecast_alone_makes_a_report_without_the_sections_of_a_run(tmp_path):
    page = write_report(tmp_path, Subject(plan=gpu_plan(), forecast=gpu_forecast()))
    text = page.read_text()
    sections = [key for key in outline(text).ids if key.isalpha()]
    assert sections == ["summary", "plan", "timelines", "memory", "parts", "warnings", "sources"]
    assert "Forecast: 2 min 24 s an iteration" in text
    assert "Not run yet" in text


def test_the_verdict_says_forecast_measured_and_error(cpu_page):
    assert "Forecast 884.0 ms, measured 926.2 ms: off by \N{MINUS SIGN}4.6 %." in (
        cpu_page.read_text()
    )


def test_an_infeasible_plan_says_why_in_its_head(tmp_path):
    page = write_report(tmp_path, Subject(plan=gpu_plan(), forecast=gpu_forecast(feasible=False)))
    head = page.read_text().partition("</header>")[0]
    assert "This plan does not fit: pool p0 lacks 11 GiB; ZeRO stage 2 would fit." in head


def test_the_page_needs_no_network_and_no_other_file(cpu_page, gpu_page):
    for page in (cpu_page, gpu_page):
        found = outline(page.read_text())
        tags = {tag for tag, _, _ in found.attributes}
        assert not tags & {"link", "iframe", "img", "object", "embed"}
        for tag, name, value in found.attributes:
            if name in {"href", "src", "xlink:href"}:
                assert value.startswith("#"), (tag, name, value)
            if not name.startswith("xmlns"):
                assert "//" not in value, (tag, name, value)
        styles = "".join(re.findall(r"<style>(.*?)</style>", page.read_text(), re.DOTALL))
        assert "url(" not in styles
        assert "@import" not in styles


def test_ids_are_unique_and_every_reference_finds_its_target(cpu_page, gpu_page):
    for page in (cpu_page, gpu_page):
        text = page.read_text()
        ids = outline(text).ids
        assert len(ids) == len(set(ids))
        assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', text)) <= set(ids)


HOSTILE = '<script>alert("1")</script> $x^2$ `a|b` & <!-- --> _long_ 漢字'


def hostile_report():
    """Return a report whose every name is one that a page must not believe."""
    plan, forecast = gpu_plan(HOSTILE), gpu_forecast()
    pools = tuple(replace(pool, name=pool.name + HOSTILE) for pool in plan.pools)
    tasks = {name: replace(task, pool=task.pool + HOSTILE) for name, task in plan.tasks.items()}
    spans = tuple(
        replace(span, pool=span.pool + HOSTILE, name=span.name + HOSTILE)
        for span in forecast.trace.spans
    )
    return {
        "plan": replace(plan, pools=pools, tasks=FrozenDict(tasks), made_by=HOSTILE),
        "forecast": replace(
            forecast,
            tasks=spans,
            memory=tuple(
                replace(each, pool=each.pool + HOSTILE, terms=FrozenDict({HOSTILE: 3}))
                for each in forecast.memory
            ),
            costs=tuple(
                replace(task, name=task.name + HOSTILE, parts=FrozenDict({HOSTILE: 1.0}))
                for task in forecast.costs
            ),
            warnings=(HOSTILE,),
            profile=HOSTILE,
        ),
        "metrics": [{"iteration": 0, f"loss {HOSTILE}": 1.0}],
        "evaluations": cpu_evaluations()[0],
        "samples": [{"iteration": 0, "prompt": HOSTILE, "response": HOSTILE, "score": 1.0}],
    }


def test_text_of_the_users_is_shown_and_never_obeyed(tmp_path):
    page = write_report(tmp_path, Subject(**hostile_report()))
    text = page.read_text()
    assert text.count("<script") == text.count("<script>") == 1
    assert "<script>alert" not in text
    assert "<!--" not in text
    assert "&lt;script&gt;" in text
    outline(text)
    markdown = (tmp_path / "report.md").read_text()
    assert "<script" not in markdown
    assert "\\`a\\|b\\`" in markdown
    for picture in (tmp_path / "pictures").glob("*.svg"):
        ET.fromstring(picture.read_text())
        assert "<script" not in picture.read_text()


@pytest.mark.full
def test_held_out_prompts_have_a_section_of_numbers_and_of_what_was_said(tmp_path):
    text = write_report(tmp_path, Subject(**cpu_report())).read_text()
    assert "Best after 8 iterations: 75 % of the responses were right." in text
    assert text.count("2 + 3 is 0.25") == text.count("2 + 3 is 0.7<") == 1
    assert "2 + 3 is 0.5" not in text  # neither of the first nor of the last evaluation
    assert "x" * 400 + "..." in text


def test_a_dollar_in_a_name_starts_no_formula(tmp_path):
    write_report(tmp_path, Subject(**hostile_report()))
    assert "$x^2$" in (tmp_path / "pictures/parts.svg").read_text()


def test_markdown_refers_to_pictures_that_exist(cpu_page):
    text = cpu_page.with_name("report.md").read_text()
    links = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert links == [
        "pictures/plan.svg", "pictures/timelines.svg", "pictures/memory.svg", "pictures/parts.svg",
        "pictures/curves.svg", "pictures/evaluations.svg",
    ]  # fmt: skip
    assert all((cpu_page.parent / link).is_file() for link in links)


def test_markdown_tables_have_as_many_cells_as_columns(cpu_page, gpu_page):
    for page in (cpu_page, gpu_page):
        text = page.with_name("report.md").read_text()
        for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(widths) == 1, block
            assert re.fullmatch(r"\|( -{3}:? \|)+", block.splitlines()[1])


def test_markdown_escapes_what_would_be_markup_and_leaves_numbers():
    assert str(as_markdown("a|b_c <i>\nd")) == "a\\|b\\_c &lt;i> d"
    assert as_markdown(3) == 3


def test_pictures_beside_the_page_stand_alone(cpu_page):
    for path in (cpu_page.parent / "pictures").glob("*.svg"):
        root = ET.fromstring(path.read_text())
        space = "{http://www.w3.org/2000/svg}"
        assert root.tag == f"{space}svg"
        assert root.find(f"{space}title").text
        assert root.find(f"{space}desc").text
        outside = set(re.findall(r"https?://[^\s\"<]+", path.read_text()))
        assert outside == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


@pytest.mark.full
def test_the_same_report_is_the_same_bytes(tmp_path):
    first = write_report(tmp_path / "first", Subject(**cpu_report())).parent
    second = write_report(tmp_path / "second", Subject(**cpu_report())).parent
    files = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert len(files) == 8
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file


@pytest.mark.full
def test_a_report_replaces_an_older_one_and_leaves_no_other_file(tmp_path):
    write_report(tmp_path, Subject(**gpu_report()))
    (tmp_path / "report.html").write_text("half a pa")
    page = write_report(tmp_path, Subject(**gpu_report()))
    assert page.read_text().endswith("</html>\n") or page.read_text().endswith("</html>")
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]


@pytest.mark.full
def test_a_failure_while_writing_keeps_the_old_page(tmp_path, monkeypatch):
    page = write_report(tmp_path, Subject(**gpu_report()))
    before = page.read_text()

    def full_disk(self, target):
        raise OSError("no space left")

    monkeypatch.setattr("pathlib.Path.replace", full_disk)
    with pytest.raises(FileError, match="cannot be written: no space left"):
        write_report(tmp_path, Subject(**cpu_report()))
    assert page.read_text() == before
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]


def test_a_plan_without_spans_memory_or_tasks_still_has_a_report(tmp_path):
    forecast: Forecast = gpu_forecast()
    empty = replace(
        forecast,
        tasks=(),
        iterations=(),
        costs=(),
        memory=(),
        stage_seconds=FrozenDict(),
    )
    page = write_report(tmp_path, Subject(plan=gpu_plan(), forecast=empty))
    assert 'id="memory"' not in page.read_text()


def test_a_cluster_of_a_thousand_nodes_has_a_small_page(tmp_path):
    plan: Plan = gpu_plan()
    group = replace(plan.job.cluster[0], nodes=1000)
    pools = (
        ResourcePool(name="p0", device=group.gpu, gpus=7996, roles=("actor", "reference")),
        replace(plan.pools[1]),
    )
    large = replace(plan, job=replace(plan.job, cluster=(group,)), pools=pools)
    page = write_report(tmp_path, Subject(plan=large, forecast=gpu_forecast()))
    text = page.read_text()
    assert "nodes 0 to 998 (999 alike)" in text
    assert len(text) < 200_000


@pytest.mark.full
def test_reporting_needs_no_torch_and_no_ray(tmp_path):
    program = (
        "import sys\n"
        "for blocked in ('torch', 'ray', 'transformers', 'pydantic', 'typer', 'rich'):\n"
        "    sys.modules[blocked] = None\n"
        "from pathlib import Path\n"
        "from rlplan.reports.pages.report import write_report\n"
        "from rlplan.reports.panels import Subject\n"
        "from tests.reports.run_samples import cpu_report\n"
        f"write_report(Path({str(tmp_path)!r}), Subject(**cpu_report()))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    assert (tmp_path / "report.html").is_file()


def test_tables_for_the_terminal_load_no_drawing_library():
    program = (
        "import sys\n"
        "import rlplan.reports.tables.plans, rlplan.reports.tables.searches, rlplan.reports.tables.wording\n"
        "print([name for name in ('matplotlib', 'jinja2', 'pandas') if name in sys.modules])\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"


@pytest.mark.full
def test_every_panel_has_a_place_of_its_own_and_names_its_section_as_its_file():
    orders = [panel.ORDER for panel in PANELS.all()]
    assert len(set(orders)) == len(orders)
    report = cpu_report()
    report["forecast"] = replace(report["forecast"], run=run_of())
    subject = Subject(**report, search=gpu_search(), details=gpu_details())
    keys = {section.key for section in sections_of(subject)}
    assert keys == set(PANELS.names())
