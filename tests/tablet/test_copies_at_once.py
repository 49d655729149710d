"""Several copies at a time do not disturb each other: of one tablet to two servers, of two tablets to one server, and a
second copy that begins before the first has ended."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.copy import sources
from ebla.actors.tablet.copy.copies import CANCELLED_S
from ebla.storage.tablets.tablet_store import ROWS
from tests.tablet.copies import copied, copying, ended, entomb, fill, filled, same_rows, start, until
from tests.tablet.harness import HOSTS, OTHER, TABLET, Group, row, simulated

# Leaders request no copies by themselves.
pytestmark = pytest.mark.usefixtures("unmended")

SLOW = {"copy_bytes_per_s": 20_000}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", 4_000)


async def sending(group: Group, target: str, tablet: str = TABLET) -> None:
    def under_way() -> bool:
        job = group.server(target).copies.jobs.get(tablet)
        return job is not None and job.copied > 0

    await until(group, under_way, f"{target} has a part of the tablet")


async def rows_of(group: Group, host: str, tablet: str) -> list[tuple[bytes, bytes]]:
    """Return the rows on the host's disk."""
    await group.ask(host, "flush", m.FlushRequest(tablet), m.FlushReply)
    return group.server(host).replicas[tablet].store.environment.items(ROWS)


@simulated(**SLOW)
async def test_two_servers_copy_one_tablet_at_once_and_get_rows_written_meanwhile(group: Group) -> None:
    leader = await group.leader()
    targets = await group.followers()
    await fill(group, 400)
    for target in targets:
        await entomb(group, target)
    await start(group, targets[0], leader)
    await sending(group, targets[0])
    # Only the leader has a log now, so this write is acknowledged after the first copy.
    late = asyncio.ensure_future(group.upsert(row(9000, "meanwhile")))
    await until(
        group,
        lambda: group.replica(leader).log.last_index > group.replica(leader).core.commit_index,
        "it waits",
    )
    await start(group, targets[1], leader)
    source = group.server(leader).copy_sources
    assert {each.requestor for each in source.all()} == {group.uuid(target) for target in targets}
    assert source.retention.anchor(TABLET) == min(each.anchor for each in source.all())
    await ended(group, targets[0])
    assert not late.cancelled()
    await late
    await ended(group, targets[1])
    assert await group.get(9000) == [row(9000, "meanwhile")]
    await same_rows(group, *targets, leader)


@simulated(log_retained_entries_max=20)
async def test_the_log_is_retained_for_the_copy_with_the_oldest_snapshot(group: Group) -> None:
    leader, one, two = await filled(group, 10)
    replica = group.replica(leader)
    first = await group.begin_session(leader, one)
    await fill(group, 300, at_once=20)
    second = await group.begin_session(leader, two)
    assert first.flushed.index < second.flushed.index

    async def written() -> None:
        """Write more entries than the log retains by itself."""
        await fill(group, 300, at_once=20)
        await group.flush(*HOSTS)
        await group.sleep(1.5)

    await written()
    assert replica.log.dropped.index <= first.flushed.index
    await group.ask(leader, "end_copy_session", m.EndCopyRequest(first.session), m.Empty)
    await written()
    assert first.flushed.index < replica.log.dropped.index <= second.flushed.index
    await group.ask(leader, "end_copy_session", m.EndCopyRequest(second.session), m.Empty)
    await written()
    assert replica.log.dropped.index > second.flushed.index


@simulated(**SLOW)
async def test_a_restarted_target_ends_its_first_session_and_copies_everything(group: Group) -> None:
    leader, target, other = await copying(group, 400)
    await sending(group, target)
    (before,) = group.server(leader).copy_sources.all()
    group.crash(target)  # the source is not notified
    await group.upsert(row(1, "since then"))
    await group.restart(target)
    await start(group, target, leader)
    (after,) = group.server(leader).copy_sources.all()
    assert after.requestor == before.requestor and after.id != before.id
    with pytest.raises(errors.CopyExpired, match="begin a new one"):
        await group.ask(leader, "fetch_chunk", m.FetchRequest(before.id, before.number), m.Chunk)
    await ended(group, target)
    assert group.state_of(target) == m.RUNNING
    await same_rows(group, target, other)


@simulated()
async def test_a_chunk_request_of_the_first_session_neither_delays_nor_serves_the_second(
    group: Group,
) -> None:
    """The first still reads its snapshot when the second begins."""
    leader, target, _ = await filled(group, 200)
    server = group.server(leader)
    first = await group.begin_session(leader, target)
    (session,) = server.copy_sources.all()
    read, may_go = server.copy_sources._read, asyncio.Event()

    async def held(asked: sources.CopySource) -> tuple[str, bytes]:
        if asked is session:
            await may_go.wait()
        return await read(asked)

    server.copy_sources._read = held  # type: ignore[method-assign]
    fetch = m.FetchRequest(first.session, 0)
    waiting = asyncio.ensure_future(group.ask(leader, "fetch_chunk", fetch, m.Chunk))
    await until(group, session.turn.locked, "the source reads")
    second = await group.begin_session(leader, target)
    chunk = await group.ask(leader, "fetch_chunk", m.FetchRequest(second.session, 0), m.Chunk)
    assert chunk.session == second.session and chunk.data
    may_go.set()
    with pytest.raises(errors.CopyExpired):
        await waiting
    assert [each.id for each in server.copy_sources.all()] == [second.session]
    assert group.replica(leader).state == m.RUNNING


@simulated(**SLOW)
async def test_cancelling_one_of_two_copies_to_a_server_leaves_the_other(group: Group) -> None:
    leader = await group.leader()
    await group.create(OTHER)
    second_leader = await group.leader(OTHER)
    target = next(host for host in HOSTS if host not in (leader, second_leader))
    await fill(group, 400)
    for first in range(0, 400, 100):
        rows = [row(k, "second") for k in range(first, first + 100)]
        await group.upsert(*rows, tablet=OTHER)
    for tablet in (TABLET, OTHER):
        await entomb(group, target, tablet)
    await start(group, target, leader)
    await start(group, target, second_leader, tablet=OTHER, state=m.DELETED)
    await sending(group, target)
    await sending(group, target, OTHER)
    await group.cancel_copy(target)
    assert group.state_of(target) == m.DELETED
    assert list(group.server(target).copies.jobs) == [OTHER]
    await ended(group, target)
    assert group.state_of(target, OTHER) == m.RUNNING
    await group.settle(OTHER)
    copy = await rows_of(group, target, OTHER)
    assert len(copy) == 400 and copy == await rows_of(group, second_leader, OTHER)
    await group.sleep(CANCELLED_S)
    await copied(group, target, leader)
    await same_rows(group, target, leader)
