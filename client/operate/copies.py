"""The copies that run, as the copying servers report them, and how each ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from ebla.actors.messages import CancelCopyRequest, CopyJob, CopyJobs, Empty, ServerState
from ebla.actors.replication.configuration import names
from ebla.health.survey import ask_each
from ebla.health.verdicts import COPYING, FAILED, MISSING, TOMBSTONE, Unanswered, answered, silent
from ebla.operate.cluster import Cluster, too_short
from ebla.operate.naming import Refused
from ebla.wording import host_of, short

POLL_S = 0.5
WAITING_POLL_S = 2.0  # every replica is asked for its state
SERVER_S = 3.0
CANCEL_S = 30.0


class Ended(msgspec.Struct, frozen=True):
    """The last known state of a copy that has ended. `how`: copied, failed, or ended if its server does not answer."""

    job: CopyJob
    how: str
    why: str | None = None


class Copies(msgspec.Struct, frozen=True):
    """All copies at one moment. `silent`: servers that gave no answer, and why. `reported`: copies that have ended, as their
    servers report them. Of watched copies: `ended`, each attempt, and `waiting`, the replicas whose copy has not begun."""

    jobs: tuple[CopyJob, ...]
    silent: dict[str, str]
    ended: tuple[Ended, ...] = ()
    waiting: tuple[str, ...] = ()
    reported: tuple[CopyJob, ...] = ()


async def running(cluster: Cluster) -> Copies:
    answers = await ask_each(cluster.network, await cluster.servers(), "list_copies", CopyJobs, SERVER_S)
    known = answered(answers).values()
    jobs = sorted((job for each in known for job in each.jobs), key=lambda job: (job.table_name, job.tablet))
    reported = tuple(job for each in known for job in each.ended)
    return Copies(tuple(jobs), silent(answers), reported=reported)


async def watch(cluster: Cluster, show: Callable[[Copies], None]) -> Copies:
    """Show the copies until no member lacks its replica: after a failed copy the leader soon begins another."""
    present: dict[tuple[str, str, int], CopyJob] = {}
    ended: list[Ended] = []
    while True:
        seen = await running(cluster)
        before, present = present, {_key(job): job for job in seen.jobs}
        reported = {_key(job): job for job in seen.reported}
        over = [
            await _end(cluster, reported.get(key, job)) for key, job in before.items() if key not in present
        ]
        ended += over
        waiting = () if seen.jobs else await _waiting(cluster)
        show(Copies(seen.jobs, seen.silent, tuple(over), waiting))
        if not seen.jobs and not waiting:
            return Copies((), seen.silent, tuple(ended))
        await asyncio.sleep(WAITING_POLL_S if waiting else POLL_S)


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


async def _end(cluster: Cluster, job: CopyJob) -> Ended:
    """The outcome of the copy, by the replica that its target has now."""
    state = await cluster.ask(job.target, "status", Empty(), ServerState, SERVER_S)
    if isinstance(state, Unanswered):
        return Ended(job, "ended", state.message)
    found = next((replica for replica in state.replicas if replica.tablet == job.tablet), None)
    if found is None:
        return Ended(job, "failed", "its server no longer has it")
    if found.state in ("running", "bootstrapping"):
        return Ended(job, "copied")
    return Ended(job, "failed", found.error)


async def _waiting(cluster: Cluster) -> tuple[str, ...]:
    """Members that have no replica yet, on servers that answer."""
    health = await cluster.health()
    return tuple(
        f"{tablet.table} {short(tablet.tablet)} on {host_of(replica.address)}"
        for tablet in health.tablets
        for replica in tablet.replicas
        if replica.status in (COPYING, TOMBSTONE, MISSING, FAILED) and tablet.leader is not None
    )
