"""The server's answers: a page, its assets and its questions, all behind a token in the path and for this machine alone."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
import sys
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rlplan.errors import FileError, UserError, printable
from rlplan.files.decoding import decode
from rlplan.files.writing import plain
from rlplan.profiles.tables.remembered import LeastRecentlyUsed
from rlplan_cli.serve.asked import (
    LARGEST_BYTES,
    PAGE,
    Asked,
    ExportAsked,
    LogAsked,
    SearchAsked,
)
from rlplan_cli.serve.kept import KeptAnswers
from rlplan_cli.serve.lanes import (
    LONGEST_STALE_SECONDS,
    Dropped,
    Lane,
    LaneFailedError,
)
from rlplan_cli.serve.lanes import Request as LaneRequest
from rlplan_cli.serve.work import Found, QuickAsked
from rlplan_cli.terminal import say
from rlplan_cli.typed.tool import Mistake, Refused, mistakes_of

if TYPE_CHECKING:
    from rlplan.plan import Plan

# Names by which this machine calls itself: other names in a request's Host are of a page elsewhere whose name was
# made to point here (DNS rebinding).
OWN_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
# A question holds a file of that size as JSON, whose escapes may be six characters for one, and a plan beside it.
LARGEST_QUESTION_BYTES = 8 * LARGEST_BYTES
# Of pages, whose last plan is kept for quick answers.
MOST_PAGES = 32
# Between looks at whether a page is still there.
LOOK_SECONDS = 0.25

OK, BAD, FORBIDDEN, ABSENT, DROPPED, TOO_LARGE, WRONG_KIND, FAILED = (
    200,
    422,
    403,
    404,
    409,
    413,
    415,
    500,
)

WHAT: dict[str, type[Any]] = {
    "quick": Asked,
    "first": Asked,
    "answer": Asked,
    "search": SearchAsked,
    "fit": Asked,
    "export": ExportAsked,
    "check_step": LogAsked,
}

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 24
# A search that a page left behind is not waited for.
GRACE_SECONDS = 1


class Page:
    """Answer for pages: questions go to lanes, and a page's last plan serves its quick answers.

    Args:
        warms: Whether lanes are warmed up before the first question.
    """

    def __init__(self, *, warms: bool = True) -> None:
        self.quick, self.whole, self.long = Lane("quick"), Lane("answers"), Lane("search")
        self.near: LeastRecentlyUsed[str, Plan] = LeastRecentlyUsed(MOST_PAGES)
        self.kept = KeptAnswers()
        self._warms = warms
        self._warming: list[asyncio.Task[Any]] = []
        self._catalog: dict[str, Any] | None = None

    def start(self) -> None:
        """Warm the lanes up, beside whatever is asked meanwhile."""
        if self._warms:
            self._warming = [
                asyncio.ensure_future(each) for each in (self._warm(), self._ready_catalog())
            ]

    async def _warm(self) -> None:
        with suppress(Dropped, LaneFailedError):
            await self.whole.ask(LaneRequest("warm", None))

    async def _ready_catalog(self) -> None:
        with suppress(Dropped, LaneFailedError):
            await self.catalog()

    async def catalog(self) -> dict[str, Any]:
        """Return the names that controls offer; they are looked up once.

        Raises:
            Dropped: The lane was stopped.
            LaneFailedError: It failed by a mistake of ours.
        """
        if self._catalog is None:
            found = await self.quick.ask(LaneRequest("catalog", None))
            assert isinstance(found, Found), "the catalog has no mistakes"
            self._catalog = found.answer
        return self._catalog

    def stop(self) -> None:
        """End all lanes."""
        for task in self._warming:
            task.cancel()
        for lane in (self.quick, self.whole, self.long):
            lane.stop()

    def lane_of(self, work: str) -> Lane:
        """Return the lane that does a work."""
        if work == "quick":
            return self.quick
        return self.long if work in {"search", "fit"} else self.whole

    async def answer(
        self, work: str, question: dict[str, Any], progress: Callable[..., None] | None = None
    ) -> dict[str, Any]:
        """Return the reply to a question: an answer, or mistakes.

        Raises:
            Dropped: A newer question of the page came.
            LaneFailedError: It failed by a mistake of ours.
        """
        page, sequence = _page_of(question)
        try:
            asked: Any = decode(WHAT[work], question.get("asked", {}), PAGE)
            _check_sizes(asked)
        except UserError as error:
            return reply(None, mistakes_of(error), sequence)
        # What was simulated before is as quick as an estimate.
        found: object = self._kept("answer" if work in {"quick", "first"} else work, asked)
        request = LaneRequest(work, self._in_lane(work, asked, page), page, sequence)
        if found is None:
            found = await self.lane_of(work).ask(request, progress)
        else:
            self.lane_of(work).take_turn(request)
        if isinstance(found, Refused):
            return reply(None, found.mistakes, sequence)
        assert isinstance(found, Found), "lanes answer so"
        if isinstance(asked, Asked):
            self.kept.keep(work, asked, found)
        if found.plan is not None:
            self.near.keep(page, found.plan)
        return reply(found.answer, (), sequence)

    def _kept(self, work: str, asked: Any) -> Found | None:  # noqa: ANN401 -- any question
        """Return what the same was answered with before, if that is kept."""
        return self.kept.get(work, asked) if isinstance(asked, Asked) else None

    def _in_lane(self, work: str, asked: Any, page: str) -> Any:  # noqa: ANN401 -- any question
        """Return what a lane is asked: of a quick answer, beside the plan of the page's last one."""
        return QuickAsked(asked=asked, near=self.near.get(page)) if work == "quick" else asked


def reply(
    answer: dict[str, Any] | None, mistakes: tuple[Mistake, ...], sequence: int
) -> dict[str, Any]:
    """Return what a question is replied with: one of answer and mistakes is empty."""
    told = plain(mistakes, drop_none=False)
    return {"answer": answer, "mistakes": told, "sequence": sequence}


def _page_of(question: dict[str, Any]) -> tuple[str, int]:
    """Return which page asks, and the place of its question among its others."""
    page, sequence = question.get("page"), question.get("sequence")
    known = isinstance(page, str) and isinstance(sequence, int) and not isinstance(sequence, bool)
    return (str(page)[:64], int(sequence or 0)) if known else ("", 0)


def _check_sizes(asked: Any) -> None:  # noqa: ANN401 -- any question
    """Refuse files larger than a page may hand over.

    Raises:
        FileError: Names the file.
    """
    from rlplan.errors import FileError

    for field in ("script", "log"):
        given = getattr(asked, field, None)
        if given is not None and len(given.text.encode("utf-8", "replace")) > LARGEST_BYTES:
            raise FileError(PAGE, "is too large", field=field, value=given.name, allowed="1 MiB")


def make_app(token: str, page: Page | None = None) -> Starlette:
    """Return the application.

    Args:
        token: That the path of every request begins with.
        page: What answers; None makes one.
    """
    served = page or Page()

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        served.start()
        try:
            yield
        finally:
            served.stop()

    async def index(_request: Request) -> Response:
        return _asset("index.html")

    async def asset(request: Request) -> Response:
        return _asset(request.path_params["name"])

    async def catalog(request: Request) -> Response:
        return await _told(request, served.catalog)

    async def question(request: Request) -> Response:
        work = request.path_params["work"]
        asked = await _question(request) if work in WHAT else Response(status_code=ABSENT)
        if isinstance(asked, Response):
            return asked
        if work == "search":
            return StreamingResponse(_lines(served, asked), media_type="application/x-ndjson")
        return await _told(request, lambda: served.answer(work, asked))

    guarded = _Guard(token)
    routes = [
        Route("/{token}/", guarded(index)),
        Route("/{token}/assets/{name}", guarded(asset)),
        Route("/{token}/api/catalog", guarded(catalog)),
        Route("/{token}/api/{work}", guarded(question), methods=["POST"]),
        Route("/{path:path}", guarded(_absent)),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


Endpoint = Callable[[Request], Awaitable[Response]]


class _Guard:
    """Let only requests through that have the token, are for this machine's own names, and come from this page."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def __call__(self, endpoint: Endpoint) -> Endpoint:
        async def guarded(request: Request) -> Response:
            found = self._refusal(request) or await endpoint(request)
            found.headers.update(HEADERS)
            return found

        return guarded

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "").lower()
        if host.rpartition(":")[0] not in OWN_HOSTS and host not in OWN_HOSTS:
            return Response("this page is for this machine alone\n", FORBIDDEN)
        given = str(request.path_params.get("token", "")).encode()
        if not hmac.compare_digest(given, self._token):
            return Response("the link that `rlplan serve` prints has a token\n", FORBIDDEN)
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host:
            return Response("another page asks\n", FORBIDDEN)
        return None


async def _absent(_request: Request) -> Response:
    return Response("nothing is here\n", ABSENT)


def _asset(name: str) -> Response:
    """Return an asset; the reports' style sheet is one of them."""
    found: Traversable = files("rlplan_cli.serve") / "assets"
    known = {each.name: each for each in found.iterdir()}
    known["report.css"] = files("rlplan.reports") / "templates" / "report.css"
    file = known.get(name)
    kind = KINDS.get("." + name.rpartition(".")[2])
    if file is None or kind is None:
        return Response("nothing is here\n", ABSENT)
    return Response(file.read_bytes(), media_type=kind)


async def _question(request: Request) -> dict[str, Any] | Response:
    """Return a question's values, or why it is none."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return Response("questions are JSON\n", WRONG_KIND)
    body = bytearray()
    with suppress(ClientDisconnect):
        async for part in request.stream():
            body += part
            if len(body) > LARGEST_QUESTION_BYTES:
                return Response("the question is too large\n", TOO_LARGE)
    try:
        asked = json.loads(body, parse_constant=_refused)
        # Halves of characters have no bytes: no file can be written of them, and no reply.
        json.dumps(asked, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return Response("the question is no JSON\n", BAD)
    return asked if isinstance(asked, dict) else Response("the question is no mapping\n", BAD)


def _refused(constant: str) -> float:
    """Refuse what Python reads beside JSON: NaN and infinities.

    Raises:
        ValueError: Always.
    """
    raise ValueError(constant)


async def _told(request: Request, ask: Callable[[], Awaitable[dict[str, Any]]]) -> Response:
    """Return an answer, or that it was dropped or failed; what takes long ends once nobody waits for it."""
    task, left = asyncio.ensure_future(ask()), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        # What is nearly done is let be: another start of the process takes longer.
        await asyncio.wait({task}, timeout=LONGEST_STALE_SECONDS)
        if not task.done():
            raise Dropped
        return JSONResponse(await task)
    except Dropped:
        return Response("a newer question came\n", DROPPED)
    except LaneFailedError as error:
        return Response(f"{_failure(error)}\n", FAILED)
    finally:
        left.cancel()
        task.cancel()


async def _left(request: Request) -> None:
    """Return once nobody waits for a request's reply."""
    while not await request.is_disconnected():
        await asyncio.sleep(LOOK_SECONDS)


def _failure(error: LaneFailedError) -> str:
    """Return a failure of our own in a line, and print its traceback on stderr."""
    told = str(error).strip()
    sys.stderr.write(printable(f"{told}\n"))
    return f"rlplan failed: {told.splitlines()[-1]}"


async def _lines(served: Page, asked: dict[str, Any]) -> AsyncIterator[str]:
    """Yield a search's progress and its reply, a JSON line each; whoever leaves ends it."""
    loop = asyncio.get_running_loop()
    told: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def progress(done: int, total: int, what: str) -> None:
        line = {"done": done, "total": total, "what": what}
        loop.call_soon_threadsafe(told.put_nowait, line)

    async def answered() -> None:
        try:
            found = await served.answer("search", asked, progress)
        except Dropped:
            found = {"dropped": True}
        except LaneFailedError as error:
            found = {"failed": _failure(error)}
        told.put_nowait(found)
        told.put_nowait(None)

    task = asyncio.ensure_future(answered())
    try:
        while (line := await told.get()) is not None:
            yield json.dumps(line) + "\n"
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


# The server's process: a socket of this machine alone, a link with a token, and an end by Ctrl-C.


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
