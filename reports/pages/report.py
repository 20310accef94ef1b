"""The report of a plan: one HTML page that needs nothing else, pictures and Markdown beside it."""

import base64
import hashlib
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rlplan.files.writing import write_text
from rlplan.reports.pages.content import Content, content_of
from rlplan.reports.panels import Subject
from rlplan.reports.pictures.style import FAINT, INK, LINE, MUTED, WARNING

PAGE_NAME = "report"
PICTURE_FOLDER = "pictures"
SCRIPT_FILE = "report.js"

_NEUTRAL_NAMES = {
    INK: "ink", MUTED: "muted", LINE: "line", FAINT: "faint", WARNING: "bad", "#ffffff": "card",
}  # fmt: skip
_STYLE = re.compile(r'style="([^"]*)"')
_NEUTRAL = re.compile(rf"\b(fill|stroke): ({'|'.join(_NEUTRAL_NAMES)})\b")


def write_report(out: Path, subject: Subject) -> Path:
    """Write a report into a folder, made if it is missing, and return the path of its HTML page.

    `report.html` holds its pictures and needs no other file; `report.md` refers to the same ones
    in `pictures/`. Every file is written whole or not at all, the page last.
    """
    return write_content(out, content_of(subject), PAGE_NAME)


def write_content(out: Path, content: Content, name: str) -> Path:
    """Write a page, its Markdown version and its pictures into a folder; return the HTML's path."""
    for picture in content.pictures:
        write_text(out / PICTURE_FOLDER / picture.file_name, picture.file_text)
    write_text(out / f"{name}.md", markdown(content))
    write_text(out / f"{name}.html", html(content))
    return out / f"{name}.html"


def html(content: Content) -> str:
    """Return the page; all text of the user's is escaped, and no other script runs in it than its own."""
    environment = _environment()
    # The pictures are our own SVG, whose texts matplotlib escaped.
    environment.filters["inline"] = lambda picture: Markup(themed(picture.svg))  # noqa: S704
    script = files("rlplan.reports").joinpath("templates", SCRIPT_FILE).read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        content=content,
        script=Markup(script),  # noqa: S704  our own
        script_hash=f"sha256-{digest}",
        scripted=any(section.widgets for section in content.sections),
    )


def _environment(**settings: Any) -> Environment:  # noqa: ANN401 -- as jinja2 has them
    return Environment(
        loader=PackageLoader("rlplan.reports"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        **settings,
    )


def themed(svg: str) -> str:
    """Return a picture whose neutral colours are the page's, so that it follows light and dark.

    White texts stand on bars of a colour of their own, and stay white.
    """

    def page_colours(style: re.Match[str]) -> str:
        is_text = "font" in style[1]

        def named(found: re.Match[str]) -> str:
            keeps = is_text and found[2] == "#ffffff"
            return found[0] if keeps else f"{found[1]}: var(--{_NEUTRAL_NAMES[found[2]]})"

        return f'style="{_NEUTRAL.sub(named, style[1])}"'

    return _STYLE.sub(page_colours, svg)


def markdown(content: Content) -> str:
    """Return the Markdown version; all text is escaped so that it shows as it is."""
    environment = _environment(finalize=as_markdown, keep_trailing_newline=True)
    return environment.get_template("report.md.j2").render(content=content, pictures=PICTURE_FOLDER)


def as_markdown(value: Any) -> Any:  # noqa: ANN401
    """Return text escaped for Markdown (and the HTML inside it), on one line; others as they are."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = " ".join(value.split("\n")).replace("&", "&amp;").replace("<", "&lt;")
    for letter in "\\`*_[]|":
        text = text.replace(letter, f"\\{letter}")
    return Markup(text)  # noqa: S704  escaped in the lines above
