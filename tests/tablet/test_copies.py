"""Copies of a tablet to a server: their content, faults during a copy, and what remains after it."""

from __future__ import annotations

import contextlib

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.fault_points import REPAIR_POINTS
from ebla.actors.messages.raft import HardState
from ebla.actors.tablet.copy.copies import CANCELLED_S
from tests.tablet.copies import copied, deleted, ended, entomb, fill, filled, same_rows, start, until
from tests.tablet.harness import HOSTS, TABLET, Group, row, simulated


@simulated()
async def test_a_copy_turns_a_tombstone_into_a_replica_with_all_rows(group: Group) -> None:
    leader, target, other = await deleted(group, 500)
    await group.upsert(row(1, "after"))
    await copied(group, target, leader)
    await group.upsert(row(2, "later"))
    await same_rows(group, target, other, leader)
    group.crash(target)  # the shared log still has entries of the former replica
    await group.restart(target)
    assert group.replica(target).state == m.RUNNING
    await same_rows(group, target, other)


@simulated()
async def test_a_retry_of_an_old_write_gets_its_first_answer_from_a_copied_replica(group: Group) -> None:
    leader, target, _ = await group.roles()
    batch = group.batch(m.INSERT, [row(1)], 7)
    first = await group.write_bytes(batch)
    await entomb(group, target)
    await copied(group, target, leader)
    await group.lead(target)
    assert await group.write_bytes(batch) == first


POINTS = [point for point in REPAIR_POINTS if not point.endswith("_undo")] + [
    "tablet.entomb.after_quarantine"
]
RUNNING_AFTER = ("tablet.entomb.before_mark", "tablet.entomb.after_quarantine", "tablet.copy.after_ready")


@pytest.mark.parametrize("point", POINTS)
@simulated()
async def test_a_crash_at_any_step_leaves_a_tombstone_or_a_replica(group: Group, point: str) -> None:
    leader, target, other = await filled(group, 400)
    group.crash_at(target, point)
    with pytest.raises(errors.EblaError):
        await start(group, target, leader)
        await until(group, lambda: not group.alive(target), "the target crashes")
        raise errors.OutcomeUnknown("it has crashed")
    await group.restart(target)
    state = group.state_of(target)
    assert state in (m.DELETED, m.RUNNING)
    assert (state == m.RUNNING) == (point in RUNNING_AFTER)
    await copied(group, target, leader)
    await group.upsert(row(9000))
    await same_rows(group, target, other)


@simulated()
async def test_a_refused_copy_changes_nothing(group: Group) -> None:
    leader, target, other = await filled(group, 200)
    await group.settle()
    uuid, last = group.uuid(target), group.replica(target).log.last
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
    assert group.uuid(target) == uuid
    await same_rows(group, target, leader)


@simulated(copies_max=1, copy_bytes_per_s=100_000)
async def test_a_repeated_copy_request_is_in_progress_and_other_copies_are_throttled(group: Group) -> None:
    """S7 of the reference. After the copy's end an older leader is refused."""
    leader, target, _ = await group.roles()
    second = "1" * 32
    await group.create(second)
    await fill(group, 200)
    await group.upsert(row(1), tablet=second)
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


@pytest.mark.parametrize("ahead", [0, 1])
@simulated()
async def test_a_vote_survives_a_copy_unless_its_term_is_over(group: Group, ahead: int) -> None:
    """S10 of the reference: the merge takes the higher term, and keeps the target's vote only with the target's term."""
    leader, target, _ = await deleted(group, 10)
    tombstone = group.tombstone(target)
    term = group.replica(leader).core.term - ahead
    tombstone.voter._durable, tombstone.voter.hard_state = HardState(), HardState(term, "a-candidate")
    async with tombstone.turn:
        await tombstone.save(group.server(target).consensus)
    await copied(group, target, leader)
    expected = HardState(term + 1) if ahead else HardState(term, "a-candidate")
    assert group.hard_state(target) == expected


@simulated()
async def test_a_copy_request_for_another_end_of_the_targets_log_is_refused(group: Group) -> None:
    leader, target, _ = await deleted(group, 10)
    last = group.tombstone(target).superblock.last
    assert last is not None
    for other in ((last.index + 1, last.term), (last.index, last.term + 1)):
        with pytest.raises(errors.IllegalState, match="ends at entry"):
            await start(group, target, leader, last=other)
    assert group.state_of(target) == m.DELETED


@simulated()
async def test_a_higher_term_without_entries_allows_a_copy_and_stays(group: Group) -> None:
    """S3: the term of the last entry decides; the stored term stays."""
    leader, target, _ = await deleted(group, 10)
    tombstone = group.tombstone(target)
    term = group.replica(leader).core.term
    tombstone.voter.hard_state = HardState(term + 5)
    async with tombstone.turn:
        await tombstone.save(group.server(target).consensus)
    await copied(group, target, leader)
    assert group.replica(target).core.term >= term + 5
    await same_rows(group, target, await group.leader())


@simulated()
async def test_a_chunk_that_arrives_damaged_is_fetched_again(group: Group) -> None:
    leader, target, other = await filled(group, 100)
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


@pytest.mark.usefixtures("unmended")
@pytest.mark.parametrize("database", ["rows", "results", "meta"])
@simulated()
async def test_damage_at_the_source_is_not_copied_and_is_found_there(group: Group, database: str) -> None:
    leader, target, _ = await filled(group, 100)
    await group.flush(leader)
    await entomb(group, target)
    last = group.tombstone(target).superblock.last
    await group.sleep(3.0)  # the first scrub finds no damage
    state = group.disk(leader)
    state.rot(f"data/{TABLET}", database, list(state.environments[f"data/{TABLET}"][database])[-1])
    replica = group.replica(leader)
    with contextlib.suppress(errors.EblaError):
        await start(group, target, leader)
    await ended(group, target)
    assert group.tombstone(target).superblock.last == last
    assert not group.server(target).world.disk.exists(f"data/{TABLET}")
    await until(group, lambda: replica.state == "failed", "the source checks its own data")


@simulated(copy_bytes_per_s=20_000)
async def test_a_cancelled_copy_leaves_the_tombstone_as_it_was(group: Group) -> None:
    leader, target, _ = await deleted(group, 600)
    before = group.tombstone(target).superblock.last
    await start(group, target, leader)
    await group.cancel_copy(target)
    server = group.server(target)
    assert server.lifecycle.state_of(TABLET) == m.DELETED
    assert group.tombstone(target).superblock.last == before
    assert not server.world.disk.exists(f"data/{TABLET}")
    assert not server.world.disk.exists(f"wals/{TABLET}")
    await until(group, lambda: not len(group.server(leader).copy_sources), "the source ends its session")
    await group.sleep(CANCELLED_S)
    await copied(group, target, leader)


@simulated(log_retained_entries_max=1, copy_idle_s=5.0)
async def test_an_idle_session_ends_and_no_longer_retains_the_log(group: Group) -> None:
    leader, target, _ = await filled(group, 10)
    server, replica = group.server(leader), group.replica(leader)
    begun, again = [await group.begin_session(leader, target) for _ in range(2)]
    assert len(server.copy_sources) == 1 and again.session != begun.session
    with pytest.raises(errors.CopyExpired):
        await group.ask(leader, "fetch_chunk", m.FetchRequest(begun.session, 0), m.Chunk)
    await fill(group, 600, at_once=50)
    await group.flush(*HOSTS)
    assert replica.log.dropped.index <= again.flushed.index
    await until(group, lambda: replica.log.dropped.index > again.flushed.index, "the log is trimmed")
    assert len(server.copy_sources) == 0
