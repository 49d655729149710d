"""Shows the steps of a long command: a moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from ebla.show.progress import shown, silent

Show = Callable[[str], None]


class Steps:
    """`seconds`: the duration of each finished step, by its title."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.seconds: dict[str, float] = {}
        self._console = console
        self._quiet = quiet
        self._title: str | None = None  # of the step under way

    @contextmanager
    def step(self, title: str) -> Iterator[Show]:
        """Yields a function that shows a text beside the title, until the step ends."""
        began = time.monotonic()
        self._title = title
        if self._quiet:
            yield silent
        else:
            with shown(self._console, title) as show:
                yield lambda text: show(text) if self._title == title else None
        self._title = None
        took = self.seconds[title] = time.monotonic() - began
        if not self._quiet:
            done = f"[green]✔[/green] {title} [dim]{took:.1f} s[/dim]"
            self._console.print(done, highlight=False, soft_wrap=True)

    def end(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
