"""Judges every tablet, replica and server, by the reports of the master and of each server. Await-free.

A tablet is judged by what each of its replicas reports at its own server, and by whether these reports agree with each other
and with the master. The statuses of a tablet, from bad to good:

    UNAVAILABLE          no majority runs, or no replica leads: reads and writes wait
    CHECKSUM_MISMATCH    replicas hold different rows as of the same log index
    CONSENSUS_MISMATCH   replicas, or the master, disagree about the leader or the configuration
    DISK_FULL            of a deployment only: it works, but a server refuses writes for want of space
    UNDER_REPLICATED     it works, but one more loss may stop it: a replica failed, is missing or unreachable
    DEGRADED             of a deployment only: its tables are well, but a server, a master or a journal node is not
    RECOVERING           all replicas are there; one is starting, being copied, catching up, or about to leave
    HEALTHY

A replica is HEALTHY, LAGGING, BOOTSTRAPPING, COPYING, TOMBSTONE (it has no rows, and will be copied), FAILED, MISSING (its
server answers and does not have it), UNREACHABLE or WRONG_SERVER (another server answers at its address). A pre-voter that is
not complete yet is no loss. Reports are from slightly different moments, so a mismatch may be an election under way: callers
survey again before they report it (`may_pass`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ebla.health.checksums import different_rows, with_digest
from ebla.health.disks import free_bytes, full_disks, low_disks
from ebla.health.masters import judge_journals, judge_masters, reasons_of, status_of
from ebla.health.verdicts import (
    BOOTSTRAPPING,
    CONSENSUS_MISMATCH,
    COPYING,
    DEGRADED,
    DISK_FULL,
    DISK_LOST,
    FAILED,
    HEALTHY,
    LAGGING,
    MISSING,
    OUT_OF_ORDER,
    RECOVERING,
    SILENT,
    STATUSES,
    STOPPED,
    TOMBSTONE,
    UNAVAILABLE,
    UNDER_REPLICATED,
    UNREACHABLE,
    WRONG_SERVER,
    ClusterHealth,
    Digests,
    ReplicaHealth,
    ServerHealth,
    Survey,
    TableHealth,
    TabletHealth,
    Unanswered,
)
from ebla.wording import count, short

if TYPE_CHECKING:
    from ebla.actors.messages import ReplicaReport, ServerState, ServerStatus, TableInfo, TabletLocation

STARTING = (BOOTSTRAPPING, COPYING)
VOTER, PRE_VOTER, NON_VOTER = "voter", "pre-voter", "non-voter"
NO_ROOM = "; no other host that is up can take it: "
LAG_ENTRIES_MAX = 1000  # committed entries; reports differ by some ms of full load


def worst(statuses: list[str]) -> str:
    return max(statuses, key=STATUSES.index, default=HEALTHY)


def may_pass(health: ClusterHealth) -> bool:
    """Whether the problem may end in a moment: an election, a heartbeat under way, a starting replica."""
    if any(master.status != HEALTHY for master in health.masters):
        return True
    if any(node.status != HEALTHY for node in health.journals):
        return True
    return any(
        tablet.status in (RECOVERING, CONSENSUS_MISMATCH, UNAVAILABLE)
        and 2 * sum(replica.status in (HEALTHY, LAGGING, *STARTING) for replica in tablet.replicas)
        > len(tablet.replicas)
        for tablet in health.tablets
    )


def judge(survey: Survey, digests: dict[str, Digests] | None = None) -> ClusterHealth:
    """The verdict on everything; with `digests` (by tablet) also on whether replicas have the same rows."""
    masters, journals = judge_masters(survey), judge_journals(survey)
    addresses = {*survey.slots, *(server.address for server in survey.servers), *survey.states}
    servers = tuple(_server(address, survey) for address in sorted(addresses))
    tablets: list[TabletHealth] = []
    tables: list[TableHealth] = []
    for info in sorted(survey.tables, key=lambda table: table.name):
        judged = [
            judge_tablet(info, location, survey, digests)
            for location in sorted(info.tablets, key=lambda tablet: tablet.bucket)
        ]
        tablets += judged
        tables.append(_table(info, judged))
    reasons = (*reasons_of(masters, journals), *_reasons(servers, tables))
    status = worst([*(table.status for table in tables), status_of(masters, journals)])
    if any(server.status == DISK_FULL for server in servers):
        status = worst([status, DISK_FULL])
    if status == HEALTHY and reasons:
        status = DEGRADED
    return ClusterHealth(
        status, not reasons, reasons, masters, servers, tuple(tables), tuple(tablets), journals
    )


def _reasons(servers: tuple[ServerHealth, ...], tables: list[TableHealth]) -> tuple[str, ...]:
    found: list[str] = []
    for server in servers:
        if server.status not in (HEALTHY, STOPPED):
            found.append(f"{server.address} is {server.status}: {server.error}")
        elif server.failed:
            found.append(f"{server.address} has {count(server.failed, 'failed replica')}")
    for table in tables:
        for status in reversed(STATUSES[1:]):
            if table.tablets.get(status):
                found.append(f"table {table.name}: {count(table.tablets[status], 'tablet')} {status}")
    return tuple(found)


# -- roles ---------------------------------------------------------------------------------------------------


def _server(address: str, survey: Survey) -> ServerHealth:
    """Judge a server by its own state and by its heartbeats to the master."""
    listed = next((server for server in survey.servers if server.address == address), None)
    state = survey.states.get(address) or Unanswered("NotAsked", "it was not asked")
    if isinstance(state, Unanswered):
        health = ServerHealth(address, UNREACHABLE, None, None, 0, 0, 0, error=state.message)
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
                    health, status=STOPPED, replicas=0, error="stopped after draining"
                )
    else:
        status, error = _condition(state, listed, survey)
        health = ServerHealth(
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
    age_s, draining, maintained = listed.heartbeat_age_s, listed.draining, listed.maintained
    return msgspec.structs.replace(health, heartbeat_age_s=age_s, draining=draining, maintained=maintained)


def _condition(state: ServerState, listed: ServerStatus | None, survey: Survey) -> tuple[str, str | None]:
    """The status of a server that answers, and the reason if it is not healthy."""
    uuid = state.instance.uuid
    if listed is not None and listed.uuid not in ("", uuid):
        return WRONG_SERVER, f"server {short(uuid)} answers there, the master knows {short(listed.uuid)}"
    if survey.active is not None and (listed is None or not listed.alive):
        return SILENT, "it answers, but the master receives no heartbeat from it"
    if state.lost_disks:
        lost = ", ".join(f"{path} ({why})" for path, why in state.lost_disks.items())
        return DISK_LOST, f"lost {lost}; replace the disk, or take the directory out of data_dirs"
    full = full_disks(state)
    return (DISK_FULL, full) if full else (HEALTHY, None)


def _table(info: TableInfo, tablets: list[TabletHealth]) -> TableHealth:
    statuses = [tablet.status for tablet in tablets]
    leading = [r for tablet in tablets for r in tablet.replicas if r.uuid == tablet.leader]
    return TableHealth(
        name=info.name,
        status=worst(statuses),
        wanted=info.replicas,
        tablets={status: statuses.count(status) for status in STATUSES if status in statuses},
        bytes=sum(replica.bytes or 0 for replica in leading),
    )


# -- one tablet ----------------------------------------------------------------------------------------------


def judge_tablet(
    info: TableInfo, location: TabletLocation, survey: Survey, digests: dict[str, Digests] | None = None
) -> TabletHealth:
    views: dict[str, ReplicaReport] = {}
    statuses: dict[str, tuple[str, str | None]] = {}
    for place in location.replicas:
        status, error, view = _report(location.tablet, place.uuid, survey.states.get(place.address))
        statuses[place.uuid] = status, error
        if view is not None:
            views[place.uuid] = view
    running = {uuid: view for uuid, view in views.items() if statuses[uuid][0] == HEALTHY}
    leader = _leader(running)
    commit_index = running[leader].commit_index if leader is not None else None
    marks = {server.address: (server.draining, server.maintained) for server in survey.servers}
    chief = None if leader is None else running[leader]
    replicas = tuple(
        _as_member(
            _replica(place.uuid, place.address, *statuses[place.uuid], views.get(place.uuid), commit_index),
            chief,
            *marks.get(place.address, (False, False)),
        )
        for place in sorted(location.replicas, key=lambda place: place.address)
    )
    digested = None if digests is None else digests.get(location.tablet)
    if digested is not None:
        replicas = tuple(with_digest(replica, digested) for replica in replicas)
    problems = _problems(info, location, replicas, running, leader, room=_has_room(location, survey))
    problems += different_rows(replicas, digested)
    return TabletHealth(
        tablet=location.tablet,
        table=info.name,
        bucket=location.bucket,
        status=worst([status for status, _ in problems]),
        leader=leader,
        term=running[leader].term if leader is not None else max((v.term for v in views.values()), default=0),
        wanted=info.replicas,
        healthy=sum(replica.status == HEALTHY for replica in replicas),
        replicas=replicas,
        reasons=tuple(reason for _, reason in problems),
        checksum_index=digested.index if digested is not None and digested.error is None else None,
        unsafe=max((view.configuration.unsafe for view in views.values()), default=0),
    )


def _has_room(location: TabletLocation, survey: Survey) -> bool:
    """Whether another host could take a further replica, as far as servers are known."""
    places = [place.address for place in location.replicas]
    taken = [server.host for server in survey.servers if server.address in places]
    return not survey.servers or any(
        server.alive
        and not (server.draining or server.maintained)
        and server.address not in places
        and server.host not in taken
        for server in survey.servers
    )


def _report(
    tablet: str, uuid: str, state: ServerState | Unanswered | None
) -> tuple[str, str | None, ReplicaReport | None]:
    """The replica's own status, the reason, and its report if there is one."""
    if state is None:
        return UNREACHABLE, "its server was not asked", None
    if isinstance(state, Unanswered):
        return UNREACHABLE, state.message, None
    if state.instance.uuid != uuid:
        return WRONG_SERVER, f"server {short(state.instance.uuid)} answers at this address", None
    view = next((replica for replica in state.replicas if replica.tablet == tablet), None)
    if view is None:
        return MISSING, "its server does not have it", None
    if view.state == "deleted":
        return TOMBSTONE, "; ".join(filter(None, ("its leader is to have it copied", view.error))), None
    if view.state == "failed" or (view.state == "running" and view.error):
        return FAILED, view.error or "no reason given", view
    if view.state == "copying":
        return COPYING, "it is being copied", view
    if view.state != "running":
        return BOOTSTRAPPING, f"it is {view.state}", view
    return HEALTHY, None, view


def _leader(running: dict[str, ReplicaReport]) -> str | None:
    """The replica that claims to lead; of several the one with the greatest term."""
    claims = [uuid for uuid, view in running.items() if view.leads]
    return max(claims, key=lambda uuid: running[uuid].term, default=None)


def _replica(
    uuid: str,
    address: str,
    status: str,
    error: str | None,
    view: ReplicaReport | None,
    commit_index: int | None,
) -> ReplicaHealth:
    if view is None:
        return ReplicaHealth(uuid, address, status, error=error)
    lag = None if commit_index is None or status == FAILED else max(0, commit_index - view.applied_index)
    if status == HEALTHY and lag is not None and lag > LAG_ENTRIES_MAX:
        status, error = LAGGING, f"it is {lag:,} entries behind"
    return ReplicaHealth(
        uuid=uuid,
        address=address,
        status=status,
        role=view.role,
        term=view.term,
        leader=view.leader,
        members=tuple(peer.uuid for peer in view.configuration.peers),
        configuration_index=view.configuration.index,
        last_index=view.last_index,
        commit_index=view.commit_index,
        applied_index=view.applied_index,
        flushed_index=view.flushed_index,
        lag=lag,
        bytes=view.rows_bytes,
        error=error,
    )


def _as_member(
    replica: ReplicaHealth, chief: ReplicaReport | None, draining: bool, maintained: bool
) -> ReplicaHealth:
    """The replica with the leader's report of it, and the marks of its server."""
    replica = msgspec.structs.replace(replica, draining=draining, maintained=maintained)
    peer = None if chief is None else chief.configuration.peer(replica.uuid)
    if chief is None or peer is None:
        return replica
    return msgspec.structs.replace(
        replica,
        member=VOTER if peer.member == "voter" else PRE_VOTER if peer.promote else NON_VOTER,
        replace=peer.replace,
        health="healthy" if replica.uuid == chief.leader else chief.health.get(replica.uuid),
    )


def _problems(
    info: TableInfo,
    location: TabletLocation,
    replicas: tuple[ReplicaHealth, ...],
    running: dict[str, ReplicaReport],
    leader: str | None,
    *,
    room: bool,
) -> list[tuple[str, str]]:
    if not location.replicas:
        return [(UNAVAILABLE, f"it is {location.state}: no server has it yet")]
    found: list[tuple[str, str]] = []
    voters = [place.uuid for place in location.replicas if place.role != "learner"]
    room = room or len(voters) > info.replicas or any(replica.member == PRE_VOTER for replica in replicas)
    lacks_room = not room and leader is not None  # without a leader room would not help
    stuck = f"{NO_ROOM}add one" if lacks_room else ""
    for replica in replicas:
        if replica.status == HEALTHY:
            continue
        passes = replica.status in (LAGGING, *STARTING) or replica.member == PRE_VOTER
        word = RECOVERING if passes else UNDER_REPLICATED
        why = f": {replica.error}" if replica.status != UNREACHABLE else _unreachable(replica, lacks_room)
        found.append((word, f"{_name(replica)} at {replica.address} is {replica.status}{why}"))
    if len(voters) < info.replicas:
        found.append((UNDER_REPLICATED, f"it has {len(voters)} of {count(info.replicas, 'replica')}{stuck}"))
    found += [(RECOVERING, reason) for reason in _unfinished(replicas, len(voters), info.replicas, stuck)]
    voting = sum(uuid in running for uuid in voters)
    if voting <= len(voters) // 2:
        found.append((UNAVAILABLE, f"{voting} of {count(len(voters), 'voter')} run, no majority"))
    elif leader is None:
        found.append((UNAVAILABLE, "none of its replicas leads"))
    if leader is not None:
        found += _disagreements(location, running, leader)
    return found


def _unreachable(replica: ReplicaHealth, lacks_room: bool) -> str:
    """The remark on an unreachable replica. The reason of the silence is reported once, with the server."""
    if replica.maintained:
        return ": its server is in maintenance"
    return f"{NO_ROOM}bring it back, or add one" if lacks_room and replica.member != NON_VOTER else ""


def _unfinished(replicas: tuple[ReplicaHealth, ...], voters: int, wanted: int, stuck: str) -> list[str]:
    """Unfinished changes of members; `stuck`: why they do not continue."""
    found = []
    for replica in replicas:
        if replica.status == HEALTHY and replica.member == PRE_VOTER:
            found.append(f"the pre-voter at {replica.address} is about to vote")
        if replica.replace:
            found.append(f"replica at {replica.address} is to be replaced{stuck}")
        elif replica.draining:
            found.append(
                f"replica at {replica.address} is to go: its server drains{stuck if replica.member != NON_VOTER else ''}"
            )
        if replica.status == HEALTHY and replica.health in OUT_OF_ORDER:
            found.append(f"replica at {replica.address} is {replica.health} as its leader sees it")
    if voters > wanted:
        found.append(f"it has {voters} voters, {voters - wanted} more than its table wants")
    return found


def _name(replica: ReplicaHealth) -> str:
    return "replica" if replica.member in (None, VOTER) else replica.member


def _disagreements(
    location: TabletLocation, running: dict[str, ReplicaReport], leader: str
) -> list[tuple[str, str]]:
    """Replicas that disagree with the leader, and the master if it does."""
    addresses = {place.uuid: place.address for place in location.replicas}
    chief = running[leader]
    members = _members(chief)
    found: list[str] = []
    for uuid, view in running.items():
        who = addresses[uuid]
        if uuid != leader and view.leads:
            found.append(f"{who} says that it leads in term {view.term}, the leader is in {chief.term}")
        elif view.leader != leader:
            believed = addresses.get(view.leader, short(view.leader)) if view.leader else "no replica"
            found.append(f"{who} takes {believed} for the leader, not {addresses[leader]}")
        elif view.term != chief.term:
            found.append(f"{who} is in term {view.term}, the leader in {chief.term}")
        if _members(view) != members:
            found.append(f"{who} has another configuration than the leader")
    if location.leader != addresses[leader]:
        found.append(
            f"the master takes {location.leader or 'no replica'} for the leader, not {addresses[leader]}"
        )
    if sorted(addresses) != sorted(members):
        found.append("the master has another configuration than the leader")
    return [(CONSENSUS_MISMATCH, reason) for reason in found]


def _members(view: ReplicaReport) -> dict[str, str]:
    return {peer.uuid: peer.member for peer in view.configuration.peers}
