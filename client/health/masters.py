"""Judges the masters and the nodes of their journal, by what each of them reports. Await-free.

A deployment serves as long as one master is active and a majority of the journal nodes takes its edits. A standby that is
missing or could not take over, or a missing journal node, is a finding as well: the deployment may not survive the next loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebla.health import verdicts as v
from ebla.health.disks import full_of, low_of

if TYPE_CHECKING:
    from ebla.actors.journal.messages import JournalNodeStatus
    from ebla.actors.journal.writer.channel import ChannelStatus
    from ebla.actors.messages import MasterStatus

LAG_EDITS_MAX = 1000  # roles are asked at slightly different moments
LAG_MS_MAX = 120_000.0  # the writer leaves out a node that is so slow, or ends the segment


def judge_masters(survey: v.Survey) -> tuple[v.MasterHealth, ...]:
    newest = max((each.edits for each in v.answered(survey.masters).values()), default=0)
    return tuple(_master(address, answer, newest) for address, answer in survey.masters.items())


def judge_journals(survey: v.Survey) -> tuple[v.JournalHealth, ...]:
    id, nodes = journal_id(survey), v.answered(survey.journals).values()
    statuses = [status for node in nodes for status in node.journals if id in ("", status.journal.id)]
    writer = max((status.writer for status in statuses), default=0)
    committed = max((status.committed for status in statuses), default=0)
    waiting = {address for status in statuses for address in status.admits}
    lines: dict[str, ChannelStatus] = {}
    if survey.writer is not None and not isinstance(survey.writer, v.Unanswered):
        lines = {line.node: line for line in survey.writer.nodes}
    return tuple(
        _node(address, each, id, writer, committed, lines.get(address), waits=address in waiting)
        for address, each in survey.journals.items()
    )


def journal_id(survey: v.Survey) -> str:
    """The id of this deployment's journal: of the one that is written, or else that a majority of the nodes has; "" if unknown."""
    if survey.writer is not None and not isinstance(survey.writer, v.Unanswered):
        return survey.writer.journal.id
    held: dict[str, int] = {}
    for node in v.answered(survey.journals).values():
        for status in node.journals:
            held[status.journal.id] = held.get(status.journal.id, 0) + 1
    return next((id for id, count in held.items() if 2 * count > len(survey.journals)), "")


def status_of(masters: tuple[v.MasterHealth, ...], journals: tuple[v.JournalHealth, ...]) -> str:
    """The status of the whole deployment, by its masters and journal nodes."""
    able = sum(node.status in (v.HEALTHY, v.LAGGING) for node in journals)
    if (masters and not is_served(masters)) or (journals and 2 * able <= len(journals)):
        return v.UNAVAILABLE
    statuses = [*(master.status for master in masters), *(node.status for node in journals)]
    if _stands_alone(masters) or any(status not in (v.HEALTHY, v.LAGGING) for status in statuses):
        return v.DISK_FULL if v.DISK_FULL in statuses else v.DEGRADED
    return v.RECOVERING if v.LAGGING in statuses else v.HEALTHY


def reasons_of(masters: tuple[v.MasterHealth, ...], journals: tuple[v.JournalHealth, ...]) -> list[str]:
    found = [f"{master.address}: {master.error}" for master in masters if master.status != v.HEALTHY]
    if not masters:
        found.append("no master is known")
    elif not is_served(masters) and any(master.role for master in masters):
        found.append("no master is active: tables are not known, and none can be created, altered or dropped")
    elif is_served(masters) and _stands_alone(masters):
        found.append("no standby could take over from the active master")
    found += [
        f"{node.address} is {node.status}: {node.error}" for node in journals if node.status != v.HEALTHY
    ]
    able = sum(node.status in (v.HEALTHY, v.LAGGING) for node in journals)
    if journals and 2 * able <= len(journals):
        found.append(
            f"{able} of {len(journals)} journal nodes take edits, no majority: no table can be created, altered or dropped"
        )
    return found


def is_served(masters: tuple[v.MasterHealth, ...]) -> bool:
    return any(master.role == v.ACTIVE for master in masters)


def _stands_alone(masters: tuple[v.MasterHealth, ...]) -> bool:
    """Whether there are standbys, but none could take over."""
    standbys = [master for master in masters if master.role != v.ACTIVE]
    return bool(standbys) and not any(master.status in (v.HEALTHY, v.DISK_FULL) for master in standbys)


def _master(address: str, status: MasterStatus | v.Unanswered, newest: int) -> v.MasterHealth:
    """`newest`: the last edit that any master has."""
    if isinstance(status, v.Unanswered):
        return v.MasterHealth(address, v.UNREACHABLE, status.message)
    sessions, overdue = status.sessions, status.sessions_overdue
    if overdue:
        late = "session has expired and is" if overdue == 1 else "sessions have expired and are"
        error = f"{overdue} {late} still there: no edit goes through; see its log and `ebla journal status`"
        return v.MasterHealth(address, v.LAGGING, error, status.role, sessions, overdue, status.frozen)
    if not status.caught_up:
        why = status.read_error or "it has not read all of the journal yet"
        return v.MasterHealth(address, v.LAGGING, f"it could not take over: {why}", status.role)
    if (lag := newest - status.edits) > LAG_EDITS_MAX:
        return v.MasterHealth(address, v.LAGGING, f"it is {lag:,} edits behind", status.role)
    error = ""
    if full := full_of(status.disks):
        error = f"it can make no checkpoint of the catalog, so the journal is not trimmed: {full}"
    return v.MasterHealth(
        address,
        v.DISK_FULL if error else v.HEALTHY,
        error or None,
        status.role,
        sessions,
        frozen=status.frozen,
        low=low_of(status.disks),
    )


def _node(
    address: str,
    node: JournalNodeStatus | v.Unanswered,
    id: str,
    writer: int,
    committed: int,
    line: ChannelStatus | None,
    *,
    waits: bool,
) -> v.JournalHealth:
    """`id`, `writer` and `committed` are the journal's; `line`: the active master's report of the node.
    `waits`: the journal has grown, and the node has yet to be admitted."""
    if isinstance(node, v.Unanswered):
        return v.JournalHealth(address, v.UNREACHABLE, node.message)
    if node.failed:
        return v.JournalHealth(address, v.FAILED, "; ".join(node.failed.values()))
    if not node.journals:
        when = (
            " before it was admitted to the journal; if it does not join again by itself," if waits else ";"
        )
        lost = f"its directory was lost{when} `ebla journal rejoin {address}`"
        return v.JournalHealth(address, v.MISSING, lost)
    for status in node.journals:
        if id not in ("", status.journal.id):
            foreign = (
                f"it holds the journal of another deployment (id {status.journal.id}, not {id}); stop it, put its own "
                f"directory back or an empty one in its place, then `ebla journal rejoin {address}`"
            )
            return v.JournalHealth(address, v.FAILED, foreign)
        if status.old:
            copy = f"its directory is an older copy; `ebla journal rejoin {address}`"
            return v.JournalHealth(address, v.FAILED, copy)
        if status.joining:
            remedy = f"; if it stays so, `ebla journal rejoin {address}`" if waits else ""
            joins = f"it joins the journal, and counts when it has been admitted{remedy}"
            return v.JournalHealth(address, v.REJOINING, joins)
        if status.rejoining:
            return v.JournalHealth(
                address, v.REJOINING, "it lost its directory, and counts when it has caught up"
            )
        if full := full_of(node.disks):
            return v.JournalHealth(address, v.DISK_FULL, f"it takes no edits until space is freed: {full}")
        if line is not None and line.out_of_sync:
            why = f": {line.error}" if line.error else ""
            return v.JournalHealth(address, v.LAGGING, f"it is left out, and back with the next segment{why}")
        if status.writer < writer:
            return v.JournalHealth(address, v.LAGGING, "it is left out, and back with the next segment")
        if status.damaged:
            return v.JournalHealth(
                address, v.LAGGING, f"it fetches {len(status.damaged)} damaged segments again"
            )
        if (lag := committed - status.last) > LAG_EDITS_MAX:
            return v.JournalHealth(address, v.LAGGING, f"it is {lag:,} edits behind")
    if line is not None and line.lag_ms > LAG_MS_MAX:
        return v.JournalHealth(address, v.LAGGING, f"it is {line.lag_ms / 1000:.0f} s behind")
    return v.JournalHealth(address, v.HEALTHY, low=low_of(node.disks))
