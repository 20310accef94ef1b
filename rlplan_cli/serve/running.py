"""The server's process: a socket of this machine alone, a link with a token, and an end by Ctrl-C."""

from __future__ import annotations

import secrets
import socket
import webbrowser
from typing import Any

import uvicorn

from rlplan.errors import FileError
from rlplan_cli.serve.app import make_app
from rlplan_cli.terminal import say

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 24
# A search that a page left behind is not waited for.
GRACE_SECONDS = 1


class _Server(uvicorn.Server):
    """Say the link once requests are answered."""

    link = ""
    opens = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        say(f"serving on this machine alone, until Ctrl-C: {self.link}")
        if self.opens:
            webbrowser.open(self.link)


def bound(port: int) -> socket.socket:
    """Return a socket that listens on this machine alone.

    Raises:
        FileError: The port is taken, or not ours to take.
    """
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((LOOPBACK, port))
    except OSError as error:
        found.close()
        problem = f"cannot be used: {error.strerror}"
        raise FileError("--port", problem, value=port, allowed="a free port, or 0") from None
    return found


def serve(port: int, *, opens: bool) -> None:
    """Serve until Ctrl-C, which is raised again once all is ended.

    Args:
        port: 0 takes a free one.
        opens: Whether the link is opened in a browser.

    Raises:
        FileError: The port cannot be used.
    """
    token = secrets.token_urlsafe(TOKEN_BYTES)
    sock = bound(port)
    settings: dict[str, Any] = {
        "log_level": "error",
        "access_log": False,
        "server_header": False,
        "proxy_headers": False,
        "ws": "none",
        "lifespan": "on",
        "timeout_graceful_shutdown": GRACE_SECONDS,
    }
    server = _Server(uvicorn.Config(make_app(token), **settings))
    server.link = f"http://{LOOPBACK}:{sock.getsockname()[1]}/{token}/"
    server.opens = opens
    with sock:
        server.run([sock])
