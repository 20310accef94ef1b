"""What the build of the site adds to the pages: tables of the sheets, published reports, the changelog."""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from mkdocs.structure.files import File, Files  # noqa: E402
from tables import filled  # noqa: E402

PUBLISHED = ROOT / "reports" / "published"
# Its page stands beside its Markdown, as it is.
GALLERY = "gallery"
# Pages link to these as they lie in the repository.
OUTSIDE = {"../reports/published/": "published/", "../CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: Any, **_given: Any) -> Files:
    """Add the published reports with their pictures, and the changelog."""
    added = {f"published/{path.relative_to(PUBLISHED)}": path for path in PUBLISHED.rglob("*.*")}
    added["changelog.md"] = ROOT / "CHANGELOG.md"
    for name, path in added.items():
        if path.suffix in (".md", ".svg", ".png") or path.parent.name == GALLERY:
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_given: Any) -> str:
    """Fill tables in, and let links to files outside the folder lead to their pages."""
    if page.file.src_uri == "changelog.md":
        return markdown.replace("](docs/", "](")
    for there, here in OUTSIDE.items():
        markdown = markdown.replace(f"]({there}", f"]({here}")
    return filled(markdown)
