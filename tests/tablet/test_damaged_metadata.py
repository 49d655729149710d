"""A damaged superblock or vote record fails one replica only, which is repaired. A server without its shared log does
not start."""

from __future__ import annotations

import pytest

from ebla.actors import messages as m
from ebla.actors.tablet.server import RECORDS
from ebla.storage.errors import Damaged
from tests.tablet.copies import entomb, fill, same_rows, until
from tests.tablet.harness import OTHER, TABLET, Group, address, row, simulated


@simulated()
async def test_a_replica_with_a_damaged_superblock_fails_alone_and_keeps_its_votes_in_a_copy(
    group: Group,
) -> None:
    """S21 of the reference."""
    await group.create(OTHER)
    await fill(group, 50)
    await group.upsert(row(1, "second"), tablet=OTHER)
    await group.settle(OTHER)
    target, other = await group.followers()
    leader = await group.leader()
    before = group.server(target).consensus.get(TABLET)
    assert before is not None
    group.crash(target)
    group.disk(target).rot("tablet-meta", RECORDS, TABLET.encode())
    await group.restart(target)
    server = group.server(target)
    assert server.lifecycle.state_of(TABLET) == m.FAILED
    assert server.lifecycle.state_of(OTHER) == m.RUNNING
    await until(group, lambda: server.lifecycle.state_of(TABLET) == m.RUNNING, "the tablet is copied again")
    after = server.consensus.get(TABLET)
    assert after is not None and after.hard_state.term >= before.hard_state.term
    if after.hard_state.term == before.hard_state.term:
        assert after.hard_state.vote == before.hard_state.vote
    await same_rows(group, target, other, leader)
    await group.restart(target)
    assert group.state_of(target) == m.RUNNING


@pytest.mark.parametrize("also", [(), ("tablet-meta",), ("tablet-meta", "consensus-meta", f"data/{TABLET}")])
@simulated()
async def test_a_server_without_its_log_does_not_start_as_a_new_one(
    group: Group, also: tuple[str, ...]
) -> None:
    """For instance, the log's own disk is not mounted. The server would vote for candidates that lack what it acknowledged."""
    await group.upsert(row(1))
    await group.settle()
    target, _ = await group.followers()
    group.crash(target)
    for path in ("wals/shared", *also):
        group.disk(target).lose_environment(path)
    for _ in range(2):
        with pytest.raises(Damaged, match="what this server acknowledged"):
            await group.restart(target)
        group.crash(target)
    await group.upsert(row(2))


@pytest.mark.parametrize("copied", [False, True])
@simulated(shared_log_bytes=100_000)
async def test_a_replica_without_its_private_log_fails_alone(group: Group, copied: bool) -> None:
    """Entries that it acknowledged were only in that log on this server."""
    await group.create(OTHER)
    await group.upsert(row(1))
    await group.settle()
    target, _ = await group.followers()
    server, path = group.server(target), f"wals/{TABLET}"
    if copied:
        await entomb(group, target)
        await until(group, lambda: TABLET in server.replicas, "the tablet is copied again")
    for turn in range(60):
        await group.upsert(*[row(turn * 20 + k, "y" * 400) for k in range(20)], tablet=OTHER)
    await until(group, lambda: server.world.disk.exists(path), "the shared log has dropped its entries")
    await group.restart(target)
    assert group.state_of(target) == m.RUNNING
    group.crash_all()
    group.disk(target).lose_environment(path)
    await group.restart(target)
    assert group.state_of(target) == m.FAILED
    assert group.state_of(target, OTHER) == m.RUNNING


@simulated()
async def test_a_first_start_that_ended_before_the_log_existed_begins_again(group: Group) -> None:
    await group.cluster.start(address("host-d"), group.make("host-d"))
    uuid = group.uuid("host-d")
    group.crash("host-d")
    for path in ("wals/shared", "quarantine-meta"):  # in the order in which they are made
        group.disk("host-d").lose_environment(path)
    await group.restart("host-d")
    assert group.server("host-d").running and group.uuid("host-d") == uuid
