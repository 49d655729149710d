"""Gets, scans and digests: what they show, and when they must refuse."""

from __future__ import annotations

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.storage.errors import SnapshotExpired
from ebla.storage.predicates import expressions
from tests.tablet.harness import CODEC, HOSTS, SCHEMA, TABLET, Group, address, row, simulated


@simulated()
async def test_a_read_at_the_leader_sees_every_write_acknowledged_before_it(group: Group) -> None:
    for n in range(30):
        await group.upsert(row(1, "x", n))
        assert await group.get(1) == [row(1, "x", n)]
        if n == 10:
            group.crash(await group.leader())


@simulated()
async def test_a_follower_refuses_reads_and_names_the_leader(group: Group) -> None:
    await group.upsert(row(1))
    leader = await group.leader()
    error = await group.read_once((await group.followers())[0])
    assert isinstance(error, errors.NotLeader) and error.leader == address(leader)


@simulated()
async def test_an_isolated_leader_stops_answering_reads_before_another_can_write(group: Group) -> None:
    await group.upsert(row(1, "old"))
    old, *others = await group.roles()
    group.cut(old, *others)
    group.leader_hint = others[0]
    await group.upsert(row(1, "new"))
    assert await group.read_once(old) is not None


@simulated()
async def test_a_scan_shows_one_moment_while_rows_change(group: Group) -> None:
    await group.upsert(*[row(k, "before" * 20, 1) for k in range(3000)])
    leader = await group.leader()
    await group.flush(leader)
    await group.upsert(*[row(k, "memory" * 20, 2) for k in range(0, 3000, 3)])
    first = await group.first_block(leader, ("k", "n"))
    await group.upsert(*[row(k, "after", 3) for k in range(4000)])
    await group.write(m.DELETE, [{"k": k} for k in range(100)])
    rows = first.rows
    block = first
    while block.scanner:
        block = await group.next_block(leader, block)
        rows += block.rows
    assert rows == 3000 and block.index == first.index
    after = await group.scan(columns=("k", "n"))
    assert after["k"].to_pylist() == list(range(100, 4000)) and set(after["n"].to_pylist()) == {3}


@simulated()
async def test_a_scan_respects_columns_predicate_bounds_and_limit(group: Group) -> None:
    await group.upsert(*[row(k, None if k % 5 == 0 else f"v{k % 7}", k * 2) for k in range(500)])
    predicate = expressions.encode(expressions.bind((expressions.col("v") == "v3"), SCHEMA))
    found = await group.scan(columns=("n",), predicate=predicate)
    assert found["n"].to_pylist() == [k * 2 for k in range(500) if k % 5 and k % 7 == 3]
    assert (await group.scan(limit=7))["k"].to_pylist() == list(range(7))
    bounds = {"start": CODEC.encode_key({"k": 100}), "stop": CODEC.encode_key({"k": 110})}
    assert (await group.scan(**bounds))["k"].to_pylist() == list(range(100, 110))
    counted = await group.first_block(await group.leader(), ())
    assert counted.rows == 500 and counted.scanner is None


@simulated(scan_read_rows=100)
async def test_a_repeated_request_for_a_block_gets_it_again_and_a_closed_scan_is_an_error(
    group: Group,
) -> None:
    await group.upsert(*[row(k, "x" * 50) for k in range(500)])
    leader = await group.leader()
    first = await group.first_block(leader)
    second = await group.next_block(leader, first)
    assert await group.next_block(leader, first) == second
    await group.ask(leader, "scan_close", m.ScanClose(first.scanner), m.Empty)
    with pytest.raises(SnapshotExpired):
        await group.next_block(leader, second)


@simulated(scanner_ttl_s=2.0, scan_read_rows=100)
async def test_idle_scans_expire(group: Group) -> None:
    await group.upsert(*[row(k) for k in range(500)])
    leader = await group.leader()
    first = await group.first_block(leader)
    await group.sleep(5.0)
    with pytest.raises(SnapshotExpired):
        await group.next_block(leader, first)


@simulated()
async def test_replicas_give_equal_digests_of_one_index_while_writes_go_on(group: Group) -> None:
    await group.upsert(*[row(k, "x" * 30) for k in range(2000)])
    index = await group.checksum_index()
    await group.upsert(*[row(k, "y") for k in range(1000)])
    (found,) = {await group.digest(host, index) for host in HOSTS}
    assert found[0] == 2000
    _, later = await group.digest(await group.leader(), await group.checksum_index())
    assert later != found[1]


@simulated()
async def test_a_reader_on_the_same_host_gets_the_place_of_the_flushed_rows(group: Group) -> None:
    result = await group.upsert(row(1))
    leader = await group.leader()
    index = await group.ask(leader, "read_index", m.TabletRequest(TABLET), m.ReadIndexReply)
    assert index.index >= result.index
    for host in HOSTS:
        request = m.LocalSnapshotRequest(TABLET, index.index)
        found = await group.ask(host, "local_snapshot", request, m.LocalSnapshot)
        assert found.index >= index.index and found.host == host
