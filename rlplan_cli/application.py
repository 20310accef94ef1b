"""The commands of `rlplan`: one small file each in `rlplan_cli/commands/`, found by name.

A parameter of a command is an option, or a named tuple of options that several commands have.
"""

import signal
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import pairwise
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from rlplan import __version__
from rlplan.errors import UserError
from rlplan_cli.commands import COMMANDS

# The order of a user's day, which `--help` shows; commands that are not named here come after.
ORDER = (
    "init",
    "import",
    "check",
    "serve",
    "profile",
    "search",
    "rent",
    "simulate",
    "execute",
    "validate",
    "check-step",
    "advise",
    "calibrate",
    "report",
    "demo",
    "schema",
    "doctor",
)

# How commands that read frameworks' scripts call their words, those of the framework included.
OF_SCRIPTS = "words"
# What a wrong option may be meant for, which other commands call by that name, or other programs.
MEANT = {
    "--deadline": ("--max-days",),
    "--max-days": ("--deadline",),
    "--nodes": ("--gpus", "--max-gpus"),
    "--for": ("--to",),
    "--to": ("--for",),
    "--framework": ("--for", "--to"),
    "--script": ("--plan",),
    "-o": ("--out",),
}
# What is said of values that are no number.
PLAIN = {
    "Input should be a valid number, unable to parse string as a number": "is no number; allowed: such as 10000 or 0.5",
    "Input should be a valid integer, unable to parse string as an integer": "is no whole number; allowed: such as 400",
}
# What a wrong option raises; typer keeps the class in different places from release to release.
_UsageError: Any = typer.BadParameter.__base__


class Interrupted(BaseException):
    """Carry the signal that ended a command past whoever turns `KeyboardInterrupt` into words."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)


class Commands(TyperGroup):
    """List commands in the order of a user's day, and tell interruptions apart."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        """Return the names of all commands, in the order in which help shows them."""
        return [
            name for name in command_names() if name in super(Commands, self).list_commands(ctx)
        ]

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            # SIGTERM unwinds as Ctrl-C does, and brings its number.
            raise Interrupted(error.args[0] if error.args else signal.SIGINT) from None


app = typer.Typer(
    name="rlplan",
    cls=Commands,
    help="Plan, forecast and run RLHF jobs on GPU clusters, and see how right the forecast was.",
    epilog="Example, and the way to start: rlplan demo",
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"rlplan {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Plan, forecast and run RLHF jobs on GPU clusters, and see how right the forecast was."""
    if context.invoked_subcommand is None:
        context.get_help()  # prints it, as typer does
        raise typer.Exit


def command_names() -> tuple[str, ...]:
    """Return the names of all commands, in the order in which help shows them."""
    found = COMMANDS.names()
    return tuple(sorted(found, key=lambda name: (*ORDER, name).index(name)))


def _register(named: str) -> None:
    """Add files of `rlplan_cli/commands/`: a Typer group `app`, or a function `command`.

    Args:
        named: The one command that is called; where there is none of that name, all are added, but for the version,
            which no command has a part in.
    """
    if named == "--version":
        return
    known = {each.name for each in app.registered_commands}
    known |= {each.name for each in app.registered_groups}
    names = command_names()
    for name in (named,) if named in names else names:
        if name in known:
            continue
        module = COMMANDS.load(name)
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            kind = getattr(module, "COMMAND_CLASS", None)
            app.command(name, cls=kind, epilog=module.EXAMPLE)(_flat(module.command))


def _flat(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has the options of its named tuples as parameters of their own, as typer reads them."""
    parameters = signature(command, eval_str=True).parameters.values()
    groups = {
        each.name: each.annotation for each in parameters if hasattr(each.annotation, "_fields")
    }
    flat = list[Parameter]()
    for each in parameters:
        group = groups.get(each.name)
        if group is None:
            flat.append(each.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        for name, annotation in get_type_hints(group, include_extras=True).items():
            default = group._field_defaults[name]
            flat.append(
                Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            )

    @wraps(command)
    def called(**given: Any) -> None:  # noqa: ANN401 -- what typer read of every option
        grouped = {name: group(*map(given.pop, group._fields)) for name, group in groups.items()}
        command(**given, **grouped)

    vars(called)["__signature__"] = Signature(flat)
    return called


def call(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code, 0 unless a command says otherwise.

    Raises:
        UserError: The command line or what it names is wrong.
        KeyboardInterrupt: A signal came; its number is the argument.
    """
    _register(arguments[0] if arguments else "")
    try:
        code = app(args=list(arguments), prog_name="rlplan", standalone_mode=False)
    except Interrupted as interruption:
        raise KeyboardInterrupt(interruption.number) from None
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx else "rlplan"
        _add_meant(error)
        problem = error.format_message().replace("Value error, ", "").removesuffix(".")
        for said, plain in PLAIN.items():
            problem = problem.replace(said, plain)
        see = f"see: {command} --help{_of_a_framework(error)}"
        raise UserError(f"{problem}{_found(error, arguments)}; {see}") from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    if code == 128 + signal.SIGINT:  # how typer reports one that came while it read the options
        raise KeyboardInterrupt
    sys.stdout.flush()
    return code if isinstance(code, int) else 0


def _add_meant(error: BaseException) -> None:
    """Put options that one which is not known may be meant for, and its command has, before those that are written alike."""
    name, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if name not in MEANT or context is None:
        return
    known = {option for each in context.command.params for option in each.opts}
    found = [each for each in MEANT[name] if each in known]
    if found:
        vars(error)["possibilities"] = found


def _of_a_framework(error: BaseException) -> str:
    """Return where flags of a framework go, where one is taken for an option of a command that reads configurations."""
    context = getattr(error, "ctx", None)
    reads = any(each.name == OF_SCRIPTS for each in context.command.params) if context else False
    is_unknown = hasattr(error, "possibilities")
    words = "; a framework's own flags stand behind --, as the last words"
    return words if is_unknown and reads else ""


def _found(error: BaseException, arguments: Sequence[str]) -> str:
    """Return the value that an option was given, where it is wrong."""
    names = getattr(getattr(error, "param", None), "opts", ())
    given = [value for name, value in pairwise(arguments) if name in names]
    return f"; found {given[-1]!r}" if given else ""
