"""`rlplan mcp`: tools for agents, by the Model Context Protocol."""

from __future__ import annotations

EXAMPLE = "Example: claude mcp add rlplan -- rlplan mcp"


def command() -> None:
    """Serve fit, check, search, check-step, export and explain to an agent, on stdin and stdout.

    Clients start it themselves. What it does is said on stderr.
    """
    from importlib.util import find_spec

    from rlplan.errors import UserError

    if find_spec("mcp") is None:
        raise UserError("tools for agents need mcp; install it with: pip install 'rlplan[mcp]'")
    from rlplan_cli.mcp import serve
    from rlplan_cli.terminal import say

    say("serving tools on stdin and stdout; they end when the client closes them")
    serve()
