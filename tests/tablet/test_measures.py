"""The figures of a tablet server."""

from __future__ import annotations

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.figures import Figures, FiguresRequest
from ebla.actors.tablet import measures
from ebla.actors.tablet.engine.space import MEASURE_S_MAX, USED_S
from ebla.actors.tablet.server import TabletServer
from ebla.storage.errors import Corruption, DiskFull
from tests.figures import figures_of, kinds, listed
from tests.tablet.copies import copied, entomb, until
from tests.tablet.harness import HOSTS, SLOW_HEARTBEATS, Group, row, simulated
from tests.tablet.test_tombstones import exclude


@simulated()
async def test_writes_rows_and_flushes_are_counted_where_they_happen(group: Group) -> None:
    leader = await group.leader()
    before = figures_of(group.server(leader))
    await group.upsert(row(1), row(2), row(3))
    await group.upsert(row(4))
    await group.settle()
    for host in HOSTS:
        after = figures_of(group.server(host))
        assert after["tablet_rows_applied"] == 4
        assert after["tablet_writes"] == (2 if host == leader else 0)
        assert after["tablet_log_bytes"] > 0
    busy = figures_of(group.server(leader))
    assert busy["tablet_syncs/shared-log"] > before["tablet_syncs/shared-log"]
    assert 0 < busy["tablet_sync_p50_ms/shared-log"] <= busy["tablet_sync_p99_ms/shared-log"]
    assert (busy["tablet_flushes"], busy["tablet_syncs/data"]) == (0, 0)
    for _ in range(2):  # the second finds nothing to write
        await group.flush(leader)
        flushed = figures_of(group.server(leader))
        assert (flushed["tablet_flushes"], flushed["tablet_syncs/data"]) == (1, 1)


@simulated()
async def test_memtable_bytes_are_reported_until_the_flush(group: Group) -> None:
    await group.upsert(*(row(k, "x" * 100) for k in range(50)))
    leader = await group.leader()
    await group.sleep(1.0)
    assert figures_of(group.server(leader))["tablet_memtable_bytes"] > 50 * 100
    await group.flush(leader)
    await group.sleep(1.0)
    assert figures_of(group.server(leader))["tablet_memtable_bytes"] < 50 * 100


@simulated()
async def test_elections_count_at_the_winner_and_replicas_count_by_role(group: Group) -> None:
    first = await group.leader()
    await group.settle()
    by_host = {host: figures_of(group.server(host)) for host in HOSTS}
    assert sum(f["tablet_leaderships"] for f in by_host.values()) == 1
    assert by_host[first]["tablet_replicas/leader"] == 1
    assert sum(f["tablet_replicas/follower"] for f in by_host.values()) == 2
    group.crash(first)
    second = await group.leader()
    after = figures_of(group.server(second))
    assert after["tablet_leaderships"] == by_host[second]["tablet_leaderships"] + 1
    assert after["tablet_candidacies"] > by_host[second]["tablet_candidacies"]
    assert after["tablet_term_max"] > by_host[first]["tablet_term_max"]


@simulated(results_per_client_max=2)
async def test_refused_writes_are_counted_under_the_name_of_the_limit(group: Group) -> None:
    leader = await group.leader()
    batches = [group.batch(m.UPSERT, [row(1)], group.next_sequence()) for _ in range(3)]
    outcomes = [await group.write_once(leader, batch) for batch in batches]
    assert outcomes[:2] == [None, None] and isinstance(outcomes[2], errors.Throttled)
    assert figures_of(group.server(leader))["tablet_writes_refused/results_per_client_max"] == 1
    group.disk(leader).fill()
    group.server(leader).rounds.disk_full = True
    other = group.batch(m.UPSERT, [row(1)], 1, client=b"another-client-1")
    assert isinstance(await group.write_once(leader, other), DiskFull)
    full = figures_of(group.server(leader))
    assert (full["tablet_disk_full"], full["tablet_writes_refused/disk_full"]) == (1, 1)


@simulated(scan_read_rows=10)
async def test_open_scans_and_failed_replicas_are_reported(group: Group) -> None:
    await group.upsert(*(row(k, "x" * 100) for k in range(200)))
    leader = await group.leader()
    block = await group.first_block(leader, ("k", "v"), block_bytes=1000)
    assert figures_of(group.server(leader))["tablet_scans_open"] == 1
    await group.ask(leader, "scan_close", m.ScanClose(block.scanner), m.Empty)
    assert figures_of(group.server(leader))["tablet_scans_open"] == 0
    group.replica(leader).fail(Corruption("a page turned"))
    after = figures_of(group.server(leader))
    assert (after["tablet_replicas/failed"], after["tablet_replicas/leader"]) == (1, 0)


@simulated(shared_log_bytes=10_000)
async def test_entries_in_private_logs_are_counted_there_and_not_in_the_shared_log(group: Group) -> None:
    leader = await group.leader()
    away = next(host for host in HOSTS if host != leader)
    group.crash(away)
    for k in range(40):
        await group.upsert(row(k, "x" * 1000))
    held = figures_of(group.server(leader))
    assert held["tablet_syncs/private-log"] > 0 and held["tablet_sync_p99_ms/private-log"] > 0
    assert held["tablet_syncs/consensus"] > 0
    assert held["tablet_shared_log_bytes"] < held["tablet_log_bytes"]  # retained for the server that is down
    await group.restart(away)
    await group.settle()
    await group.flush(leader)
    await group.sleep(USED_S + 2 * MEASURE_S_MAX)
    after = figures_of(group.server(leader))
    assert after["tablet_log_bytes"] < held["tablet_log_bytes"]
    assert after["tablet_disk_bytes"] > 0


@simulated()
async def test_committed_entries_that_are_not_applied_are_reported(group: Group) -> None:
    host = await group.settled(row(1))
    assert figures_of(group.server(host))["tablet_unapplied_entries_max"] == 0
    group.replica(host).apply = lambda bytes_max: False  # type: ignore[method-assign]
    for k in range(3):
        await group.upsert(row(k))
    await group.sleep(1.0)
    assert figures_of(group.server(host))["tablet_unapplied_entries_max"] == 3


@simulated(scrub_s=30.0, **SLOW_HEARTBEATS)
async def test_a_scrubbed_replica_is_not_due_until_the_next_interval(group: Group) -> None:
    server = group.server(HOSTS[0])
    await until(group, lambda: figures_of(server)["tablet_scrubs_due"] == 1, "it is due")
    assert figures_of(server)["tablet_scrubs"] == 0
    await group.sleep(5.0)
    assert (figures_of(server)["tablet_scrubs"], figures_of(server)["tablet_scrubs_due"]) == (1, 0)
    await group.sleep(server.options.scrub_s)
    assert figures_of(server)["tablet_scrubs"] == 2


@simulated()
async def test_the_number_of_figures_does_not_grow_with_tablets_and_all_are_on_a_sheet(group: Group) -> None:
    one = list(figures_of(group.server(HOSTS[0])))
    for letter in "abcde":
        await group.create(letter * 32)
    assert list(figures_of(group.server(HOSTS[0]))) == one
    answer = await group.ask(HOSTS[0], "figures", FiguresRequest(), Figures)
    assert kinds(answer.figures) == listed(measures.SHEETS)
    assert sum(figures_of(group.server(host))["tablet_replicas/leader"] for host in HOSTS) <= 6


@simulated()
async def test_copies_are_counted_at_both_ends_and_tombstones_as_deleted_replicas(group: Group) -> None:
    leader, target, _ = await group.roles()
    await group.upsert(*(row(k, "x" * 100) for k in range(50)))
    await entomb(group, target)
    assert figures_of(group.server(target))["tablet_replicas/deleted"] == 1
    await copied(group, target, leader)
    here, there = figures_of(group.server(target)), figures_of(group.server(leader))
    assert (here["tablet_replicas/deleted"], here["tablet_copies_running"]) == (0, 0)
    assert (here["tablet_copies_done"], there["tablet_copies_done"]) == (1, 0)
    assert here["tablet_copied_bytes"] == there["tablet_copy_sent_bytes"] > 50 * 100


@simulated()
async def test_heartbeats_count_the_replicas_and_leaders_of_now(group: Group) -> None:
    tablets = await group.create_many(8)
    await group.sleep(1.0)
    await group.drop(HOSTS[0], tablets[0])
    target = next(host for host in await group.followers() if host != HOSTS[1])
    await group.delete(target, await exclude(group, target))
    group.crash(HOSTS[1])
    await group.sleep(1.0)
    for host in (HOSTS[0], HOSTS[2]):
        server = group.server(host)
        (reporter,), held = server.reporters, server.lifecycle.all()
        leaders = sum(each.leads for each in held.values())
        assert reporter._count() == (sum(each.state != m.DELETED for each in held.values()), leaders)
        assert leaders, "each took over some"


@simulated(shared_log_bytes=20_000, memtable_bytes=20_000)
async def test_the_figures_of_replicas_are_those_of_a_new_count(group: Group) -> None:
    """They are counted again only after events."""
    tablets = await group.create_many(5)
    for k in range(12):
        await group.upsert(*(row(100 * k + i, "x" * 300) for i in range(20)), tablet=tablets[k % 3])
        for host in HOSTS:
            shares_are_current(group.server(host))
        if k == 3:
            await group.flush(HOSTS[0])
        if k == 6:
            await group.drop(HOSTS[1], tablets[4])
            group.replica(HOSTS[2], tablets[3]).fail(Corruption("a page turned"))
        await group.sleep(0.3)
    await group.sleep(5.0)
    for host in HOSTS:
        shares_are_current(group.server(host))


def shares_are_current(server: TabletServer) -> None:
    figures_of(server)
    fresh = {tablet: measures.Share.of(replica) for tablet, replica in server.replicas.items()}
    assert server.census.shares == fresh
