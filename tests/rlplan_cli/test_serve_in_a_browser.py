"""The page of `rlplan serve` in a real Chromium: what users do, what hostile files cannot, how it looks on small screens."""

import base64
import contextlib
import json
import os
import random
import shutil
import time
import zlib

import pytest

from tests.cases import draws
from tests.rlplan_cli.pages import SCRIPT, page_of_threads, served

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

HOSTILE = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"
PATIENCE_SECONDS = 120  # a busy machine is no finding
STATE = {"model": "smollm2-135m", "gpu": "l4", "gpus": 2, "prompts": 8, "samples_per_prompt": 2,
         "prompt_tokens": 128, "response_tokens": 128, "framework": ""}  # fmt: skip
VERDICT = "document.getElementById('verdict').textContent"
IDLE = (
    "!document.body.classList.contains('busy') && "
    "['stage simulated', 'stage failed'].includes(document.getElementById('stage').className)"
)


@pytest.fixture(scope="module")
def link():
    with served(page_of_threads()) as found:
        yield found


@pytest.fixture(scope="module")
def asked():
    return []


@pytest.fixture(scope="module")
def errors():
    return []


@pytest.fixture(scope="module")
def browsed(link, asked, errors):
    """Return the page, opened once; what it asks for and what goes wrong is written down."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if root else []
        )
        page = browser.new_context(accept_downloads=True).new_page()
        page.set_default_timeout(1000 * PATIENCE_SECONDS)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: line.type == "error" and errors.append(line.text))
        page.goto(link + fragment(STATE))
        page.wait_for_selector("#fields .field")
        yield page
        browser.close()


@pytest.fixture
def page(still):
    """Return the page with the small job."""
    show(still, STATE)
    return still


@pytest.fixture
def still(browsed, asked, errors, link):
    """Return the page as it stands; in the end nothing was asked elsewhere and no error printed."""
    settle(browsed)
    yield browsed
    own = (link, "blob:" + link.rsplit("/", 2)[0])  # what it downloads is a blob of its own
    assert [url for url in asked if not url.startswith(own)] == []
    assert errors == []


def fragment(state):
    """Return a state as the page writes it behind a link."""
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(json.dumps({"state": state, "pins": []}).encode()) + packer.flush()
    return "#" + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def show(page, state):
    page.evaluate("document.body.classList.add('busy')")
    page.evaluate(
        "text => { history.replaceState(null, '', '#'); location.hash = text; }", fragment(state)
    )
    settle(page)


def until(page, condition):
    """Wait until a condition holds; the page's policy forbids the waiting that playwright would do inside it."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(30)


def settle(page):
    """Wait until the page has answered, and has nothing more to ask: a script that was just read is asked about a moment later."""
    shown = None
    while shown != (shown := page.inner_text("#tiles")):
        page.wait_for_timeout(200)
        until(page, IDLE)


def test_a_user_gets_from_a_script_to_verdict_search_and_script(page, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT + "\n")
    page.set_input_files("#script-file", script)
    until(page, "document.getElementById('script-framework').textContent.includes('verl')")
    settle(page)
    assert page.inner_text("#verdict").startswith(("Fits", "May not fit"))
    assert page.locator("#memory .stack button").count() > 3
    assert page.locator("#timeline .bar").count() > 3
    assert page.locator("#field-model").is_hidden()

    page.fill("#field-response_tokens", "512")
    page.wait_for_selector("#script-words:not([hidden])")
    settle(page)
    assert page.inner_text("#script-words") == "data.max_response_length=512"

    page.fill("#search-seconds", "1")
    page.click("#search")
    page.wait_for_selector("#placements table")
    page.locator("#placements button").first.click()
    until(page, "document.getElementById('export-text').textContent.includes('verl')")
    with page.expect_download() as download:
        page.click("#export-download")
    assert download.value.suggested_filename == "run.sh"
    assert "data.max_response_length=512" in download.value.path().read_text()


def test_a_proposal_is_taken_into_the_script_and_left_again(page, tmp_path):
    script = tmp_path / "run.sh"
    slow = SCRIPT.replace(
        "rollout.tensor_model_parallel_size=1", "rollout.tensor_model_parallel_size=2"
    )
    script.write_text(slow + "\n")
    page.set_input_files("#script-file", script)
    until(page, "document.getElementById('script-framework').textContent.includes('verl')")
    settle(page)
    before = page.inner_text("#tiles")
    page.locator("#notes .keys button").first.click()
    page.wait_for_selector("#script-words:not([hidden])")
    settle(page)
    assert page.inner_text("#tiles") != before
    key = page.inner_text("#script-words").split()[0]
    with page.expect_download() as download:
        page.click("#script-download")
    assert key.lower() in download.value.path().read_text().lower()
    page.click("#script-undo")
    settle(page)
    assert page.inner_text("#tiles") == before


def test_a_proposal_that_is_taken_counts_more_than_a_control_that_was_moved_before(page, tmp_path):
    """Its words are made to be those of a control's key, which placements of a search name."""
    script, key = tmp_path / "run.sh", "actor_rollout_ref.rollout.n"
    script.write_text(
        SCRIPT.replace("tensor_model_parallel_size=1", "tensor_model_parallel_size=2")
    )

    def changed(route):
        lines = [json.loads(line) for line in route.fetch().text().splitlines()]
        for line in lines:
            for each in ((line.get("answer") or {}).get("check") or {}).get("better", []):
                each["arguments"] = [f"{key}=2"]
        route.fulfill(body="".join(f"{json.dumps(line)}\n" for line in lines))

    page.route("**/api/answer", changed)
    page.set_input_files("#script-file", script)
    until(page, "document.getElementById('script-framework').textContent.includes('verl')")
    settle(page)
    page.fill("#field-samples_per_prompt", "8")
    settle(page)
    assert page.inner_text("#script-words").split() == [f"{key}=8"]
    page.locator("#notes .keys button").first.click()
    until(page, f"document.getElementById('script-words').textContent.includes('{key}=2')")
    settle(page)
    assert page.inner_text("#script-words").split() == [f"{key}=2"]
    assert page.input_value("#field-samples_per_prompt") == "2"
    page.unroute("**/api/answer")


def test_what_was_found_for_one_script_is_not_shown_beside_another(page, tmp_path):
    """A log's verdict beside another forecast, or a search of another framework, would be taken for this one's."""
    log, script = tmp_path / "train.log", tmp_path / "run.sh"
    log.write_text(
        "step:1 - timing_s/gen:1.0 - timing_s/step:2.0 - response_length/mean:60.0\n" * 4
    )
    script.write_text(SCRIPT + "\n")
    page.set_input_files("#log-file", log)
    page.wait_for_selector("#log table")
    page.fill("#search-seconds", "1")
    page.click("#search")
    page.wait_for_selector("#placements table")
    page.fill("#field-response_tokens", "256")
    settle(page)
    assert "of other settings" in page.inner_text("#log-told")
    assert (
        page.locator("#log.outdated").count() == page.locator("#placements.outdated").count() == 1
    )
    page.set_input_files("#script-file", script)
    until(page, "document.getElementById('script-framework').textContent.includes('verl')")
    settle(page)
    until(page, "!document.querySelector('#log table, #placements table')")
    told = [page.inner_text(f"#{name}") for name in ("log-told", "search-told")]
    assert told == ["", ""]


def test_sliders_move_the_answer_and_a_link_holds_the_state(page):
    before = page.inner_text("#tiles")
    slider = page.locator("[data-name=gpus] input[type=range]")
    slider.focus()
    slider.press("ArrowRight")
    settle(page)
    assert page.input_value("#field-gpus") == "4"
    assert page.inner_text("#tiles") != before
    page.click("#pin")
    old = page.url
    page.click("#copy-link")
    until(page, f"location.href !== {json.dumps(old)}")
    again = page.url
    show(page, STATE)
    assert page.locator("#scenarios th").count() == 0
    page.goto(again)
    until(page, "document.querySelectorAll('#scenarios th').length === 3")
    settle(page)
    assert page.input_value("#field-gpus") == "4"
    assert (page.inner_text("#tiles") != before) is True


def test_figures_of_another_job_are_not_shown_beside_a_script_that_is_not_answered(page):
    assert page.is_visible("#tiles")
    text = f"{SCRIPT.rstrip()} trainer.total_epochs=-3\n"
    show(page, {**STATE, "script": {"name": "run.sh", "text": text}})
    assert page.inner_text("#stage") == "no answer"
    assert "trainer.total_epochs" in page.inner_text("#error-answer")
    assert not page.is_visible("#tiles")
    show(page, STATE)
    assert page.is_visible("#tiles")


def test_a_stale_answer_never_takes_the_place_of_a_newer_one(page):
    held = []

    def hold(route):
        if json.loads(route.request.post_data)["asked"]["response_tokens"] == 512 and not held:
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/answer", hold)
    page.fill("#field-response_tokens", "512")
    end = time.monotonic() + PATIENCE_SECONDS
    while not held and time.monotonic() < end:
        page.wait_for_timeout(30)
    page.fill("#field-response_tokens", "384")
    settle(page)
    newest = page.inner_text("#tiles")
    for route in held:
        with contextlib.suppress(sync_api.Error):  # the page has given that question up
            route.continue_()
    page.wait_for_timeout(300)
    assert page.inner_text("#tiles") == newest
    page.unroute("**/api/answer")


def test_no_script_of_a_hostile_file_runs(page, tmp_path):
    page.fill("#field-model", HOSTILE)
    page.wait_for_selector("[data-name=model] .error:not(:empty)")
    assert HOSTILE[:20] in page.inner_text("[data-name=model] .error")
    assert page.get_attribute("#field-model", "aria-invalid") == "true"
    script = tmp_path / "<b>run.sh"
    hostile = SCRIPT.replace("Qwen/Qwen2.5-0.5B-Instruct", f'"{HOSTILE}"')
    script.write_text(f"{hostile}\n# {HOSTILE}\n")
    page.set_input_files("#script-file", script)
    until(page, f"document.getElementById('script-name').textContent === {json.dumps('<b>run.sh')}")
    settle(page)
    assert HOSTILE[:20] in page.inner_text("#error-answer")
    page.click("#script-remove")
    page.fill("#field-model", "smollm2-135m")
    settle(page)
    assert page.inner_text("[data-name=model] .error") == ""
    log = tmp_path / "train.log"
    log.write_text(f"step:1 - timing_s/gen:1.0 - timing_s/step:2.0 - {HOSTILE}:2.0\n" * 3)
    page.set_input_files("#log-file", log)
    until(
        page,
        "document.getElementById('error-log').textContent || document.querySelector('#log table')",
    )
    assert page.title() == "rlplan"
    assert page.locator("main img, main script, header img").count() == 0


def test_nothing_is_wider_than_the_screen_light_or_dark(still):
    page = still
    size = page.viewport_size
    for width in (390, 1360):
        page.set_viewport_size({"width": width, "height": 844})
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
            colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
            parts = map(int, colour.removeprefix("rgb(").rstrip(")").split(",")[:3])
            assert (sum(parts) > 380) is (scheme == "light")
    page.set_viewport_size(size)


def test_every_control_has_a_name_and_is_reached_by_keys(still):
    page = still
    unnamed = page.evaluate("""() => [...document.querySelectorAll('button, input, select, textarea')]
        .filter((each) => !each.closest('[hidden]'))
        .filter((each) => !(each.textContent.trim() || each.labels?.length || each.getAttribute('aria-label')))
        .map((each) => each.outerHTML)""")
    assert unnamed == []
    assert page.get_attribute("#verdict", "aria-live") == "polite"
    assert page.locator("table th:not([scope])").count() == 0
    page.evaluate("document.activeElement.blur()")
    seen = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert len(seen) > 8


def test_any_state_of_the_controls_is_answered_without_an_error(page, tmp_path):
    """Move controls at random, of which some are small jobs, pin what is there and drop a log now and then."""
    dice, reached, log = random.Random(7), set(), tmp_path / "train.log"
    log.write_text(
        "step:1 - timing_s/gen:1.0 - timing_s/step:2.0 - response_length/mean:60.0\n" * 4
    )
    for number in range(draws(25, 500)):
        page.evaluate(
            """([place, share]) => {
            const all = [...document.querySelectorAll('#fields input[type=range], #fields select')]
                .filter((each) => !each.closest('[hidden]') && !each.disabled);
            const chosen = all[place % all.length];
            if (chosen.type === 'range') chosen.value = String(Math.round(share * Number(chosen.max) * 0.4));
            else chosen.selectedIndex = Math.floor(share * chosen.options.length);
            chosen.dispatchEvent(new Event('input', { bubbles: true }));
        }""",
            [dice.randrange(1000), dice.random()],
        )
        if number % 25 == 24:
            settle(page)
            reached.add(page.input_value("#field-mode"))
            page.evaluate("document.getElementById('pin').click()")
            page.set_input_files("#log-file", log)
    settle(page)
    assert page.evaluate(VERDICT)
    assert page.locator("#scenarios th").count() > 2
    assert reached <= {"sync", "streaming", "one-step-off", "async"}


def test_a_first_plan_is_shown_where_samples_are_handed_on_until_the_whole_answer_comes(page):
    held = []

    def hold(route):
        held.append(route)

    page.route("**/api/answer", hold)
    page.select_option("#field-mode", "streaming")
    page.wait_for_selector("#stage.first", timeout=PATIENCE_SECONDS * 1000)
    assert page.inner_text("#stage") == "first plan"
    assert page.get_attribute("#answer", "aria-busy") == "true"
    end = time.monotonic() + PATIENCE_SECONDS
    while not held and time.monotonic() < end:
        page.wait_for_timeout(30)
    for route in held:
        with contextlib.suppress(sync_api.Error):  # the page may have given that question up
            route.continue_()
    settle(page)
    page.unroute("**/api/answer")
    assert page.inner_text("#stage") == "simulated"
    assert "still searching" not in page.inner_text("#what")


@pytest.mark.full
def test_modes_that_hand_samples_on_are_answered_beside_pinned_ones(page):
    """States that random moves seldom reach: each mode with its staleness, two scenarios, and a link to them."""
    for mode in ("one-step-off", "async"):
        page.select_option("#field-mode", mode)
        settle(page)
        assert page.get_attribute("#stage", "class") == "stage simulated", page.inner_text(
            "#error-answer"
        )
        assert page.is_visible("#field-staleness") is (mode == "async")
        page.click("#pin")
    assert page.locator("#scenarios th").count() == 1 + 2 + 1
    page.fill("#field-staleness", "2")
    settle(page)
    assert "async" in page.inner_text("#what")
    page.locator("#scenarios button", has_text="Restore").first.click()
    settle(page)
    assert page.input_value("#field-mode") == "one-step-off"
    for _ in range(2):
        page.locator("#scenarios button", has_text="Remove").first.click()
