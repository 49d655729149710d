"""`ebla master list | failover`: which master is active, how far the standbys have read, and making another master active."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import msgspec

from ebla.cli.frame.options import option
from ebla.cli.frame.render import listing
from ebla.cli.frame.ui import Shown
from ebla.errors import Unavailable
from ebla.operate.naming import Refused
from ebla.wording import brief

if TYPE_CHECKING:
    from ebla.health.verdicts import Survey
    from ebla.operate.cluster import Cluster
    from ebla.operate.waiting import Progress

HAND_OVER_S = (
    40.0  # a master chooses a successor, waits 10 s for changes under way, and 10 s for the successor
)


class MasterLine(msgspec.Struct, frozen=True):
    """`lag`: transactions that a standby has not read yet. The fields of a silent master are None. `error`: why it is silent, or
    its problem."""

    address: str
    host: str | None
    role: str | None
    epoch: int | None = None
    txid: int | None = None
    lag: int | None = None
    checkpoint: int | None = None
    error: str | None = None


# -- list ----------------------------------------------------------------------------------------------------


async def list_masters(cluster: Cluster) -> Shown:
    """List the masters: which one is active, and how far each has read and checkpointed the catalog."""
    seen = await cluster.survey(tables=())
    found = lines(seen, await cluster.hosts(list(seen.masters)))
    headers = ("MASTER", "HOST", "ROLE", "EPOCH>", "TXID>", "LAG>", "CHECKPOINT>", "REMARK")
    rows = [
        (
            each.address,
            each.host or "-",
            each.role or "UNREACHABLE",
            each.epoch or "",
            each.txid,
            each.lag,
            each.checkpoint,
            brief(each.error or ""),
        )
        for each in found
    ]
    return {"masters": found}, listing(headers, rows)


def lines(seen: Survey, hosts: dict[str, str | None]) -> list[MasterLine]:
    from ebla.health.masters import judge_masters
    from ebla.health.verdicts import Unanswered, answered

    judged = {each.address: each for each in judge_masters(seen)}
    newest = max((each.edits for each in answered(seen.masters).values()), default=0)
    found = []
    for address, status in sorted(seen.masters.items(), key=lambda item: _number(item[0])):
        if isinstance(status, Unanswered):
            found.append(MasterLine(address, hosts.get(address), None, error=status.message))
            continue
        found.append(
            MasterLine(
                address=address,
                host=hosts.get(address),
                role=status.role,
                epoch=status.epoch or None,
                txid=status.edits,
                lag=newest - status.edits,
                checkpoint=status.checkpointed,
                error=judged[address].error,
            )
        )
    return found


def _number(address: str) -> int:
    number = address.rpartition("/")[2]
    return int(number) if number.isdigit() else 0


# -- failover ------------------------------------------------------------------------------------------------


class HandedOver(msgspec.Struct, frozen=True):
    before: str
    active: str
    seconds: float


async def failover(
    cluster: Cluster,
    progress: Progress,
    to: Annotated[
        str | None, option("--to ADDRESS", "The standby that takes over, such as master/1.")
    ] = None,
) -> Shown:
    """Make a standby the active master: the named one, or the one that has read most.

    The active master first completes the change under way. Reads and writes of tables continue.
    """
    done = await hand_over(cluster, to, progress)
    return done, f"{done.active} is the active master now, after {done.seconds:.1f} s; it was {done.before}"


async def hand_over(cluster: Cluster, to: str | None, progress: Progress) -> HandedOver:
    from ebla.actors.errors import NetworkError, NotActive
    from ebla.actors.master.messages import HandOverReply, HandOverRequest

    active = await _active_of_several(cluster, to)
    progress.step(f"{active} hands over to {to or 'the standby that has read most'}")
    began = time.monotonic()
    try:
        reply = await cluster.call(active, "hand_over", HandOverRequest(to), HandOverReply, HAND_OVER_S)
    except (NetworkError, NotActive, Unavailable) as error:
        now = (await cluster.survey(tables=())).active
        if now in (None, active):
            raise
        if to not in (None, now):
            raise Unavailable(f"{now} became the active master, not {to}: {error.message}") from error
        return HandedOver(active, str(now), time.monotonic() - began)
    return HandedOver(active, reply.active, time.monotonic() - began)


async def _active_of_several(cluster: Cluster, to: str | None) -> str:
    seen = await cluster.survey(tables=())
    active, masters = seen.active, sorted(seen.masters)
    if to is not None and to not in masters:
        raise Refused(f"there is no master {to!r}", hint=f"the masters are {', '.join(masters)}")
    if len(masters) < 2:
        raise Refused(
            f"{masters[0]} is the only master, no standby could take over",
            hint="`ebla up --journals 3` if the journal has one node, then `ebla down` and `ebla up --masters 2`",
        )
    if active is None:
        raise Refused("no master is active now", hint="`ebla check` says why; a standby takes over by itself")
    if to == active:
        raise Refused(f"{to} is the active master already; nothing was changed")
    return active
