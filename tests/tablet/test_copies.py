"""A tablet is copied to a server: what a copy brings, what it may meet, and what it leaves behind."""

from __future__ import annotations

import contextlib

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.fault_points import REPAIR_POINTS
from ebla.actors.messages.raft import HardState
from ebla.actors.tablet.copy import sources
from ebla.actors.tablet.copy.copies import CANCELLED_S
from tests.tablet.copies import copied, ended, entomb, fill, left_behind, same_rows, start, until
from tests.tablet.harness import HOSTS, TABLET, Group, address, row, simulate
from tests.tablet.test_replicas import CrashAt


def test_a_tombstone_becomes_a_replica_with_everything_that_the_leader_has() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, other = await group.followers()
        await fill(group, 500)
        await entomb(group, target)
        await group.upsert(row(1, "after"))
        await copied(group, target, leader)
        await group.upsert(row(2, "later"))
        await same_rows(group, target, other, leader)
        await group.restart(target)
        await same_rows(group, target, other)

    simulate(scenario)


def test_a_retry_of_an_old_write_gets_its_first_answer_from_a_copy() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        batch = group.batch(m.INSERT, [row(1)], 7)
        first = await group.write_bytes(batch)
        await entomb(group, target)
        await copied(group, target, leader)
        successor = group.server(target).instance.uuid
        await group.ask(leader, "step_down", m.StepDownRequest(TABLET, successor), m.StepDownReply, 10.0)
        assert await group.leader() == target
        assert await group.write_bytes(batch) == first

    simulate(scenario)


POINTS = [point for point in REPAIR_POINTS if not point.endswith("_undo")] + [
    "tablet.entomb.after_quarantine"
]
NOT_YET_OR_AGAIN = ("tablet.entomb.before_mark", "tablet.entomb.after_quarantine", "tablet.copy.after_ready")


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_step_leaves_a_tombstone_or_a_replica(point: str) -> None:
    plan = CrashAt()

    async def scenario(group: Group) -> None:
        plan.group = group
        leader = await group.leader()
        target, other = await group.followers()
        await fill(group, 400)
        plan.armed[address(target), point] = 1
        with pytest.raises(errors.EblaError):
            await start(group, target, leader)
            await until(group, lambda: not group.cluster.alive(address(target)), "it crashes")
            raise errors.OutcomeUnknown("it has crashed")
        await group.restart(target)
        state = group.server(target).lifecycle.state_of(TABLET)
        assert state in (m.DELETED, m.RUNNING)
        assert (state == m.RUNNING) == (point in NOT_YET_OR_AGAIN)
        await copied(group, target, leader)
        await group.upsert(row(9000))
        await same_rows(group, target, other)

    simulate(scenario, faults=plan.of)


def test_a_lagging_follower_is_copied_over_and_its_data_set_aside() -> None:
    async def scenario(group: Group) -> None:
        leader, target, other = await left_behind(group)
        await until(
            group,
            lambda: group.replica(leader).core.needs_copy(group.server(target).instance.uuid),
            "the leader finds that its log is too short",
        )
        last = group.replica(target).log.last
        await copied(group, target, leader, last=(last.index, last.term))
        await same_rows(group, target, other)
        (entry,) = (await group.ask(target, "quarantine_list", m.Empty(), m.QuarantineEntries)).entries
        assert entry.tablet == TABLET and entry.bytes > 0

    simulate(scenario, log_retained_entries_max=2)


def test_refusals_of_a_copy_change_nothing() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, other = await group.followers()
        await fill(group, 200)
        await group.settle()
        uuid, last = group.server(target).instance.uuid, group.replica(target).log.last
        for kind, changes in (
            (errors.WrongServer, {"dest_uuid": "0" * 32}),
            (errors.IllegalState, {"state": m.DELETED}),
            (errors.IllegalState, {"state": m.DOES_NOT_EXIST}),
            (errors.IllegalState, {"last": (1, last.term)}),
            (errors.IllegalState, {"last": (last.index, last.term - 1)}),
            (errors.OldTerm, {"term": 0}),
            (errors.TabletNotFound, {"tablet": "e" * 32}),
        ):
            with pytest.raises(kind):
                await start(group, target, leader, **changes)
        with pytest.raises(errors.NotLeader):
            await start(group, target, other)
        assert group.replica(target).state == m.RUNNING
        assert group.server(target).instance.uuid == uuid
        await same_rows(group, target, leader)

    simulate(scenario)


def test_a_second_request_while_the_copy_runs_is_in_progress_and_others_are_throttled() -> None:
    """S7 of the reference; and once it has ended, an older leader is refused."""

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        second = "1" * 32
        await group.create(second)
        await fill(group, 200)
        await group.upsert(row(1), tablet=second)
        group.leader_hint = None
        assert await group.leader(second)
        await entomb(group, target)
        await entomb(group, target, second)
        await start(group, target, leader)
        with pytest.raises(errors.AlreadyInProgress):
            await start(group, target, leader, state=m.DELETED)
        with pytest.raises(errors.Throttled):
            await start(group, target, leader, tablet=second, state=m.DELETED)
        await ended(group, target)
        with pytest.raises(errors.IllegalState):
            await start(group, target, leader, state=m.DELETED)
        with pytest.raises(errors.OldTerm):
            await start(group, target, leader, term=group.replica(target).log.last.term - 1)
        await copied(group, target, leader, tablet=second)

    simulate(scenario, copies_max=1, copy_bytes_per_s=100_000)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_vote_outlives_a_copy_unless_its_term_is_over(ahead: int) -> None:
    """S10 of the reference: the merge takes the higher term, and keeps our vote with ours."""

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 10)
        await entomb(group, target)
        tombstone = group.server(target).lifecycle.tombstones[TABLET]
        term = group.replica(leader).core.term - ahead
        tombstone.voter._durable, tombstone.voter.hard_state = HardState(), HardState(term, "somebody")
        async with tombstone.turn:
            await tombstone.save(group.server(target).consensus)
        await copied(group, target, leader)
        kept = group.server(target).consensus.get(TABLET)
        assert kept is not None
        expected = HardState(term + 1) if ahead else HardState(term, "somebody")
        assert kept.record == expected

    simulate(scenario)


def test_a_copy_from_a_leader_of_an_older_term_than_our_last_entry_is_refused() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 10)
        await entomb(group, target)
        last = group.server(target).lifecycle.tombstones[TABLET].superblock.last
        assert last is not None and last.term > 0
        with pytest.raises(errors.OldTerm):
            await start(group, target, leader, term=last.term - 1)
        for other in ((last.index + 1, last.term), (last.index, last.term + 1)):
            with pytest.raises(errors.IllegalState, match="ends at entry"):
                await start(group, target, leader, last=other)
        assert group.server(target).lifecycle.state_of(TABLET) == m.DELETED

    simulate(scenario)


def test_a_term_without_entries_does_not_keep_a_copy_away_and_is_not_lowered() -> None:
    """S3: what counts is the term of the last entry; the stored one stays."""

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 10)
        await entomb(group, target)
        tombstone = group.server(target).lifecycle.tombstones[TABLET]
        term = group.replica(leader).core.term
        tombstone.voter.hard_state = HardState(term + 5)
        async with tombstone.turn:
            await tombstone.save(group.server(target).consensus)
        await copied(group, target, leader)
        assert group.replica(target).core.term >= term + 5
        await same_rows(group, target, await group.leader())

    simulate(scenario)


def test_a_chunk_that_arrives_damaged_is_asked_for_again() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, other = await group.followers()
        await fill(group, 100)
        source = group.server(leader)
        fetch, damaged = source.copy_sources.fetch, []

        async def turned(wanted: m.FetchRequest) -> m.Chunk:
            chunk = await fetch(wanted)
            if wanted.number == 0 and not damaged:
                damaged.append(chunk)
                return m.Chunk(chunk.session, 0, chunk.part, chunk.data[:-1] + b"\0", chunk.digest)
            return chunk

        source.copy_sources.fetch = turned  # type: ignore[method-assign]
        await entomb(group, target)
        await copied(group, target, leader)
        assert damaged
        await same_rows(group, target, other)

    simulate(scenario)


@pytest.mark.usefixtures("unmended")
@pytest.mark.parametrize("database", ["rows", "results", "meta"])
def test_damage_at_the_source_is_not_taken_over_and_is_found_there(database: str) -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 100)
        await group.ask(leader, "flush", m.FlushRequest(TABLET), m.FlushReply)
        await entomb(group, target)
        last = group.server(target).lifecycle.tombstones[TABLET].superblock.last
        await group.sleep(3.0)  # walked once, and good
        state = group.cluster.state(address(leader))
        state.rot(f"data/{TABLET}", database, list(state.environments[f"data/{TABLET}"][database])[-1])
        replica = group.replica(leader)
        with contextlib.suppress(errors.EblaError):
            await start(group, target, leader)
        await ended(group, target)
        assert group.server(target).lifecycle.tombstones[TABLET].superblock.last == last
        assert not group.server(target).world.disk.exists(f"data/{TABLET}")
        await until(group, lambda: replica.state == "failed", "the source looks at its own")

    simulate(scenario)


def test_a_cancelled_copy_leaves_the_tombstone_as_it_was() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, _ = await group.followers()
        await fill(group, 600)
        await entomb(group, target)
        before = group.server(target).lifecycle.tombstones[TABLET].superblock.last
        await start(group, target, leader)
        uuid = group.server(target).instance.uuid
        await group.ask(target, "cancel_copy", m.CancelCopyRequest(uuid, TABLET), m.Empty, 20.0)
        server = group.server(target)
        assert server.lifecycle.state_of(TABLET) == m.DELETED
        assert server.lifecycle.tombstones[TABLET].superblock.last == before
        assert not server.world.disk.exists(f"data/{TABLET}")
        assert not server.world.disk.exists(f"wals/{TABLET}")
        await until(group, lambda: not len(group.server(leader).copy_sources), "the source lets go")
        await group.sleep(CANCELLED_S)
        await copied(group, target, leader)

    simulate(scenario, copy_bytes_per_s=20_000)


def test_a_session_that_nobody_asks_lets_go_of_the_log() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        await fill(group, 10)
        server = group.server(leader)
        replica = group.replica(leader)
        asking = group.server((await group.followers())[0]).instance.uuid
        begin = m.BeginCopyRequest(server.instance.uuid, TABLET, asking, replica.core.term)
        begun = await group.ask(leader, "begin_copy_session", begin, m.CopyBegun)
        again = await group.ask(leader, "begin_copy_session", begin, m.CopyBegun)
        assert len(server.copy_sources) == 1 and again.session != begun.session
        with pytest.raises(errors.CopyExpired):
            await group.ask(leader, "fetch_chunk", m.FetchRequest(begun.session, 0), m.Chunk)
        await fill(group, 600, at_once=50)
        for host in HOSTS:
            await group.ask(host, "flush", m.FlushRequest(TABLET), m.FlushReply)
        assert replica.log.dropped.index <= again.flushed.index
        await until(group, lambda: replica.log.dropped.index > again.flushed.index, "the log is trimmed")
        assert len(server.copy_sources) == 0

    simulate(scenario, log_retained_entries_max=1, copy_idle_s=5.0)


def test_more_chunks_than_a_window_arrive_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", 2000)

    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, other = await group.followers()
        await fill(group, 600)
        await entomb(group, target)
        await copied(group, target, leader)
        await same_rows(group, target, other)

    simulate(scenario)


def test_what_the_shared_log_still_holds_of_a_former_replica_is_not_taken_for_the_copys() -> None:
    async def scenario(group: Group) -> None:
        leader = await group.leader()
        target, other = await group.followers()
        await fill(group, 300)
        await group.settle()
        await entomb(group, target)
        await copied(group, target, leader)
        await group.upsert(row(1, "new"))
        await group.settle()
        group.cluster.crash(address(target))
        await group.restart(target)
        assert group.replica(target).state == m.RUNNING
        await same_rows(group, target, other)

    simulate(scenario)
