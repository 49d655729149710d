"""Histories that only a certain order of events makes; each shows one mistake that random ones hardly find."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors.errors import Unavailable
from ebla.actors.ledger import messages as m
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.errors import EndUndecided, LedgerFenced
from ebla.actors.ledger.handles.registry import Transform
from ebla.actors.ledger.metadata import Metadata
from tests.ledger.stage import Stage, View

A, B, C, D = (f"ledger-store/{name}" for name in "abcd")


async def a_fence_survives_restarts(stage: Stage) -> None:
    found = stage.create()
    writer = stage.process().writer(found)
    await writer.add(b"one")
    await asyncio.sleep(1.0)  # the stores know that it is acknowledged: the recovery writes nothing
    await stage.process().recover()
    for address in stage.addresses:
        await stage.restart(address)
    late = m.AddRequest(found.segments[0].stores[0], 1, found.token, (m.make_entry(1, 1, 0, 7, b"late"),))
    with pytest.raises(LedgerFenced):
        await stage.process().world.network.call(A, "add_entries", late, m.Done, 1.0)


async def an_absence_that_a_recovery_has_read_stays(stage: Stage) -> None:
    """Of the stores of an entry, the first has it and is then away, the second is fenced, the third was not reached by the fence: its
    answer "absent" must keep the writer's late entry out (BookKeeper #2614)."""
    network = stage.cluster.network
    stage.cluster.crash(D)  # no store takes the place of another
    found, process = stage.create(), stage.process()
    writer = process.writer(found)
    for address in (B, C):
        network.cut(process.world.address, address)
    added = writer.add(b"late")
    await asyncio.sleep(0.2)
    network.isolate(C)
    recovering = asyncio.ensure_future(stage.process().recover())
    await asyncio.sleep(0.9)
    stage.cluster.crash(A)
    network.rejoin(C)
    ended = await recovering
    assert ended.last == meta.NONE, "neither of the stores that answer has it"
    network.mend(process.world.address, C)
    with pytest.raises(LedgerFenced):
        await asyncio.wait_for(added, 10.0)


async def what_a_reader_saw_survives_a_replacement(stage: Stage) -> None:
    """Two stores have an entry whose acknowledgements are lost, and a reader returns it. The writer replaces one of the two, and
    dies; the other one is away."""
    network = stage.cluster.network
    found, process = stage.create(), stage.process()
    address = process.world.address
    for store in (A, C):
        network.cut(store, address, one_way=True)
    for store in (B, D):
        network.cut(address, store)
    writer = process.writer(found)
    lost = writer.add(b"seen")
    await asyncio.sleep(0.3)
    other = stage.process()
    assert await other.reader.last_entry(await other.registry.read(1)) == 0
    until = stage.cluster.loop.time() + 4.0
    while stage.registry.ledgers[1] == found and stage.cluster.loop.time() < until:
        await asyncio.sleep(0.001)
    process.crash()
    stage.cluster.crash(C)
    ended = await stage.process().recover()
    assert ended.last == 0 and await stage.process().contents() == [b"seen"]
    del lost


async def nothing_is_confirmed_before_a_recovery_closes(stage: Stage) -> None:
    """A recovery writes entries to a store that it has chosen in place of another, and fails before it closes the ledger. The next
    recovery knows nothing of that store, and must write the entries again."""
    found = stage.create(1, 3, 3, 3)
    process = stage.process()
    writer = process.writer(found)
    stage.cluster.network.cut(process.world.address, C)
    lost = writer.add(b"entry")
    await asyncio.sleep(0.1)
    process.crash()
    stage.cluster.crash(C)
    recovering = asyncio.ensure_future(stage.process().recover())
    while stage.registry.ledgers[1].state == meta.OPEN:
        await asyncio.sleep(0.001)
    while stage.role(D).entries.get(1, 0) is None:
        await asyncio.sleep(0.001)
    stage.registry.fails = True
    with pytest.raises(Unavailable):
        await recovering
    await asyncio.sleep(1.0)
    stage.registry.fails = False
    await stage.restart(C)
    ended = await stage.process().recover()
    assert ended.last == 0
    for store in ended.segments[0].stores:
        assert stage.role(stage.of(store)).entries.get(1, 0) is not None, store
    del lost


async def one_absence_does_not_end_a_recovery(stage: Stage) -> None:
    """The first store of an entry lacks it, and the other two have acknowledged it; the writer dies before it tells them so."""
    stage.cluster.crash(D)  # no store takes the place of another
    found, process = stage.create(), stage.process()
    stage.cluster.network.cut(process.world.address, A)
    assert await process.writer(found).add(b"acknowledged") == 0
    process.crash()
    ended = await stage.process().recover()
    assert ended.last == 0


async def what_a_reader_saw_survives_every_recovery(stage: Stage) -> None:
    """One store has an entry. A recovery that cannot reach it finds the entry absent; another one writes it to the other stores
    and dies. A reader then finds it on all stores, while the first recovery is about to close the ledger without it."""
    stage.cluster.crash(D)  # no store takes the place of another
    found, process = stage.create(), stage.process()
    for store in (B, C):
        stage.cluster.network.cut(process.world.address, store)
    lost = process.writer(found).add(b"seen")
    await asyncio.sleep(0.2)
    process.crash()
    first, second, reader = stage.process(), stage.process(), stage.process()
    stage.cluster.network.cut(first.world.address, A)
    decided, closes = asyncio.Event(), asyncio.Event()

    async def change(ledger: int, transform: Transform) -> Metadata:
        if stage.registry.ledgers[ledger].state == meta.IN_RECOVERY:
            decided.set()
            await closes.wait()
        return await View.change(first.registry, ledger, transform)

    first.registry.change = change  # type: ignore[method-assign]
    recovering = asyncio.ensure_future(first.recover())
    await decided.wait()
    second.world.spawn(second.recover(), "recover")
    while stage.role(B).entries.get(1, 0) is None or stage.role(C).entries.get(1, 0) is None:
        await asyncio.sleep(0.0001)
    second.crash()
    assert not stage.registry.ledgers[1].closed
    with pytest.raises(EndUndecided):
        await reader.reader.last_entry(await reader.registry.read(1))
    seen = (await reader.recover()).last
    closes.set()
    assert (await recovering).last == seen == 0
    del lost


SCRIPTS = (
    what_a_reader_saw_survives_every_recovery,
    one_absence_does_not_end_a_recovery,
    a_fence_survives_restarts,
    an_absence_that_a_recovery_has_read_stays,
    what_a_reader_saw_survives_a_replacement,
    nothing_is_confirmed_before_a_recovery_closes,
)
