"""Why a tablet does not work, what happens by itself, and the last resort for a PacificA tablet.

ask         every role about one tablet: the catalog, leases, replicas, quarantines
diagnosed   the verdict on these answers, without waiting
planned     a forced configuration, if every voter is lost; refused otherwise
force       carries the plan out
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ebla.actors import messages as m
from ebla.actors.errors import NotRunning
from ebla.actors.messages.diagnosis import ForceRequest, HolderEvidence, TabletEvidence
from ebla.actors.replication.configuration import PACIFICA, PRE_VOTER, VOTER, Configuration, Forced
from ebla.health import verdicts as v
from ebla.health.service import suspension_of
from ebla.health.survey import ask_each, gathered
from ebla.health.tablets import judge
from ebla.operate.cluster import Cluster
from ebla.operate.naming import Refused, meant
from ebla.operate.waiting import Progress
from ebla.wording import age, count, host_of, short

CALL_S = 5.0
FORCE_S = 20.0
ENDED, UP = "ended", "up"
REPLACED = "another server answers there"
DIAGNOSED_MAX = 20  # tablets of one command; each takes a call to the master


class Holder(msgspec.Struct, frozen=True):
    """A server that holds or held the tablet. `part`: see HolderEvidence. `server`: up, or why it does not answer. `state`: of its
    replica by its own answer, or by its last report if it gives none; None if there is no replica. `ballot`: the ballot, or term, in
    the replica's durable record; `configured`: that of the newest configuration in its log. `quarantined`: data of former replicas on
    the server. `trouble`: of the replica, or of its disks. `starts`: the server's process lives, and loads its replicas."""

    uuid: str
    address: str
    part: str
    server: str
    heartbeat_age_s: float | None
    lease: str
    beacon_age_s: float | None
    state: str | None
    role: str | None = None
    ballot: int | None = None
    last_index: int | None = None
    commit_index: int | None = None
    configured: int | None = None
    quarantined: tuple[str, ...] = ()
    trouble: str = ""
    starts: bool = False

    @property
    def loaded(self) -> bool:
        """Whether its replica runs, even if it lacks committed entries."""
        return self.server == UP and self.state == m.RUNNING

    @property
    def runs(self) -> bool:
        return self.loaded and not self.trouble

    @property
    def gone(self) -> bool:
        """Whether its data is known to be lost."""
        return self.server.startswith(REPLACED) or (self.server == UP and not self.runs)


class Diagnosis(msgspec.Struct, frozen=True):
    """`committed`: the highest log index that is known to be committed. `candidates`: uuids of replicas that could become the primary of
    a PacificA tablet that is dead or in doubt, the newest first. `in_doubt`: see TabletEvidence."""

    tablet: str
    table: str
    replication: str
    health_class: str
    status: str
    configuration: Configuration | None
    leader: str | None
    replicas: int
    min_members: int
    committed: int
    holders: tuple[Holder, ...]
    why: tuple[str, ...]
    by_itself: tuple[str, ...]
    safe: tuple[str, ...]
    force: str
    candidates: tuple[str, ...]
    forced: tuple[Forced, ...]
    in_doubt: str = ""


class Plan(msgspec.Struct, frozen=True):
    """A forced configuration of a PacificA tablet: `survivor` becomes the primary, all other members are given up."""

    tablet: str
    table: str
    survivor: Holder
    given_up: tuple[str, ...]
    configuration: Configuration
    committed: int

    @property
    def loss(self) -> str:
        return _loss(self.survivor, self.committed)


# -- answers of the roles ------------------------------------------------------------------------------------


async def diagnose(cluster: Cluster, tablet: str) -> Diagnosis:
    """Ask all roles about the tablet with this id, or the only one whose id begins with it."""
    survey, health = await cluster.tablet_health(tablet)
    return await _ask(cluster, survey, health)


async def diagnose_sick(cluster: Cluster) -> tuple[list[Diagnosis], int, int]:
    """The diagnoses of the tablets that are not fully healthy, at most DIAGNOSED_MAX of them; the number of such tablets, and of
    all tablets."""
    survey = await cluster.survey()
    health = judge(survey)
    sick = [each for each in health.tablets if each.health_class != v.FULLY_HEALTHY]
    found = await gathered([_ask(cluster, survey, each) for each in sick[:DIAGNOSED_MAX]])
    return found, len(sick), len(health.tablets)


async def _ask(cluster: Cluster, survey: v.Survey, health: v.TabletHealth) -> Diagnosis:
    request = m.TabletRequest(health.tablet)
    evidence = await cluster.call(await cluster.active(), "tablet_evidence", request, TabletEvidence, CALL_S)
    addresses = list(dict.fromkeys([*(each.address for each in evidence.holders), *cluster.slots]))
    asked = ask_each(cluster.network, addresses, "quarantine_list", m.QuarantineEntries, CALL_S)
    kept = {
        address: tuple(entry.name for entry in listed.entries if entry.tablet == health.tablet)
        for address, listed in v.answered(await asked).items()
    }
    return diagnosed(evidence, health, survey, kept)


# -- the verdict ---------------------------------------------------------------------------------------------


def diagnosed(
    evidence: TabletEvidence,
    health: v.TabletHealth,
    survey: v.Survey,
    quarantined: dict[str, tuple[str, ...]],
) -> Diagnosis:
    """The verdict. `quarantined`: the names of the tablet's data in the quarantine of each server, by address."""
    known = evidence.configuration
    holders = [_holder(evidence.tablet, each, survey, quarantined) for each in evidence.holders]
    listed = {holder.address for holder in holders}
    holders += [
        Holder("", address, "quarantine", UP, None, "", None, None, quarantined=names)
        for address, names in quarantined.items()
        if names and address not in listed
    ]
    voters = [holder for holder in holders if holder.part == VOTER]
    committed = max([evidence.committed, *(holder.commit_index or 0 for holder in holders)])
    pacifica = evidence.replication == PACIFICA
    forceable = health.status == v.DEAD or evidence.in_doubt
    candidates = _candidates(holders, voters=bool(evidence.in_doubt)) if pacifica and forceable else []
    return Diagnosis(
        tablet=evidence.tablet,
        table=evidence.table,
        replication=evidence.replication,
        health_class=health.health_class,
        status=health.status,
        configuration=known,
        leader=health.leader,
        replicas=evidence.replicas,
        min_members=evidence.min_members,
        committed=committed,
        holders=tuple(holders),
        why=health.reasons,
        by_itself=tuple(_by_itself(evidence, health, voters)),
        safe=tuple(_safe(health, holders)),
        force=_force(evidence, health, voters, candidates, committed),
        candidates=tuple(each.uuid for each in candidates),
        forced=evidence.forced,
        in_doubt=evidence.in_doubt,
    )


def _holder(
    tablet: str, known: HolderEvidence, survey: v.Survey, quarantined: dict[str, tuple[str, ...]]
) -> Holder:
    holder = Holder(
        uuid=known.uuid,
        address=known.address,
        part=known.part,
        server="it was not asked",
        heartbeat_age_s=known.heartbeat_age_s,
        lease=known.lease,
        beacon_age_s=known.beacon_age_s,
        state=known.state,
    )
    answer = survey.states.get(known.address)
    if answer is None:
        return holder
    if isinstance(answer, v.Unanswered):
        starts = answer.kind == NotRunning.__name__
        return msgspec.structs.replace(holder, server=answer.message, starts=starts)
    if answer.instance.uuid != known.uuid:
        lost = (
            f"another server answers there, {short(answer.instance.uuid)}: the directory of this one is gone"
        )
        return msgspec.structs.replace(holder, server=lost)
    report = next((each for each in answer.replicas if each.tablet == tablet), None)
    disks = "; ".join(f"disk {path}: {why}" for path, why in answer.lost_disks.items())
    holder = msgspec.structs.replace(
        holder, server=UP, state=None, quarantined=quarantined.get(known.address, ()), trouble=disks
    )
    if report is None:
        return holder
    view = report.view
    return msgspec.structs.replace(
        holder,
        state=report.state,
        role=None if view is None else view.role,
        ballot=None if view is None else view.term,
        last_index=None if view is None else view.last_index,
        commit_index=None if view is None else view.commit_index,
        configured=(report.pending or report.configuration).index,
        trouble="; ".join(filter(None, [report.error, disks if report.error else ""])),
    )


def _candidates(holders: Sequence[Holder], *, voters: bool = False) -> list[Holder]:
    """Replicas that run and are no voters, voters that lack committed entries, or all that run; the newest first, by the newest
    configuration in the log and then by its end."""
    able = [
        holder
        for holder in holders
        if (holder.runs and (voters or holder.part != VOTER))
        or (holder.loaded and not holder.runs and holder.part == VOTER)
    ]
    return sorted(able, key=lambda each: (each.configured or 0, each.last_index or 0), reverse=True)


def _by_itself(evidence: TabletEvidence, health: v.TabletHealth, voters: Sequence[Holder]) -> list[str]:
    if health.health_class == v.FULLY_HEALTHY:
        return ["nothing has to happen"]
    if evidence.state != "running":
        return [f"the tablet is {evidence.state}: the master makes its replicas when enough servers are up"]
    away = [host_of(each.address) for each in voters if not each.runs and not each.gone]
    if evidence.replication != PACIFICA:
        return _raft_by_itself(health, voters, away)
    if evidence.in_doubt:
        gone = [host_of(each.address) for each in voters if each.server.startswith(REPLACED)]
        cannot = f"; {' and '.join(gone)} cannot: {REPLACED}" if gone else ""
        return [f"a primary is appointed once every member of the last ballot has shown its replica{cannot}"]
    leases = _leases(evidence, [each for each in voters if not each.runs])
    if health.status == v.DEAD:
        return [_when_dead(away), *leases]
    running = [each.uuid for each in voters if each.runs]
    suspended = [each for each in health.replicas if each.suspended and each.uuid in running]
    if health.status == v.UNREADABLE and 0 < len(running) == len(suspended):
        return [f"nothing: {suspension_of(suspended)}", *leases]
    if health.status in (v.UNREADABLE, v.UNWRITABLE):
        waits = f"{' or '.join(away)} returns, or a" if away else "a"
        return [
            *leases,
            f"it waits until {waits} learner has caught up; the master adds one if a host has room",
        ]
    return [*leases, "the primary and the master replace what is missing, if a host has room"]


def _when_dead(away: Sequence[str]) -> str:
    if not away:
        return "nothing: no voter is left that has every acknowledged write"
    if len(away) == 1:
        return f"{away[0]} has every acknowledged write. When it returns with its data it becomes the primary at once, and nothing is lost"
    return (
        f"each of {', '.join(away)} has every acknowledged write. One that returns with its data is enough: it becomes the primary at "
        "once, and nothing is lost"
    )


def _raft_by_itself(health: v.TabletHealth, voters: Sequence[Holder], away: Sequence[str]) -> list[str]:
    lacking = len(voters) // 2 + 1 - sum(each.runs for each in voters)
    if lacking > len(away):
        return [
            f"nothing: the data of {len(voters) - len(away)} of {count(len(voters), 'voter')} is gone, or a majority never returns"
        ]
    if lacking > 0:
        return [
            f"it works again as soon as {lacking} of {', '.join(away)} returned; nothing is lost meanwhile"
        ]
    if health.leader is None:
        return ["its voters elect a leader; this takes some seconds"]
    return ["the leader and the master replace what is missing, if a host has room"]


def _leases(evidence: TabletEvidence, voters: Sequence[Holder]) -> list[str]:
    """When the servers that do not answer count as ended."""
    found = []
    for each in voters:
        if each.server != UP and each.lease not in (ENDED, ""):
            left_s = max(0.0, evidence.grace_s - (each.beacon_age_s or 0.0))
            found.append(
                f"the lease of {host_of(each.address)} may hold for {left_s:.0f} s more; then its replicas are taken away"
            )
    return found


def _safe(health: v.TabletHealth, holders: Sequence[Holder]) -> list[str]:
    if health.health_class == v.FULLY_HEALTHY:
        return []
    members = [each for each in holders if each.part in (VOTER, PRE_VOTER) and not each.runs]
    silent = [each for each in members if each.server != UP and not each.gone]
    found = []
    if silent:
        hosts = ", ".join(f"{host_of(each.address)} (last heartbeat {_ago(each)})" for each in silent)
        found.append(
            f"start the servers that do not answer, with their disks (`ebla up` starts roles and local nodes): {hosts}"
        )
    found += [
        f"see why the replica at {host_of(each.address)} failed: {each.trouble}"
        for each in members
        if each.trouble
    ]
    for each in holders:
        if each.quarantined:
            kept = count(len(each.quarantined), "entry", "entries")
            found.append(
                f"read the {kept} in the quarantine of {host_of(each.address)}: `ebla tablet quarantine list`, then `restore-to`"
            )
    return found


def _force(
    evidence: TabletEvidence,
    health: v.TabletHealth,
    voters: Sequence[Holder],
    candidates: Sequence[Holder],
    committed: int,
) -> str:
    """The configuration that can be forced, and its price."""
    tablet = short(evidence.tablet)
    if evidence.replication != PACIFICA:
        run = [each for each in voters if each.runs]
        if not run or len(run) > len(voters) // 2 or evidence.state != "running":
            return ""
        newest = max(run, key=lambda each: (each.ballot or 0, each.last_index or 0))
        return f"`ebla tablet unsafe-change-config {tablet} --keep {host_of(newest.address)}` gives up the others. {_loss(newest, committed)}"
    if not (health.status == v.DEAD or evidence.in_doubt) or evidence.state != "running":
        return ""
    if not candidates:
        return "nothing: no other server that is up has a running replica"
    newest = candidates[0]
    return (
        f"`ebla tablet diagnose {tablet} --accept-loss` makes {host_of(newest.address)} the primary and gives up every other member. "
        f"{_loss(newest, committed)}"
    )


def _loss(survivor: Holder, committed: int) -> str:
    last = survivor.last_index or 0
    ends = f"the log of {host_of(survivor.address)} ends at entry {last:,}"
    if committed <= last:
        return f"LOST: every acknowledged write after that, of which none is known: {ends}"
    lost = f"entry {committed:,}" if committed == last + 1 else f"entries {last + 1:,} to {committed:,}"
    return f"LOST: {lost}, known to be committed, and every later one: {ends}"


def _ago(holder: Holder) -> str:
    if holder.heartbeat_age_s is None:
        return "before the present master began"
    return f"{age(holder.heartbeat_age_s)} ago"


# -- a forced configuration ----------------------------------------------------------------------------------


def planned(diagnosis: Diagnosis, keep: str | None = None) -> Plan:
    """A plan that makes the server `keep` the primary, or else the newest candidate. Raises Refused if a voter may return its data by
    itself, or if the server has no running replica."""
    tablet, known = short(diagnosis.tablet), diagnosis.configuration
    if diagnosis.replication != PACIFICA:
        raise Refused(
            f"tablet {tablet} uses Raft, where a majority is given up instead of a primary",
            hint=f"`ebla tablet unsafe-change-config {tablet} --keep SERVER`",
        )
    alive = [host_of(each.address) for each in diagnosis.holders if each.part == VOTER and each.runs]
    if known is None or (not diagnosis.in_doubt and (alive or diagnosis.status != v.DEAD)):
        hosts = f"{', '.join(alive)} {'has' if len(alive) == 1 else 'have'} every acknowledged write"
        why = hosts if alive else "nothing is lost"
        raise Refused(
            f"tablet {tablet} is {diagnosis.health_class}, and {why}: no configuration needs to be forced",
            hint=f"`ebla tablet diagnose {tablet}` says what it waits for",
        )
    starting = [host_of(each.address) for each in diagnosis.holders if each.part == VOTER and each.starts]
    if starting:
        raise Refused(
            f"{' and '.join(starting)} starts, with a voter of tablet {tablet} that may have every acknowledged write: nothing needs to "
            "be given up",
            hint="ask again when it has loaded its replicas; or end that server for good, if its data cannot be used",
        )
    able = {each.uuid: each for each in diagnosis.holders if each.uuid in diagnosis.candidates}
    if not able:
        raise Refused(
            f"no server that is up has a running replica of tablet {tablet}", hint="start one of its servers"
        )
    uuid = diagnosis.candidates[0]
    if keep is not None:
        found = meant(keep, [(each.uuid, each.address) for each in able.values()])
        if found is None:
            hosts = ", ".join(host_of(each.address) for each in able.values())
            raise Refused(
                f"{keep!r} has no running replica of tablet {tablet}; there is one at {hosts}", hint=None
            )
        uuid = found
    given_up = tuple(peer.address for peer in known.peers if peer.uuid != uuid)
    return Plan(diagnosis.tablet, diagnosis.table, able[uuid], given_up, known, diagnosis.committed)


def request_of(plan: Plan, by: str) -> ForceRequest:
    known, survivor = plan.configuration, plan.survivor
    return ForceRequest(
        plan.tablet,
        survivor.uuid,
        known.index,
        known.unsafe,
        by,
        survivor.last_index or 0,
        plan.committed,
    )


async def force(cluster: Cluster, plan: Plan, by: str, progress: Progress) -> m.MembersReply:
    """Carry out the plan. The master refuses it for a while if a lease may still hold; a repeated request changes nothing twice."""
    request = request_of(plan, by)
    return await cluster.persist("force_primary", request, m.MembersReply, FORCE_S, progress)
