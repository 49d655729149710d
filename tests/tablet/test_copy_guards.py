"""The guards of copies, each one alone: the test disables the others, or they do not apply."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.copy.copies import Copies
from ebla.actors.tablet.copy.job import Job
from ebla.actors.tablet.copy.sources import CopySources
from ebla.actors.tablet.engine.replica import Replica
from ebla.storage.errors import DiskFull
from tests.tablet.copies import before_ready, copying, ended, entomb, fill, filled, start, until
from tests.tablet.harness import HOSTS, OTHER, TABLET, Group, row, simulated
from tests.tablet.test_busy_sources import slow
from tests.tablet.test_tombstones import excluded

# Leaders request no copies by themselves.
pytestmark = pytest.mark.usefixtures("unmended")


def shortened(monkeypatch: pytest.MonkeyPatch, group: Group, source: str, *, announced: bool) -> None:
    """Let the source send only flushed data, and flush nothing; `announced`: its answer says so."""
    begun = CopySources._begun

    def short(self: CopySources, replica: Replica, *rest: Any) -> m.CopyBegun:
        answer = begun(self, replica, *rest)
        self.retention.sources[answer.session].last = answer.flushed
        return msgspec.structs.replace(answer, last=answer.flushed) if announced else answer

    async def nothing(replica: Replica) -> None:
        """Flush nothing."""

    monkeypatch.setattr(CopySources, "_begun", short)
    group.server(source).copy_sources.flush = nothing


@pytest.mark.parametrize("announced", [False, True])
@simulated()
async def test_a_copy_shorter_than_announced_or_than_the_targets_log_is_not_put_into_service(
    group: Group, monkeypatch: pytest.MonkeyPatch, announced: bool
) -> None:
    leader, target, _ = await filled(group, 50)
    await group.settle()
    await group.flush(leader)
    if not announced:
        await entomb(group, target)
    await group.upsert(row(1, "later"))
    if announced:
        await group.settle()
        await entomb(group, target)
    shortened(monkeypatch, group, leader, announced=announced)
    await start(group, target, leader)
    await ended(group, target)
    server = group.server(target)
    assert (server.copies.done, server.copies.failed) == (0, 1)
    tombstone = group.tombstone(target)
    assert ("before our own" if announced else "its source at") in (tombstone.error or "")


@pytest.mark.parametrize("state", [m.RUNNING, m.DELETED, m.FAILED])
@simulated()
async def test_a_target_refuses_a_leader_of_an_older_term_before_it_calls_it(
    group: Group, state: str
) -> None:
    """It compares with the term of its last entry or, if that is unknown, with its own term."""
    leader, target, _ = await filled(group, 20)
    await group.settle()
    term = group.replica(target).log.last.term
    if state == m.DELETED:
        await entomb(group, target)
    elif state == m.FAILED:
        group.crash(target)
        group.disk(target).rot(f"data/{TABLET}", "meta", b"position")
        await group.restart(target)
        consensus = group.server(target).lifecycle.consensus_of(TABLET)
        assert consensus is not None
        term = consensus.hard_state.term
    assert group.state_of(target) == state
    with pytest.raises(errors.OldTerm, match="the leader of term"):
        await start(group, target, leader, term=term - 1)
    assert group.state_of(target) == state


@simulated()
async def test_a_replica_that_changed_while_its_session_began_is_not_copied_over(group: Group) -> None:
    leader, target, _ = await filled(group, 20)
    await group.settle()
    slow(group, leader)
    asked = asyncio.ensure_future(start(group, target, leader))
    await until(group, lambda: len(group.server(leader).copy_sources._beginning) == 1, "the session begins")
    group.replica(target).fail(DiskFull("for a test"))
    with pytest.raises(errors.IllegalState, match="is failed, not running"):
        await asked
    assert group.state_of(target) == m.FAILED
    await until(group, lambda: not len(group.server(leader).copy_sources), "the source ends its session")


@simulated(copies_max=1)
async def test_starting_copies_count_for_the_limit(group: Group) -> None:
    await group.create(OTHER)
    leader = await group.leader()
    await group.lead(leader, OTHER)
    target = next(host for host in HOSTS if host != leader)
    for tablet in (TABLET, OTHER):
        await entomb(group, target, tablet)
    slow(group, leader)
    outcomes = await asyncio.gather(
        *(start(group, target, leader, tablet=tablet) for tablet in (TABLET, OTHER)),
        return_exceptions=True,
    )
    (refused,) = [each for each in outcomes if each is not None]
    assert isinstance(refused, errors.Throttled) and refused.limit == "copies_max"
    assert len(group.server(target).copies.jobs) == 1


@simulated()
async def test_a_copy_cancelled_after_its_last_chunk_becomes_no_replica(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancel(copies: Copies, job: Job) -> None:
        job.cancel()

    before_ready(monkeypatch, cancel)
    _, target, _ = await copying(group, 50)
    await ended(group, target)
    server = group.server(target)
    assert server.lifecycle.state_of(TABLET) == m.DELETED
    assert not server.world.disk.exists(f"data/{TABLET}")


# -- the source


@simulated()
async def test_a_session_sends_the_committed_configuration_not_the_newest(group: Group) -> None:
    """The third rule of merging: an uncommitted configuration may be undone."""
    leader, target, other = await filled(group, 20)
    core = group.replica(leader).core
    group.isolate(target, other)
    index = group.propose_without(leader, other)
    begun = await group.begin_session(leader, target)
    assert core.configuration.index == index > core.committed_configuration.index
    assert begun.configuration == core.committed_configuration
    assert begun.last.index == index, "the log is sent up to its end"


@simulated()
async def test_a_session_ends_when_a_new_leader_replaces_its_log(group: Group) -> None:
    leader, target, other = await filled(group, 20)
    replica, server = group.replica(leader), group.server(leader)
    group.isolate(target, other)
    lost = group.batch(m.UPSERT, [row(9000, "on one only")], group.next_sequence())
    await group.write_once(leader, lost, 0.05)
    begun = await group.begin_session(leader, target)
    assert begun.last.index > begun.flushed.index
    group.heal()
    group.isolate(leader)
    await until(
        group, lambda: group.replica(target).leads or group.replica(other).leads, "another replica leads"
    )
    await fill(group, 30, at_once=10)
    group.heal()
    await until(group, lambda: replica.log.last.term > begun.last.term, "the old leader follows")
    assert replica.log.last_index >= begun.last.index
    with pytest.raises(errors.CopyExpired):
        for number in range(3):
            await group.ask(leader, "fetch_chunk", m.FetchRequest(begun.session, number), m.Chunk)
    assert len(server.copy_sources) == 0


# -- quarantine


@simulated()
async def test_a_quarantine_record_of_an_unfinished_deletion_is_dropped_at_the_start(group: Group) -> None:
    target, index = await excluded(group)
    server = group.server(target)

    async def full(*record: Any) -> None:
        raise DiskFull("for a test")

    server.lifecycle.superblocks.save = full  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        await group.delete(target, index)
    assert len(server.lifecycle.quarantine.list()) == 1
    group.crash(target)
    await group.restart(target)
    assert group.state_of(target) == m.RUNNING
    assert group.server(target).lifecycle.quarantine.list() == []
