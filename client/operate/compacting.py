"""Merging all runs of a tablet's replicas into one, and waiting until that is done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from ebla.actors.messages import CompactReply, CompactRequest, TabletLocation
from ebla.errors import TimedOut
from ebla.health.survey import gathered
from ebla.operate.cluster import Cluster
from ebla.operate.waiting import Deadline, Progress
from ebla.wording import count, host_of, short

ASK_S = 300.0  # a request flushes the replica
POLL_S = 0.3
STALLED_S = 120.0  # without any progress


class Compacted(NamedTuple):
    """`before` and `after`: bytes of the replica's runs."""

    tablet: str
    address: str
    before: int
    after: int


async def compacted(
    cluster: Cluster, locations: Sequence[TabletLocation], progress: Progress
) -> list[Compacted]:
    """Merge the runs of all replicas. Servers go on with what they have begun if this is cancelled.

    Raises InvalidArgument if a tablet's rows are no columns, and TimedOut if a replica makes no progress.
    """
    left: dict[tuple[str, str], int] = {}
    totals: dict[tuple[str, str], int] = {}

    async def one(tablet: str, address: str) -> Compacted:
        first = seen = await _asked(cluster, tablet, address, None)
        totals[tablet, address], stalled = first.left_bytes, Deadline(STALLED_S)
        while seen.left_bytes:
            left[tablet, address] = seen.left_bytes
            total = sum(totals.values())
            progress.step(f"{count(len(left), 'replica')} to merge", total - sum(left.values()), total)
            await asyncio.sleep(POLL_S)
            before = seen.left_bytes
            seen = await _asked(cluster, tablet, address, first.upto)
            if seen.left_bytes < before:
                stalled = Deadline(STALLED_S)
            elif stalled.passed:
                raise TimedOut(
                    f"{host_of(address)} has merged no run of tablet {short(tablet)} for {STALLED_S:g} s; see `ebla check` "
                    "for its disk, and repeat the command",
                    deadline_s=STALLED_S,
                )
        left.pop((tablet, address), None)
        return Compacted(tablet, address, first.bytes, seen.bytes)

    return await gathered([one(each.tablet, r.address) for each in locations for r in each.replicas])


async def _asked(cluster: Cluster, tablet: str, address: str, upto: int | None) -> CompactReply:
    return await cluster.call(address, "compact", CompactRequest(tablet, upto), CompactReply, ASK_S)
