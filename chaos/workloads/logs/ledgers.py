"""Ledgers: each client writes ledgers without a log, and ends, reads and deletes those of all clients.

Quorums differ from ledger to ledger. Every record is added once. A writer whose ledger another client has ended makes another one.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from ebla.actors.errors import NotFound, TimedOut
from ebla.actors.ledger.errors import LedgerClosed, LedgerFenced
from ebla.chaos.checkers.ledgers import ADD, CLOSE, DELETE, END, LOOK, READ, check_ledgers
from ebla.chaos.checkers.verdict import Verdict
from ebla.chaos.history import History
from ebla.chaos.workloads.base import Client, NoAnswer, Workload, at_once, persist, until_stopped
from ebla.log.ledgers import LedgerWriter

T = TypeVar("T")

QUORUMS = ((3, 3, 2), (4, 3, 2), (5, 3, 2), (4, 2, 2), (5, 4, 2), (5, 3, 3))  # ensemble, write, ack
REFUSED = ("RecoveryFailed", "NotEnoughStores", "NotFound")
EXPLAINED = {
    "beside-create": ("NotEnoughStores",),
    ADD: ("LedgerFenced", "LedgerClosed", "NotEnoughStores"),
    CLOSE: ("LedgerFenced", *REFUSED),
    END: REFUSED,
    READ: ("NotFound",),
    LOOK: ("NotFound",),
    DELETE: ("NotFound",),
}
RECENT = 5  # ledgers that clients use
MANY_MAX = 12
CALL_S_MAX = 20.0


class Ledgers(Workload):
    name = "ledgers"
    explained = EXPLAINED

    def __init__(self) -> None:
        self.made: dict[int, None] = {}
        self._next = 0

    async def run(self, client: Client) -> None:
        await until_stopped(client, _User(self, client).step)

    async def conclude(self, client: Client) -> None:
        """Every ledger is ended and read; and read again when all are whole."""
        user = _User(self, client)
        listed = await persist(client, lambda: client.beside("list", None, client.db.ledgers()))
        self.made.update(dict.fromkeys(each.ledger for each in listed))
        for ledger in self.made:
            await user.finish(ledger)
        await client.stage.repaired()
        for ledger in self.made:
            await user.finish(ledger)

    def judge(self, history: History) -> Verdict:
        return check_ledgers(history)

    def take(self) -> int:
        self._next += 1
        return self._next


class _User:
    def __init__(self, workload: Ledgers, client: Client) -> None:
        self._workload = workload
        self._client = client
        self._writer: LedgerWriter | None = None
        self._given = 0  # records that the writer was given

    async def step(self) -> None:
        verb = self._client.random.choices(
            ("add", "many", "side by side", "close", "leave", "end", "end twice", "read", "look", "delete"),
            (8, 3, 2, 0.5, 0.1, 0.4, 0.2, 4, 2, 0.3),
        )[0]
        if verb in ("add", "many", "side by side", "close", "leave"):
            await self._write(verb)
            return
        ledger = self._some()
        if ledger is None:
            return
        if verb == "end":
            await self._end(self._client, ledger)
        elif verb == "end twice":
            await at_once(self._client, 2, lambda client: self._end(client, ledger))
        elif verb == "read":
            await self._read(ledger, self._client.random.choice((0, 0, self._client.random.randrange(30))))
        elif verb == "look":
            await self._look(ledger)
        else:
            await self._delete(ledger)

    def _some(self) -> int | None:
        recent = list(self._workload.made)[-RECENT:]
        return self._client.random.choice(recent) if recent else None

    async def _write(self, verb: str) -> None:
        if self._writer is None:
            await self._create()
        elif verb == "close":
            await self._close()
        elif verb == "leave":
            self._writer = None
        elif verb == "side by side":
            await at_once(self._client, 5, self._add)
        else:
            await self._add(self._client, 1 if verb == "add" else MANY_MAX)

    async def _create(self) -> None:
        ensemble, write_quorum, ack_quorum = self._client.random.choice(QUORUMS)

        async def created() -> LedgerWriter:
            return await self._client.db.create_ledger(
                ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum
            )

        self._writer = await self._client.beside("create", None, self._within(created()))
        self._given = 0
        self._workload.made[self._writer.ledger] = None

    async def _add(self, client: Client, most: int = 1) -> None:
        writer = self._writer
        if writer is None:
            return
        records = [self._workload.take() for _ in range(client.random.randint(1, most))]
        turns = [[writer.ledger, self._given + at] for at in range(len(records))]
        self._given += len(records)
        call = writer.add_many(map(_data, records), deadline_s=client.deadline_s())
        try:
            await client.ask_many(ADD, records, call, list, values=turns)
        except NoAnswer as error:
            if isinstance(error.__cause__, LedgerFenced | LedgerClosed):
                self._writer = None
            raise

    async def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            call = self._within(writer.close())
            await self._client.ask(CLOSE, writer.ledger, None, call, lambda info: info.last)

    async def _end(self, client: Client, ledger: int) -> None:
        async def ended() -> int | None:
            return (await (await client.db.open_ledger(ledger)).info()).last

        call = self._within(ended())
        await client.another().ask(END, ledger, None, call, lambda last: last, reads=True)

    async def _read(self, ledger: int, first: int) -> None:
        async def records() -> tuple[list[int | str], int | None]:
            found = await self._client.db.open_ledger(ledger, recover=False)
            entries = [entry async for entry in found.read(first)]
            assert [each.entry for each in entries] == list(range(first, first + len(entries))), (
                "entries have no gap"
            )
            return [_record(each.data) for each in entries], (await found.info()).last

        await self._client.ask(READ, ledger, first, self._within(records()), list, reads=True)

    async def _look(self, ledger: int) -> None:
        async def last() -> int:
            return await (await self._client.db.open_ledger(ledger, recover=False)).last_confirmed()

        await self._client.ask(LOOK, ledger, None, self._within(last()), lambda found: found, reads=True)

    async def _delete(self, ledger: int) -> None:
        await self._client.ask(DELETE, ledger, None, self._within(self._client.db.delete_ledger(ledger)))

    async def finish(self, ledger: int) -> None:
        """End the ledger and read all of it, unless it is deleted."""

        async def found() -> None:
            try:
                await self._end(self._client, ledger)
                await self._read(ledger, 0)
            except NoAnswer as error:
                if not isinstance(error.__cause__, NotFound):
                    raise

        await persist(self._client, found)

    async def _within(self, call: Awaitable[T]) -> T:
        try:
            async with self._client.clock.timeout(CALL_S_MAX):
                return await call
        except TimeoutError as error:
            if isinstance(error, TimedOut):
                raise
            raise TimedOut(f"no answer within {CALL_S_MAX:g} s", deadline_s=CALL_S_MAX) from error


def _data(record: int) -> bytes:
    """Short ones and long ones, which stores keep in different ways."""
    return b"%d" % record + b"." * (40 if record % 3 == 0 else 0)


def _record(data: bytes) -> int | str:
    number = data.split(b".")[0]
    known = number.isdigit() and data == _data(int(number))
    return int(number) if known else repr(data)
