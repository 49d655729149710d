"""Copies beside full disks, other copies, deletions in a loop, open scans and changes that are not applied yet."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.messages.repair import ADD, REMOVE
from ebla.actors.replication.configuration import (
    NON_VOTER,
    Peer,
)
from ebla.actors.tablet.copy.job import Job
from ebla.storage.errors import DiskFull, EblaError
from tests.tablet.copies import copied, copying, ended, entomb, fill, same_rows, start, until
from tests.tablet.harness import CODEC, FIVE, HOSTS, SCHEMA, TABLET, Group, address, row, simulate

OTHERS = [f"{number:032x}" for number in range(1, 9)]


def test_a_copy_that_met_a_full_disk_ends_cleanly_and_the_next_one_succeeds() -> None:
    """S1 of the reference."""

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, other = await group.followers()
        await fill(group, 400)
        await entomb(group, target)
        before = group.server(target).lifecycle.tombstones[TABLET].superblock.last
        await start(group, target, leader)
        group.cluster.state(address(target)).fill()
        await ended(group, target)
        assert group.server(target).lifecycle.state_of(TABLET) == m.DELETED
        assert group.server(target).lifecycle.tombstones[TABLET].superblock.last == before
        group.cluster.state(address(target)).free()
        await copied(group, target, leader)
        await same_rows(group, target, other)

    simulate(scenario, copy_bytes_per_s=20_000)


def test_a_full_disk_refuses_a_copy_and_changes_nothing() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 50)
        await entomb(group, target)
        group.cluster.state(address(target)).fill()
        with pytest.raises(DiskFull):
            await start(group, target, leader)
        assert group.server(target).lifecycle.state_of(TABLET) == m.DELETED
        assert not group.server(target).copies.jobs
        group.cluster.state(address(target)).free()
        await copied(group, target, leader)

    simulate(scenario)


def test_many_tablets_are_copied_at_once_under_writes_and_none_gets_anothers_rows() -> None:
    """S5: what arrives is bound to its tablet by checksum, and every copy comes to its end."""

    async def scenario(group: Group) -> None:
        target = "host-a"
        for tablet in OTHERS:
            await group.create(tablet)
            await group.upsert(row(1, tablet), tablet=tablet)
        await group.settle()
        for tablet in OTHERS:
            await entomb(group, target, tablet)
        writing = asyncio.ensure_future(fill(group, 200, at_once=5))
        await until(
            group,
            lambda: all(group.server(target).lifecycle.state_of(t) == m.RUNNING for t in OTHERS),
            "all are copied",
        )
        await writing
        for tablet in OTHERS:
            await group.settle(tablet)
            rows = group.replica(target, tablet).store.get_many([_key(1)])
            assert group.decode([_key(1)], rows, tablet) == [row(1, tablet)]
        assert len(group.server(target).copy_sources) == 0

    simulate(scenario, copies_max=3)


def _key(number: int) -> bytes:
    return CODEC.encode_key({"k": number})


def test_leaders_are_deleted_one_after_the_other_and_no_acknowledged_row_is_lost() -> None:
    """S14: whoever leads becomes a tombstone, while rows are written all the time; the others elect, and copy the tablet back."""
    rounds = 20

    async def scenario(group: Group) -> None:
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
            await until(group, lambda before=before: written > before, "it is written to")
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

    simulate(scenario, hosts=FIVE)


def test_a_scan_that_is_open_when_its_replica_goes_ends_in_a_clear_error() -> None:
    """S22."""

    async def scenario(group: Group) -> None:
        await fill(group, 400)
        await group.settle()
        target, _ = await group.followers()
        request = m.ScanRequest(TABLET, SCHEMA.version, ("k",), at_leader=False, block_bytes=500)
        first = await group.ask(target, "scan", request, m.ScanBlock)
        assert first.scanner is not None
        await entomb(group, target)
        with pytest.raises(EblaError) as told:
            await group.ask(target, "scan_more", m.ScanContinue(first.scanner, 1), m.ScanBlock)
        assert not isinstance(told.value, errors.Internal)

    simulate(scenario, scan_read_rows=20)


def test_a_copy_that_brings_changes_of_members_applies_them_once() -> None:
    """S16: the log that is copied holds configurations, some of which the copied metadata reflects already."""

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        server, replica = group.server(leader), group.replica(leader)
        for turn in range(4):
            await group.upsert(row(turn))
            peer = next(
                each for each in replica.core.configuration.peers if each.uuid == _uuid(group, target)
            )
            change = m.MemberChange(m.MODIFY, type(peer)(peer.uuid, peer.address, replace=turn % 2 == 0))
            request = m.ChangeMembersRequest(server.instance.uuid, TABLET, (change,))
            await group.ask(leader, "change_members", request, m.MembersReply)
        await entomb(group, target)
        await until(
            group,
            lambda: group.server(target).lifecycle.state_of(TABLET) == m.RUNNING,
            "the tablet is copied",
        )
        await group.settle()
        here = group.replica(target).core
        assert here.committed_configuration == replica.core.committed_configuration
        await group.restart(target)
        assert group.replica(target).core.committed_configuration.index == here.committed_configuration.index
        await same_rows(group, *HOSTS)

    simulate(scenario)


def test_a_server_that_left_and_came_back_while_a_write_waited_applies_it_once() -> None:
    """S16: the copied log holds the changes of members behind a write that is committed, and applied nowhere."""

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 20)
        await group.settle()
        server, replica = group.server(leader), group.replica(leader)
        apply, uuid = replica.apply, _uuid(group, target)
        replica.apply = lambda: False  # type: ignore[method-assign]
        writing = asyncio.ensure_future(group.upsert(row(9000, "once")))
        await until(group, lambda: bool(replica.waiters), "the write is in the log")

        async def change(kind: str, peer: Peer) -> int:
            """The answer would come after the write."""
            before = replica.core.committed_configuration.index
            asked = m.ChangeMembersRequest(
                server.instance.uuid, TABLET, (m.MemberChange(kind, peer),), timeout_s=0.1
            )
            with pytest.raises(errors.OutcomeUnknown):
                await group.ask(leader, "change_members", asked, m.MembersReply)
            core = replica.core
            await until(group, lambda: core.committed_configuration.index > before, "it is committed")
            return core.committed_configuration.index

        peer = replica.core.configuration.peer(uuid)
        assert peer is not None
        left = await change(REMOVE, peer)
        delete = m.DeleteTabletRequest(uuid, TABLET, "it left", True, left)
        await group.ask(target, "delete_tablet", delete, m.Empty)
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

    simulate(scenario)


@pytest.mark.usefixtures("unmended")
def test_who_asks_again_and_again_for_the_end_of_a_copy_whose_disk_hangs_leaves_no_call_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hangs, answers, honest = asyncio.Event(), asyncio.Event(), Job._finish_data
    waiting: list[m.DeleteTabletRequest] = []

    async def finish(self: Job) -> None:
        hangs.set()
        await answers.wait()
        await honest(self)

    monkeypatch.setattr(Job, "_finish_data", finish)

    async def scenario(group: Group) -> None:
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
        await until(group, hangs.is_set, "its disk hangs")
        for number in range(10):
            request = m.DeleteTabletRequest(_uuid(group, target), TABLET, "it left", True, 9000 + number)
            with pytest.raises(errors.Unavailable, match="waits for its disk"):
                await group.ask(target, "delete_tablet", request, m.Empty, 10.0)
        assert not waiting
        answers.set()
        await group.ask(target, "delete_tablet", request, m.Empty, 10.0)
        assert server.lifecycle.state_of(TABLET) == m.DELETED

    simulate(scenario)


def test_nor_does_who_asks_for_the_end_of_a_replica_whose_disk_hangs() -> None:
    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        await group.settle()
        target, _ = await group.followers()
        server, replica = group.server(target), group.replica(target)
        waiting = 0

        async def flush() -> None:
            nonlocal waiting
            waiting += 1
            await asyncio.Event().wait()

        replica.store.flush = flush  # type: ignore[method-assign, assignment]
        request = m.DeleteTabletRequest(_uuid(group, target), TABLET, "it left", True, 9000)
        with pytest.raises(errors.OutcomeUnknown):
            await group.ask(target, "delete_tablet", request, m.Empty, 10.0)
        for _ in range(5):
            with pytest.raises(errors.Unavailable, match="waits for its disk"):
                await group.ask(target, "delete_tablet", request, m.Empty, 10.0)
        assert waiting == 1 and server.lifecycle.state_of(TABLET) == m.DELETED

    simulate(scenario)


def _uuid(group: Group, host: str) -> str:
    return str(group.server(host).instance.uuid)
