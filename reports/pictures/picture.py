"""Pictures as SVG: the same text goes inline into the HTML page and into a file beside it."""

import io
import re
import warnings
from dataclasses import dataclass
from html import escape
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from rlplan.files.writing import write_bytes, write_text
from rlplan.reports.pictures.style import POINTS_PER_INCH, drawing

# What a reader's system has; inline, the page's own font wins.
_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_BODY = re.compile(r"<svg\b[^>]*>(.*)</svg>", re.DOTALL)
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_STYLE = re.compile(r"\s*<defs>\s*<style[^>]*>.*?</style>\s*</defs>", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FONT_FAMILY = re.compile(r"(font: [^;\"]*?px) [^;\"]*")
_ID = re.compile(r'\bid="([^"]+)"')
_REFERENCE = re.compile(r'(url\(|href=")#([^)"]+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Hold a picture that stands alone.

    Attributes:
        name: Of its file, without the ending.
        title: What it shows, for people who cannot see it and for Markdown.
        svg: One `<svg>` element without anything before it.
    """

    name: str
    title: str
    svg: str

    @property
    def file_name(self) -> str:
        """Return the name of the file beside the page."""
        return f"{self.name}.svg"

    @property
    def file_text(self) -> str:
        """Return the content of an SVG file."""
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{self.svg}\n'


def picture(figure: Figure, *, name: str, title: str, description: str = "") -> Picture:
    """Return a figure as a picture; the same figure gives the same bytes every time."""
    stream = io.StringIO()
    no_metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
    with drawing(), mpl.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        # The browser has the letters that the measuring font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(stream, format="svg", metadata=no_metadata)
    found = _BODY.search(stream.getvalue())
    assert found, "matplotlib wrote an svg element"
    width, height = (inches * POINTS_PER_INCH for inches in figure.get_size_inches())
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width:g} {height:g}" width="{width:g}pt" height="{height:g}pt" role="img" '
        f'aria-labelledby="{name}-title {name}-description" '
        f'style="stroke-linejoin: round; stroke-linecap: butt">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-description">{escape(description or title)}</desc>'
    )
    body = _stand_alone(found.group(1), name)
    return Picture(name=name, title=title, svg=f"{head}{body}</svg>")


def write_figure(figure: Figure, path: Path, *, title: str) -> None:
    """Write a figure as SVG or PNG, by the file's ending, whole or not at all."""
    if path.suffix == ".svg":
        name = re.sub(r"[^a-zA-Z0-9]+", "-", path.stem)
        write_text(path, picture(figure, name=name, title=title).file_text)
        return
    assert path.suffix == ".png", f"pictures are SVG or PNG, not {path.suffix}"
    stream = io.BytesIO()
    with drawing():
        figure.savefig(stream, format="png", dpi=2 * POINTS_PER_INCH, metadata={"Software": None})
    write_bytes(path, stream.getvalue())


def _stand_alone(body: str, name: str) -> str:
    """Return an SVG's content with ids of its own, the reader's fonts and no outside addresses."""
    for unwanted in (_METADATA, _STYLE, _COMMENT):
        body = unwanted.sub("", body)
    body = _FONT_FAMILY.sub(rf"\1 {_FONTS}", body)
    body = _REFERENCE.sub(rf"\1#{name}-\2", body)
    return _ID.sub(rf'id="{name}-\1"', body)
