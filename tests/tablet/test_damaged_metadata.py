"""One replica's own record, or its record of votes, is damaged: that replica fails, no other, and it is mended."""

from __future__ import annotations

from ebla.actors import messages as m
from ebla.actors.tablet.server import RECORDS
from tests.tablet.copies import fill, same_rows, until
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
        assert after is not None and after.hard_state.term >= before.hard_state.term
        if after.hard_state.term == before.hard_state.term:
            assert after.hard_state.vote == before.hard_state.vote
        await same_rows(group, target, other, leader)
        await group.restart(target)
        assert group.server(target).lifecycle.state_of(TABLET) == m.RUNNING

    simulate(scenario)
