"""Judges every tablet and replica, by the reports of the master and of each server. Await-free.

A tablet is judged by what each of its replicas reports at its own server, and by whether these reports agree with each other
and with the master. The statuses of a tablet, from bad to good:

    DEAD                 no voter runs
    UNREADABLE           a voter runs, but nothing is read or written: service.py says why
    UNWRITABLE           it is read, and not written
    UNAVAILABLE          of a deployment only: no master is active, or the journal takes no edits
    CHECKSUM_MISMATCH    replicas hold different rows as of the same log index
    CONSENSUS_MISMATCH   replicas, or the master, disagree about the leader or the configuration
    DISK_HUNG            of a deployment only: it works, but a disk of a server or ledger store does not answer
    DISK_FULL            of a deployment only: it works, but a server, a master or a journal node stores nothing more
    UNDER_REPLICATED     it works, but one more loss may stop it: a replica failed, is missing or unreachable
    DEGRADED             of a deployment only: its tables are well, but another role is not
    RECOVERING           all replicas are there; one is starting, being copied, catching up, or about to leave
    HEALTHY

A replica is HEALTHY, LAGGING, BOOTSTRAPPING, COPYING, TOMBSTONE (it has no rows, and will be copied), FAILED, MISSING (its
server answers and does not have it), UNREACHABLE or WRONG_SERVER (another server answers at its address). A pre-voter that is
not complete yet is no loss. Reports are from slightly different moments, so a mismatch may be an election under way: callers
survey again before they report it (`may_pass`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from ebla.health import verdicts as v
from ebla.health.checksums import different_rows, reasons_of_digests, with_digest
from ebla.health.ledgers import NO_AUDITOR, reasons_of_ledgers
from ebla.health.masters import judge_journals, judge_masters, reasons_of, status_of
from ebla.health.needs import has_room
from ebla.health.servers import judge_server
from ebla.health.service import lost_service
from ebla.health.stores import judge_stores, reasons_of_stores
from ebla.wording import count, short

if TYPE_CHECKING:
    from ebla.actors.messages import ReplicaReport, ServerState, TableInfo, TabletLocation

STARTING = (v.BOOTSTRAPPING, v.COPYING)
NO_ROOM = "; no other host that is up can take it: "
LAG_ENTRIES_MAX = 1000  # committed entries; reports differ by some ms of full load


def worst(statuses: list[str]) -> str:
    return max(statuses, key=v.STATUSES.index, default=v.HEALTHY)


def may_pass(health: v.ClusterHealth) -> bool:
    """Whether the problem may end in a moment: an election, a heartbeat under way, a starting replica."""
    if any(master.status != v.HEALTHY for master in health.masters):
        return True
    if any(node.status != v.HEALTHY for node in health.journals):
        return True
    if any(server.status == v.NO_LEASE for server in health.servers):
        return True
    if any(store.status in (v.UNREACHABLE, v.SILENT) for store in health.stores):
        return True
    if health.repairs_idle == NO_AUDITOR or health.ledgers_unknown:
        return True
    if any(ledger.status != v.UNRECOVERABLE for ledger in health.ledgers):
        return True
    return any(
        not tablet.replicas  # it is being created
        or (
            tablet.status in (v.RECOVERING, v.CONSENSUS_MISMATCH, *v.OUT_OF_SERVICE)
            and 2 * sum(replica.status in (v.HEALTHY, v.LAGGING, *STARTING) for replica in tablet.replicas)
            > len(tablet.replicas)
        )
        for tablet in health.tablets
    )


def judge(survey: v.Survey, digests: dict[str, v.Digests] | None = None) -> v.ClusterHealth:
    """The verdict on everything; with `digests` (by tablet) also on whether replicas have the same rows."""
    masters, journals = judge_masters(survey), judge_journals(survey)
    stores = judge_stores(survey)
    addresses = {*survey.slots, *(server.address for server in survey.servers), *survey.states}
    servers = tuple(judge_server(address, survey) for address in sorted(addresses))
    reports = _reports(survey)
    marks = {each.address: {name: getattr(each, name) for name in MARKS} for each in survey.servers}
    tablets: list[v.TabletHealth] = []
    tables: list[v.TableHealth] = []
    for info in sorted(survey.tables, key=lambda table: table.name):
        judged = [
            _judge_tablet(info, location, survey, reports, marks, digests)
            for location in sorted(info.tablets, key=lambda tablet: tablet.bucket)
        ]
        tablets += judged
        tables.append(_table(info, judged))
    reasons = (
        *reasons_of(masters, journals),
        *_reasons_of_servers(servers),
        *reasons_of_stores(stores),
        *reasons_of_ledgers(survey.ledgers, survey.ledgers_unknown, survey.repairs_idle),
        *v.reasons_of_tables(tables),
        *reasons_of_digests((digests or {}).values()),
    )
    status = worst([*(table.status for table in tables), status_of(masters, journals)])
    found = [*(server.status for server in servers), *(store.status for store in stores)]
    status = worst([status, *(each for each in found if each in (v.DISK_FULL, v.DISK_HUNG))])
    if status == v.HEALTHY and reasons:
        status = v.DEGRADED
    return v.ClusterHealth(
        status,
        not reasons,
        reasons,
        masters,
        servers,
        tuple(tables),
        tuple(tablets),
        journals,
        stores,
        survey.ledgers,
        survey.ledgers_unknown,
        survey.repairs_idle,
    )


def _reasons_of_servers(servers: tuple[v.ServerHealth, ...]) -> list[str]:
    found: list[str] = []
    for server in servers:
        if server.status not in (v.HEALTHY, v.STOPPED):
            found.append(f"{server.address} is {server.status}: {server.error}")
        elif server.failed:
            found.append(f"{server.address} has {count(server.failed, 'failed replica')}")
    return found


# -- tables -------------------------------------------------------------------------------------------------


def _table(info: TableInfo, tablets: list[v.TabletHealth]) -> v.TableHealth:
    statuses = [tablet.status for tablet in tablets]
    leading = [r for tablet in tablets for r in tablet.replicas if r.uuid == tablet.leader]
    return v.TableHealth(
        name=info.name,
        status=worst(statuses),
        wanted=info.replicas,
        tablets={status: statuses.count(status) for status in v.STATUSES if status in statuses},
        bytes=sum(replica.bytes or 0 for replica in leading),
        classes=dict(Counter(tablet.health_class for tablet in tablets)),
    )


# -- one tablet ----------------------------------------------------------------------------------------------


Reports = Mapping[str, Mapping[str, "ReplicaReport"]]
Marks = Mapping[str, bool]
MARKS = ("draining", "maintained", "suspended", "unlisted")


def _reports(survey: v.Survey) -> Reports:
    """The replicas that servers report, by address and tablet: a search in the lists would take the square of their lengths."""
    return {
        address: {replica.tablet: replica for replica in reversed(state.replicas)}
        for address, state in v.answered(survey.states).items()
    }


def _judge_tablet(
    info: TableInfo,
    location: TabletLocation,
    survey: v.Survey,
    reports: Reports,
    marks: Mapping[str, Marks],
    digests: dict[str, v.Digests] | None,
) -> v.TabletHealth:
    views: dict[str, ReplicaReport] = {}
    statuses: dict[str, tuple[str, str | None]] = {}
    for place in location.replicas:
        state, reported = survey.states.get(place.address), reports.get(place.address, {})
        status, error, view = _report(place.uuid, state, reported.get(location.tablet))
        statuses[place.uuid] = status, error
        if view is not None:
            views[place.uuid] = view
    running = {uuid: view for uuid, view in views.items() if statuses[uuid][0] == v.HEALTHY}
    leader = _leader(running)
    commit_index = running[leader].commit_index if leader is not None else None
    chief = None if leader is None else running[leader]
    replicas = tuple(
        _as_member(
            _replica(place.uuid, place.address, *statuses[place.uuid], views.get(place.uuid), commit_index),
            chief,
            marks.get(place.address, {}),
        )
        for place in sorted(location.replicas, key=lambda place: place.address)
    )
    digested = None if digests is None else digests.get(location.tablet)
    if digested is not None:
        replicas = tuple(with_digest(replica, digested) for replica in replicas)
    problems = _problems(info, location, replicas, running, leader, survey)
    problems += different_rows(replicas, digested)
    status = worst([status for status, _ in problems])
    return v.TabletHealth(
        tablet=location.tablet,
        table=info.name,
        bucket=location.bucket,
        status=status,
        leader=leader,
        term=running[leader].term
        if leader is not None
        else max((view.term for view in views.values()), default=0),
        wanted=info.replicas,
        healthy=sum(replica.status == v.HEALTHY for replica in replicas),
        replicas=replicas,
        reasons=tuple(reason for _, reason in problems),
        checksum_index=digested.index if digested is not None and digested.error is None else None,
        unsafe=max([len(location.forced), *(view.configuration.unsafe for view in views.values())]),
        replication=info.replication,
        health_class=v.health_class(status),
        forced=location.forced,
    )


def _report(
    uuid: str, state: ServerState | v.Unanswered | None, view: ReplicaReport | None
) -> tuple[str, str | None, ReplicaReport | None]:
    """The replica's own status, the reason, and its report if there is one."""
    if state is None:
        return v.UNREACHABLE, "its server was not asked", None
    if isinstance(state, v.Unanswered):
        return v.UNREACHABLE, state.message, None
    if state.instance.uuid != uuid:
        return v.WRONG_SERVER, f"server {short(state.instance.uuid)} answers at this address", None
    if view is None:
        return v.MISSING, "its server does not have it", None
    if view.state == "deleted":
        return v.TOMBSTONE, "; ".join(filter(None, ("its leader is to have it copied", view.error))), None
    if view.state == "failed" or (view.state == "running" and view.error):
        return v.FAILED, view.error or "no reason given", view
    if view.state == "copying":
        return v.COPYING, "it is being copied", view
    if view.state != "running":
        return v.BOOTSTRAPPING, f"it is {view.state}", view
    return v.HEALTHY, None, view


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
) -> v.ReplicaHealth:
    if view is None:
        return v.ReplicaHealth(uuid, address, status, error=error)
    lag = None if commit_index is None or status == v.FAILED else max(0, commit_index - view.applied_index)
    if status == v.HEALTHY and lag is not None and lag > LAG_ENTRIES_MAX:
        status, error = v.LAGGING, f"it is {lag:,} entries behind"
    return v.ReplicaHealth(
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
        **({} if view.runs is None else msgspec.structs.asdict(view.runs)),
    )


def _as_member(replica: v.ReplicaHealth, chief: ReplicaReport | None, marks: Marks) -> v.ReplicaHealth:
    """The replica with the leader's report of it, and the marks of its server."""
    replica = msgspec.structs.replace(replica, **marks)
    peer = None if chief is None else chief.configuration.peer(replica.uuid)
    if chief is None or peer is None:
        return replica
    return msgspec.structs.replace(
        replica,
        member=v.VOTER if peer.member == "voter" else v.PRE_VOTER if peer.promote else v.NON_VOTER,
        replace=peer.replace,
        health="healthy" if replica.uuid == chief.leader else chief.health.get(replica.uuid),
    )


def _problems(
    info: TableInfo,
    location: TabletLocation,
    replicas: tuple[v.ReplicaHealth, ...],
    running: dict[str, ReplicaReport],
    leader: str | None,
    survey: v.Survey,
) -> list[tuple[str, str]]:
    if not location.replicas:
        doing = "being created" if location.state == "creating" else location.state
        return [(v.UNREADABLE, f"it is {doing}: no server has it yet")]
    found: list[tuple[str, str]] = []
    voters = [place.uuid for place in location.replicas if place.role != "learner"]
    coming = any(each.member == v.PRE_VOTER and each.status != v.UNREACHABLE for each in replicas)
    places = [place.address for place in location.replicas]
    room = has_room(places, survey) or len(voters) > info.replicas or coming
    lacks_room = not room and leader is not None  # without a leader room would not help
    stuck = f"{NO_ROOM}add one" if lacks_room else ""
    for replica in replicas:
        if replica.status == v.HEALTHY:
            continue
        passes = replica.status in (v.LAGGING, *STARTING) or replica.member == v.PRE_VOTER
        word = v.RECOVERING if passes else v.UNDER_REPLICATED
        why = f": {replica.error}" if replica.status != v.UNREACHABLE else _unreachable(replica, lacks_room)
        name = _name(replica, info)
        found.append((word, f"{name} at {replica.address} is {replica.status}{why}"))
    if len(voters) < info.replicas:
        found.append(
            (v.UNDER_REPLICATED, f"it has {len(voters)} of {count(info.replicas, 'replica')}{stuck}")
        )
    found += [(v.RECOVERING, reason) for reason in _unfinished(replicas, len(voters), info, stuck)]
    found += _out_of_order(replicas, survey)
    if location.in_doubt:
        found.append((v.UNREADABLE, f"it is in doubt: {location.in_doubt}"))
    lost = lost_service(info, location, replicas, running, leader, survey)
    if lost is not None:
        found.append(lost)
    if leader is not None:
        found += _disagreements(location, running, leader)
    return found


def _unreachable(replica: v.ReplicaHealth, lacks_room: bool) -> str:
    """The remark on an unreachable replica. The reason of the silence is reported once, with the server."""
    if replica.maintained:
        return ": its server is in maintenance"
    return f"{NO_ROOM}bring it back, or add one" if lacks_room and replica.member != v.NON_VOTER else ""


def _unfinished(replicas: tuple[v.ReplicaHealth, ...], voters: int, info: TableInfo, stuck: str) -> list[str]:
    """Unfinished changes of members; `stuck`: why they do not continue."""
    found = []
    for replica in replicas:
        if replica.status == v.HEALTHY and replica.member == v.PRE_VOTER:
            name = v.member_word(v.PRE_VOTER, info.replication)
            found.append(f"the {name} at {replica.address} is about to vote")
        if replica.replace:
            found.append(f"replica at {replica.address} is to be replaced{stuck}")
        elif replica.draining:
            found.append(
                f"replica at {replica.address} is to go: its server drains{stuck if replica.member != v.NON_VOTER else ''}"
            )
    if voters > info.replicas:
        found.append(f"it has {voters} voters, {voters - info.replicas} more than its table wants")
    return found


def _out_of_order(replicas: tuple[v.ReplicaHealth, ...], survey: v.Survey) -> list[tuple[str, str]]:
    """Replicas that run, and that their leader does not find in order: while a disk hangs, that does not pass by itself."""
    found = []
    for replica in replicas:
        if replica.status == v.HEALTHY and replica.health in v.OUT_OF_ORDER:
            state = survey.states.get(replica.address)
            hung = state is not None and not isinstance(state, v.Unanswered) and state.hung_disks
            why = f"replica at {replica.address} is {replica.health} as its leader sees it"
            found.append(
                (v.UNDER_REPLICATED if hung else v.RECOVERING, why + (": a disk hangs" if hung else ""))
            )
    return found


def _name(replica: v.ReplicaHealth, info: TableInfo) -> str:
    return "replica" if replica.member in (None, v.VOTER) else v.member_word(replica.member, info.replication)


def _disagreements(
    location: TabletLocation, running: dict[str, ReplicaReport], leader: str
) -> list[tuple[str, str]]:
    """Replicas that disagree with the leader, and the master if it does."""
    addresses = {place.uuid: place.address for place in location.replicas}
    chief = running[leader]
    members = _members(chief)
    era = "term" if chief.view is None else chief.view.era
    found: list[str] = []
    for uuid, view in running.items():
        who = addresses[uuid]
        if uuid != leader and view.leads:
            found.append(f"{who} says that it leads in {era} {view.term}, the leader is in {chief.term}")
        elif view.leader != leader:
            believed = addresses.get(view.leader, short(view.leader)) if view.leader else "no replica"
            found.append(f"{who} takes {believed} for the leader, not {addresses[leader]}")
        elif view.term != chief.term:
            found.append(f"{who} is in {era} {view.term}, the leader in {chief.term}")
        if _members(view) != members:
            found.append(f"{who} has another configuration than the leader")
    if location.leader != addresses[leader]:
        found.append(
            f"the master takes {location.leader or 'no replica'} for the leader, not {addresses[leader]}"
        )
    if sorted(addresses) != sorted(members):
        found.append("the master has another configuration than the leader")
    return [(v.CONSENSUS_MISMATCH, reason) for reason in found]


def _members(view: ReplicaReport) -> dict[str, str]:
    return {peer.uuid: peer.member for peer in view.configuration.peers}
