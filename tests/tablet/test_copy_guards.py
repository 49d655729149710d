"""What keeps a copy from doing harm, each guard alone: the others are taken away, or cannot help."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.copy.copies import Copies
from ebla.actors.tablet.copy.sources import CopySources
from ebla.actors.tablet.engine.replica import Replica
from ebla.storage.errors import DiskFull
from tests.tablet.copies import copying, ended, entomb, fill, start, until
from tests.tablet.harness import HOSTS, TABLET, Group, address, row, simulate
from tests.tablet.test_begins import slow
from tests.tablet.test_recovery import lead
from tests.tablet.test_tombstones import delete, exclude

# Leaders send for no copies by themselves.
pytestmark = pytest.mark.usefixtures("unmended")

SECOND = "1" * 32


def shortened(monkeypatch: pytest.MonkeyPatch, group: Group, source: str, *, told: bool) -> None:
    """The source sends only what is flushed, and flushes nothing; `told`: it says so."""
    begun = CopySources._begun

    def short(self: CopySources, replica: Replica, *rest: Any) -> m.CopyBegun:
        said = begun(self, replica, *rest)
        self.retention.sources[said.session].last = said.flushed
        return msgspec.structs.replace(said, last=said.flushed) if told else said

    async def nothing(replica: Replica) -> None:
        """It is as it is."""

    monkeypatch.setattr(CopySources, "_begun", short)
    group.server(source).copy_sources.flush = nothing


@pytest.mark.parametrize("told", [False, True])
def test_a_copy_that_is_shorter_than_its_source_said_or_than_what_was_here_is_not_taken_into_service(
    monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 50)
        await group.settle()
        await group.ask(leader, "flush", m.FlushRequest(TABLET), m.FlushReply)
        if not told:
            await entomb(group, target)
        await group.upsert(row(1, "later"))
        if told:
            await group.settle()
            await entomb(group, target)
        shortened(monkeypatch, group, leader, told=told)
        await start(group, target, leader)
        await ended(group, target)
        server = group.server(target)
        assert (server.copies.done, server.copies.failed) == (0, 1)
        tombstone = server.lifecycle.tombstones[TABLET]
        assert ("before our own" if told else "its source at") in (tombstone.error or "")

    simulate(scenario)


@pytest.mark.parametrize("state", [m.RUNNING, m.DELETED, m.FAILED])
def test_who_copies_refuses_a_leader_of_an_older_term_before_it_asks_that_leader(state: str) -> None:
    """By its last entry, or, where that is not known, by its own term."""

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 20)
        await group.settle()
        term = group.replica(target).log.last.term
        if state == m.DELETED:
            await entomb(group, target)
        elif state == m.FAILED:
            group.cluster.crash(address(target))
            group.cluster.state(address(target)).rot(f"data/{TABLET}", "meta", b"position")
            await group.restart(target)
            consensus = group.server(target).lifecycle.consensus_of(TABLET)
            assert consensus is not None
            term = consensus.record.term
        assert group.server(target).lifecycle.state_of(TABLET) == state
        with pytest.raises(errors.OldTerm, match="who leads in term"):
            await start(group, target, leader, term=term - 1)
        assert group.server(target).lifecycle.state_of(TABLET) == state

    simulate(scenario)


def test_a_replica_that_is_another_when_the_session_has_begun_is_not_copied_over() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 20)
        await group.settle()
        slow(group, leader)
        asked = asyncio.ensure_future(start(group, target, leader))
        await until(group, lambda: len(group.server(leader).copy_sources._beginning) == 1, "it begins")
        group.replica(target).fail(DiskFull("for a test"))
        with pytest.raises(errors.IllegalState, match="is failed, not running"):
            await asked
        assert group.server(target).lifecycle.state_of(TABLET) == m.FAILED
        await until(group, lambda: not len(group.server(leader).copy_sources), "the source lets go")

    simulate(scenario)


def test_copies_that_are_just_starting_count_for_the_bound() -> None:
    async def scenario(group: Group) -> None:
        await group.create(SECOND)
        leader = await group.leader()
        await lead(group, leader, SECOND)
        target = next(host for host in HOSTS if host != leader)
        for tablet in (TABLET, SECOND):
            await entomb(group, target, tablet)
        slow(group, leader)
        outcomes = await asyncio.gather(
            *(start(group, target, leader, tablet=tablet) for tablet in (TABLET, SECOND)),
            return_exceptions=True,
        )
        (refused,) = [each for each in outcomes if each is not None]
        assert isinstance(refused, errors.Throttled) and refused.limit == "copies_max"
        assert len(group.server(target).copies.jobs) == 1

    simulate(scenario, copies_max=1)


def test_a_copy_that_is_cancelled_when_everything_is_there_is_no_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Copies._ready

    async def ready(self: Copies, job: Any) -> None:
        job.cancel()
        await honest(self, job)

    monkeypatch.setattr(Copies, "_ready", ready)

    async def scenario(group: Group) -> None:
        _, target, _ = await copying(group, 50)
        await ended(group, target)
        server = group.server(target)
        assert server.lifecycle.state_of(TABLET) == m.DELETED
        assert not server.world.disk.exists(f"data/{TABLET}")

    simulate(scenario)


# -- what the source hands out


def test_a_session_hands_out_the_committed_configuration_not_the_newest() -> None:
    """The third rule of merging: what is not committed may be taken back."""

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, other = await group.followers()
        await fill(group, 20)
        replica, server = group.replica(leader), group.server(leader)
        core = replica.core
        for host in (target, other):
            group.cluster.network.isolate(address(host))
        out = group.server(other).instance.uuid
        stay = tuple(peer for peer in core.configuration.peers if peer.uuid != out)
        wanted = Configuration(stay, core.configuration.index)
        index, _ = server.rounds.step(
            replica, core.propose_configuration, server.world.clock.monotonic(), wanted
        )
        asking = m.BeginCopyRequest(
            server.instance.uuid, TABLET, group.server(target).instance.uuid, core.term
        )
        begun = await group.ask(leader, "begin_copy_session", asking, m.CopyBegun)
        assert core.configuration.index == index > core.committed_configuration.index
        assert begun.configuration == core.committed_configuration
        assert begun.last.index == index, "the log travels with it"

    simulate(scenario)


def test_a_session_whose_log_a_new_leader_replaced_has_ended() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, other = await group.followers()
        await fill(group, 20)
        replica, server = group.replica(leader), group.server(leader)
        for host in (target, other):
            group.cluster.network.isolate(address(host))
        lost = group.batch(m.UPSERT, [row(9000, "on one only")], group.next_sequence())
        write = m.WriteRequest((m.TabletWrite(TABLET, lost),), 0.05)
        await group.ask(leader, "write", write, m.WriteReply, 3.0)
        asking = m.BeginCopyRequest(
            server.instance.uuid, TABLET, group.server(target).instance.uuid, replica.core.term
        )
        begun = await group.ask(leader, "begin_copy_session", asking, m.CopyBegun)
        assert begun.last.index > begun.flushed.index
        group.cluster.network.heal()
        group.cluster.network.isolate(address(leader))
        await until(group, lambda: group.replica(target).leads or group.replica(other).leads, "another leads")
        group.leader_hint = None
        await fill(group, 30, at_once=10)
        group.cluster.network.heal()
        await until(group, lambda: replica.log.last.term > begun.last.term, "it follows the other")
        assert replica.log.last_index >= begun.last.index
        with pytest.raises(errors.CopyExpired):
            for number in range(3):
                await group.ask(leader, "fetch_chunk", m.FetchRequest(begun.session, number), m.Chunk)
        assert len(server.copy_sources) == 0

    simulate(scenario)


# -- quarantine


def test_a_record_of_quarantine_whose_deletion_never_came_so_far_is_dropped_at_the_start() -> None:
    async def scenario(group: Group) -> None:
        await fill(group, 20)
        target, _ = await group.followers()
        index = await exclude(group, target)
        server = group.server(target)

        async def full(*record: Any) -> None:
            raise DiskFull("for a test")

        server.lifecycle.superblocks.save = full  # type: ignore[method-assign]
        with pytest.raises(DiskFull):
            await delete(group, target, index)
        assert len(server.lifecycle.quarantine.list()) == 1
        group.cluster.crash(address(target))
        await group.restart(target)
        assert group.server(target).lifecycle.state_of(TABLET) == m.RUNNING
        assert group.server(target).lifecycle.quarantine.list() == []

    simulate(scenario)
