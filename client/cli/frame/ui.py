"""The output of a command: results on stdout and everything else on stderr, or one JSON document on stdout.

Long work shows a bar on a terminal, elsewhere a line every few seconds. Output that is not on a terminal is neither coloured
nor cut.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ebla.operate.naming import Refused
from ebla.placement.interrupts import ending_at_once
from ebla.wording import count, with_short_nodes

if TYPE_CHECKING:
    from rich.console import Console

    from ebla.operate.waiting import Progress

NAME = "ebla"  # of a deployment, unless --name gives one
PIPED_WIDTH = 2000
LOOK_S = 0.2
ROWS_SHOWN = 100  # of a long list at a terminal
T = TypeVar("T")
Shown = tuple[Any, ...]  # a command's result: the document for --json, and the parts for people


@dataclass(frozen=True)
class Common:
    """The options that every command takes."""

    address: str | None = None
    name: str | None = None
    json: bool = False
    verbose: int = 0
    quiet: bool = False

    def over(self, outer: Common) -> Common:
        """These options; for missing ones those given before the command."""
        return Common(
            self.address or outer.address,
            self.name or outer.name,
            self.json or outer.json,
            max(self.verbose, outer.verbose),
            self.quiet or outer.quiet,
        )


class Ui:
    def __init__(self, common: Common) -> None:
        self.common = common
        self.json = common.json
        self.verbose = common.verbose
        self._out: Console | None = None
        self._err: Console | None = None

    # -- results

    @property
    def out(self) -> Console:
        if self._out is None:
            self._out = _console(sys.stdout)
        return self._out

    @property
    def err(self) -> Console:
        if self._err is None:
            self._err = _console(sys.stderr)
        return self._err

    @property
    def silent(self) -> bool:
        """Whether no progress is shown."""
        return self.common.quiet or (self.json and not self.verbose)

    @property
    def interactive(self) -> bool:
        return sys.stdin.isatty() and sys.stderr.isatty()

    def show(self, document: Any, *parts: Any) -> None:
        """Print the result: the document with --json, else its parts one after the other."""
        if self.json:
            write_json(document)
            return
        for part in parts:
            if part is not None:
                self.print(part)

    def print(self, part: Any) -> None:
        """Print one part of the result; without trailing blanks if it is not a terminal."""
        part = with_short_nodes(part) if isinstance(part, str) else part
        if self.out.is_terminal:
            self.out.print(part, highlight=False, markup=False)
            return
        with self.out.capture() as captured:
            self.out.print(part, highlight=False, markup=False)
        sys.stdout.writelines(line.rstrip() + "\n" for line in captured.get().splitlines() or [""])

    def some(self, rows: Sequence[T]) -> Sequence[T]:
        """The rows that a person reads at a terminal: the first ones, unless -v asks for all. Elsewhere nothing is cut."""
        return rows if self.verbose or not self.out.is_terminal else rows[:ROWS_SHOWN]

    def rest(self, rows: Sequence[Any], noun: str, others: str) -> list[str]:
        """The line after `some` of the rows, if it left any out. `others`: a further way to see the rest."""
        left = len(rows) - len(self.some(rows))
        return [f"and {count(left, f'more {noun}')}: {others}, -v shows all"] if left else []

    # -- other output

    def note(self, text: str) -> None:
        """Print information that is not the result."""
        if not self.json:
            self.err.print(with_short_nodes(text), highlight=False, markup=False, style="dim")

    def warn(self, text: str) -> None:
        self.err.print(f"warning: {with_short_nodes(text)}", highlight=False, markup=False, style="yellow")

    def confirm(self, question: str, yes: bool) -> None:
        """Ask before data is deleted. Raises Refused unless the answer is yes."""
        if yes:
            return
        if self.json or not self.interactive:
            raise Refused(f"{question} There is no terminal for a confirmation.", hint="add -y to confirm")
        if self.ask(f"{question} [y/N] ").lower() not in ("y", "yes"):
            raise Refused("nothing was changed")

    def ask(self, prompt: str) -> str:
        """The words that a person types. SIGINT and SIGTERM end the wait."""
        with ending_at_once():
            self.err.print(prompt, end="", highlight=False, markup=False)
            # Python notices a signal that comes just before a read only when the read has ended, but each of these waits is short.
            with suppress(OSError, ValueError):  # stdin may be no file
                while not select.select([sys.stdin], [], [], LOOK_S)[0]:
                    pass
            return sys.stdin.readline().strip()

    @contextmanager
    def working(self, title: str) -> Iterator[Progress]:
        """Show progress on stderr, if it is wanted: a bar on a terminal, lines elsewhere."""
        from ebla.operate.waiting import Progress
        from ebla.show.progress import shown

        if self.silent:
            yield Progress()
            return
        with shown(self.err, title) as show:
            yield Progress(lambda text, *done: show(with_short_nodes(text), *done))

    @contextmanager
    def kept_stdout(self) -> Iterator[None]:
        """Redirect the output of libraries and their child processes to stderr: stdout is for the result."""
        sys.stdout.flush()
        try:
            kept = os.dup(1)
        except OSError:
            yield
            return
        os.dup2(2, 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
            os.close(kept)


def write_json(document: Any) -> None:
    """Print one document, with its values as in_json gives them."""
    from ebla.show.values import in_json

    data = msgspec.json.format(msgspec.json.encode(in_json(document)), indent=2)
    sys.stdout.write(data.decode() + "\n")
    sys.stdout.flush()


def _console(file: Any) -> Console:
    from rich.console import Console

    console = Console(file=file, soft_wrap=False)
    return console if console.is_terminal else Console(file=file, width=PIPED_WIDTH, color_system=None)
