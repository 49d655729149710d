"""What planted defects swap where disks are full, hang, are slow or lost, and where a scan's blocks are asked for twice;
chaos/defects/planted.py names them."""

from __future__ import annotations

import contextlib
from functools import wraps
from typing import Any

from msgspec.structs import replace

from ebla.actors.messages import ScanBlock, ScanContinue, ScanRequest, TabletKeys
from ebla.actors.tablet import server
from ebla.actors.tablet.engine import rounds
from ebla.actors.tablet.engine.batches import check_readable
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.lifecycle import lifecycle
from ebla.actors.tablet.raft.leadership import Leadership
from ebla.actors.tablet.server import TabletServer
from ebla.actors.tablet.serving import admission
from ebla.actors.tablet.serving.alterations import require_served
from ebla.actors.tablet.serving.scans import Scans
from ebla.actors.tablet.upkeep.maintenance import Maintenance
from ebla.actors.world import World
from ebla.chaos.defects.replication import Swap
from ebla.storage.tablets.tablet_store import TabletStore


def end_when_the_disk_is_full() -> list[Swap]:
    """Nobody catches it."""
    return [(rounds, "DiskFull", ZeroDivisionError)]


def end_a_start_on_a_full_disk() -> list[Swap]:
    """What a start would have to write on it is not put off."""
    return [(lifecycle, "put_off", contextlib.nullcontext)]


def flush_one_at_a_time() -> list[Swap]:
    """Whatever disk it is on, and everybody waits for its memory."""
    honest = Maintenance._flush_largest

    def flush_largest(self: Maintenance) -> None:
        if not self._flushing:
            honest(self)

    return [(Maintenance, "_flush_largest", flush_largest)]


def answer_every_question_with_the_next_block() -> list[Swap]:
    honest = Scans.more

    async def more(self: Scans, request: ScanContinue) -> ScanBlock:
        scanner = self._open.get(request.scanner)
        if scanner is None or scanner.busy:
            return await honest(self, request)
        return await self._next(scanner)

    return [(Scans, "more", more)]


def lead_on_while_the_disk_hangs() -> list[Swap]:
    return [(Leadership, "gives_way_at", lambda self: float("inf"))]


def check_the_schema_before_the_wait() -> list[Swap]:
    """And not again when what was committed meanwhile has been applied: an alteration may be among it."""
    honest_read, honest_scan = admission.read, TabletServer.scan

    async def waited(world: World, replica: Replica, version: int) -> int:
        replica.require_running()
        check_readable(replica.rows.schema, version)
        require_served(replica, world.clock.monotonic())
        await admission.readable(world, replica)
        return replica.rows.schema.version

    async def read(world: World, replica: Replica, schema_version: int, wanted: TabletKeys) -> Any:
        return await honest_read(world, replica, await waited(world, replica, schema_version), wanted)

    @wraps(honest_scan)
    async def scan(self: TabletServer, request: ScanRequest) -> ScanBlock:
        if request.at_leader:
            version = await waited(self.world, self._replica(request.tablet), request.schema_version)
            request = replace(request, schema_version=version)
        return await honest_scan(self, request)

    return [(server, "read", read), (TabletServer, "scan", scan)]


def measure_rows_on_a_lost_disk() -> list[Swap]:
    """Their report needs a size, and there is none."""

    def size_bytes(self: TabletStore) -> int:
        return self.environment.size_bytes()

    return [(TabletStore, "size_bytes", property(size_bytes))]
