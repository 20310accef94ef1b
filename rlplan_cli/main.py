"""The command `rlplan`: one small file per command in `rlplan_cli/commands/`, found by name."""

import importlib
import os
import pkgutil
import signal
import sys
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from rlplan import __version__
from rlplan.errors import RlplanError
from rlplan_cli import commands

# The order of a user's day, which `--help` shows; commands that are not named here come after.
ORDER = ("init", "profile", "search", "simulate", "execute", "validate", "report", "demo", "schema")


class InOrder(TyperGroup):
    """List commands in the order of a user's day."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the names of all commands, in the order in which help shows them."""
        return [name for name in command_names() if name in super(InOrder, self).list_commands(ctx)]


app = typer.Typer(
    name="rlplan",
    cls=InOrder,
    help="Plan, forecast and run RLHF jobs on GPU clusters, and see how right the forecast was.",
    epilog="Start with: rlplan demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"rlplan {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Plan, forecast and run RLHF jobs on GPU clusters, and see how right the forecast was."""


def command_names() -> tuple[str, ...]:
    """Return the names of all commands, in the order in which help shows them."""
    found = {module.name for module in pkgutil.iter_modules(commands.__path__)}
    return tuple(name for name in ORDER if name in found) + tuple(sorted(found - set(ORDER)))


def _register() -> None:
    """Add every file of `rlplan_cli/commands/`: a Typer group `app`, or a function `command`."""
    for name in command_names():
        module: Any = importlib.import_module(f"{commands.__name__}.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name, epilog=module.EXAMPLE)(module.command)


def _stop(number: int, _frame: FrameType | None) -> NoReturn:
    """Turn SIGTERM into an orderly exit, so that workers are stopped and files stay whole."""
    raise SystemExit(128 + number)


def main() -> NoReturn:
    """Run a command; exit with 0, with 2 for a mistake of the user, with 1 for a failure of ours."""
    signal.signal(signal.SIGTERM, _stop)
    _register()
    try:
        app()  # answers usage errors itself, with exit code 2
    except BrokenPipeError:
        # Whoever read our output has left; there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except RlplanError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    sys.exit(0)


def _say(message: str) -> None:
    sys.stderr.write(f"rlplan: {message}\n")
