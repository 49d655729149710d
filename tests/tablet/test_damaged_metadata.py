"""One replica's own record, or its record of votes, is damaged: that replica fails, no other, and it is mended. Or the log of all is gone:
then the server does not start."""

from __future__ import annotations

import pytest

from ebla.actors import messages as m
from ebla.actors.tablet.server import RECORDS
from ebla.storage.errors import Damaged
from tests.tablet.copies import entomb, fill, same_rows, until
from tests.tablet.harness import TABLET, Group, address, row, simulate

SECOND = "1" * 32


def test_a_replica_whose_superblock_is_damaged_fails_alone_and_is_copied_anew_with_its_votes() -> None:
    """S21 of the reference."""

    async def scenario(group: Group) -> None:
        await group.create(SECOND)
        await fill(group, 50)
        await group.upsert(row(1, "second"), tablet=SECOND)
        await group.settle(SECOND)
        group.leader_hint = None
        target, other = await group.followers()
        leader = await group.leader()
        before = group.server(target).consensus.get(TABLET)
        assert before is not None
        group.cluster.crash(address(target))
        group.cluster.state(address(target)).rot("tablet-meta", RECORDS, TABLET.encode())
        await group.restart(target)
        server = group.server(target)
        assert server.lifecycle.state_of(TABLET) == m.FAILED
        assert server.lifecycle.state_of(SECOND) == m.RUNNING
        await until(group, lambda: server.lifecycle.state_of(TABLET) == m.RUNNING, "it is copied anew")
        after = server.consensus.get(TABLET)
        assert after is not None and after.record.term >= before.record.term
        if after.record.term == before.record.term:
            assert after.record.vote == before.record.vote
        await same_rows(group, target, other, leader)
        await group.restart(target)
        assert group.server(target).lifecycle.state_of(TABLET) == m.RUNNING

    simulate(scenario)


@pytest.mark.parametrize("also", [(), ("tablet-meta",), ("tablet-meta", "consensus-meta", f"data/{TABLET}")])
def test_a_server_whose_log_is_gone_does_not_come_back_as_one_that_never_had_it(
    also: tuple[str, ...],
) -> None:
    """As where the log lies on a disk of its own that is not mounted: it would vote for those who lack what it acknowledged."""

    async def scenario(group: Group) -> None:
        await group.upsert(row(1))
        await group.settle()
        target, _ = await group.followers()
        group.cluster.crash(address(target))
        for path in ("wals/shared", *also):
            group.cluster.state(address(target)).lose_environment(path)
        for _ in range(2):
            with pytest.raises(Damaged, match="what this server acknowledged"):
                await group.restart(target)
            group.cluster.crash(address(target))
        await group.upsert(row(2))

    simulate(scenario)


@pytest.mark.parametrize("copied", [False, True])
def test_a_replica_whose_own_log_is_gone_fails_alone(copied: bool) -> None:
    """What it had acknowledged was nowhere else on this server."""

    async def scenario(group: Group) -> None:
        await group.create(SECOND)
        await group.upsert(row(1))
        await group.settle()
        target, _ = await group.followers()
        server, path = group.server(target), f"wals/{TABLET}"
        if copied:
            await entomb(group, target)
            await until(group, lambda: TABLET in server.replicas, "it is copied anew")
        for turn in range(60):
            await group.upsert(*[row(turn * 20 + k, "y" * 400) for k in range(20)], tablet=SECOND)
        await until(group, lambda: server.world.disk.exists(path), "the shared log has let go of its entries")
        await group.restart(target)
        assert group.server(target).lifecycle.state_of(TABLET) == m.RUNNING
        group.crash_all()
        group.cluster.state(address(target)).lose_environment(path)
        await group.restart(target)
        assert group.server(target).lifecycle.state_of(TABLET) == m.FAILED
        assert group.server(target).lifecycle.state_of(SECOND) == m.RUNNING

    simulate(scenario, shared_log_bytes=100_000)


def test_a_first_start_that_ended_before_there_was_a_log_is_begun_anew() -> None:
    async def scenario(group: Group) -> None:
        await group.cluster.start(address("host-d"), group.make("host-d"))
        uuid = group.server("host-d").instance.uuid
        group.cluster.crash(address("host-d"))
        for path in ("wals/shared", "quarantine-meta"):  # in the order in which they are made
            group.cluster.state(address("host-d")).lose_environment(path)
        await group.restart("host-d")
        assert group.server("host-d").running and group.server("host-d").instance.uuid == uuid

    simulate(scenario)
