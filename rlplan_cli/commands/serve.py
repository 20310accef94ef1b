"""`rlplan serve`: a local page that answers while one moves a slider."""

from __future__ import annotations

from typing import Annotated

import typer

EXAMPLE = "Example: rlplan serve --port 8765 --no-open"
LARGEST_PORT = 65535


def command(
    port: Annotated[
        int, typer.Option(min=0, max=LARGEST_PORT, help="Of this machine; 0 takes a free one.")
    ] = 0,
    open_link: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the link in a browser.")
    ] = True,
) -> None:
    """Serve a page for this machine alone: sliders, memory, timeline and seconds of a job or script, search, export.

    The link is printed on stderr and has a token; nothing is asked of other machines.
    """
    from importlib.util import find_spec

    from rlplan.errors import UserError

    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise UserError(
            "the page needs starlette and uvicorn; install them with: pip install 'rlplan[serve]'"
        )
    from rlplan_cli.serve.app import serve

    serve(port, opens=open_link)
