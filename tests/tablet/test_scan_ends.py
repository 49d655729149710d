"""Scans and digests end with all rows or with an error, and a request whose answer was lost can be repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.errors import OutcomeUnknown
from ebla.actors.tablet.serving import admission, scans
from ebla.storage.errors import InvalidArgument, SnapshotExpired
from tests.tablet.harness import CODEC, Group, address, row, simulated

ROWS, READ_ROWS = 300, 100


class Held:
    """Delays the results of an environment's threads until they are released."""

    def __init__(self, group: Group, host: str) -> None:
        self.environment: Any = group.replica(host).store.environment
        self.begun, self.released = asyncio.Event(), asyncio.Event()
        self.environment.run = self.run

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        found = work(*arguments)
        self.begun.set()
        await self.released.wait()
        return found


async def filled(group: Group, count: int = ROWS) -> str:
    await group.upsert(*[row(k, "x") for k in range(count)])
    await group.settle()
    return await group.leader()


async def last_but_one(group: Group, host: str) -> m.ScanBlock:
    """Read a scan until only its last block is left."""
    block = await group.first_block(host)
    while group.server(host).scans._open[block.scanner].start < CODEC.encode_key({"k": ROWS - READ_ROWS}):
        block = await group.next_block(host, block)
    return block


@pytest.mark.parametrize("verb", ["drop during the first block", "drop", "close"])
@simulated(scan_read_rows=READ_ROWS)
async def test_a_scan_dropped_or_closed_while_a_block_is_read_ends_in_an_error(
    group: Group, verb: str
) -> None:
    host = await filled(group)
    if verb == "drop during the first block":
        held = Held(group, host)
        pending = asyncio.ensure_future(group.first_block(host))
    else:
        block = await group.first_block(host)
        held = Held(group, host)
        pending = asyncio.ensure_future(group.next_block(host, block))
    await held.begun.wait()
    if verb == "close":
        await group.ask(host, "scan_close", m.ScanClose(block.scanner), m.Empty)
    else:
        await group.drop(host)
    held.released.set()
    with pytest.raises(SnapshotExpired if verb == "close" else errors.TabletNotFound):
        await pending
    assert not group.server(host).scans._open


@simulated()
async def test_dropping_a_table_during_a_digest_does_not_end_the_server(group: Group) -> None:
    host = await filled(group, 100)
    environment: Any = group.replica(host).store.environment
    run = environment.run

    async def late(work: Callable[..., Any], *arguments: Any) -> Any:
        await group.sleep(0.5)  # the threads are busy
        return await run(work, *arguments)

    environment.run = late
    assert await group.checksum_index() > 0
    await group.settle()
    await group.drop(host)
    await group.sleep(1.0)
    assert group.alive(host)


@simulated(scan_read_rows=READ_ROWS)
async def test_the_last_block_is_sent_again_after_a_lost_answer(group: Group) -> None:
    host = await filled(group)
    block = await last_but_one(group, host)
    group.cluster.network.cut(address(host), "client", one_way=True)
    with pytest.raises(OutcomeUnknown):
        await group.next_block(host, block, 1.0)
    group.heal()
    assert not group.server(host).scans._open, "the request arrived, and the scan has ended"
    last = await group.next_block(host, block)
    assert last.scanner is None and last.block == block.block + 1 and last.rows > 0
    assert await group.next_block(host, block) == last
    with pytest.raises(SnapshotExpired):
        await group.ask(host, "scan_more", m.ScanContinue(block.scanner, 1), m.ScanBlock)


@simulated(scanner_ttl_s=2.0, scan_read_rows=READ_ROWS)
async def test_last_blocks_are_kept_for_a_limited_time(group: Group) -> None:
    host = await filled(group)
    block = await last_but_one(group, host)
    await group.next_block(host, block)
    await group.sleep(5.0)
    assert group.server(host).scans._ended == {} and group.server(host).scans._ended_bytes == 0
    with pytest.raises(SnapshotExpired):
        await group.next_block(host, block)


@pytest.mark.parametrize(("limit", "value"), [("ENDED_MAX", 2), ("ENDED_BYTES_MAX", 3000)])
@simulated(scan_read_rows=READ_ROWS)
async def test_last_blocks_are_kept_in_limited_number_and_bytes(
    group: Group, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(scans, limit, value)
    host = await filled(group)
    ended = group.server(host).scans._ended
    names = []
    for _ in range(4):
        block = await last_but_one(group, host)
        names.append(block.scanner)
        await group.next_block(host, block)
    kept = sum(len(one.last.data) for one in ended.values())
    assert group.server(host).scans._ended_bytes == kept <= scans.ENDED_BYTES_MAX
    assert 0 < len(ended) <= scans.ENDED_MAX and list(ended) == names[-len(ended) :] != names


@simulated()
async def test_a_scan_with_a_limit_skips_deleted_rows(group: Group) -> None:
    await filled(group, 3000)
    await group.write(m.DELETE, [{"k": k} for k in range(2500)])
    for limit in (1, 3, 499, 500, 600):
        wanted = list(range(2500, min(2500 + limit, 3000)))
        assert (await group.scan(limit=limit))["k"].to_pylist() == wanted


@simulated()
async def test_a_get_with_too_large_an_answer_is_refused_with_the_remedy(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    await group.upsert(*[row(k, "x" * 1000) for k in range(1000)])
    keys = list(range(-100, 1100))
    found = await group.get(*keys)
    assert [None if one is None else one["k"] for one in found] == [
        k if 0 <= k < 1000 else None for k in keys
    ]
    monkeypatch.setattr(admission, "READ_BYTES_MAX", 500_000)
    with pytest.raises(InvalidArgument, match="get fewer keys at once"):
        await group.get(*range(1000))
    assert len(await group.get(*range(400))) == 400
