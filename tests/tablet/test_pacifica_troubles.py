"""PacificA tables on tablet servers in two troubles at once."""

from __future__ import annotations

import asyncio

import pytest

from ebla.actors import messages as m
from tests.tablet.appointing import LIMITS, PacificaGroup, pacifica, voting
from tests.tablet.copies import until
from tests.tablet.harness import HOSTS, OTHER, TABLET, address, row

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


@pytest.mark.parametrize("order", [(A, B, C), (B, C, A)], ids=["it starts first", "it starts last"])
@pacifica()
async def test_after_a_restart_of_all_a_primary_on_an_older_copy_does_not_lead(
    group: PacificaGroup, order: tuple[str, ...]
) -> None:
    """The copy is of the same minute, so no number shows its age; and no member knows how much is committed."""
    await group.upsert(row(1))
    await group.settle()
    await group.sleep(LIMITS.stable_s)
    copy = group.disk(A).copy()
    for number in range(2, 8):
        await group.upsert(row(number))
    await group.settle()
    group.crash_all()
    group.cluster.put_disk(address(A), copy)
    for host in order:
        group.cluster.launch(address(host), group.make(host))
    assert await group.get(*range(1, 8)) == [row(number) for number in range(1, 8)]
    known = {host: group.replica(host, TABLET).core.last_index for host in HOSTS}
    await until(
        group, lambda: len({group.core(host).last_index for host in HOSTS}) == 1, f"all agree: {known}"
    )
