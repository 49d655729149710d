"""Shows the progress of long work: of calls (`ebla.connect(progress=False)` shows none), commands and demos.

    terminal    a bar for each work, on standard error; it is deleted when the work ends
    notebook    a line for each work, which changes while the work runs
    elsewhere   commands print a line every few seconds; calls show nothing

A loop over rows or batches of a scan shows only its waits for them: what it prints between them never mixes with a bar.
All bars of a process share one display, because a terminal has room for one.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ebla.wording import count

if TYPE_CHECKING:
    import rich.progress
    from rich.console import Console

SHOW_AFTER_S = 2.0  # calls that take less show nothing
REFRESH_S = 0.2
LINE_EVERY_S = 5.0
BAR_WIDTH = 24

# The text beside the title, and how much of the total is done.
Seen = tuple[str, float, float | None]


class Show(Protocol):
    """Shows the progress of a work."""

    def __call__(self, text: str, done: float = 0.0, total: float | None = None, /) -> None: ...


def silent(*shown: object) -> None:
    """A function for progress that shows nothing."""


def seen_rows(done: int, total: int | None = None, noun: str = "row") -> Seen:
    text = count(done, noun) if total is None else f"{done:,} of {count(total, noun)}"
    return (text, done, total)


def counting(rows: Callable[[], int], total: int | None = None, noun: str = "row") -> Callable[[], Seen]:
    """Looks at a number of rows that grows from now on. Where the total is unknown, as of a scan with a condition, the rate is all
    that says whether the call goes on."""
    began = time.monotonic()

    def look() -> Seen:
        done = rows()
        text, *_ = seen_rows(done, total, noun)
        if total is None:
            text += f", {done / max(time.monotonic() - began, 1e-3):,.0f} {noun}s/s"
        return (text, done, total)

    return look


class Display(Protocol):
    """Shows several works at a time. A late update of a removed work has no effect. `since_s`: how long ago the work began."""

    def add(self, title: str, since_s: float = 0.0) -> object: ...

    def update(self, work: Any, text: str, done: float, total: float | None) -> None: ...

    def remove(self, work: Any) -> None: ...


class Bars:
    """A display on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._gate = threading.Lock()
        self._live: rich.progress.Progress | None = None

    def add(self, title: str, since_s: float = 0.0) -> rich.progress.TaskID:
        with self._gate:
            if self._live is None:
                self._live = _live(self._console)
                self._live.start()
            work = self._live.add_task(title, total=None, text="")
            task = next(task for task in self._live.tasks if task.id == work)
            if task.start_time is not None:
                task.start_time -= since_s
            return work

    def update(self, work: rich.progress.TaskID, text: str, done: float, total: float | None) -> None:
        with self._gate:
            if self._live is not None and work in self._live.task_ids:
                self._live.update(work, completed=done, total=total, text=text)

    def remove(self, work: rich.progress.TaskID) -> None:
        with self._gate:
            if self._live is None:
                return
            self._live.remove_task(work)
            if not self._live.task_ids:
                self._live.stop()
                self._live = None


def _live(console: Console) -> rich.progress.Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class KnownBar(BarColumn):
        """A bar that is hidden while the total is unknown."""

        def render(self, task: Any) -> Any:
            return super().render(task) if task.total else Text("")

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        KnownBar(bar_width=BAR_WIDTH),
        TextColumn("{task.fields[text]}", style="dim", markup=False),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)


class NotebookLine:
    """A work in a notebook."""

    def __init__(self, title: str, since_s: float) -> None:
        self.title = title
        self.began = time.monotonic() - since_s
        self.output: Any = None


class NotebookLines:
    """A display in a notebook. It needs IPython only, and no widgets."""

    def add(self, title: str, since_s: float = 0.0) -> NotebookLine:
        return NotebookLine(title, since_s)

    def update(self, work: NotebookLine, text: str, done: float, total: float | None) -> None:
        from IPython.display import display

        share = min(1.0, done / total) if total else None
        full = round(BAR_WIDTH * (share or 0.0))
        bar = "" if share is None else "█" * full + "░" * (BAR_WIDTH - full) + " "
        line = {"text/plain": f"{work.title} {bar}{text} {time.monotonic() - work.began:.0f} s"}
        if work.output is None:
            work.output = display(line, raw=True, display_id=True)
        else:
            work.output.update(line, raw=True)

    def remove(self, work: NotebookLine) -> None:
        if work.output is not None:
            work.output.update({"text/plain": ""}, raw=True)
            work.output = None


# -- commands ------------------------------------------------------------------------------------------------


@contextmanager
def shown(console: Console, title: str) -> Iterator[Show]:
    """Show the progress of a command's work until the block ends."""
    if not console.is_terminal:
        yield _lines(console, title)
        return
    bars = Bars(console)
    work = bars.add(title)
    try:
        yield lambda text, done=0.0, total=None: bars.update(work, text, done, total)
    finally:
        bars.remove(work)


def _lines(console: Console, title: str) -> Show:
    """A line when the text is new and some seconds have passed: short work prints nothing."""
    shown_at, shown = time.monotonic(), ""

    def show(text: str, done: float = 0.0, total: float | None = None) -> None:
        nonlocal shown_at, shown
        now = time.monotonic()
        if text == shown or now - shown_at < LINE_EVERY_S:
            return
        shown_at, shown = now, text
        console.print(f"{title}: {text}" if text else title, highlight=False, markup=False)

    return show


# -- calls ---------------------------------------------------------------------------------------------------


def display_of_calls() -> Display | None:
    """The display of this process: None without a terminal and without a notebook."""
    global _bars
    if "IPython" in sys.modules or (sys.stderr is not None and sys.stderr.isatty()):
        from rich.console import Console

        console = Console(stderr=True)
        if console.is_jupyter:
            return NotebookLines()
        if console.is_terminal and not console.is_dumb_terminal:
            _bars = _bars or Bars(console)
            return _bars
    return None


_bars: Bars | None = None


@contextmanager
def watching(display: Display | None, title: str, look: Callable[[], Seen]) -> Iterator[None]:
    """Show a call, from SHOW_AFTER_S after its beginning until the block ends: a thread looks at its progress."""
    if display is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(display, title, look, ended), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(display: Display, title: str, look: Callable[[], Seen], ended: threading.Event) -> None:
    if ended.wait(SHOW_AFTER_S):
        return
    work = display.add(title, SHOW_AFTER_S)
    try:
        while True:
            display.update(work, *look())
            if ended.wait(REFRESH_S):
                return
    finally:
        display.remove(work)


@contextmanager
def working(display: Display | None, title: str) -> Iterator[Show]:
    """As `watching`, for work that tells its progress."""
    seen: Seen = ("", 0.0, None)

    def show(text: str, done: float = 0.0, total: float | None = None) -> None:
        nonlocal seen
        seen = (text, done, total)

    with watching(display, title, lambda: seen):
        yield show
