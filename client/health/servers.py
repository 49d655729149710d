"""Judges servers, by what each reports itself and by its heartbeats to the master; and lists their leases. Await-free."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from ebla.actors.messages import UNKNOWN
from ebla.actors.replication.configuration import PACIFICA
from ebla.health import verdicts as v
from ebla.health.disks import free_bytes, full_disks, hung_disks, low_disks
from ebla.health.service import needs_lease, no_lease
from ebla.wording import short

if TYPE_CHECKING:
    from ebla.actors.messages import ServerState, ServerStatus


def judge_server(address: str, survey: v.Survey) -> v.ServerHealth:
    """Judge a server by its own state and by its heartbeats to the master."""
    listed = next((server for server in survey.servers if server.address == address), None)
    state = survey.states.get(address) or v.Unanswered("NotAsked", "it was not asked")
    if isinstance(state, v.Unanswered):
        health = v.ServerHealth(address, v.UNREACHABLE, None, None, 0, 0, 0, error=state.message)
        if listed is not None:
            health = msgspec.structs.replace(
                health,
                uuid=listed.uuid or None,
                host=listed.host,
                replicas=listed.replicas,
                free_bytes=free_bytes(listed.disks),
            )
            if listed.drained:
                health = msgspec.structs.replace(
                    health, status=v.STOPPED, replicas=0, error="stopped after draining"
                )
    else:
        status, error = _condition(state, listed, survey)
        health = v.ServerHealth(
            address=address,
            status=status,
            uuid=state.instance.uuid,
            host=state.host,
            replicas=sum(replica.state != "deleted" for replica in state.replicas),
            leaders=sum(r.leads and r.state == "running" for r in state.replicas),
            failed=sum(replica.state == "failed" for replica in state.replicas),
            error=error,
            set_aside=state.set_aside,
            free_bytes=free_bytes(state.disks),
            low=low_disks(state),
        )
    if listed is None:
        return health
    return msgspec.structs.replace(
        health,
        heartbeat_age_s=listed.heartbeat_age_s,
        draining=listed.draining,
        maintained=listed.maintained,
        suspended=listed.suspended,
        unlisted=listed.unlisted,
    )


def _condition(state: ServerState, listed: ServerStatus | None, survey: v.Survey) -> tuple[str, str | None]:
    """The status of a server that answers, and the reason if it is not healthy."""
    uuid = state.instance.uuid
    if listed is not None and listed.uuid not in ("", uuid):
        return v.WRONG_SERVER, f"server {short(uuid)} answers there, the master knows {short(listed.uuid)}"
    if survey.active is not None and (listed is None or not listed.alive):
        return v.SILENT, "it answers, but the master receives no heartbeat from it"
    if state.lost_disks:
        lost = ", ".join(f"{path} ({why})" for path, why in state.lost_disks.items())
        return v.DISK_LOST, f"lost {lost}; replace the disk, or take the directory out of data_dirs"
    full = full_disks(state)
    if full:
        return v.DISK_FULL, full
    hung = hung_disks(state)
    if hung:
        return v.DISK_HUNG, hung
    wants_lease = survey.active is not None and needs_lease(state) and not (listed and listed.suspended)
    if wants_lease and state.lease_left_s <= 0:
        return v.NO_LEASE, f"its PacificA replicas do not lead: {no_lease(state)}"
    return v.HEALTHY, None


# -- leases --------------------------------------------------------------------------------------------------


class Leased(msgspec.Struct, frozen=True):
    """A server as the master sees it for PacificA tables. `lease`: alive, ending, ended or unknown; "" for a server without a
    PacificA replica, which needs no lease. `number`, `beacon_age_s`: of the last acknowledged beacon."""

    address: str
    lease: str
    number: int
    beacon_age_s: float | None
    primaries: int
    secondaries: int
    learners: int


def leases(survey: v.Survey) -> tuple[Leased, ...]:
    """All servers that the master knows, by address; nothing if there is no PacificA table."""
    tables = [info for info in survey.tables if info.replication == PACIFICA]
    held: dict[str, Counter[str]] = {}
    for place in (each for info in tables for tablet in info.tablets for each in tablet.replicas):
        held.setdefault(place.address, Counter())[place.role] += 1
    known = {server.address: server for server in survey.servers}
    return tuple(
        _leased(address, known.get(address), held.get(address))
        for address in sorted({*known, *held} if tables else ())
    )


def _leased(address: str, listed: ServerStatus | None, held: Counter[str] | None) -> Leased:
    if held is None:
        return Leased(address, "", 0, None, 0, 0, 0)
    lease, number, age_s = UNKNOWN, 0, None
    if listed is not None:
        lease, number, age_s = listed.lease or UNKNOWN, listed.lease_number, listed.beacon_age_s
    return Leased(address, lease, number, age_s, held["leader"], held["follower"], held["learner"])
