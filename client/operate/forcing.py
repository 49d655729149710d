"""A configuration without a majority: the last resort for a tablet whose majority is lost for good."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterator, Sequence

import msgspec

from ebla.actors.messages import MembersReply, ReplicaReport, UnsafeChangeRequest
from ebla.actors.replication.configuration import PACIFICA, VOTER, Configuration
from ebla.health.verdicts import Survey, TabletHealth, answered
from ebla.operate.cluster import Cluster
from ebla.operate.naming import Refused, replica_meant
from ebla.operate.waiting import Deadline, Progress
from ebla.storage.errors import EblaError, InvalidArgument
from ebla.wording import host_of, short

FORCE_S = 20.0
CALL_S = 25.0  # a survivor asks the others, and waits until the configuration is committed
AGAIN_S = 1.0


class Plan(msgspec.Struct, frozen=True):
    """The first of `survivors` (uuid and address) is asked to make itself the leader of `keep`; if it is refused, the next.
    `configuration`: the one that the first has committed."""

    tablet: str
    table: str
    survivors: tuple[tuple[str, str], ...]
    keep: tuple[str, ...]
    lost: tuple[str, ...]
    last_index: int
    commit_index: int
    configuration: Configuration


def planned(survey: Survey, health: TabletHealth, keep: Sequence[str]) -> Plan:
    """A plan to keep the servers that `keep` names. Raises Refused if it is not needed, or cannot work."""
    reports = survey.reports(health.tablet)
    if health.replication == PACIFICA:
        raise Refused(
            f"tablet {short(health.tablet)} uses PacificA, where one voter that returns is enough",
            hint=f"`ebla tablet diagnose {short(health.tablet)}`; with `--accept-loss`, if no voter will ever return",
        )
    _require_need(survey, health, reports)
    kept: dict[str, ReplicaReport] = {}
    for word in keep:
        replica = replica_meant(word, health)
        report = reports.get(replica.uuid)
        if report is None or report.state != "running":
            why = replica.error or "it does not answer"
            raise Refused(f"the replica at {word} cannot be kept: {why}", hint="keep the ones that run")
        kept[replica.uuid] = report
    able = {
        uuid: report
        for uuid, report in kept.items()
        if (peer := report.configuration.peer(uuid)) is not None and peer.member == VOTER
    }
    if not able:
        raise Refused("none of the kept members is a voter, and only a voter can lead", hint="keep a voter")
    order = sorted(able, key=lambda uuid: (able[uuid].last_index, able[uuid].commit_index), reverse=True)
    addresses = {replica.uuid: replica.address for replica in health.replicas}
    report = able[order[0]]
    strange = [host_of(addresses[uuid]) for uuid in kept if report.configuration.peer(uuid) is None]
    if strange:
        raise Refused(
            f"{host_of(addresses[order[0]])} is to lead, but its configuration lacks the replica at "
            f"{', '.join(strange)}: the change that added it has not arrived there",
            hint="keep the others only; missing replicas are created again",
        )
    return Plan(
        tablet=health.tablet,
        table=health.table,
        survivors=tuple((uuid, addresses[uuid]) for uuid in order),
        keep=tuple(kept),
        lost=tuple(peer.uuid for peer in report.configuration.peers if peer.uuid not in kept),
        last_index=report.last_index,
        commit_index=report.commit_index,
        configuration=report.configuration,
    )


def request_of(plan: Plan, uuid: str, reason: str) -> UnsafeChangeRequest:
    """The request to the survivor `uuid`."""
    known = plan.configuration
    return UnsafeChangeRequest(uuid, plan.tablet, plan.keep, known.index, reason, known.unsafe)


async def force(cluster: Cluster, plan: Plan, progress: Progress) -> MembersReply:
    """Carry out the plan by the first survivor that may lead. A survivor that has less than another refuses for good; one that
    received a heartbeat of a leader a moment ago refuses for a while."""
    deadline = Deadline(FORCE_S)
    left = list(plan.survivors)
    while True:
        uuid, address = left[0]
        request = request_of(plan, uuid, "requested on the command line")
        try:
            return await cluster.call(address, "unsafe_change", request, MembersReply, CALL_S)
        except InvalidArgument as error:
            if len(left) == 1:
                raise
            progress.step(error.message)
            del left[0]
        except EblaError as error:
            if not error.retriable or deadline.passed:
                raise
            progress.step(error.message)
            await asyncio.sleep(AGAIN_S)


def _require_need(survey: Survey, health: TabletHealth, reports: dict[str, ReplicaReport]) -> None:
    """Refuse unless the tablet has lost a majority. The voters are those of the newest configuration that a survivor has
    committed (without a leader no other source is newer), and those of a configuration that a survivor has on top of it and
    that may never be committed: a leader needs a majority of both."""
    run = {uuid: report for uuid, report in reports.items() if report.state == "running"}
    newest = max((report.configuration for report in run.values()), key=lambda each: each.order, default=None)
    if newest is None:
        return
    for configuration in (newest, *_pending(survey, health.tablet, run, newest)):
        voters = configuration.voters()
        alive = sum(peer.uuid in run for peer in voters)
        if alive < configuration.majority:
            return
    raise Refused(
        f"{alive} of {len(voters)} voters of tablet {short(health.tablet)} run, a majority: no configuration needs to be forced",
        hint=f"`ebla tablet remove-replica {short(health.tablet)} SERVER` removes a replica",
    )


def _pending(
    survey: Survey, tablet: str, run: Container[str], newest: Configuration
) -> Iterator[Configuration]:
    for state in answered(survey.states).values():
        pending = state.pending.get(tablet) if state.instance.uuid in run else None
        if pending is not None and pending.order > newest.order:
            yield pending
