"""A load on a deployment under faults: writers that insert one row after another, and further calls that are repeated. A
refused or repeated insert is an error."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from ebla.table import Table
from tests.cluster.conftest import eventually

WRITERS = 2
# The pauses between two rows of a writer, and between two further calls: the roles share the cores with all tests.
WRITE_PAUSE_S, CALL_PAUSE_S = 0.05, 0.2


SCHEMA = pa.schema([("writer", pa.int32()), ("number", pa.int64())])
Rows = set[tuple[int, int]]  # by writer and number


def row(writer: int, number: int) -> dict[str, Any]:
    return {"writer": writer, "number": number}


def require_rows(table: Table, wanted: Rows) -> None:
    """The table has each of these rows once, and no other row."""
    found = table.scan(columns=["writer", "number"]).to_arrow().to_pydict()
    assert sorted(zip(found["writer"], found["number"], strict=True)) == sorted(wanted)


def delete_rows(table: Table, rows: Rows) -> None:
    table.delete([row(*each) for each in sorted(rows)])


class Load:
    """Writers insert the rows that `row` makes from writer and number; each of `others` is called repeatedly in its own thread.
    A test waits for `more` rows of each writer and `more` calls of each of the others."""

    def __init__(
        self,
        table: Table,
        row: Callable[[int, int], dict[str, Any]],
        more: int,
        *others: Callable[[], object],
    ) -> None:
        self._table = table
        self._row = row
        self._more = more
        self._others = others
        self._rows = [0] * WRITERS  # writers insert 0, 1, 2, ...
        self._calls = [0] * len(others)
        self._errors: list[BaseException] = []
        self._end = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        works = [(self._write, number, WRITE_PAUSE_S) for number in range(WRITERS)]
        works += [(self._call, number, CALL_PAUSE_S) for number in range(len(self._others))]
        threads = [threading.Thread(target=self._run, args=work, daemon=True) for work in works]
        for thread in threads:
            thread.start()
        try:
            self.await_more()
            yield
            self.await_more()
        finally:
            self._end.set()
            for thread in threads:
                thread.join()
        assert not self._errors, self._errors

    def await_more(self) -> None:
        goals = [done + self._more for done in (*self._rows, *self._calls)]

        def reached() -> bool:
            assert not self._errors, self._errors
            return all(done >= goal for done, goal in zip((*self._rows, *self._calls), goals, strict=True))

        eventually(reached, f"{self._more} more rows and calls of each thread")

    def written(self) -> Rows:
        """List every acknowledged row."""
        return {(writer, number) for writer, rows in enumerate(self._rows) for number in range(rows)}

    def _run(self, work: Callable[[int], None], number: int, pause_s: float) -> None:
        try:
            while not self._end.wait(pause_s):
                work(number)
        except BaseException as error:
            self._errors.append(error)

    def _write(self, writer: int) -> None:
        self._table.insert(self._row(writer, self._rows[writer]), deadline_s=60.0)
        self._rows[writer] += 1

    def _call(self, number: int) -> None:
        self._others[number]()
        self._calls[number] += 1
