"""A store forgets the heads of ledgers that were deleted long ago, and refuses these ledgers nevertheless."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ebla.actors.errors import Unavailable
from ebla.actors.ledger import messages as m
from ebla.actors.ledger.errors import LedgerFenced, WrongToken
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.store import records
from ebla.actors.ledger.store.options import LedgerStoreOptions
from ebla.actors.ledger.store.store import LedgerStore
from ebla.actors.world import World
from ebla.chaos.simulation import loop
from tests.ledger.stage import Process, Stage, View

KEPT = 2
A = "ledger-store/a"


class Forgetful(Stage):
    """Its stores keep two heads of deleted ledgers, and ask the registry of the stage."""

    async def open(self) -> None:
        self.views: list[View] = []

        def store(world: World) -> LedgerStore:
            made = LedgerStore(world, LedgerStoreOptions(deleted_heads=KEPT))
            self.views.append(View(self.registry, world))
            made._forgotten._registry = self.views[-1]
            return made

        for address in self.addresses:
            await self.cluster.start(address, store)
            self._register(address)


def play(scenario: Callable[[Forgetful], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        stage = Forgetful(3)
        await stage.open()
        await scenario(stage)

    loop.run(run())


async def ask(process: Process, method: str, request: Any, reply: type[Any]) -> Any:
    address = process.stage.of(request.store)
    return await process.world.network.call(address, method, request, reply, 1.0)


async def deleted(stage: Forgetful, ledger: int) -> Metadata:
    """A ledger that was written and deleted."""
    process, found = stage.process(), stage.create(ledger)
    writer = process.writer(found)
    await writer.add(b"one")
    await writer.close()
    del stage.registry.ledgers[ledger]
    for store in found.segments[0].stores:
        await ask(process, "delete_ledger", m.DeleteRequest(store, ledger, found.token), m.Done)
    await asyncio.sleep(0.1)
    return found


def requests(stage: Stage, found: Metadata) -> list[tuple[str, Any, type[Any]]]:
    """All that would give the ledger a head at the store."""
    store, ledger, token = stage.uuids[A], found.ledger, found.token
    entries = (m.make_entry(ledger, 1, 0, 7, b"late"),)
    return [
        ("add_entries", m.AddRequest(store, ledger, token, entries), m.Done),
        ("add_entries", m.AddRequest(store, ledger, token, entries, recovery=True), m.Done),
        ("read_entries", m.ReadRequest(store, ledger, token, (0,), 1000, fence=True), m.ReadReply),
        ("read_tail", m.TailRequest(store, ledger, token, fence=True), m.Tail),
    ]


def test_a_store_keeps_few_heads_of_deleted_ledgers_also_on_its_disk() -> None:
    async def scenario(stage: Forgetful) -> None:
        for ledger in range(1, 21):
            await deleted(stage, ledger)
        for _ in range(2):
            role = stage.role(A)
            assert len(role.heads) < 2 * KEPT and max(role.heads) == 20
            assert role.heads == role._saved == records.heads_of(role._environment)
            assert role._forgotten.greatest == min(role.heads) - 1
            assert len(role._ends) <= len(role.heads) and len(role._confirmed._lacs) <= len(role.heads)
            await stage.restart(A)
        assert all(view.requests == 0 for view in stage.views), "new ledgers need no registry"

    play(scenario)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_late_request_for_a_ledger_whose_head_is_forgotten_is_refused(restarts: bool) -> None:
    async def scenario(stage: Forgetful) -> None:
        gone = [await deleted(stage, ledger) for ledger in range(1, 11)]
        if restarts:
            await stage.restart(A)
        for found in gone:
            for request in requests(stage, found):
                with pytest.raises(LedgerFenced, match="is deleted"):
                    await ask(stage.process(), *request)
        again = m.DeleteRequest(stage.uuids[A], 1, gone[0].token)
        await ask(stage.process(), "delete_ledger", again, m.Done)
        assert stage.role(A).heads[1].deleted  # it is forgotten again, with others

    play(scenario)


def test_an_add_that_heard_of_its_ledger_before_the_deletion_is_refused_after_it() -> None:
    async def scenario(stage: Forgetful) -> None:
        old = stage.create(1)
        for ledger in range(2, 11):
            await deleted(stage, ledger)
        registry = stage.role(A)._forgotten._registry
        read = registry.read

        async def late(ledger: int) -> Metadata:
            found = await read(ledger)
            await asyncio.sleep(0.2)
            return found

        registry.read = late
        add = asyncio.ensure_future(ask(stage.process(), *requests(stage, old)[0]))
        await asyncio.sleep(0.1)
        await ask(stage.process(), "delete_ledger", m.DeleteRequest(stage.uuids[A], 1, old.token), m.Done)
        with pytest.raises(LedgerFenced):
            await add

    play(scenario)


def test_an_old_ledger_that_has_no_head_yet_gets_one_if_the_registry_knows_it() -> None:
    async def scenario(stage: Forgetful) -> None:
        old = stage.create(1)
        for ledger in range(2, 11):
            await deleted(stage, ledger)
        add = requests(stage, old)[0]
        stage.registry.fails = True
        with pytest.raises(Unavailable):
            await ask(stage.process(), *add)
        stage.registry.fails = False
        with pytest.raises(WrongToken):
            await ask(stage.process(), *requests(stage, Metadata(1, 3, 3, 2, "another", old.segments, 0))[0])
        assert 1 not in stage.role(A).heads
        await ask(stage.process(), *add)
        stage.registry.fails = True
        for request in requests(stage, old)[1:]:
            await ask(stage.process(), *request)
        await deleted_later(stage, old)

    async def deleted_later(stage: Forgetful, old: Metadata) -> None:
        """It is not asked for any more; when it is deleted, it is forgotten with the others."""
        await ask(stage.process(), "delete_ledger", m.DeleteRequest(stage.uuids[A], 1, old.token), m.Done)
        stage.registry.fails = False
        del stage.registry.ledgers[1]
        await deleted(stage, 11)
        await deleted(stage, 12)
        assert 1 not in stage.role(A).heads and stage.role(A)._forgotten.greatest > 1

    play(scenario)
