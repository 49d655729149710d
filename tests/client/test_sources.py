"""Sources of rows: generators that wait, fail or are left early."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import ebla
from ebla.errors import EblaError
from ebla.log.blocking import LedgerWriter, LogWriter
from ebla.options import Written
from ebla.storage.errors import DiskFull
from ebla.write import streams
from tests.client.loopback import Loopback
from tests.client.tables import arrow


class Source:
    """Batches, of which the second one comes when it is `released`."""

    def __init__(self) -> None:
        self.reached, self.released, self.closed = (threading.Event() for _ in range(3))

    def __iter__(self) -> Iterator[pa.Table]:
        try:
            yield arrow(10)
            self.reached.set()
            self.released.wait(20)
            yield arrow(10)
        finally:
            self.closed.set()


@pytest.mark.parametrize("method", ["upsert", "get_many"])
def test_a_cancelled_call_does_not_wait_for_its_source_which_is_closed_later(
    loopback: Loopback, table: ebla.Table, method: str
) -> None:
    source = Source()

    async def cancelled() -> bool:
        call = asyncio.ensure_future(getattr(table._awaited, method)(source))
        await asyncio.to_thread(source.reached.wait, 20)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return source.closed.is_set()

    assert not loopback.bridge.run(cancelled())
    source.released.set()
    assert source.closed.wait(20)


def test_a_program_ends_while_a_source_waits() -> None:
    program = """
import os, signal, threading
from tests.client.loopback import Loopback
from tests.client.tables import SCHEMA, arrow
def source():
    yield arrow(10)
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait()
with Loopback() as loopback:
    table = loopback.db.create_table("t", schema=SCHEMA, primary_key=["id"])
    try:
        table.upsert(source())
    except KeyboardInterrupt:
        print("interrupted")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "interrupted\n", "")


def full(loopback: Loopback) -> None:
    tables = loopback.toy.tables["t"].tablets
    loopback.toy.refusals.update({tablet.id: [DiskFull("full")] * 5 for tablet in tables})


@pytest.mark.parametrize(
    ("rows", "method"),
    [
        ([arrow(2000, width=100)] * 3, "upsert"),
        ([arrow(1).rename_columns(["id", "v", "x"])] * 2, "upsert"),
        ([arrow(1), arrow(1).select(["id"]), arrow(1)], "upsert"),
        ([arrow(1).select(["id"])] * 2, "update"),
        ([5, arrow(1)], "upsert"),
        ([arrow(1), 5, arrow(1)], "get_many"),
    ],
)
def test_the_source_of_a_failed_call_is_closed_when_the_call_has_ended(
    loopback: Loopback, table: ebla.Table, monkeypatch: pytest.MonkeyPatch, rows: list[Any], method: str
) -> None:
    monkeypatch.setattr(streams, "WINDOW_BYTES", 50_000)
    full(loopback)
    closed: list[str] = []

    def source() -> Iterator[Any]:
        try:
            yield from rows
        finally:
            assert loopback.db.tables(), "a call of the same connection"
            closed.append(threading.current_thread().name)

    kept = source()
    with pytest.raises(EblaError):
        getattr(table, method)(kept)
    assert closed == ["ebla source"]


def test_one_thread_reads_and_closes_a_source(table: ebla.Table) -> None:
    seen: list[int] = []

    def source() -> Iterator[pa.Table]:
        try:
            for _ in range(5):
                seen.append(threading.get_ident())
                yield arrow(10)
        finally:
            seen.append(threading.get_ident())

    assert table.upsert(source()) == Written(50)
    assert len(seen) == 6 and len({*seen, threading.get_ident()}) == 2


def test_the_thread_of_a_source_ends_with_the_call(table: ebla.Table) -> None:
    table.upsert(iter([arrow(10)]))
    for thread in threading.enumerate():
        if thread.name == "ebla source":
            thread.join(20)
            assert not thread.is_alive()


class Empty:
    """An iterable of the rows after its first one, which it does not have."""

    def __iter__(self) -> Iterator[pa.Table]:
        raise StopIteration


class EmptyStream:
    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise StopIteration


@pytest.mark.parametrize("source", [Empty, EmptyStream])
def test_a_source_that_raises_stop_iteration_before_its_first_row_is_refused(
    table: ebla.Table, source: Callable[[], Any]
) -> None:
    with pytest.raises(ebla.SourceUnreadable, match="StopIteration"):
        table.upsert(source())


class Returning:
    """A writer that returns the records."""

    async def append_many(
        self, records: Iterable[Any], *arguments: int, deadline_s: float | None
    ) -> list[Any]:
        return list(records)

    append_once = add_many = append_many

    async def append_table(self, table: Any, *, deadline_s: float | None) -> list[Any]:
        return pa.table(table).to_pylist()  # type: ignore[no-any-return]


class Names:
    """The names of the tables, read in the main thread: that of the connection would wait for itself."""

    def __init__(self, db: ebla.Database) -> None:
        self.db = db

    def __iter__(self) -> Iterator[str]:
        assert threading.current_thread() is threading.main_thread()
        return iter([table.name for table in self.db.tables()])

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.table({"name": list(self)}).__arrow_c_stream__(requested_schema)


def test_records_that_come_from_the_same_connection_are_read_in_the_callers_thread(
    loopback: Loopback, table: ebla.Table
) -> None:
    run, writer, names = loopback.bridge.run, Returning(), Names(loopback.db)
    log, ledger = LogWriter(run, writer), LedgerWriter(run, writer)  # type: ignore[arg-type]
    assert log.append_many(names) == log.append_once(names, 0) == ledger.add_many(names) == [table.name]  # type: ignore
    assert log.append_table(names) == [{"name": table.name}]  # type: ignore[comparison-overlap]
