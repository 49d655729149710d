"""PacificA tables on tablet servers in two troubles at once."""

from __future__ import annotations

import asyncio

from ebla.actors import messages as m
from tests.tablet.appointing import PacificaGroup, pacifica, voting
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, OTHER, row

A, B, C = HOSTS


@pacifica()
async def test_a_primary_whose_messages_wait_for_its_own_disk_takes_no_vote_away(
    group: PacificaGroup,
) -> None:
    """Server A is the primary of one tablet, and a secondary of another, whose new ballot waits for its disk. Until that is
    stored, no message of A leaves, of any tablet."""
    await group.upsert(row(1))
    await group.create(OTHER)
    await group.sleep(2.0)
    core = group.core(A, OTHER)
    now = group.server(A).world.now()
    group.server(A).rounds.step(group.replica(A, OTHER), core.step_down, now, group.uuid(B))
    await until(group, lambda: group.replica(B, OTHER).leads, "B leads the other tablet")
    await voting(group, *HOSTS)
    group.disk(A).hang(3600.0)
    batch = group.batch(m.UPSERT, [row(5)], 500, tablet=OTHER)
    request = m.WriteRequest((m.TabletWrite(OTHER, batch),), 20.0)
    writing = asyncio.ensure_future(group.ask(B, "write", request, m.WriteReply, 20.0))
    learners: set[str] = set()
    for _ in range(100):
        await group.sleep(0.1)
        learners.update(host for host, kind in group.kinds().items() if kind != "voter")
    assert learners == {A} and await group.leader() in (B, C)
    group.crash(A)
    assert await group.get(1) == [row(1)]
    writing.cancel()
