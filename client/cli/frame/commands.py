"""The frame around every command: its common options, its registration, its result, and how it fails.

A command is a function of its arguments and options. The frame adds `--address`, `--name`, `--json` and `--verbose`, before or
after the command's name, and turns an exception into one message and an exit status. By the names of its parameters the function
gets

    ui          the output, and the common options
    cluster     the deployment; the function is awaited while the command is connected
    progress    of the work, under the command's name, until the function returns

It may return what is to be shown: the document for `--json`, and the parts for people.
"""

from __future__ import annotations

import errno
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from textwrap import fill
from typing import Annotated, Any, Literal, NoReturn, get_origin

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from ebla.cli.frame.connection import within
from ebla.cli.frame.options import option
from ebla.cli.frame.problems import (
    FAILED,
    INTERRUPTED,
    TERMINATED,
    USAGE,
    FileTrouble,
    NotCompared,
    Stopped,
    document,
    error_document,
    exit_status,
    next_step,
)
from ebla.cli.frame.ui import Common, Ui, write_json
from ebla.operate.naming import Refused
from ebla.storage.errors import EblaError, add_note, os_trouble
from ebla.wording import with_short_nodes

EVERYWHERE = "Options of every command"
BROKEN_PIPE = 141
OS_STEPS = {
    errno.ENOSPC: "free some space, then run the command again",
    errno.EDQUOT: "free some space, then run the command again",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`), then run the command again",
    **dict.fromkeys(
        (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EROFS, errno.EACCES, errno.EPERM),
        "name a place that exists and can be used, or change its permissions",
    ),
}
PYDANTIC_WORDS = {
    "Value error, ": "",
    r"Input should be a valid integer\b.*": "write a whole number",
    r"Input should be a valid number\b.*": "write a number",
    r"Input should be greater than or equal to (\S+)": r"write \1 or more",
}
NO_SIZE = 80  # columns of a terminal that does not know its size
SUPPLIED = ("ui", "cluster", "progress")
UNNEEDED = {
    "Cluster": Any,
    "Progress": Any,
}  # types of parameters that no command line has, and that import asyncio


def _everywhere(usage: str, help: str, **more: Any) -> Any:
    return option(usage, help, rich_help_panel=EVERYWHERE, **more)


Address = Annotated[
    str | None,
    _everywhere(
        "-a --address HOST:PORT", "The Ray cluster (default: RAY_ADDRESS, else the one on this machine)."
    ),
]
Name = Annotated[str | None, _everywhere("--name NAME", "The deployment's name (default: ebla).")]
Json = Annotated[bool, _everywhere("--json", "Print one JSON document to stdout.")]
Verbose = Annotated[int, _everywhere("-v --verbose", "Print more to stderr.", count=True, show_default=False)]
Quiet = Annotated[bool, _everywhere("-q --quiet", "Show no progress.")]

_COMMON = [
    inspect.Parameter(
        f"common_{name}", inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
    )
    for name, annotation, default in (
        ("address", Address, None),
        ("name", Name, None),
        ("json", Json, False),
        ("verbose", Verbose, 0),
        ("quiet", Quiet, False),
    )
]


def group(help: str, alone: bool = False, completion: bool = False) -> typer.Typer:
    """A set of commands, such as `ebla table ...`. `alone`: the group is a command by itself, too. `completion`: it has
    the options for completion in shells."""
    return typer.Typer(
        cls=Group,
        help=help,
        no_args_is_help=not alone,
        context_settings={"help_option_names": ["--help", "-h"]},
        rich_markup_mode="rich",
        add_completion=completion,
        pretty_exceptions_enable=False,
    )


def _value(param: Any, process: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """The value of an option or argument. What needs no check gets none, as during completion: typer checks with pydantic, whose
    import takes 0.2 s, and makes a converter for each option."""
    if ctx.resilient_parsing:
        return value
    kind, several = param.type_descriptor.annotation, param.multiple or param.nargs != 1
    if value is None and not param.required:
        value = () if several else None
    elif several or not (
        (type(value) is str and (kind is str or (get_origin(kind) is Literal and value == param.default)))
        or (type(value) is int and getattr(param, "count", False))
    ):
        return process(ctx, value)
    return value if param.callback is None else param.callback(ctx, param, value)


def _plain(params: list[Any]) -> list[Any]:
    """Show no types of Python in the help: no <bool> at a flag, no <str> at an argument, no [x>=1] at a number; and no braces
    around a required argument."""
    for param in params:
        if not isinstance(param.process_value, partial):
            param.process_value = partial(_value, param, param.process_value)
        if isinstance(param, TyperArgument):
            param.display_type_rich = _nothing  # type: ignore[method-assign]
            usage = param._usage_display_name().replace("{", "").replace("}", "")
            param._usage_display_name = partial(str, usage)  # type: ignore[method-assign]
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

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """As in typer; an unknown command that another group has is named with that group."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            root = ctx.find_root()
            parts = {name: root.command.get_command(root, name) for name in root.command.list_commands(root)}
            places = [name for name, part in parts.items() if args[0] in getattr(part, "commands", ())]
            if places and isinstance(getattr(error, "message", None), str):
                meant = " or ".join(f"`ebla {name} {args[0]}`" for name in places)
                error.message = f"No such command {args[0]!r}; did you mean {meant}?"  # type: ignore[attr-defined]
            raise


class Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As in typer, whose error of an option without its value names no command."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise


def command(app: typer.Typer, name: str, function: Callable[..., Any]) -> None:
    """Register the function as a command with the common options."""
    app.command(name, cls=Command, help=_help(function))(_framed(function))


def alone(app: typer.Typer, function: Callable[..., Any]) -> None:
    """Register the function to run if a group is called without a command."""
    app.callback(cls=Group, invoke_without_command=True, help=_help(function))(_framed(function))


def _framed(function: Callable[..., Any]) -> Callable[..., None]:
    parameters = inspect.signature(function, eval_str=True, locals=UNNEEDED).parameters
    supplied = [name for name in parameters if name in SUPPLIED]

    def run(ctx: typer.Context, **given: Any) -> None:
        own = Common(*(given.pop(each.name) for each in _COMMON))
        common = own.over(ctx.find_object(Common) or Common())
        if ctx.invoked_subcommand is not None:
            ctx.obj = common
            return
        ui = Ui(common)
        shown = _result(function, supplied, ui, ctx.command_path.partition(" ")[2], given)
        if shown is not None:
            ui.show(*shown)

    run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
    run.__annotations__ = {}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
            *(p.replace(kind=p.KEYWORD_ONLY) for p in parameters.values() if p.name not in SUPPLIED),
            *_COMMON,
        ]
    )
    return run


def _result(
    function: Callable[..., Any], supplied: Sequence[str], ui: Ui, title: str, given: dict[str, Any]
) -> Any:
    with ui.working(title) if "progress" in supplied else nullcontext() as progress:
        values = {"ui": ui, "progress": progress}
        given |= {name: values[name] for name in supplied if name in values}
        if "cluster" in supplied:
            return within(ui, lambda cluster: function(cluster=cluster, **given))
        return function(**given)


def _help(function: Callable[..., Any]) -> str:
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
        notes: list[str] = []
        try:
            status = super().main(given, *rest, **settings)
        except Stopped:
            sys.exit(INTERRUPTED)
        except (KeyboardInterrupt, typer.Abort):
            status = INTERRUPTED
        except SystemExit as end:
            status, notes = end.code, getattr(end, "__notes__", [])
        except EblaError as error:
            status = _report(error, exit_status(error), as_json, verbose)
        except NotCompared as failure:
            status = _report(failure.error, USAGE, as_json, verbose)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = BROKEN_PIPE
        except OSError as error:
            status = _report(
                FileTrouble(os_trouble(error), hint=OS_STEPS.get(error.errno or 0)), FAILED, as_json, verbose
            )
        except Exception as error:
            status = _report_usage(error, as_json)
        if status in (INTERRUPTED, TERMINATED):
            _report_interrupted(as_json, status, notes)
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """As in typer, which would drop the notes of a KeyboardInterrupt."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            end = SystemExit(INTERRUPTED)
            for note in getattr(interrupt, "__notes__", ()):
                add_note(end, note)
            raise end from None


def _report(error: EblaError, status: int, as_json: bool, verbose: bool) -> int:
    if verbose:
        traceback.print_exception(type(error), error, error.full_traceback or error.__traceback__)
    if as_json:
        write_json(document(error, status))
        return status
    _print(error.message if isinstance(error, Refused) else f"ebla: {error.message}", next_step(error))
    return status


def _print(problem: str, step: str | None) -> None:
    """One line each on standard error; on a terminal, lines that break between words."""
    for text in map(with_short_nodes, (problem, f"  next: {step}") if step else (problem,)):
        if sys.stderr.isatty():
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or NO_SIZE
            text = "\n".join(
                fill(line, columns, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
                for line in text.split("\n")
            )
        print(text, file=sys.stderr)


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
    text: str = message()
    for pattern, words in PYDANTIC_WORDS.items():
        text = re.sub(pattern, words, text)
    if as_json:
        write_json(error_document("Usage", text, USAGE))
        return USAGE
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "ebla"
    _print(f"ebla: {text}", f"`{path} --help` shows its options")
    return USAGE


def _report_interrupted(as_json: bool, status: int, notes: list[str]) -> None:
    """`notes`: what may have been changed, and the remedy."""
    if as_json:
        message = "; ".join(["interrupted", *notes])
        write_json(error_document("Interrupted", message, status, possibly_applied=bool(notes)))
        return
    print("\nebla: interrupted", file=sys.stderr)
    for note in notes:
        _print(note, None)
