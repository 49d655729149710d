"""The health of a deployment: judged again while it may recover, and compared by digests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from ebla.health.digests import digests
from ebla.health.tablets import judge, may_pass
from ebla.health.verdicts import OUT_OF_SERVICE, ClusterHealth, TabletHealth
from ebla.operate.cluster import Cluster
from ebla.operate.quarantine import Kept, kept
from ebla.operate.waiting import Deadline, Progress
from ebla.wording import count, short

ATTEMPTS_MAX = 4  # an election takes about two seconds
AGAIN_S = 0.7
NAMED_MAX = 5


async def check(
    cluster: Cluster, tables: Sequence[str] | None, wait_s: float, progress: Progress
) -> ClusterHealth:
    """The verdict. An unhealthy one is repeated until `wait_s` have passed, and a few times if it may pass in a moment."""
    deadline = Deadline(wait_s)
    attempts = 0
    while True:
        health = await cluster.health(tables)
        attempts += 1
        waiting = not deadline.passed
        if health.healthy or not (waiting or (attempts < ATTEMPTS_MAX and may_pass(health))):
            return health
        if waiting:
            progress.step(f"{health.reasons[0]} ({deadline.left_s:.0f} s left)")
        await asyncio.sleep(AGAIN_S)


async def check_all(
    cluster: Cluster, tables: Sequence[str] | None, wait_s: float, progress: Progress
) -> tuple[ClusterHealth, Kept]:
    """The verdict, and the space of the quarantine."""
    return await asyncio.gather(check(cluster, tables, wait_s, progress), kept(cluster))


async def compare(
    cluster: Cluster,
    tables: Sequence[str] | None,
    timeout_s: float,
    progress: Progress,
    note: Callable[[str], None],
) -> ClusterHealth:
    """The verdict with the digests that replicas return within `timeout_s`. Tablets that take no writes are noted and left out."""
    seen = await cluster.survey(tables)
    away = [tablet for tablet in judge(seen).tablets if tablet.status in OUT_OF_SERVICE]
    if away:
        note(f"not compared, for they take no writes: {tablet_names(away)}")
    left_out = {tablet.tablet for tablet in away}
    infos = [
        msgspec.structs.replace(
            info, tablets=tuple(each for each in info.tablets if each.tablet not in left_out)
        )
        for info in seen.tables
    ]

    def compared(done: int, total: int) -> None:
        progress.step(
            f"{done} of {count(total, 'tablet')} compared, within {timeout_s:g} s in all", done, total
        )

    return judge(seen, await digests(cluster.network, infos, compared, timeout_s))


def tablet_names(tablets: Sequence[TabletHealth]) -> str:
    """The first few of the tablets, with their tables."""
    named = [f"{each.table} {short(each.tablet)}" for each in tablets]
    more = [f"and {len(named) - NAMED_MAX} more"] if len(named) > NAMED_MAX else []
    return ", ".join([*named[:NAMED_MAX], *more])
