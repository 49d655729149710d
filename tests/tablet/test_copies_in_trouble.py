"""Copies during full disks, other copies, repeated deletions, open scans and changes that are not applied yet."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages.repair import ADD, REMOVE
from ebla.actors.replication.configuration import NON_VOTER, Peer
from ebla.actors.tablet.copy.job import Job
from ebla.storage.errors import DiskFull, EblaError
from tests.tablet.copies import copied, copying, deleted, ended, entomb, fill, filled, same_rows, start, until
from tests.tablet.harness import CODEC, FIVE, HOSTS, TABLET, Group, address, held, row, simulated


@simulated(copy_bytes_per_s=20_000)
async def test_a_copy_to_a_full_disk_ends_cleanly_and_the_next_one_succeeds(group: Group) -> None:
    """S1 of the reference."""
    leader, target, other = await deleted(group, 400)
    before = group.tombstone(target).superblock.last
    await start(group, target, leader)
    group.disk(target).fill()
    await ended(group, target)
    assert group.state_of(target) == m.DELETED
    assert group.tombstone(target).superblock.last == before
    group.disk(target).free()
    await copied(group, target, leader)
    await same_rows(group, target, other)


@simulated()
async def test_a_full_disk_refuses_a_copy_without_a_change(group: Group) -> None:
    leader, target, _ = await deleted(group, 50)
    group.disk(target).fill()
    with pytest.raises(DiskFull):
        await start(group, target, leader)
    assert group.state_of(target) == m.DELETED
    assert not group.server(target).copies.jobs
    group.disk(target).free()
    await copied(group, target, leader)


@simulated(copies_max=3)
async def test_many_tablets_copied_at_once_under_writes_get_their_own_rows(group: Group) -> None:
    """S5: checksums bind all data to its tablet, and every copy ends."""
    target = "host-a"
    others = await group.create_many(8)
    for tablet in others:
        await group.upsert(row(1, tablet), tablet=tablet)
    await group.settle()
    for tablet in others:
        await entomb(group, target, tablet)
    writing = asyncio.ensure_future(fill(group, 200, at_once=5))
    await until(group, lambda: all(group.state_of(target, t) == m.RUNNING for t in others), "all are copied")
    await writing
    for tablet in others:
        await group.settle(tablet)
        rows = group.replica(target, tablet).store.get_many([_key(1)])
        assert group.decode([_key(1)], rows, tablet) == [row(1, tablet)]
    assert len(group.server(target).copy_sources) == 0


def _key(number: int) -> bytes:
    return CODEC.encode_key({"k": number})


@simulated(hosts=FIVE)
async def test_deleting_one_leader_after_the_other_loses_no_acknowledged_row(group: Group) -> None:
    """S14: each leader becomes a tombstone under writes; the others elect a leader and copy the tablet back."""
    rounds = 20
    written, over, idle = 0, False, False

    async def write() -> None:
        nonlocal written, idle
        while not over:
            await group.upsert(row(written))
            written += 1
        idle = True

    group.client.spawn(write(), "writer")
    for _ in range(rounds):
        leader, before = await group.leader(), written
        await until(group, lambda before=before: written > before, "rows are written")
        await entomb(group, leader)
        server = group.server(leader)
        await until(
            group,
            lambda server=server: server.lifecycle.state_of(TABLET) == m.RUNNING,
            "the tablet is copied back",
        )
    over = True
    await until(group, lambda: idle, "the last row is acknowledged")
    await group.settle()
    for host in FIVE:
        found = (await group.scan(host)).sort_by("k")
        assert found.column("k").to_pylist() == list(range(written))
    assert written > rounds


@simulated(scan_read_rows=20)
async def test_an_open_scan_of_a_deleted_replica_ends_in_a_clear_error(group: Group) -> None:
    """S22."""
    await fill(group, 400)
    await group.settle()
    target, _ = await group.followers()
    first = await group.first_block(target, at_leader=False, block_bytes=500)
    assert first.scanner is not None
    await entomb(group, target)
    with pytest.raises(EblaError) as refused:
        await group.next_block(target, first)
    assert not isinstance(refused.value, errors.Internal)


@simulated()
async def test_a_copied_log_applies_changes_of_members_once(group: Group) -> None:
    """S16: the copied log holds configurations, some of which the copied metadata already contains."""
    leader, target, _ = await group.roles()
    server, replica = group.server(leader), group.replica(leader)
    for turn in range(4):
        await group.upsert(row(turn))
        peer = next(each for each in replica.core.configuration.peers if each.uuid == group.uuid(target))
        change = m.MemberChange(m.MODIFY, type(peer)(peer.uuid, peer.address, replace=turn % 2 == 0))
        request = m.ChangeMembersRequest(server.instance.uuid, TABLET, (change,))
        await group.ask(leader, "change_members", request, m.MembersReply)
    await entomb(group, target)
    await until(group, lambda: group.state_of(target) == m.RUNNING, "the tablet is copied")
    await group.settle()
    here = group.replica(target).core
    assert here.committed_configuration == replica.core.committed_configuration
    await group.restart(target)
    assert group.replica(target).core.committed_configuration.index == here.committed_configuration.index
    await same_rows(group, *HOSTS)


@simulated()
async def test_a_server_removed_and_added_during_a_write_applies_it_once(group: Group) -> None:
    """S16: the copied log holds the changes of members after a write that is committed and not applied anywhere."""
    leader, target, _ = await filled(group, 20)
    await group.settle()
    server, replica = group.server(leader), group.replica(leader)
    apply, uuid = replica.apply, group.uuid(target)
    replica.apply = lambda bytes_max: False  # type: ignore[method-assign]
    writing = asyncio.ensure_future(group.upsert(row(9000, "once")))
    await until(group, lambda: bool(replica.waiters), "the write is in the log")

    async def change(kind: str, peer: Peer) -> int:
        """Change members without the answer, which would come after the write."""
        before = replica.core.committed_configuration.index
        asked = m.ChangeMembersRequest(
            server.instance.uuid, TABLET, (m.MemberChange(kind, peer),), timeout_s=0.1
        )
        with pytest.raises(errors.OutcomeUnknown):
            await group.ask(leader, "change_members", asked, m.MembersReply)
        core = replica.core
        await until(group, lambda: core.committed_configuration.index > before, "the change is committed")
        return core.committed_configuration.index

    peer = replica.core.configuration.peer(uuid)
    assert peer is not None
    left = await change(REMOVE, peer)
    await group.delete(target, left)
    back = await change(ADD, Peer(uuid, address(target), NON_VOTER))
    lifecycle = group.server(target).lifecycle
    await until(group, lambda: lifecycle.state_of(TABLET) == m.RUNNING, "the tablet is copied")
    assert replica.waiters and replica.store.flushed.index < left < back
    replica.apply = apply  # type: ignore[method-assign]
    group.server(leader).rounds.touch(replica)
    await writing
    await group.settle()
    assert group.replica(target).core.committed_configuration.index == back
    await group.restart(target)
    await same_rows(group, *HOSTS)
    assert (await group.scan(target)).num_rows == 21


@pytest.mark.usefixtures("unmended")
@simulated()
async def test_repeated_deletions_of_a_copy_on_a_hanging_disk_leave_no_call_waiting(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, answers = held(Job, "_finish_data", monkeypatch.setattr)
    waiting: list[m.DeleteTabletRequest] = []
    _, target, _ = await copying(group, 50)
    server = group.server(target)
    delete = server.deletion.delete

    async def counted(request: m.DeleteTabletRequest) -> None:
        waiting.append(request)
        try:
            await delete(request)
        finally:
            waiting.remove(request)

    server.deletion.delete = counted  # type: ignore[method-assign]
    await until(group, hangs.is_set, "the disk hangs")
    for number in range(10):
        with pytest.raises(errors.Unavailable, match="waits for its disk"):
            await group.delete(target, 9000 + number)
    assert not waiting
    answers.set()
    await group.delete(target, 9009)
    assert server.lifecycle.state_of(TABLET) == m.DELETED


@simulated()
async def test_repeated_deletions_of_a_replica_on_a_hanging_disk_leave_no_call_waiting(group: Group) -> None:
    target = await group.settled(row(1))
    server, replica = group.server(target), group.replica(target)
    waiting = 0

    async def flush() -> None:
        nonlocal waiting
        waiting += 1
        await asyncio.Event().wait()

    replica.store.flush = flush  # type: ignore[method-assign, assignment]
    with pytest.raises(errors.OutcomeUnknown):
        await group.delete(target, 9000)
    for _ in range(5):
        with pytest.raises(errors.Unavailable, match="waits for its disk"):
            await group.delete(target, 9000)
    assert waiting == 1 and server.lifecycle.state_of(TABLET) == m.DELETED
