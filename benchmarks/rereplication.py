"""Times the repair of ledgers after the loss of a host, from the outside. The floors: bare actor calls between two hosts that read,
check and write nothing; and bare actors that copy between the hosts that are left, and read, check and sync.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import ebla
from benchmarks.figures import Figure
from benchmarks.floor import carry, copies
from ebla import aio
from ebla.actors.deadlines import timeout
from ebla.actors.ledger.metadata import Metadata
from ebla.actors.ledger.shared.repairs import Repairs
from ebla.chaos.faults import RealFaults
from ebla.deployment import make_client
from ebla.placement.local.cluster import LocalCluster
from ebla.storage.errors import EblaError

NAME = "ebla"
LOGS, DATA_BYTES, RECORD_BYTES = 6, 1_200_000_000, 100_000
TOGETHER = 20  # records of one call
WITHIN_S, LOOK_S = 300.0, 0.1


class Repair(msgspec.Struct, frozen=True):
    """`noticed_s`: from the loss of a host until its ledgers were marked; `whole_s`: until no ledger names its store any more.
    `carried_bytes_per_s`: of bare actor calls between two hosts; `bare_bytes_per_s`: of bare actors that read, check and sync."""

    ledgers: int
    data_bytes: int
    noticed_s: float
    whole_s: float
    carried_bytes_per_s: float
    bare_bytes_per_s: float


def figures() -> Iterator[Figure]:
    found = repair()
    copy_s = found.whole_s - found.noticed_s
    note = (
        f"{found.ledgers} ledgers with {found.data_bytes / 1e6:,.0f} MB had a copy there; they were marked after {found.noticed_s:.1f} s, "
        "since the auditor was told to wait one second for a return"
    )
    rate, name = found.data_bytes / copy_s / 1e6, "re-replication of ledgers"
    carried, bare = found.carried_bytes_per_s / 1e6, found.bare_bytes_per_s / 1e6
    yield Figure(name, rate, "MB/s", 0.5, of_floor=True, floor=carried, floor_name="bare carry")
    yield Figure(name, rate, "MB/s", floor=bare, floor_name="bare actors that read, check and sync")
    yield Figure(
        "a host is lost for good, until every ledger has three copies", found.whole_s, "s", note=note
    )


def repair(hosts: int = 4) -> Repair:
    """Lose a host of a deployment of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="ebla-bench-") as directory,
        ebla.local(
            hosts=hosts, data_dir=directory, masters=1, journals=1, settings={"auditor": {"delay_s": 1.0}}
        ) as db,
    ):
        for number in range(LOGS):
            _fill(db.create_log(f"repaired-{number}"), DATA_BYTES // LOGS)
        slots = [f"host-{number}" for number in range(1, hosts)]
        carried, bare = carry(DATA_BYTES // 6, *slots[:2]), copies(DATA_BYTES // 2, slots)
        return asyncio.run(_repair(LocalCluster.attach(Path(directory) / "cluster"), hosts, carried, bare))


def _fill(log: Any, total_bytes: int) -> None:
    """The writer ends, so that all ledgers are closed."""
    with log.writer() as writer:
        for _ in range(total_bytes // RECORD_BYTES // TOGETHER):
            writer.append_many([os.urandom(RECORD_BYTES) for _ in range(TOGETHER)])


async def _repair(cluster: LocalCluster, host: int, carried: float, bare: float) -> Repair:
    async with aio.Database(make_client(NAME)) as db:
        registry = db._logs.registry
        address = f"ledger-store/host-{host}"
        lost = next(store.uuid for store in await registry.known() if store.address == address)

        async def losing() -> list[Metadata]:
            found = await db._logs.every()
            return [each for each in found if any(lost in segment.stores for segment in each.segments)]

        async def noticed() -> bool:
            return bool(await Repairs(db._logs.session).marked())

        async def whole() -> bool:
            return not await noticed() and not await losing()

        before = await losing()
        RealFaults(NAME, cluster).kill_node(host)
        began = time.perf_counter()
        await _until(noticed)
        noticed_s = time.perf_counter() - began
        await _until(whole)
        data_bytes = sum(each.length for each in before)
        return Repair(len(before), data_bytes, noticed_s, time.perf_counter() - began, carried, bare)


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with timeout(WITHIN_S):
        while True:
            try:
                if await holds():
                    return
            except EblaError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(LOOK_S)
