"""Known mistakes: each is one changed method of the core, of a lease or of the master's rules. Most of them are defects that are
planted into whole deployments, too (chaos/defects/pacifica.py)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ebla.actors.detector.lease import Lease
from ebla.actors.messages.stream import AppendReply, AppendRequest
from ebla.actors.replication import appointments
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.core import Pending
from ebla.actors.tablet.pacifica import core as core_module
from ebla.actors.tablet.pacifica.core import PacificaCore
from ebla.chaos.defects import pacifica as defects
from ebla.chaos.defects.defect import Defect
from tests.pacifica import group as group_module
from tests.pacifica.faults import PacificaFaults

Mistake = tuple[object, str, Any]


def _planted(known: Defect, where: object = None, attribute: str = "") -> Mistake:
    """The defect that chaos/defects plants into whole deployments; `where`: the module here that has the changed function."""
    swaps = {name: (place, name, mistake) for place, name, mistake in known.swaps()}
    place, name, mistake = swaps[attribute] if attribute else next(iter(swaps.values()))
    return (where or place), name, mistake


def _acknowledge_at_once(self: PacificaCore, pending: Pending) -> AppendReply:
    return self._append_reply(True, self.last_index, self.last_index)


def _read_without_lease(self: PacificaCore, now: float) -> int:
    self._require_lead("serves no linearizable reads")
    return self.commit_index


def _appoint_in_any_lease(self: PacificaCore, now: float, configuration: Configuration, lease: int) -> None:
    self._pass_time(now)
    if configuration.index > self.term and configuration.primary == self.me:
        self._lead_ballot(configuration, lease if self._leases.holds(now, lease) else self._leases.number)  # type: ignore[attr-defined]


def _follow_any_ballot(self: PacificaCore, now: float, sender: str, request: AppendRequest) -> Any:
    self._pass_time(now)
    if self._lead is not None:
        return self._refuse_append(hint=0)
    if request.term > self.term:
        self._become_follower("follows", request.term, request.leader)
    self.leader = request.leader
    return self._match(request)


def _forget_the_ballot(self: PacificaCore, ballot: int, primary: str | None) -> None:
    self.term = ballot
    self.hard_state = replace(self.hard_state, term=ballot, vote=primary)


def _holds_any(self: Lease, now: float, number: int) -> bool:
    return self._begun and now < self.until


def _grant_any(stored: Configuration, asked: Configuration, sender: str) -> Configuration | None:
    return replace(asked, index=stored.index + 1)


def _grant_without_evidence(stored: Configuration, asked: Configuration, sender: str) -> Configuration | None:
    granted = appointments.grant(stored, asked, sender)
    return granted and replace(granted, settled=0)


# A master that appoints any voter at once. The members do not rely on its choice as long as one of them knows what is committed.
AT_ONCE: tuple[Mistake, ...] = (
    (PacificaFaults, "all_end", False),
    (group_module.Master, "_unless_it_waits", lambda self, detector, made: made),
    (group_module.Master, "_rank", lambda self, uuid: (uuid != self.stored.primary,)),
)
# These mistakes are harmless with another master.
BEHIND_THE_WAIT = (
    "a member takes entries of a primary that lacks committed ones",
    "a primary reads before its voters have taken its first entry",
    "a primary that a new master has not heard of is replaced",
)
MISTAKES: dict[str, Mistake] = {
    "an order goes to another process than its ballot is for": (
        group_module.Master,
        "_is_over",
        lambda self, detector: False,
    ),
    "the next process of a successor leads in its place": (
        group_module.Master,
        "_lives",
        lambda self, detector, process: True,
    ),
    "an order leaves while another primary is being appointed": (
        group_module.Master,
        "_may_order",
        lambda self: True,
    ),
    "an old copy leads, because no ballot is settled": (group_module, "grant", _grant_without_evidence),
    "a member takes entries of a primary that lacks committed ones": (
        core_module,
        "lacks_committed",
        lambda log, commit_index, request: False,
    ),
    "a primary reads before its voters have taken its first entry": (
        PacificaCore,
        "_reads_from",
        lambda self, lead: lead.inherited,
    ),
    "a request that may be granted does not count": _planted(defects.request_does_not_count),
    "the slowest secondary does not count": _planted(defects.committed_by_majority),
    "an entry is acknowledged before it is durable": (PacificaCore, "answer", _acknowledge_at_once),
    "a primary reads without a lease": (PacificaCore, "read_index", _read_without_lease),
    "a primary reads before its inherited entries are committed": _planted(defects.read_before_inherited),
    "an order counts in any lease": (PacificaCore, "appoint", _appoint_in_any_lease),
    "a learner votes before it holds everything": _planted(defects.learner_with_a_gap),
    "a learner counts in place of a voter": _planted(defects.learner_counts),
    "a primary asks for its successor while it still reads": _planted(defects.asks_before_stepping_down),
    "a member follows an earlier ballot": (PacificaCore, "receive", _follow_any_ballot),
    "a primary that has committed nothing of its own verifies a copy": (
        PacificaCore,
        "_shows_all",
        lambda self, request, until: until >= request.commit_index,
    ),
    "a ballot is not durable": (PacificaCore, "_enter", _forget_the_ballot),
    "a lease has no end": _planted(defects.lease_without_end),
    "a lease has no number": (Lease, "holds", _holds_any),
    "the master grants a request of any ballot": (group_module, "grant", _grant_any),
    "a primary that a new master has not heard of is replaced": _planted(
        defects.unknown_taken_for_gone, group_module
    ),
    "a learner becomes the primary": _planted(defects.learner_appointed, group_module),
    "too few voters stay": _planted(defects.too_few_voters_stay, attribute="next_members"),
}
