"""A writer that closes its ledger while another store takes the place of one that fails."""

from __future__ import annotations

import asyncio

from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.handles.registry import Transform
from ebla.actors.ledger.metadata import Metadata
from tests.ledger.stage import Process, Stage, play


def publish_slowly(client: Process) -> asyncio.Event:
    """Its replacements are made, and the answers come late. The event: one is made."""
    made, change = asyncio.Event(), client.registry.change

    async def late(ledger: int, transform: Transform) -> Metadata:
        changed = await change(ledger, transform)
        if not changed.closed:
            made.set()
            await asyncio.sleep(1.0)
        return changed

    client.registry.change = late  # type: ignore[method-assign]
    return made


def test_a_close_in_the_middle_of_a_replacement_marks_what_the_new_store_lacks() -> None:
    async def scenario(stage: Stage) -> None:
        client, new = stage.process(), "ledger-store/d"
        made = publish_slowly(client)
        writer = client.writer(stage.create())
        await writer.add(b"first")
        stage.cluster.crash("ledger-store/c")
        await writer.add(b"second")
        await made.wait()
        stage.cluster.network.cut(client.world.address, new)
        await asyncio.gather(*(writer.add(b"late") for _ in range(5)))
        ended = await writer.close()
        assert stage.uuids[new] in ended.segments[-1].stores
        await asyncio.sleep(2.0)
        assert stage.uuids[new] in stage.registry.marks[1]

    play(scenario)


def test_a_close_in_the_middle_of_a_replacement_marks_what_the_old_store_was_not_sent() -> None:
    async def scenario(stage: Stage) -> None:
        client, old, new = stage.process(), "ledger-store/c", "ledger-store/d"
        made = publish_slowly(client)
        writer = client.writer(stage.create())
        await writer.add(b"first")
        await asyncio.sleep(1.0)
        stage.cluster.crash(old)
        stage.cluster.network.cut(client.world.address, new)
        while not writer._joining:
            await asyncio.sleep(0.01)
        await writer.add(b"acknowledged before the replacement, by the other stores")
        stage.cluster.network.mend(client.world.address, new)
        await made.wait()
        assert (await writer.close()).last == 1
        await asyncio.sleep(2.0)
        assert stage.uuids[old] in stage.registry.marks[1]

    play(scenario)


def test_a_reader_that_waits_at_a_fenced_store_goes_on_at_once_when_a_recovery_closes_the_ledger() -> None:
    async def scenario(stage: Stage) -> None:
        found, closed_at, closing = stage.create(), 0.0, asyncio.Event()
        old, new, reader = stage.process(), stage.process(), stage.process()
        await old.writer(found).add(b"one")
        old.crash()
        change, loop = new.registry.change, asyncio.get_running_loop()

        async def close_late(ledger: int, transform: Transform) -> Metadata:
            nonlocal closed_at
            if stage.registry.ledgers[1].state == meta.IN_RECOVERY:
                closing.set()
                await asyncio.sleep(0.2)
            changed = await change(ledger, transform)
            closed_at = loop.time()
            return changed

        new.registry.change = close_late  # type: ignore[method-assign]
        recovering = asyncio.ensure_future(new.recover())
        await closing.wait()
        polls = (reader.reader.next_lac(found, store, 0, 5.0) for store in found.segments[0].stores)
        await asyncio.gather(*polls)
        assert 0.0 < loop.time() - closed_at < 0.1
        assert (await recovering).closed

    play(scenario)
