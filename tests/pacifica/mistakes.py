"""Known mistakes: each is one changed method of the core, of a lease or of the master's rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from ebla.actors.detector.lease import Lease
from ebla.actors.messages.stream import AppendReply, AppendRequest
from ebla.actors.replication import appointments
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.engine.core import Pending
from ebla.actors.tablet.pacifica import core as core_module
from ebla.actors.tablet.pacifica.core import PacificaCore
from ebla.actors.tablet.pacifica.primary import Primary
from tests.pacifica import group as group_module

Mistake = tuple[object, str, Callable[..., Any]]


def _needed_without(part: str) -> Callable[..., list[str]]:
    def needed(self: PacificaCore, lead: Primary) -> list[str]:
        coming = self.asked.voters() if self.asked and part != "asked" else ()
        voters = [peer.uuid for peer in (*self.configuration.voters(), *coming)]
        if part == "slowest":
            held = {uuid: lead.peers[uuid].match for uuid in voters if uuid != self.me}
            voters = [uuid for uuid in voters if not held or uuid != min(held, key=lambda each: held[each])]
        return list(dict.fromkeys([*voters, *lead.joining]))

    return needed


def _acknowledge_at_once(self: PacificaCore, pending: Pending) -> AppendReply:
    return self._append_reply(True, self.last_index, self.last_index)


def _read_without_lease(self: PacificaCore, now: float) -> int:
    self._require_lead("serves no linearizable reads")
    return self.commit_index


def _read_what_is_committed(self: PacificaCore, now: float) -> int:
    self._require_lead("serves no linearizable reads")
    if not self._leases.holds(now, self._lease):
        raise core_module.errors.Unavailable("no lease")
    return self.commit_index


def _appoint_in_any_lease(self: PacificaCore, now: float, configuration: Configuration, lease: int) -> None:
    self._pass_time(now)
    if configuration.index > self.term and configuration.primary == self.me:
        self._lead_ballot(configuration, lease if self._leases.holds(now, lease) else self._leases.number)  # type: ignore[attr-defined]


def _ready_too_early(self: PacificaCore, lead: Primary) -> None:
    if self.asked is not None or lead.transfer is not None:
        return
    ready = [peer.uuid for peer in self.configuration.peers if peer.promote and lead.peers[peer.uuid].streams]
    members = core_module.next_members(self.configuration, ready, lead.failing(self._now))
    if members != self.configuration.peers:
        self._ask(core_module.appointed(replace(self.configuration, peers=members), self.me))


def _hand_over_before_stepping_down(self: PacificaCore, lead: Primary) -> None:
    if self.asked is None and lead.successor_ready(self._now - self.limits.silent_s):
        assert lead.transfer is not None
        successor, lead.transfer = lead.transfer.successor, None
        self._ask(core_module.appointed(self.configuration, successor))


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


def _holds_for_ever(self: Lease, now: float, number: int) -> bool:
    return self._begun and number == self.number


def _holds_any(self: Lease, now: float, number: int) -> bool:
    return self._begun and now < self.until


def _grant_any(stored: Configuration, asked: Configuration, sender: str) -> Configuration | None:
    return replace(asked, index=stored.index + 1)


def _take_over_a_live_primary(
    stored: Configuration,
    ended: str,
    *,
    silent: bool,
    gone: Callable[[str], bool],
    alive: Callable[[str], bool],
    primaries: Callable[[str], int],
) -> Configuration | None:
    """Any live member follows, a learner too."""
    others = [peer.uuid for peer in stored.peers if peer.uuid != ended and alive(peer.uuid)]
    if ended != stored.primary or not others:
        return None
    peers = tuple(replace(peer, member="voter", promote=False) for peer in stored.peers)
    return appointments.appointed(replace(stored, peers=peers), others[-1])


def _take_the_unknown_for_gone(stored: Configuration, ended: str, **known: Any) -> Configuration | None:
    alive = known["alive"]
    return appointments.after_end(stored, ended, **{**known, "gone": lambda uuid: not alive(uuid)})


def _demote_all(configuration: Configuration, ready: Any, failing: Any) -> Any:
    return appointments.next_members(replace(configuration, min_members=1), ready, failing)


MISTAKES: dict[str, Mistake] = {
    "a request that may be granted does not count": (PacificaCore, "_needed", _needed_without("asked")),
    "the slowest secondary does not count": (PacificaCore, "_needed", _needed_without("slowest")),
    "an entry is acknowledged before it is durable": (PacificaCore, "answer", _acknowledge_at_once),
    "a primary reads without a lease": (PacificaCore, "read_index", _read_without_lease),
    "a primary reads before its inherited entries are committed": (
        PacificaCore,
        "read_index",
        _read_what_is_committed,
    ),
    "an order counts in any lease": (PacificaCore, "appoint", _appoint_in_any_lease),
    "a learner votes before it holds everything": (PacificaCore, "_consider", _ready_too_early),
    "a primary asks for its successor while it still reads": (
        PacificaCore,
        "_continue_transfer",
        _hand_over_before_stepping_down,
    ),
    "a member follows an earlier ballot": (PacificaCore, "receive", _follow_any_ballot),
    "a ballot is not durable": (PacificaCore, "_enter", _forget_the_ballot),
    "a lease has no end": (Lease, "holds", _holds_for_ever),
    "a lease has no number": (Lease, "holds", _holds_any),
    "the master grants a request of any ballot": (group_module, "grant", _grant_any),
    "a primary that a new master has not heard of is replaced": (
        group_module,
        "after_end",
        _take_the_unknown_for_gone,
    ),
    "a learner becomes the primary": (group_module, "after_end", _take_over_a_live_primary),
    "too few voters stay": (core_module, "next_members", _demote_all),
}
