"""The progress of calls and commands: a bar on a terminal, a line in a notebook, else nothing or lines."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from rich.console import Console

import ebla
from ebla import aio_database
from ebla.actors.messages import ScanRequest
from ebla.log import awaited
from ebla.read import scan_run
from ebla.read.scan_run import ScanRun
from ebla.show import progress
from ebla.show.progress import (
    Bars,
    NotebookLines,
    Seen,
    display_of_calls,
    seen_rows,
    shown,
    watching,
    working,
)
from ebla.transport import client
from tests.client.loopback import Loopback
from tests.client.tables import SCHEMA, arrow
from tests.log.stage import Stage, play


class Recorded:
    """A display that keeps the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.updated = threading.Condition()

    def add(self, title: str, since_s: float = 0.0) -> object:
        self.calls.append(("add", title))
        return title

    def update(self, work: Any, text: str, done: float, total: float | None) -> None:
        with self.updated:
            self.calls.append(("update", text, done, total))
            self.updated.notify_all()

    def await_text(self, text: str) -> None:
        with self.updated:
            assert self.updated.wait_for(lambda: any(text in call for call in self.calls), 600)

    def remove(self, work: Any) -> None:
        self.calls.append(("remove", work))


def test_a_call_is_shown_from_two_seconds_on_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    display, rows = Recorded(), 0
    with watching(display, "upsert t", lambda: seen_rows(rows, 1000)):
        pass
    assert display.calls == []
    monkeypatch.setattr(progress, "SHOW_AFTER_S", 0.0)
    monkeypatch.setattr(progress, "REFRESH_S", 0.001)
    with watching(display, "upsert t", lambda: seen_rows(rows, 1000)):
        for rows in (250, 500):
            display.await_text(f"{rows} of 1,000 rows")
    first, *updates, last = display.calls
    assert (first, last) == (("add", "upsert t"), ("remove", "upsert t"))
    assert list(dict.fromkeys(updates))[-2:] == [
        ("update", "250 of 1,000 rows", 250, 1000),
        ("update", "500 of 1,000 rows", 500, 1000),
    ]


def test_work_that_tells_its_progress_is_shown_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    display = Recorded()
    monkeypatch.setattr(progress, "SHOW_AFTER_S", 0.0)
    with working(display, "start ebla") as show:
        show("1 of 2 nodes", 1, 2)
        display.await_text("1 of 2 nodes")
        show("starting the roles")
        display.await_text("starting the roles")
    assert ("update", "1 of 2 nodes", 1, 2) in display.calls
    assert display.calls[-1] == ("remove", "start ebla")
    with working(None, "start ebla") as show:
        show("nobody looks")


def test_long_calls_of_a_table_are_shown_with_their_rows(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Seen] = {}

    @contextmanager
    def watch(shown_on: object, title: str, look: Callable[[], Seen]) -> Iterator[None]:
        assert shown_on is display
        yield
        text, *rest = look()
        seen[title] = (re.sub(r"\b[\d,]+ rows/s", "N rows/s", text), *rest)

    display = loopback.session.display = Recorded()
    monkeypatch.setattr(client, "watching", watch)
    table = loopback.db.create_table("t", schema=SCHEMA, primary_key=["id"])
    table.upsert(arrow(3000))
    table.insert(arrow(10), if_present="ignore")
    assert (table.count(), len(table.scan().to_arrow())) == (3000, 3000)
    assert seen.pop("scan t") == ("3,000 rows, N rows/s", 3000, None)
    assert len(pa.table(table.scan())) == 3000
    table.delete(where=ebla.col("n") < 1000)
    assert seen == {
        "upsert t": ("3,000 of 3,000 rows", 3000, 3000),
        "insert t": ("10 of 10 rows", 10, 10),
        "count t": ("3,000 rows, N rows/s", 3000, None),
        "scan t": ("3,000 rows, N rows/s", 3000, None),
        "delete t": ("1,000 of 1,000 rows", 1000, 1000),
        "delete from t": ("1,000 rows, N rows/s", 1000, None),
    }


def test_a_loop_over_rows_or_batches_shows_progress_only_while_it_waits(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[tuple[str, str]] = []
    shown = False

    @contextmanager
    def watch(on: object, title: str, look: Callable[[], Seen]) -> Iterator[None]:
        nonlocal shown
        assert on is display
        shown = True
        yield
        shown = False
        waits.append((title, look()[0]))

    display = loopback.session.display = Recorded()
    table = loopback.db.create_table("t", schema=SCHEMA, primary_key=["id"])
    table.upsert(arrow(3000))
    monkeypatch.setattr(client, "watching", watch)
    for _ in table.scan():
        assert not shown, "the terminal belongs to the loop"
    assert waits[0][0] == "scan t" and waits[-1] == ("scan t", "3,000 rows")
    found = list(table.scan().batches())
    assert waits[-1] == ("scan t", "3,000 rows") and sum(map(len, found)) == 3000
    waits.clear()
    assert len(pa.table(table.scan())) == 3000
    assert len(waits) == 1, "a stream is shown from its beginning to its end"


def test_rows_count_when_they_arrive_also_while_their_tablet_is_not_complete(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = loopback.db.create_table("t", schema=SCHEMA, primary_key=["id"])
    table.upsert(arrow(3000))
    received: list[int] = []
    deliver = ScanRun._deliver

    async def noted(self: ScanRun, *arguments: Any) -> None:
        await deliver(self, *arguments)
        received.append(self.received)

    monkeypatch.setattr(ScanRun, "_deliver", noted)
    monkeypatch.setattr(scan_run, "ScanRequest", partial(ScanRequest, block_bytes=1))
    assert len(table.scan().to_arrow()) == 3000
    assert received == sorted(received) and received[0] < received[-1] == 3000


def test_appends_of_many_records_are_shown_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, Seen, Seen]] = []

    @contextmanager
    def watch(display: object, title: str, look: Callable[[], Seen]) -> Iterator[None]:
        assert display == "a display"
        before = look()
        yield
        seen.append((title, before, look()))

    async def scenario(stage: Stage) -> None:
        db = stage.client()
        db._client.display = "a display"  # type: ignore[assignment]
        async with (await db.create_log("events")).writer("loader") as writer:
            await writer.append_many([b"x"] * 1000)
            await writer.append_once([b"x"] * 1003, 0)

    monkeypatch.setattr(awaited, "watching", watch)
    play(scenario)
    assert seen == [
        ("append to events", ("0 of 1,000 records", 0, 1000), ("1,000 of 1,000 records", 1000, 1000)),
        ("append to events", ("0 of 3 records", 0, 3), ("3 of 3 records", 3, 3)),
    ]


def test_the_first_log_shows_that_the_stores_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    shown_on: list[tuple[object, str]] = []

    @contextmanager
    def work(display: object, title: str) -> Iterator[None]:
        shown_on.append((display, title))
        yield

    def start() -> NoReturn:
        raise ebla.Unavailable("the stores did not come up")

    async def scenario(stage: Stage) -> None:
        db = stage.client()
        db._client.display = "a display"  # type: ignore[assignment]
        db._client.start_logs = start
        with pytest.raises(ebla.Unavailable):
            await db.create_log("events")

    async def here(function: Callable[[], object]) -> object:
        return function()

    monkeypatch.setattr(aio_database, "working", work)
    monkeypatch.setattr(asyncio, "to_thread", here)  # virtual time has no threads
    play(scenario, count=0)
    assert shown_on == [("a display", "start ledger stores")]


def test_a_call_shows_nothing_without_a_terminal_and_without_a_notebook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert display_of_calls() is None
    monkeypatch.setattr(sys, "stderr", None)
    assert display_of_calls() is None


PROGRAM = """
import time
from ebla.show import progress
progress.SHOW_AFTER_S = progress.REFRESH_S = 0.01
rows = 0
with progress.watching(progress.display_of_calls(), "upsert flights", lambda: progress.seen_rows(rows, 100)):
    for rows in range(100):
        time.sleep(0.005)
print("the result")
"""


def test_on_a_terminal_a_bar_is_shown_on_standard_error_and_deleted_at_the_end() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        chunks: list[bytes] = []

        def read() -> None:
            try:
                while chunk := os.read(ours, 65536):
                    chunks.append(chunk)
            except OSError:  # the end of a terminal on Linux
                return

        reader = threading.Thread(target=read)
        reader.start()
        out, _ = process.communicate(timeout=600)
        reader.join(10)
    os.close(ours)
    text = b"".join(chunks).decode()
    assert out == b"the result\n" and process.returncode == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert re.search(r"upsert flights .*\d+ of 100 rows", plain), plain
    assert max(len(line) for line in re.split(r"[\r\n]", plain)) <= 80
    assert text.rstrip().endswith("\x1b[2K\x1b[?25h"), "the bar is deleted, and the cursor is back"


def test_several_works_share_one_display_and_late_updates_have_no_effect() -> None:
    bars = Bars(Console(file=io.StringIO(), force_terminal=True))
    first, second = bars.add("first"), bars.add("second")
    bars.remove(first)
    bars.update(first, "too late", 1, 2)
    bars.update(second, "half", 1, 2)
    assert bars._live is not None
    assert [(task.description, task.completed) for task in bars._live.tasks] == [("second", 1)]
    bars.remove(second)
    assert bars._live is None
    bars.update(second, "too late", 1, 2)
    bars.remove(second)


class Output:
    def __init__(self, first: str) -> None:
        self.lines = [first]

    def update(self, line: dict[str, str], raw: bool) -> None:
        assert raw
        self.lines.append(line["text/plain"])


def test_in_a_notebook_one_line_changes_and_ends_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[Output] = []

    def display(line: dict[str, str], raw: bool, display_id: bool) -> Output:
        assert raw and display_id
        outputs.append(Output(line["text/plain"]))
        return outputs[-1]

    notebook = types.ModuleType("IPython.display")
    notebook.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    lines = NotebookLines()
    work = lines.add("upsert t")
    lines.update(work, "5 of 10 rows", 5, 10)
    lines.update(work, "9 rows", 9, None)
    lines.remove(work)
    assert [re.sub(r"\d+ s$", "N s", line) for line in outputs[0].lines] == [
        "upsert t ████████████░░░░░░░░░░░░ 5 of 10 rows N s",
        "upsert t 9 rows N s",
        "",
    ]
    assert len(outputs) == 1


def test_a_command_without_a_terminal_prints_new_texts_as_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    out = io.StringIO()
    with shown(Console(file=out), "up ebla") as show:
        show("connecting", 0, None)
        show("connecting", 0, None)
        show("starting [roles]", 1, 2)
    assert out.getvalue() == "up ebla: connecting\nup ebla: starting [roles]\n"
