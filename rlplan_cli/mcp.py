"""Tools for agents by the Model Context Protocol: typed arguments, typed answers, typed mistakes.

Tools by name, arguments decoded as files are, one call at a time beside the protocol. It calls what the commands call, and
holds no forecast, rule or search of its own. Why it is so: docs/decisions/0036.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import field, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from rlplan import __version__
from rlplan.errors import printable
from rlplan.files.decoding import adapter, decode
from rlplan.files.writing import plain
from rlplan_cli.terminal import say
from rlplan_cli.typed.tool import ARGUMENTS, Mistake, Refused, ToolModule, named, tried
from rlplan_cli.typed.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from mcp.server.context import ServerRequestContext

INSTRUCTIONS = (
    "Plans reinforcement learning of language models on GPU clusters: whether a job fits, how long a step takes, what it "
    "costs, and which layout is best. Nothing here needs a GPU or a network, runs a script, or writes a file but `export` "
    "with `out`. Start with `check` for a script of a framework, `fit` for a model and a number of GPUs, `search` for a "
    "job's file. Seconds, bytes and USD; intervals are p10 to p90. A mistake says argument, file, field, value, what is "
    "allowed and what may have been meant."
)


def make_server() -> Server:
    """Return the server with all tools; nothing is loaded of a tool's rooms until it is called."""
    # Threads cannot be cancelled: one whose caller left works on, and has given its place in a limiter back.
    turn = threading.Lock()

    async def list_tools(
        _context: ServerRequestContext[Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[described(name) for name in TOOLS.names()])

    async def call_tool(
        _context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        def answered() -> types.CallToolResult:
            with turn:
                return answer(params.name, params.arguments or {})

        return await anyio.to_thread.run_sync(answered, abandon_on_cancel=True)

    return Server(
        "rlplan",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def serve() -> None:
    """Serve on stdin and stdout, which belong to the protocol, until the client closes them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)

    async def served() -> None:
        server = make_server()
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(served)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    """End the process at once: a thread that waits for stdin ends no earlier than its client closes it.

    Nothing is left half done: files are written by a rename.
    """
    say("rlplan: interrupted")
    os._exit(128 + number)


def described(name: str) -> types.Tool:
    """Return a tool as clients see it: what it does, and the schemas of what it takes and answers."""
    tool = TOOLS.load(name)
    writes = bool(getattr(tool, "WRITES", False))
    return types.Tool(
        name=name,
        description=tool.call.__doc__,
        input_schema=schema_of(tool.Arguments),
        output_schema=schema_of(reply_of(name)),
        annotations=types.ToolAnnotations(
            read_only_hint=not writes,
            destructive_hint=writes,
            idempotent_hint=True,
            open_world_hint=False,
        ),
    )


def schema_of(kind: Any) -> dict[str, Any]:  # noqa: ANN401 -- a type
    """Return the JSON Schema of a dataclass."""
    schema: dict[str, Any] = adapter(kind).json_schema(mode="serialization")
    return schema


@cache
def reply_of(name: str) -> type[Any]:
    """Return the type of all that a tool may reply with: its answer, or what is wrong with what it was given."""
    kind = TOOLS.load(name).Answer
    fields: list[Any] = [
        ("answer", kind | None, field(default=None)),
        ("mistakes", tuple[Mistake, ...], field(default=())),
    ]
    return make_dataclass(
        f"{name.title().replace('-', '')}Reply", fields, frozen=True, kw_only=True, slots=True
    )


def answer(name: str, arguments: Mapping[str, Any]) -> types.CallToolResult:
    """Return what a tool answers, or what is wrong with what it was given."""

    def called() -> tuple[ToolModule, Any]:
        tool = TOOLS.load(name)
        asked = decode(tool.Arguments, dict(arguments), ARGUMENTS)
        say(f"{name}: {_shown(asked)}")
        return tool, _called(tool, asked)

    found = tried(called)
    if isinstance(found, Refused):
        return refusal(name, tuple(named(each, arguments) for each in found.mistakes))
    tool, answered = found
    content = {"answer": plain(answered, drop_none=False), "mistakes": []}
    return _result(tool.words(answered), content)


def _called(tool: ToolModule, asked: Any) -> Any:  # noqa: ANN401 -- each tool has types of its own
    from rlplan.collecting import resting_collector

    with resting_collector():
        return tool.call(asked)


def refusal(name: str, mistakes: tuple[Mistake, ...]) -> types.CallToolResult:
    """Return what a tool replies where something is wrong with what it was given."""
    content = {"answer": None, "mistakes": plain(mistakes, drop_none=False)}
    text = "\n".join(each.message for each in mistakes)
    say(f"{name}: {text}")
    return _result(text, content, is_error=True)


def _result(text: str, content: dict[str, Any], *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=printable(text))],
        structured_content=content,
        is_error=is_error,
    )


def _shown(asked: Any) -> str:  # noqa: ANN401 -- as above
    """Return the arguments that were given, for the log."""
    given = plain(asked, drop_defaults=True)
    return ", ".join(
        f"{key}={'...' if isinstance(value, dict) else value}" for key, value in given.items()
    )
