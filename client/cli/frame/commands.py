"""The frame around every command: its common options, its registration, and how it fails.

A command is a function `(ui, ...)`. The frame adds `--address`, `--name`, `--json` and `--verbose`, before or after the
command's name, and turns an exception into one message and an exit status.
"""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from ebla.cli.frame.problems import (
    FAILED,
    INTERRUPTED,
    TERMINATED,
    USAGE,
    document,
    error_document,
    exit_status,
    next_step,
)
from ebla.cli.frame.ui import Common, Ui, write_json
from ebla.operate.naming import Refused
from ebla.storage.errors import EblaError

EVERYWHERE = "Options of every command"
BROKEN_PIPE = 141

Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        "-a",
        metavar="HOST:PORT",
        help="The Ray cluster (default: RAY_ADDRESS, else the one on this machine).",
        rich_help_panel=EVERYWHERE,
        show_default=False,
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="The deployment's name (default: ebla).",
        rich_help_panel=EVERYWHERE,
        show_default=False,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document to stdout.", rich_help_panel=EVERYWHERE)
]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        help="Print more to stderr.",
        rich_help_panel=EVERYWHERE,
        show_default=False,
    ),
]

_COMMON = [
    inspect.Parameter(
        f"common_{name}", inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )
    for name, annotation, default in (
        ("address", Address, None),
        ("name", Name, None),
        ("json", Json, False),
        ("verbose", Verbose, 0),
    )
]


def group(help: str, alone: bool = False, completion: bool = False) -> typer.Typer:
    """A set of commands, such as `ebla table ...`. `alone`: the group is a command by itself, too. `completion`: it has
    the options for completion in shells."""
    return typer.Typer(
        cls=Group,
        help=help,
        no_args_is_help=not alone,
        rich_markup_mode="rich",
        add_completion=completion,
        pretty_exceptions_enable=False,
    )


def _plain(params: list[Any]) -> list[Any]:
    """Show no types of Python in the help: no <bool> at a flag, no <str> at an argument, no [x>=1] at a number."""
    for param in params:
        if isinstance(param, TyperArgument):
            param.display_type_rich = _nothing  # type: ignore[method-assign]
        elif getattr(param, "is_flag", False) or getattr(param, "count", False):
            param.metavar = ""
        elif param.min is not None and param._get_number_range_help_str is not _nothing:
            param._get_number_range_help_str = _nothing
            if param.min > 0:
                param.help = f"{param.help} At least {param.min:g}."
    return params


def _nothing(*_: Any, **__: Any) -> None:
    """Stand for a part of the help that is not shown."""


class Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


class Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


def command(app: typer.Typer, name: str, function: Callable[..., None]) -> None:
    """Register `function(ui, ...)` as a command with the common options."""
    app.command(name, cls=Command, help=_help(function))(_framed(function))


def alone(app: typer.Typer, function: Callable[..., None]) -> None:
    """Register `function(ui, ...)` to run if a group is called without a command."""
    app.callback(cls=Group, invoke_without_command=True, help=_help(function))(_framed(function))


def _framed(function: Callable[..., None]) -> Callable[..., None]:
    ui, *parameters = inspect.signature(function, eval_str=True).parameters.values()
    assert ui.name == "ui", function

    def run(ctx: typer.Context, **given: Any) -> None:
        own = Common(*(given.pop(each.name) for each in _COMMON))
        common = own.over(ctx.find_object(Common) or Common())
        if ctx.invoked_subcommand is not None:
            ctx.obj = common
            return
        function(Ui(common), **given)

    run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
    run.__annotations__ = {}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
            *(p.replace(kind=p.KEYWORD_ONLY) for p in parameters),
            *_COMMON,
        ]
    )
    return run


def _help(function: Callable[..., None]) -> str:
    """The docstring with each paragraph on one line, which the terminal wraps. Examples keep their lines."""
    parts = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(part if part.startswith("ebla ") else " ".join(part.split()) for part in parts)


class RootGroup(Group):
    """The `ebla` command itself: turns exceptions of commands into a message and an exit status."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **settings: Any) -> NoReturn:
        given = list(sys.argv[1:] if args is None else args)
        as_json, verbose = "--json" in given, any(word in ("-v", "-vv", "--verbose") for word in given)
        settings["standalone_mode"] = False
        settings["prog_name"] = "ebla"
        try:
            status = super().main(given, *rest, **settings)
        except (KeyboardInterrupt, typer.Abort):
            status = INTERRUPTED
        except SystemExit as end:
            status = end.code
        except EblaError as error:
            status = _report(error, as_json, verbose)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = BROKEN_PIPE
        except Exception as error:
            status = _report_usage(error, as_json)
        if status in (INTERRUPTED, TERMINATED):
            _report_interrupted(as_json, status)
        sys.exit(status if isinstance(status, int) else 0)


def _report(error: EblaError, as_json: bool, verbose: bool) -> int:
    if verbose:
        traceback.print_exc()
    if as_json:
        write_json(document(error))
        return exit_status(error)
    lines = [f"ebla: {error.message}" if not isinstance(error, Refused) else error.message]
    step = next_step(error)
    if step:
        lines.append(f"  next: {step}")
    print("\n".join(lines), file=sys.stderr)
    return exit_status(error)


def _report_usage(error: Exception, as_json: bool) -> int:
    """Report a command line that typer refuses. Any other error is a defect, and raised again for its traceback."""
    message = getattr(error, "format_message", None)
    if message is None or not hasattr(error, "exit_code"):
        if as_json:
            write_json(error_document("Internal", f"a defect in ebla: {error!r}", FAILED))
        raise error
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), file=sys.stderr)  # type: ignore[attr-defined]
        return USAGE
    if as_json:
        write_json(error_document("Usage", message(), USAGE))
        return USAGE
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "ebla"
    print(f"ebla: {message()}\n  next: `{path} --help` shows its options", file=sys.stderr)
    return USAGE


def _report_interrupted(as_json: bool, status: int) -> None:
    if as_json:
        write_json(error_document("Interrupted", "interrupted", status))
    else:
        print("\nebla: interrupted", file=sys.stderr)
