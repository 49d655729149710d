"""Whether the deployment is healthy again, by the code of `ebla check --checksum` and `ebla ledger check`, except for hosts that lost
their disks or are lost for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator

from ebla.chaos.ray.stage.ledgers import RayLedgers
from ebla.chaos.ray.stage.stage import RayStage, address_of
from ebla.health import survey
from ebla.health.digests import digests
from ebla.health.masters import is_served
from ebla.health.tablets import judge
from ebla.health.verdicts import CHECKSUM_MISMATCH, HEALTHY, ClusterHealth, TabletHealth
from ebla.options import MASTER
from ebla.storage.errors import EblaError

AGREE_S_MAX = 90.0
DIGEST_S_MAX = 30.0
CHECK_S = 0.5
LINE_MAX = 100


async def until_whole(stage: RayStage, show: Callable[[str], None], within_s: float = AGREE_S_MAX) -> str:
    """Wait until the deployment is healthy, all replicas hold equal rows, and all copies of entries of ledgers are there. Returns the
    problem, or "". Different rows end the wait at once."""
    addresses = [address_of(host) for host in stage.hosts]
    destroyed = [address_of(host) for host in (*stage.destroyed, *stage.gone)]
    until_s = stage.now_s() + within_s
    while True:
        seen = await survey.survey(stage.network, [MASTER], addresses)
        wrong = list(problems(judge(seen), destroyed))
        if not wrong:
            found = await digests(stage.network, seen.tables, timeout_s=DIGEST_S_MAX)
            compared = judge(seen, found)
            different = [tablet for tablet in compared.tablets if tablet.status == CHECKSUM_MISMATCH]
            if different:
                return f"tablet {different[0].tablet} of {different[0].table}: {different[0].reasons[0]}"
            wrong = list(problems(compared, destroyed))
        if not wrong and stage.ledgers is not None:
            wrong = await _of_ledgers(stage.ledgers)
        if not wrong:
            return ""
        show(wrong[0][:LINE_MAX])
        if stage.now_s() > until_s:
            return f"not healthy {within_s:g} s after everything was undone: {'; '.join(wrong[:3])}"
        await asyncio.sleep(CHECK_S)


async def _of_ledgers(ledgers: RayLedgers) -> list[str]:
    try:
        return await ledgers.problems()
    except EblaError as error:
        return [f"the ledgers cannot be checked: {error}"]


def problems(health: ClusterHealth, destroyed: Collection[str]) -> Iterator[str]:
    """The problems of the deployment. A replica on a lost disk may not be replaced yet: without it a tablet must still have a
    leader and a healthy majority."""
    for master in health.masters:
        if master.status != HEALTHY:
            yield f"{master.address}: {master.error}"
    if not is_served(health.masters):
        yield "no master is active"
    for server in health.servers:
        if server.address not in destroyed and (server.status != HEALTHY or server.failed):
            yield f"{server.address} is {server.status}: {server.error or f'{server.failed} failed replicas'}"
    for tablet in health.tablets:
        yield from _of_tablet(tablet, destroyed)


def _of_tablet(tablet: TabletHealth, destroyed: Collection[str]) -> Iterator[str]:
    if tablet.status == HEALTHY:
        return
    name = f"tablet {tablet.tablet} of {tablet.table}"
    lost = [replica for replica in tablet.replicas if replica.address in destroyed]
    if not lost:
        yield f"{name} is {tablet.status}: {'; '.join(tablet.reasons)}"
        return
    for replica in tablet.replicas:
        if replica not in lost and replica.status != HEALTHY:
            yield f"{name}: the replica at {replica.address} is {replica.status}: {replica.error}"
    if tablet.leader is None or 2 * tablet.healthy <= tablet.wanted:
        yield f"{name} is {tablet.status} with {tablet.healthy} of {tablet.wanted} replicas: {tablet.reasons}"
