"""The verdict on the masters and on the nodes of their journal, from what each of them says itself. Await-free.

A deployment serves as long as one master is active and a majority of the journal nodes takes its edits. A standby that is
not there, or could not take over, or a journal node that is not there is a finding all the same: the next loss may be
the one too many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebla.verdicts import (
    FAILED,
    HEALTHY,
    LAGGING,
    MISSING,
    RECOVERING,
    REJOINING,
    UNAVAILABLE,
    UNDER_REPLICATED,
    UNREACHABLE,
    JournalHealth,
    MasterHealth,
    Survey,
    Unanswered,
)

if TYPE_CHECKING:
    from ebla.actors.journal.messages import JournalNodeStatus
    from ebla.actors.messages import MasterStatus

LAG_EDITS_MAX = (
    1000  # edits that a standby or a journal node may be behind; they are asked at slightly different moments
)
ACTIVE = "active"


def judge_masters(survey: Survey) -> tuple[MasterHealth, ...]:
    heard = [each for each in survey.masters.values() if not isinstance(each, Unanswered)]
    newest = max((each.edits for each in heard), default=0)
    return tuple(_master(address, said, newest) for address, said in survey.masters.items())


def judge_journals(survey: Survey) -> tuple[JournalHealth, ...]:
    said = [each for each in survey.journals.values() if not isinstance(each, Unanswered)]
    statuses = [status for node in said for status in node.journals]
    writer = max((status.writer for status in statuses), default=0)
    committed = max((status.committed for status in statuses), default=0)
    return tuple(_node(address, each, writer, committed) for address, each in survey.journals.items())


def status_of(masters: tuple[MasterHealth, ...], journals: tuple[JournalHealth, ...]) -> str:
    """What they mean for the deployment as a whole."""
    able = sum(node.status in (HEALTHY, LAGGING) for node in journals)
    if (masters and not is_served(masters)) or (journals and 2 * able <= len(journals)):
        return UNAVAILABLE
    statuses = [*(master.status for master in masters), *(node.status for node in journals)]
    if _stands_alone(masters) or any(status not in (HEALTHY, LAGGING) for status in statuses):
        return UNDER_REPLICATED
    return RECOVERING if LAGGING in statuses else HEALTHY


def reasons_of(masters: tuple[MasterHealth, ...], journals: tuple[JournalHealth, ...]) -> list[str]:
    found = [f"{master.address}: {master.error}" for master in masters if master.status != HEALTHY]
    if not masters:
        found.append("no master is known")
    elif not is_served(masters) and any(master.role for master in masters):
        found.append("no master is active: tables are not known, and none can be created, altered or dropped")
    elif is_served(masters) and _stands_alone(masters):
        found.append("no standby could take over from the active master")
    found += [f"{node.address} is {node.status}: {node.error}" for node in journals if node.status != HEALTHY]
    able = sum(node.status in (HEALTHY, LAGGING) for node in journals)
    if journals and 2 * able <= len(journals):
        found.append(
            f"{able} of {len(journals)} journal nodes take edits, no majority: no table can be created, altered or dropped"
        )
    return found


def is_served(masters: tuple[MasterHealth, ...]) -> bool:
    return any(master.role == ACTIVE for master in masters)


def _stands_alone(masters: tuple[MasterHealth, ...]) -> bool:
    """Whether there are standbys, and none of them could take over."""
    standbys = [master for master in masters if master.role != ACTIVE]
    return bool(standbys) and not any(master.status == HEALTHY for master in standbys)


def _master(address: str, said: MasterStatus | Unanswered, newest: int) -> MasterHealth:
    """`newest`: the last edit that any master knows of."""
    if isinstance(said, Unanswered):
        return MasterHealth(address, UNREACHABLE, said.message)
    sessions, overdue = said.sessions, said.sessions_overdue
    if overdue:
        late = "session has expired and is" if overdue == 1 else "sessions have expired and are"
        error = f"{overdue} {late} still there: no edit goes through; see its log and `ebla journal status`"
        return MasterHealth(address, LAGGING, error, said.role, sessions, overdue)
    if not said.caught_up:
        why = said.read_error or "it has not read all of the journal yet"
        return MasterHealth(address, LAGGING, f"it could not take over: {why}", said.role)
    if (lag := newest - said.edits) > LAG_EDITS_MAX:
        return MasterHealth(address, LAGGING, f"it is {lag:,} edits behind", said.role)
    return MasterHealth(address, HEALTHY, role=said.role, sessions=sessions)


def _node(address: str, said: JournalNodeStatus | Unanswered, writer: int, committed: int) -> JournalHealth:
    if isinstance(said, Unanswered):
        return JournalHealth(address, UNREACHABLE, said.message)
    if said.failed:
        return JournalHealth(address, FAILED, "; ".join(said.failed.values()))
    if not said.journals:
        lost = f"its directory was lost; `ebla journal rejoin {address}`"
        return JournalHealth(address, MISSING, lost)
    for status in said.journals:
        if status.rejoining:
            return JournalHealth(
                address, REJOINING, "it lost its directory, and counts when it has caught up"
            )
        if status.writer < writer:
            return JournalHealth(address, LAGGING, "it is left out until the next segment begins")
        if status.damaged:
            return JournalHealth(address, LAGGING, f"it fetches {len(status.damaged)} damaged segments anew")
        if (lag := committed - status.last) > LAG_EDITS_MAX:
            return JournalHealth(address, LAGGING, f"it is {lag:,} edits behind")
    return JournalHealth(address, HEALTHY)
