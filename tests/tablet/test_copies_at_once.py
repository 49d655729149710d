"""Several copies at a time: of one tablet to two servers, of two tablets to one, and a second that begins before its first has
ended. None of them disturbs another."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.copy import sources
from ebla.actors.tablet.copy.copies import CANCELLED_S
from ebla.storage.tablets.tablet_store import ROWS
from tests.tablet.copies import copied, copying, ended, entomb, fill, same_rows, start, until
from tests.tablet.harness import HOSTS, TABLET, Group, address, row, simulate

# Leaders send for no copies by themselves.
pytestmark = pytest.mark.usefixtures("unmended")

SECOND = "1" * 32
SLOW = {"copy_bytes_per_s": 20_000}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", 4_000)


async def sending(group: Group, target: str, tablet: str = TABLET) -> None:
    def under_way() -> bool:
        job = group.server(target).copies.jobs.get(tablet)
        return job is not None and job.copied > 0

    await until(group, under_way, f"{target} has got a part of it")


async def rows_of(group: Group, host: str, tablet: str) -> list[tuple[bytes, bytes]]:
    """As they lie on its disk."""
    await group.ask(host, "flush", m.FlushRequest(tablet), m.FlushReply)
    return group.server(host).replicas[tablet].store.environment.items(ROWS)


def test_two_servers_copy_one_tablet_at_once_and_get_what_is_written_meanwhile() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        targets = await group.followers()
        await fill(group, 400)
        for target in targets:
            await entomb(group, target)
        await start(group, targets[0], leader)
        await sending(group, targets[0])
        # Nobody but the leader has a log now: it is acknowledged when a copy has brought one.
        late = asyncio.ensure_future(group.upsert(row(9000, "meanwhile")))
        await until(
            group,
            lambda: group.replica(leader).log.last_index > group.replica(leader).core.commit_index,
            "it waits",
        )
        await start(group, targets[1], leader)
        source = group.server(leader).copy_sources
        assert {each.requestor for each in source.all()} == {
            group.server(target).instance.uuid for target in targets
        }
        assert source.retention.anchor(TABLET) == min(each.anchor for each in source.all())
        await ended(group, targets[0])
        assert not late.cancelled()
        await late
        await ended(group, targets[1])
        assert await group.get(9000) == [row(9000, "meanwhile")]
        await same_rows(group, *targets, leader)

    simulate(scenario, **SLOW)


def test_the_log_is_kept_for_the_copy_that_has_got_least_of_it() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        one, two = await group.followers()
        await fill(group, 10)
        replica, server = group.replica(leader), group.server(leader)

        async def begin(host: str) -> m.CopyBegun:
            requestor = group.server(host).instance.uuid
            request = m.BeginCopyRequest(server.instance.uuid, TABLET, requestor, replica.core.term)
            return await group.ask(leader, "begin_copy_session", request, m.CopyBegun)

        first = await begin(one)
        await fill(group, 300, at_once=20)
        second = await begin(two)
        assert first.flushed.index < second.flushed.index

        async def written() -> None:
            """More than the log would keep."""
            await fill(group, 300, at_once=20)
            for host in HOSTS:
                await group.ask(host, "flush", m.FlushRequest(TABLET), m.FlushReply)
            await group.sleep(1.5)

        await written()
        assert replica.log.dropped.index <= first.flushed.index
        await group.ask(leader, "end_copy_session", m.EndCopyRequest(first.session), m.Empty)
        await written()
        assert first.flushed.index < replica.log.dropped.index <= second.flushed.index
        await group.ask(leader, "end_copy_session", m.EndCopyRequest(second.session), m.Empty)
        await written()
        assert replica.log.dropped.index > second.flushed.index

    simulate(scenario, log_retained_entries_max=20)


def test_a_server_that_begins_anew_ends_its_first_session_and_copies_all_of_it() -> None:
    async def scenario(group: Group) -> None:
        leader, target, other = await copying(group, 400)
        await sending(group, target)
        (before,) = group.server(leader).copy_sources.all()
        group.cluster.crash(address(target))  # the source does not hear of it
        await group.upsert(row(1, "since then"))
        await group.restart(target)
        await start(group, target, leader)
        (after,) = group.server(leader).copy_sources.all()
        assert after.requestor == before.requestor and after.id != before.id
        with pytest.raises(errors.CopyExpired, match="begin a new one"):
            await group.ask(leader, "fetch_chunk", m.FetchRequest(before.id, before.number), m.Chunk)
        await ended(group, target)
        assert group.server(target).lifecycle.state_of(TABLET) == m.RUNNING
        await same_rows(group, target, other)

    simulate(scenario, **SLOW)


def test_a_request_for_a_chunk_of_the_first_session_does_not_hold_up_or_feed_the_second() -> None:
    """The first still reads its snapshot when the second begins."""

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        await fill(group, 200)
        server = group.server(leader)
        asking = group.server((await group.followers())[0]).instance.uuid
        request = m.BeginCopyRequest(server.instance.uuid, TABLET, asking, group.replica(leader).core.term)
        first = await group.ask(leader, "begin_copy_session", request, m.CopyBegun)
        (session,) = server.copy_sources.all()
        read, may_go = server.copy_sources._read, asyncio.Event()

        async def held(asked: sources.CopySource) -> tuple[str, bytes]:
            if asked is session:
                await may_go.wait()
            return await read(asked)

        server.copy_sources._read = held  # type: ignore[method-assign]
        fetch = m.FetchRequest(first.session, 0)
        waiting = asyncio.ensure_future(group.ask(leader, "fetch_chunk", fetch, m.Chunk))
        await until(group, session.turn.locked, "it reads")
        second = await group.ask(leader, "begin_copy_session", request, m.CopyBegun)
        chunk = await group.ask(leader, "fetch_chunk", m.FetchRequest(second.session, 0), m.Chunk)
        assert chunk.session == second.session and chunk.data
        may_go.set()
        with pytest.raises(errors.CopyExpired):
            await waiting
        assert [each.id for each in server.copy_sources.all()] == [second.session]
        assert group.replica(leader).state == m.RUNNING

    simulate(scenario)


def test_two_tablets_are_copied_to_one_server_at_once_and_the_end_of_one_leaves_the_other() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await group.create(SECOND)
        group.leader_hint = None
        second_leader = await group.leader(SECOND)
        await fill(group, 400)
        for first in range(0, 400, 100):
            rows = [row(k, "second") for k in range(first, first + 100)]
            await group.upsert(*rows, tablet=SECOND)
        group.leader_hint = None
        assert target not in (leader, second_leader)
        for tablet in (TABLET, SECOND):
            await entomb(group, target, tablet)
        await start(group, target, leader)
        await start(group, target, second_leader, tablet=SECOND, state=m.DELETED)
        await sending(group, target)
        await sending(group, target, SECOND)
        cancel = m.CancelCopyRequest(group.server(target).instance.uuid, TABLET)
        await group.ask(target, "cancel_copy", cancel, m.Empty, 20.0)
        assert group.server(target).lifecycle.state_of(TABLET) == m.DELETED
        assert list(group.server(target).copies.jobs) == [SECOND]
        await ended(group, target)
        assert group.server(target).lifecycle.state_of(SECOND) == m.RUNNING
        await group.settle(SECOND)
        copy = await rows_of(group, target, SECOND)
        assert len(copy) == 400 and copy == await rows_of(group, second_leader, SECOND)
        await group.sleep(CANCELLED_S)
        await copied(group, target, leader)
        await same_rows(group, target, leader)

    simulate(scenario, **SLOW)
