"""Logs whose ends are not what the group committed: longer than that, or shorter."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.replication.configuration import Configuration
from ebla.storage.errors import Corruption
from ebla.storage.tablets.tablet_store import path_of
from tests.tablet.copies import until
from tests.tablet.harness import OTHER, TABLET, Group, held, row, simulated


async def a_leader_that_is_cut_off_writes_alone(group: Group, old: str) -> None:
    await group.lead(old)
    await group.settled(row(1))
    group.isolate(old)
    writes = [m.TabletWrite(TABLET, group.batch(m.UPSERT, [row(n)], 1000 + n)) for n in (100, 101, 102)]
    alone = [group.server(old).write(m.WriteRequest((write,), 1.0)) for write in writes]
    await asyncio.gather(*alone, return_exceptions=True)
    group.leader_hint = None


async def a_configuration_is_committed_without(group: Group, old: str) -> int:
    """Returns its index."""
    await group.sleep(3.0)
    leader = next(host for host in group.hosts if host != old and group.replica(host).leads)
    server, core = group.server(leader), group.replica(leader).core
    peers = tuple(replace(peer, replace=peer.uuid == group.uuid(old)) for peer in core.configuration.peers)
    wanted = Configuration(peers, core.configuration.index)
    now = server.world.clock.monotonic()
    index, _ = server.rounds.step(group.replica(leader), core.propose_configuration, now, wanted)
    await until(group, lambda: core.committed_configuration.index == index, "it is committed")
    return index


@simulated()
async def test_a_configuration_that_is_on_disk_before_its_entry_commits_no_other_entry(group: Group) -> None:
    old = "host-a"
    await a_leader_that_is_cut_off_writes_alone(group, old)
    index = await a_configuration_is_committed_without(group, old)
    held(group.server(old).shared, "append")
    group.heal()
    saved = group.server(old).consensus
    await until(group, lambda: saved.get(TABLET).configuration.index == index, "the configuration is on disk")
    group.crash(old)
    group.cut(old, *(host for host in group.hosts if host != old))
    await group.restart(old)
    replica = group.replica(old)
    assert replica.log.last_index >= index > replica.core.commit_index
    assert not len(await group.scan(old))  # it may not know yet that row 1 is committed
    group.heal()
    await group.settle()
    assert replica.state == "running" and replica.core.committed_configuration.index == index
    assert await group.get(1, 100, 101, 102) == [row(1), None, None, None]


@simulated(shared_log_bytes=60_000, disk_hung_s=3.0)
async def test_a_failed_voter_whose_data_disk_hangs_never_comes_back_with_less_than_it_acknowledged(
    group: Group,
) -> None:
    a, b, c = group.hosts
    await group.create(OTHER)
    await group.lead(a)
    await group.lead(a, OTHER)
    await group.settled(row(1))
    group.cut(b, a, c)
    await group.upsert(row(2))
    await group.sleep(1.0)
    group.disk(c).hang_data(path_of(TABLET))
    hung = asyncio.ensure_future(group.flush(c))
    await group.sleep(0.5)
    group.replica(c).fail(Corruption("a row fails its checksum"))
    await until(group, lambda: group.state_of(c) == m.DELETED, "the leader has asked for another copy")
    first = group.server(c).shared.next_seq
    for number in range(120):
        await group.upsert(row(number, "z" * 3000), tablet=OTHER)
        if number == 60:
            await group.flush(a, c, tablet=OTHER)
    await group.flush(a, c, tablet=OTHER)
    await until(group, lambda: group.server(c).shared.first_seq > first, "the log is trimmed")
    group.crash(a, c)
    await asyncio.gather(hung, return_exceptions=True)
    group.disk(c).unhang_data(path_of(TABLET))
    group.heal()
    await group.restart(c)
    await group.sleep(4.0)
    assert group.state_of(c) == m.DELETED and not group.replica(b).leads
    await group.restart(a)
    group.leader_hint = None
    assert await group.get(1, 2) == [row(1), row(2)]
