"""Defects of disks that are full, hang or are lost, and of blocks that are requested twice."""

from __future__ import annotations

import contextlib
from functools import wraps
from typing import Any

from msgspec.structs import replace

from ebla.actors.messages import ScanBlock, ScanContinue, ScanRequest, TabletKeys
from ebla.actors.tablet.engine import rounds
from ebla.actors.tablet.engine.batches import check_readable
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.lifecycle import starting
from ebla.actors.tablet.raft.leadership import Leadership
from ebla.actors.tablet.server import TabletServer
from ebla.actors.tablet.serving import admission, client_verbs
from ebla.actors.tablet.serving.alterations import require_served
from ebla.actors.tablet.serving.scans import Scans
from ebla.actors.tablet.upkeep.maintenance import Maintenance
from ebla.actors.world import World
from ebla.chaos.defects.defect import CRASHES_BESIDE_A_STOP, Swap, defect
from ebla.storage.tablets.tablet_store import TabletStore


# No code catches the error.
@defect("chains", 40)
def ends_on_a_full_disk() -> list[Swap]:
    """A tablet server ends when its disk is full."""
    return [(rounds, "DiskFull", ZeroDivisionError)]


# The writes of a start are not postponed.
@defect("full-disks", 40, seed=22)
def start_needs_space() -> list[Swap]:
    """A tablet server that starts on a full disk ends if a deletion or a copy is left to be finished
    there."""
    return [(starting, "postponed", contextlib.nullcontext)]


# A flush to any disk blocks all others, and all writers wait for the memory.
@defect("hung-data", 40, Maintenance, "_flush_largest", seed=1)
def one_flush_for_all_disks(original: Any, self: Maintenance) -> None:
    """A flush to a disk that hangs keeps the replicas on all others from being flushed."""
    if not self._flushing:
        original(self)


@defect("scans", 60, Scans, "more")
async def next_block_instead(original: Any, self: Scans, request: ScanContinue) -> Any:
    """A repeated request for a block of a scan gets the next block."""
    scanner = self._open.get(request.scanner)
    if scanner is None or scanner.busy:
        return await original(self, request)
    return await self._next(scanner)


@defect("hangs", 20, Leadership, "gives_way_at")
def hung_leader_leads_on(self: Leadership) -> float:
    """A leader whose disk hangs leads on, and answers neither writes nor reads."""
    return float("inf")


# Replicas of a server that stops go on to send heartbeats and to campaign until its flushes end.
@defect("hangs", 20, TabletServer, "_tick", seed=0, faults=CRASHES_BESIDE_A_STOP)
async def stopped_server_leads_on(self: TabletServer) -> None:
    """A server that stops leads tablets without serving them until its flushes end."""
    while True:
        await self.world.clock.sleep(self.options.leader_heartbeat_s / 3)
        self._pass_time()


# The schema is not checked again after the committed entries are applied.
@defect("alters", 100, seed=37)
def checked_before_the_wait() -> list[Swap]:
    """A read checks the schema before it waits for committed entries, of which one may be an alteration."""
    original_read, original_scan = admission.read, TabletServer.scan

    async def waited(world: World, replica: Replica, version: int) -> int:
        replica.require_running()
        check_readable(replica.rows.schema, version)
        require_served(replica, world.clock.monotonic())
        await admission.readable(world, replica)
        return replica.rows.schema.version

    async def read(world: World, replica: Replica, schema_version: int, wanted: TabletKeys) -> Any:
        return await original_read(world, replica, await waited(world, replica, schema_version), wanted)

    @wraps(original_scan)
    async def scan(self: TabletServer, request: ScanRequest) -> ScanBlock:
        if request.at_leader:
            version = await waited(self.world, self._replica(request.tablet), request.schema_version)
            request = replace(request, schema_version=version)
        return await original_scan(self, request)

    return [(client_verbs, "read", read), (TabletServer, "scan", scan)]


# The report needs the size of rows that no longer exist.
@defect("disasters", 60, seed=1)
def lost_disk_silences() -> list[Swap]:
    """A server with a lost data disk can report neither its status nor its replicas."""

    def size_bytes(self: TabletStore) -> int:
        return self.environment.size_bytes()

    return [(TabletStore, "size_bytes", property(size_bytes))]
