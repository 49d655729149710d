"""A log that is written while a node is killed, and the proof that it is whole.

One thread appends numbered records all the time, another one follows the log from its begin. At the end everything is read again,
and every copy of every entry is checked. Two of three stores acknowledge a record: the loss of one delays nothing. The writer
replaces the lost store after two seconds; what that store missed until then, a replication worker copies to it when it is back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ebla.actors import messages as m
from ebla.actors.ledger.messages import WorkerStatus
from ebla.actors.ledger.shared.repairs import Repairs
from ebla.log.awaited import Entry
from ebla.log.reading import Ledgers
from ebla.operate import ledgers as operate
from ebla.pipelines.probe import longest_pause
from ebla.pipelines.report import Events
from ebla.storage.errors import EblaError
from ebla.table import Database
from ebla.wording import host_of

NAME = "events"
PERIOD_S = 0.02  # between two calls
RECORDS = 10  # of a call
APPEND_S_MAX = 30.0
END_S_MAX = APPEND_S_MAX + 5.0
LOOK_S = 0.2
ASK_S = 5.0
END = b"end"


class EventLog:
    def __init__(self, db: Database) -> None:
        self._db = db
        self._log = db.create_log(NAME)
        self._writer = self._log.writer()
        self._ledgers: Ledgers = db._awaited._logs
        self._repairs = Repairs(self._ledgers.session)
        self._placed: dict[int, int] = {}  # the first record of each acknowledged call -> its position
        self._times: list[float] = []
        self._followed: list[Entry] = []
        self._whole_s: float | None = None
        self._errors: list[str] = []
        self._ending = threading.Event()

    def hosts(self) -> list[str]:
        """The hosts whose stores get the records now."""
        return self._db._run(self._hosts())

    async def _hosts(self) -> list[str]:
        record = await self._ledgers.log(NAME)
        newest = await self._ledgers.registry.read(record.ledgers[-1].ledger)
        where = await operate.addresses(self._ledgers)
        return [host_of(where[store]) for store in newest.segments[-1].stores]

    # -- while the node is killed ----------------------------------------------------------------------------

    @contextmanager
    def running(self) -> Iterator[None]:
        """Append, follow, and watch repairs, until the block ends."""
        threads = [
            threading.Thread(target=self._noting, args=(work,), name=f"log: {work.__name__}", daemon=True)
            for work in (self._append, self._follow, self._watch)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ending.set()
            deadline = time.monotonic() + END_S_MAX
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _noting(self, work: Callable[[], None]) -> None:
        try:
            work()
        except EblaError as error:
            self._errors.append(f"{type(error).__name__}: {error}")

    def _append(self) -> None:
        number = 0
        with self._writer as writer:
            while not self._ending.wait(PERIOD_S):
                records = [b"%d" % (number + at) for at in range(RECORDS)]
                self._placed[number] = writer.append_many(records, deadline_s=APPEND_S_MAX).start
                self._times.append(time.monotonic())
                number += RECORDS
            writer.append(END, deadline_s=APPEND_S_MAX)

    def _follow(self) -> None:
        for entry in self._log.read(0, follow=True):
            self._followed.append(entry)
            if entry.data == END:
                return

    def _watch(self) -> None:
        """Note when the ledger is whole again, after it was marked for repair."""
        marked = False
        while not self._ending.wait(LOOK_S):
            if self.to_repair():
                marked = True
            elif marked:
                self._whole_s = time.monotonic()
                return

    def to_repair(self) -> int:
        """How many ledgers wait for a repair."""
        return len(self._db._run(self._repairs.marked()))

    # -- afterwards ------------------------------------------------------------------------------------------

    def proof(self, killed_s: float, hosts: Sequence[str]) -> Events:
        """Read all records, check every copy of every entry, and ask the workers on these hosts what they have done."""
        read = list(self._log.read(0))
        records = [entry.data for entry in read]
        expected = {
            position + at: b"%d" % (number + at)
            for number, position in self._placed.items()
            for at in range(RECORDS)
        }
        found = frozenset(records)
        there = dict(enumerate(records))
        copies, unsound = self._db._run(self._copies())
        copied = self._db._run(self._copied(hosts))
        return Events(
            records=len(expected),
            lost=sum(record not in found for record in expected.values()),
            misplaced=sum(there.get(position) != record for position, record in expected.items()),
            repeated=len(records) - len(found),
            followed=self._followed == read,
            pause_s=longest_pause(self._times, killed_s),
            copies=copies,
            unsound=unsound,
            copied=sum(copied.values()),
            copied_by=tuple(host for host, entries in copied.items() if entries),
            whole_s=None if self._whole_s is None else self._whole_s - killed_s,
            errors=tuple(self._errors),
        )

    async def _copies(self) -> tuple[int, int]:
        """How many copies of entries there should be, and how many of them are missing, damaged or unknown."""
        copies = unsound = 0
        for part in (await self._ledgers.log(NAME)).ledgers:
            for held in (await operate.check(self._ledgers, part.ledger)).stores:
                copies += held.wanted
                unsound += held.wanted if held.error else len(held.absent) + len(held.damaged)
        return copies, unsound

    async def _copied(self, hosts: Sequence[str]) -> dict[str, int]:
        found = {}
        for host in hosts:
            address = f"replication-worker/{host}"
            call = self._ledgers.world.network.call(address, "worker_status", m.Empty(), WorkerStatus, ASK_S)
            found[host] = (await call).copied
        return found
