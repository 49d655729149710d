"""A log whose entries have indexes near 2^31 is replayed, trimmed and copied like any other (S20 of the reference)."""

from __future__ import annotations

import msgspec
import pytest

from ebla.actors import messages as m
from ebla.storage.directories.records import seal, unseal
from ebla.storage.logs.entries import Position
from ebla.storage.tablets.positions import META, POSITION, Flushed
from tests.tablet.copies import entomb, fill, same_rows, until
from tests.tablet.harness import HOSTS, TABLET, Group, row, simulated

EDGES = (1 << 31, 1 << 32)


async def far(group: Group, index: int) -> None:
    """Set the position of the tablet's rows to `index`, as if it had been written that often, with earlier entries trimmed."""
    await fill(group, 10)
    await group.settle()
    await group.flush(*HOSTS)
    last = group.replica(HOSTS[0]).log.last
    assert {group.replica(host).store.flushed for host in HOSTS} == {last}
    group.crash_all()
    position = Position(index, last.term, last.chain, last.time_us)
    for host in HOSTS:
        meta = group.disk(host).environments[f"data/{TABLET}"][META]
        stored = msgspec.msgpack.decode(unseal(POSITION, meta[POSITION], TABLET), type=Flushed)
        moved = msgspec.structs.replace(stored, position=position)
        meta[POSITION] = seal(POSITION, msgspec.msgpack.encode(moved))
    await group.restart()


@pytest.mark.parametrize("edge", EDGES)
@simulated()
async def test_entries_around_a_power_of_two_are_replayed_after_a_crash(group: Group, edge: int) -> None:
    await far(group, edge - 8)
    for turn in range(20):
        await group.upsert(row(100 + turn, str(turn)))
    await group.settle()
    assert group.replica(HOSTS[0]).log.last_index > edge + 8
    await group.restart_all()
    assert await group.get(1, 100, 119) == [row(1, "x" * 100), row(100, "0"), row(119, "19")]
    replica = group.replica(HOSTS[0])
    assert replica.log.dropped.index == edge - 8 < replica.log.last_index
    await same_rows(group, *HOSTS)


@simulated()
async def test_entries_around_a_power_of_two_move_to_the_private_log_and_are_copied(group: Group) -> None:
    edge = EDGES[0]
    await far(group, edge - 8)
    leader, target, other = await group.roles()
    for turn in range(20):
        await group.upsert(row(100 + turn, str(turn)))
    await group.settle()
    replica = group.replica(leader)
    await replica.log.move(group.server(leader).rounds.synced_seq + 1)
    assert replica.log.private_last > edge
    await entomb(group, target)
    lifecycle = group.server(target).lifecycle
    await until(group, lambda: lifecycle.state_of(TABLET) == m.RUNNING, "the tablet is copied")
    await group.restart()
    await group.upsert(row(1, "new"))
    await same_rows(group, target, other, leader)
