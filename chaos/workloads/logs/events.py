"""Events: clients take turns as the writer of one log, and read it, in parts and as a whole.

Every record is appended once. A client that is fenced goes on as a reader, and opens the log again later, so that writers race.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ebla.actors.errors import TimedOut
from ebla.actors.ledger.errors import LedgerClosed
from ebla.chaos.checkers.logs import APPEND, READ, TRIM, check_log
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.history import History
from ebla.chaos.workloads.base import Client, NoAnswer, Workload, at_once, persist, until_stopped
from ebla.log.awaited import Log, LogWriter
from ebla.log.options import LogFenced

OPEN = "beside-open"
REFUSED = ("RecoveryFailed", "NotEnoughStores", "LogFenced", "EntryLost")
EXPLAINED = {
    OPEN: REFUSED,
    APPEND: ("LogFenced", "NotEnoughStores", "LedgerClosed"),
    READ: ("RecordsTrimmed",),
    "beside-close": (*REFUSED, "LedgerClosed"),
}
SMALL_ROLL = 1_500
MANY_MAX = 20
WRITES = ("append", "many", "side by side")  # a client that is no writer reads instead
READ_S_MAX = 20.0


class Events(Workload):
    name = "events"
    explained = EXPLAINED

    roll_bytes = SMALL_ROLL

    def __init__(
        self,
        *,
        quorums: Sequence[tuple[int, int, int]] = ((3, 3, 2),),
        opens: float = 2.0,
        trims: float = 0.0,
        retain_s: float | None = None,
    ) -> None:
        """`quorums`: ensemble, write and ack quorum of the log, of which one is drawn. `opens`, `trims`: how often a writer opens the log again, and a client deletes old records, in comparison with other
        steps. `retain_s`: of the log."""
        self.quorums = quorums
        self.opens, self.trims, self.retain_s = opens, trims, retain_s
        self._next = 0

    @property
    def log(self) -> str:
        """The log's name."""
        return self.name

    @property
    def first(self) -> int:
        """The number before the first record."""
        return 0

    async def prepare(self, client: Client) -> None:
        ensemble, write_quorum, ack_quorum = client.random.choice(self.quorums)
        await client.db.create_log(
            self.log,
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            retain_s=self.retain_s,
            roll_bytes=self.roll_bytes,
        )

    async def run(self, client: Client) -> None:
        user = _User(self, client)
        await until_stopped(client, user.step)
        with suppress(NoAnswer):
            await user.leave()

    async def conclude(self, client: Client) -> None:
        """A last writer appends, and everything is read; and again when all ledgers are whole. On Ray that may be another process than
        the one that ran: its records follow."""
        self.follow(client.history)
        user = _User(self, client)
        await persist(client, user.open)
        await persist(client, lambda: user.append(client))
        await persist(client, user.read_all)
        await persist(client, user.leave)
        await client.stage.repaired()
        await persist(client, _User(self, client.another()).read_all)

    def judge(self, history: History) -> Verdict:
        return check_log(history, self.retain_s)

    def follow(self, history: History) -> None:
        """Take no record that is in this history."""
        appended = (event.key - self.first for event in history.events if event.operation == APPEND)
        self._next = max([self._next, *appended])

    def take(self) -> int:
        self._next += 1
        return self.first + self._next


class _User:
    def __init__(self, workload: Events, client: Client) -> None:
        self._workload = workload
        self._client = client
        self._writer: LogWriter | None = None
        self._first: int | None = None  # record of the writer, which names it in the history
        self._read_to = 0

    async def step(self) -> None:
        opens = min(2.0, 2 * self._workload.opens) if self._writer is None else self._workload.opens
        verb = self._client.random.choices(
            ("open", "append", "many", "side by side", "read", "read all", "leave", "trim"),
            (opens, 8, 3, 2, 5, 1, 0.5, self._workload.trims),
        )[0]
        if verb == "read" or (self._writer is None and verb in WRITES):
            await self._read(self._read_to)
        elif verb == "read all":
            await self.read_all()
        elif verb == "trim":
            await self._trim()
        elif verb == "open":
            await self.open()
        elif verb == "leave":
            await self.leave()
        elif verb == "side by side":
            await at_once(self._client, 5, self.append)
        else:
            await self.append(self._client, 1 if verb == "append" else MANY_MAX)

    async def _log(self) -> Log:
        return await self._client.db.log(self._workload.log)

    async def open(self) -> None:
        await self.leave()
        log = await self._client.beside("log", None, self._log())
        opening = log.writer(deadline_s=self._client.deadline_s())
        self._writer, self._first = await self._client.beside("open", None, opening), None

    async def leave(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await self._client.beside("close", None, writer.close())

    async def append(self, client: Client, most: int = 1) -> None:
        writer = self._writer
        if writer is None:
            return
        records = [self._workload.take() for _ in range(client.random.randint(1, most))]
        data = [str(record).encode() for record in records]
        if self._first is None:
            self._first = records[0]
        order = [[self._first, records[0], place] for place in range(len(records))]
        call = writer.append_many(data, deadline_s=client.deadline_s())
        try:
            await client.ask_many(APPEND, records, call, list, values=order)
        except NoAnswer as error:
            if isinstance(error.__cause__, LogFenced | LedgerClosed):
                self._writer = None
            raise

    async def _trim(self) -> None:
        """Delete some of what this client has read, and not the last record."""
        log = await self._client.beside("log", None, self._log())
        before = self._client.random.randint(0, max(0, self._read_to - 1))
        call = log.trim(before, deadline_s=self._client.deadline_s())
        await self._client.ask(TRIM, before, None, call)

    async def read_all(self) -> None:
        await self._read(None)

    async def _read(self, start: int | None) -> None:
        log = await self._client.beside("log", None, self._log())
        call = self._records(log, start)
        first, records = await self._client.ask(READ, start, None, call, lambda found: found, reads=True)
        self._read_to = first + len(records)

    async def _records(self, log: Log, start: int | None) -> tuple[int, list[int]]:
        try:
            async with self._client.clock.timeout(READ_S_MAX):
                found = [entry async for entry in log.read(start)]
        except TimeoutError as error:
            raise TimedOut(f"the log was not read within {READ_S_MAX:g} s", deadline_s=READ_S_MAX) from error
        first = found[0].position if found and start is None else start or 0
        if not found and start is None and self._workload.retain_s is not None:
            first = (await log.info()).first  # all others may be old
        assert [e.position for e in found] == list(range(first, first + len(found))), "positions have no gap"
        return first, [int(entry.data) for entry in found]
