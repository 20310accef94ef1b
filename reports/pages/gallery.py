"""The gallery: published recipes with their forecasts, as one page that is searched in the browser, as Markdown, and as a picture."""

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from math import log
from pathlib import Path
from statistics import median

from markupsafe import Markup

from rlplan.files.writing import write_text
from rlplan.reports.pages.report import page_environment
from rlplan.reports.pictures.steps import SCHEMES, steps_svg
from rlplan.reports.tables.plans import Table, columns, markdown_lines
from rlplan.reports.tables.wording import TIMES, interval, percent, signed_percent
from rlplan.results.gallery import Gallery, Recipe
from rlplan.units import show_seconds, show_usd

PAGE, SCRIPT_FILE = "gallery", "gallery.js"
PAGE_FILE = "index.html"
PICTURE = "gallery-steps"
# Of the strip that shows a forecast beside its measurement: from a third of what was measured to three times as much.
_STRIP_TIMES = 3.0
KINDS = ("measured", "reported", "refused")
MODES = {"one-step-off": "one step off", "async": "asynchronous"}


def write_gallery_pages(folder: Path, gallery: Gallery) -> Path:
    """Write `gallery/index.html`, `gallery.md` and the picture of measured steps, light and dark, into a folder; return the page's path."""
    for scheme in SCHEMES:
        svg = steps_svg(measured(gallery), scheme)
        write_text(folder / PAGE / f"{PICTURE}-{scheme}.svg", svg)
    write_text(folder / f"{PAGE}.md", gallery_markdown(gallery))
    path = folder / PAGE / PAGE_FILE
    write_text(path, gallery_html(gallery))
    return path


def measured(gallery: Gallery) -> tuple[Recipe, ...]:
    """Return the recipes whose steps were measured and forecast, those left out on whose steps a constant rests."""
    return tuple(
        recipe
        for recipe in gallery.recipes
        if recipe.error_fraction is not None and not recipe.is_fitted
    )


def gallery_html(gallery: Gallery) -> str:
    """Return the page; nothing of it comes from a network, and no other script runs in it than its own."""
    script = files("rlplan.reports").joinpath("templates", SCRIPT_FILE).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    recipes = sorted(gallery.recipes, key=lambda recipe: KINDS.index(_kind(recipe)))
    return (
        page_environment()
        .get_template("gallery.html.j2")
        .render(
            rows=[_cells(recipe) for recipe in recipes],
            frameworks=_counted(recipe.framework for recipe in recipes),
            gpus=_counted(recipe.gpu for recipe in recipes if recipe.gpu),
            number=len(recipes),
            words=summary_words(gallery),
            script=Markup(script),  # noqa: S704  our own
            script_hash=f"sha256-{digest}",
        )
    )


def _counted(names: object) -> list[tuple[str, int]]:
    return sorted(Counter(names).items())  # type: ignore[call-overload]


def summary_words(gallery: Gallery) -> str:
    """Return in two sentences how many recipes there are, and how far the forecasts of measured steps are off."""
    recipes, held = gallery.recipes, measured(gallery)
    errors = sorted(abs(recipe.error_fraction or 0.0) for recipe in held)
    within = sum(error <= WITHIN for error in errors)
    refused = sum(bool(recipe.refused) for recipe in recipes)
    words = (
        f"{len(recipes)} published recipes; {refused} of them are refused, each with the reason."
    )
    if not errors:
        return words
    return (
        f"{words} Of {len(held)} steps that "
        f"were measured and that no constant rests on, {within} are forecast within {percent(WITHIN)}, from data sheets alone "
        f"and without calibration (median error {percent(median(errors))}, worst {percent(errors[-1])})."
    )


WITHIN = 0.25


def _cells(recipe: Recipe) -> dict[str, object]:
    """Return what one row of the page shows, and the numbers that it is sorted by."""
    error = recipe.error_fraction
    return {
        "recipe": recipe,
        "words": _search_words(recipe),
        "version": recipe.version,
        "mode": MODES.get(recipe.mode, recipe.mode),
        "forecast": _forecast_words(recipe),
        "interval": interval(recipe.interval_seconds) if recipe.interval_seconds else "",
        "measured": show_seconds(recipe.measured_seconds) if recipe.measured_seconds else "",
        "error": "" if error is None else signed_percent(error),
        "is_off": error is not None and abs(error) > WITHIN,
        "cost": "" if not recipe.cost_usd else f"{show_usd(recipe.cost_usd)} a step",
        "memory": memory_words(recipe),
        "is_wrong": _is_wrong(recipe),
        "strip": _strip(recipe),
        "address": _address(recipe),
        "error_key": "" if error is None else f"{abs(error):.4f}",
        "kind": _kind(recipe),
    }


def _address(recipe: Recipe) -> str:
    """Return the address that a recipe's source begins with; empty where it names files."""
    first = recipe.source.split(maxsplit=1)[0] if recipe.source else ""
    return first if first.startswith("https://") else ""


def _kind(recipe: Recipe) -> str:
    if recipe.refused:
        return "refused"
    return "measured" if recipe.error_fraction is not None else "reported"


def _search_words(recipe: Recipe) -> str:
    words = (
        recipe.name,
        recipe.framework,
        recipe.version,
        recipe.algorithm,
        recipe.model,
        recipe.gpu,
        f"{recipe.gpus} gpus",
        recipe.mode,
        recipe.layout,
    )
    return " ".join(words).lower()


def _forecast_words(recipe: Recipe) -> str:
    return "" if recipe.forecast_seconds is None else show_seconds(recipe.forecast_seconds)


def memory_words(recipe: Recipe) -> str:
    """Return what is said of a recipe's memory, and what happened."""
    words = [recipe.said]
    if recipe.filled_fraction is not None and recipe.said:
        words.append(f"({percent(recipe.filled_fraction)})")
    told = " ".join(word for word in words if word)
    happened = {"ran": "it ran", "ran out": "it ran out", "": ""}[recipe.outcome]
    return "; ".join(word for word in (told, happened) if word)


def _is_wrong(recipe: Recipe) -> bool:
    pairs = (("fits", "ran out"), ("does not fit", "ran"))
    return (recipe.said, recipe.outcome) in pairs


def _strip(recipe: Recipe) -> dict[str, str] | None:
    """Return where forecast and interval stand beside the measurement, in percent of the strip's width (logarithmic)."""
    real, low_high = recipe.measured_seconds, recipe.interval_seconds
    if recipe.error_fraction is None or not real or low_high is None:
        return None
    assert recipe.forecast_seconds is not None, "an error has a forecast"
    left, right = (_place(each / real) for each in low_high)
    return {
        "left": f"{left:.1f}",
        "width": f"{max(right - left, 1.0):.1f}",
        "dot": f"{_place(recipe.forecast_seconds / real):.1f}",
    }


def _place(ratio: float) -> float:
    share = log(max(ratio, 1e-9)) / log(_STRIP_TIMES)
    return 50.0 + 50.0 * min(1.0, max(-1.0, share))


def gallery_markdown(gallery: Gallery) -> str:
    """Return the recipes as Markdown: measured steps first, then reported runs, then what is refused."""
    lines = [
        "# Published recipes, and what is forecast of them",
        "",
        "Made by `make gallery`. [The same as a page that can be searched](gallery/index.html).",
        "",
        summary_words(gallery),
        "",
        f"![Forecast against measured seconds of {len(measured(gallery))} steps]({PAGE}/{PICTURE}-light.svg)",
        "",
    ]
    for title, note, table in _sections(gallery.recipes):
        lines += [f"## {title}", "", note, "", *markdown_lines(table), ""]
    return "\n".join(lines).rstrip() + "\n"


def _sections(recipes: Sequence[Recipe]) -> list[tuple[str, str, Table]]:
    by_kind = {kind: [recipe for recipe in recipes if _kind(recipe) == kind] for kind in KINDS}
    return [
        (
            "Steps that were measured",
            "Settings and lengths are the published ones; nothing is calibrated. A row that is marked † had a part in a fit.",
            Table(
                columns=columns("Recipe", "On", "Work", "Layout", "#Forecast", "#p10 to p90", "#Measured", "#Error"),
                rows=tuple(map(_measured_row, by_kind["measured"])),
            ),
        ),
        (
            "Reported runs",
            (
                "Configurations of public reports: whether they ran is known, their seconds are not. Lengths that a report leaves "
                "out were filled in as its framework's example of that time has them, so these seconds hold for those lengths."
            ),
            Table(
                columns=columns("Recipe", "On", "Work", "Layout", "#Forecast", "#p10 to p90", "Memory, and what happened"),
                rows=tuple(map(_reported_row, by_kind["reported"])),
            ),
        ),
        (
            "Refused",
            "What stands here has no forecast: something that it depends on was not published, or is not modelled.",
            Table(
                columns=columns("Recipe", "On", "Why", "Source"),
                rows=tuple(
                    (_title(each), _where(each), each.refused, each.source) for each in by_kind["refused"]
                ),
            ),
        ),
    ]  # fmt: skip


def _title(recipe: Recipe) -> str:
    words = [recipe.framework, recipe.version, recipe.model, recipe.algorithm]
    mode = MODES.get(recipe.mode, recipe.mode)
    words.append("" if mode == "sync" else f"({mode})")
    title = " ".join(word for word in words if word)
    return title if recipe.model else f"{title} {recipe.name}"


def _where(recipe: Recipe) -> str:
    return f"{recipe.gpus} {TIMES} {recipe.gpu}" if recipe.gpus else ""


def _measured_row(recipe: Recipe) -> tuple[str, ...]:
    error = recipe.error_fraction
    assert error is not None, "these rows have one"
    return (
        _title(recipe) + (" †" if recipe.is_fitted else ""),
        _where(recipe),
        recipe.work,
        recipe.layout,
        _forecast_words(recipe),
        interval(recipe.interval_seconds) if recipe.interval_seconds else "",
        show_seconds(recipe.measured_seconds or 0.0),
        signed_percent(error),
    )


def _reported_row(recipe: Recipe) -> tuple[str, ...]:
    return (
        f"{_title(recipe)}, [{recipe.name}]({_address(recipe)})"
        if _address(recipe)
        else f"{_title(recipe)}, {recipe.name}",
        _where(recipe),
        recipe.work,
        recipe.layout,
        _forecast_words(recipe) or "-",
        interval(recipe.interval_seconds) if recipe.interval_seconds else "-",
        memory_words(recipe),
    )
