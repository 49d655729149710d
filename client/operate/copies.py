"""The copies that run, as the copying servers report them, and how each ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ebla.actors.messages import CancelCopyRequest, CopyJob, CopyJobs, Empty, ServerState
from ebla.actors.replication.configuration import names
from ebla.health.needs import can_get_one, needs_replica
from ebla.health.survey import ask_each
from ebla.health.tablets import judge
from ebla.health.verdicts import COPYING, FAILED, MISSING, TOMBSTONE, Unanswered, answered, silent
from ebla.operate.cluster import Cluster, too_short
from ebla.operate.naming import Refused
from ebla.operate.waiting import Deadline
from ebla.wording import host_of, short

POLL_S = 0.5
WAITING_POLL_S = 2.0  # every replica is asked for its state
SERVER_S = 3.0
CANCEL_S = 30.0
# Without a copy and without any change. A leader calls a silent member failed after 60 s, and a failed copy is repeated within 45 s.
IDLE_S = 120.0
NO_ROOM_S = 10.0  # nothing can begin: one missed heartbeat or one election does not end a watch


class Ended(msgspec.Struct, frozen=True):
    """The last known state of a copy that has ended. `how`: copied, failed, or ended if its server does not answer."""

    job: CopyJob
    how: str
    why: str | None = None


class Copies(msgspec.Struct, frozen=True):
    """All copies at one moment. `silent`: servers that gave no answer, and why. `reported`: copies that have ended, as their
    servers report them. Of watched copies: `ended`, each attempt; while no copy runs, `waiting`, the replicas whose copy has not begun,
    and `tablets_waiting`, the number of tablets that need another replica and have no server for it yet."""

    jobs: tuple[CopyJob, ...]
    silent: dict[str, str]
    ended: tuple[Ended, ...] = ()
    waiting: tuple[str, ...] = ()
    reported: tuple[CopyJob, ...] = ()
    tablets_waiting: int = 0


async def running(cluster: Cluster) -> Copies:
    answers = await ask_each(cluster.network, await cluster.servers(), "list_copies", CopyJobs, SERVER_S)
    known = answered(answers).values()
    jobs = sorted((job for each in known for job in each.jobs), key=lambda job: (job.table_name, job.tablet))
    reported = tuple(job for each in known for job in each.ended)
    return Copies(tuple(jobs), silent(answers), reported=reported)


async def watch(cluster: Cluster, show: Callable[[Copies], None]) -> Copies:
    """Show the copies until no tablet needs one, or nothing has happened for long; the result says what still waits.
    After a failed copy the leader soon begins another."""
    present: dict[tuple[str, str, int], CopyJob] = {}
    ended: list[Ended] = []
    patience = _Patience()
    while True:
        seen = await running(cluster)
        before, present = present, {_key(job): job for job in seen.jobs}
        reported = {_key(job): job for job in seen.reported}
        over = await _end(
            cluster, [reported.get(key, job) for key, job in before.items() if key not in present]
        )
        ended += over
        left = _NOTHING if seen.jobs else await _left(cluster)
        now = Copies(seen.jobs, seen.silent, tuple(over), left.members, tablets_waiting=len(left.tablets))
        show(now)
        if patience.is_over(left) and not seen.jobs:
            return msgspec.structs.replace(now, ended=tuple(ended))
        await asyncio.sleep(POLL_S if seen.jobs else WAITING_POLL_S)


async def cancel(cluster: Cluster, tablet: str, server: str | None) -> list[CopyJob]:
    """End the copies of a tablet, to one server or to all of them."""
    uuids = {status.address: status.uuid for status in await cluster.database.servers()}
    found = [
        job
        for job in (await running(cluster)).jobs
        if job.tablet.startswith(tablet)
        and (server is None or names(server, uuids.get(job.target, ""), job.target))
    ]
    if not found:
        where = "" if server is None else f" to {server}"
        raise Refused(
            f"no copy of tablet {tablet!r}{where} is under way",
            hint="`ebla tablet copies` lists all of them",
        )
    if len({job.tablet for job in found}) > 1:
        raise too_short(tablet, "several copied tablets begin with it")
    for job in found:
        uuid = uuids.get(job.target)
        if not uuid:  # the master has received no heartbeat from it
            state = await cluster.call(job.target, "status", Empty(), ServerState, SERVER_S)
            uuid = state.instance.uuid
        await cluster.call(job.target, "cancel_copy", CancelCopyRequest(uuid, job.tablet), Empty, CANCEL_S)
    return found


def _key(job: CopyJob) -> tuple[str, str, int]:
    return job.tablet, job.target, job.attempt


async def _end(cluster: Cluster, jobs: list[CopyJob]) -> list[Ended]:
    """The outcome of each copy, by the replica that its target has now. Each target is asked once."""
    targets = list(dict.fromkeys(job.target for job in jobs))
    states = await ask_each(cluster.network, targets, "status", ServerState, SERVER_S)
    return [_outcome(job, states[job.target]) for job in jobs]


def _outcome(job: CopyJob, state: ServerState | Unanswered) -> Ended:
    if isinstance(state, Unanswered):
        return Ended(job, "ended", state.message)
    found = next((replica for replica in state.replicas if replica.tablet == job.tablet), None)
    if found is None:
        return Ended(job, "failed", "its server no longer has it")
    if found.state in ("running", "bootstrapping"):
        return Ended(job, "copied")
    return Ended(job, "failed", found.error)


# -- what waits ----------------------------------------------------------------------------------------------


class _Left(NamedTuple):
    """`members` that have no replica yet, on servers that answer. `tablets` that need another replica. `can_begin`: whether some of
    all this can go on by itself."""

    members: tuple[str, ...]
    tablets: tuple[str, ...]
    can_begin: bool


_NOTHING = _Left((), (), False)


async def _left(cluster: Cluster) -> _Left:
    seen = await cluster.survey()
    health = judge(seen)
    members = tuple(
        f"{tablet.table} {short(tablet.tablet)} on {host_of(replica.address)}"
        for tablet in health.tablets
        for replica in tablet.replicas
        if replica.status in (COPYING, TOMBSTONE, MISSING, FAILED) and tablet.leader is not None
    )
    lacking = [tablet for tablet in health.tablets if tablet.replicas and needs_replica(tablet)]
    frozen = any(master.frozen for master in health.masters)
    can_begin = bool(members) or (not frozen and any(can_get_one(tablet, seen) for tablet in lacking))
    return _Left(members, tuple(tablet.tablet for tablet in lacking), can_begin)


class _Patience:
    """Ends a wait at once if nothing is left, else when that has not changed for long."""

    def __init__(self) -> None:
        self._left: _Left | None = None
        self._deadline = Deadline(0.0)

    def is_over(self, left: _Left) -> bool:
        if left != self._left:
            self._left = left
            self._deadline = Deadline(IDLE_S if left.can_begin else NO_ROOM_S)
        return not (left.members or left.tablets) or self._deadline.passed
