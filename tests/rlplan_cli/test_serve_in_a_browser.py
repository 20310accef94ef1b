"""The page of `rlplan serve` in a real Chromium: what users do, what hostile files cannot, how it looks on small screens."""

import json
import os
import random
import shutil

import pytest

from tests.cases import draws
from tests.rlplan_cli.pages import SCRIPT, page_of_threads, served

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

HOSTILE = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"
PATIENCE = 120_000  # milliseconds; a busy machine is no finding
STATE = {"model": "smollm2-135m", "gpu": "l4", "gpus": 2, "prompts": 16, "samples_per_prompt": 4,
         "prompt_tokens": 128, "response_tokens": 256, "framework": ""}  # fmt: skip


@pytest.fixture(scope="module")
def link():
    with served(page_of_threads()) as found:
        yield found


@pytest.fixture(scope="module")
def browser():
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if root else []
        )
        yield found
        found.close()


@pytest.fixture
def opened(browser, link):
    """Return a function that opens the page; afterwards nothing was asked elsewhere and no error was printed."""
    contexts, asked, errors = [], [], []

    def opener(state=None, **options):
        context = browser.new_context(accept_downloads=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: line.type == "error" and errors.append(line.text))
        page.goto(link + ("" if state is None else fragment(page, link, state)))
        page.wait_for_selector("#fields .field")
        return page

    yield opener
    for context in contexts:
        context.close()
    # What the page downloads is a blob of its own.
    elsewhere = [
        url for url in asked if not url.startswith((link, f"blob:{link.rsplit('/', 2)[0]}"))
    ]
    assert not elsewhere
    assert not errors


def fragment(page, link, state):
    """Return the fragment that the page itself makes of a state."""
    page.goto(link)
    text = page.evaluate(
        "async (state) => { const { toFragment, USUAL } = await import('./assets/state.js');"
        " return toFragment({ ...USUAL, ...state }, []); }",
        state,
    )
    page.goto("about:blank")
    return f"#{text}"


def settle(page):
    page.wait_for_selector(".stage.simulated, .stage.failed")
    page.wait_for_function("!document.body.classList.contains('busy')")


def test_a_user_gets_from_a_script_to_verdict_search_and_script(opened, tmp_path):
    page = opened(STATE)
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT + "\n")
    page.set_input_files("#script-file", script)
    page.wait_for_function(
        "document.getElementById('script-framework').textContent.includes('verl')"
    )
    settle(page)
    assert page.inner_text("#verdict").startswith(("Fits", "May not fit"))
    assert page.locator("#memory .stack button").count() > 3
    assert page.locator("#timeline .bar").count() > 3

    page.locator("#field-response_tokens").fill("512")
    page.wait_for_selector("#script-words:not([hidden])")
    settle(page)
    assert page.inner_text("#script-words") == "data.max_response_length=512"

    page.fill("#search-seconds", "2")
    page.click("#search")
    page.wait_for_selector("#placements table")
    page.locator("#placements button").first.click()
    page.wait_for_function("document.getElementById('export-text').textContent.includes('verl')")
    with page.expect_download() as download:
        page.click("#export-download")
    assert download.value.suggested_filename == "run.sh"
    assert "data.max_response_length=512" in download.value.path().read_text()


def test_sliders_move_the_answer_and_a_link_holds_the_state(opened):
    page = opened(STATE)
    settle(page)
    before = page.inner_text("#tiles")
    slider = page.locator("[data-name=gpus] input[type=range]")
    slider.focus()
    slider.press("ArrowRight")
    page.wait_for_function(
        "before => document.getElementById('tiles').innerText !== before", arg=before
    )
    settle(page)
    assert page.input_value("#field-gpus") == "4"
    page.click("#pin")
    page.click("#copy-link")
    page.wait_for_function("location.hash.length > 1")
    again = page.url
    page.goto("about:blank")
    page.goto(again)
    settle(page)
    assert page.input_value("#field-gpus") == "4"
    assert page.locator("#scenarios th").count() == 3


def test_a_stale_answer_never_takes_the_place_of_a_newer_one(opened):
    page = opened(STATE)
    settle(page)
    held = []

    def hold(route):
        asked = json.loads(route.request.post_data)["asked"]
        if asked["response_tokens"] == 512 and not held:
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/answer", hold)
    field = page.locator("#field-response_tokens")
    field.fill("512")
    page.wait_for_timeout(600)
    field.fill("1024")
    page.wait_for_function("document.getElementById('command').textContent.length > 0")
    settle(page)
    newest = page.inner_text("#tiles")
    for route in held:
        try:
            route.continue_()
        except sync_api.Error:
            pass  # the page has given that question up
    page.wait_for_timeout(600)
    assert page.inner_text("#tiles") == newest


def test_no_script_of_a_hostile_file_runs(opened, tmp_path):
    page = opened({**STATE, "model": HOSTILE})
    settle(page)
    assert HOSTILE[:20] in page.inner_text("#field-model-error, [data-name=model] .error")
    script = tmp_path / "<b>run.sh"
    script.write_text(
        SCRIPT.replace("Qwen/Qwen2.5-0.5B-Instruct", f"'{HOSTILE}'") + f"\n# {HOSTILE}\n"
    )
    page.set_input_files("#script-file", script)
    page.wait_for_selector(".stage.failed")
    settle(page)
    log = tmp_path / "train.log"
    log.write_text(f"step:1 - timing_s/gen:1.0 - {HOSTILE}:2.0\n" * 3)
    page.click("#script-remove")
    page.fill("#field-model", "smollm2-135m")
    page.wait_for_selector(".stage.simulated")
    settle(page)
    page.set_input_files("#log-file", log)
    page.wait_for_function(
        "document.getElementById('log-told').textContent !== 'reading train.log'"
    )
    assert page.title() == "rlplan"
    assert page.locator("main img, main script, header img").count() == 0


def test_mistakes_stand_beside_their_field(opened):
    page = opened(STATE)
    settle(page)
    page.fill("#field-model", "qwen2.5-8b")
    page.wait_for_selector("[data-name=model] .error:not(:empty)")
    assert "qwen2.5-7b" in page.inner_text("[data-name=model] .error")
    assert page.get_attribute("#field-model", "aria-invalid") == "true"
    page.fill("#field-model", "smollm2-135m")
    page.wait_for_selector(".stage.simulated")
    assert page.inner_text("[data-name=model] .error") == ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1360])
def test_nothing_is_wider_than_the_screen(opened, scheme, width):
    page = opened(STATE, color_scheme=scheme, viewport={"width": width, "height": 844})
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, colour.removeprefix("rgb(").rstrip(")").split(",")[:3])) > 380
    assert light is (scheme == "light")


def test_every_control_has_a_name_and_is_reached_by_keys(opened):
    page = opened(STATE)
    settle(page)
    unnamed = page.evaluate("""() => [...document.querySelectorAll('button, input, select, textarea')]
        .filter((each) => !each.closest('[hidden]'))
        .filter((each) => !(each.textContent.trim() || each.labels?.length || each.getAttribute('aria-label')))
        .map((each) => each.outerHTML)""")
    assert unnamed == []
    assert page.get_attribute("#verdict", "aria-live") == "polite"
    assert page.locator("table th:not([scope])").count() == 0
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    for _ in range(12):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement !== document.body")


def test_any_state_of_the_controls_is_answered_without_an_error(opened, request):
    """Move controls at random: small jobs, so that hundreds of states take a minute."""
    page = opened(STATE)
    settle(page)
    dice = random.Random(7)
    for number in range(draws(20, 500)):
        page.evaluate(
            """([place, share]) => {
            const all = [...document.querySelectorAll('#fields input[type=range], #fields select')].filter((each) => !each.closest('[hidden]') && !each.disabled);
            const chosen = all[place % all.length];
            if (chosen.type === 'range') chosen.value = String(Math.round(share * Number(chosen.max) * 0.4));
            else chosen.selectedIndex = Math.floor(share * chosen.options.length);
            chosen.dispatchEvent(new Event('input', { bubbles: true }));
        }""",
            [dice.randrange(1000), dice.random()],
        )
        if number % 10 == 9:
            settle(page)
    settle(page)
    assert page.inner_text("#verdict")
