"""Defects of PacificA tablets: of leases and the detector, of the master's rules, and of the core.

tests/pacifica/mistakes.py plants those of the core and of the rules into groups in memory, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from ebla.actors import errors
from ebla.actors.detector.detector import ACKNOWLEDGED, ENDING, Detector
from ebla.actors.detector.lease import Lease
from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.master.catalog.edits import Edit
from ebla.actors.master.pacifica import planner
from ebla.actors.master.pacifica.appointer import Appointer
from ebla.actors.master.pacifica.doubts import Doubts
from ebla.actors.messages import ServerInstance
from ebla.actors.messages.appointments import Appointed, Appointments
from ebla.actors.messages.stream import AppendReply
from ebla.actors.replication import appointments
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.tablet.engine.core import Pending, Sent
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.pacifica import core
from ebla.actors.tablet.pacifica.core import PacificaCore
from ebla.actors.tablet.pacifica.leasing import Leasing
from ebla.actors.tablet.pacifica.primary import Primary
from ebla.actors.tablet.stream.peers import Transfer
from ebla.chaos.defects.defect import Swap, defect
from ebla.chaos.plans import Fault

HOSTS = ("host-1", "host-2", "host-3")

# -- leases and the detector

# The server is cut off for longer than the grace, and its clock is slow.
CUT_OFF_AND_SLOW = (
    Fault(0.0, "clock_rate", ("host-1",), 12.0, 0.9),
    Fault(2.0, "isolate", ("host-1",), 5.0),
)
# The server returns to the master, and not to the other members.
APART_FROM_ITS_GROUP = (
    Fault(1.0, "cut_master", ("host-1",), 4.5),
    *(Fault(1.0, "cut", ("host-1", host), 8.0) for host in ("host-2", "host-3")),
)
# Answers of the master are late. Then, from one server after the other, nothing arrives at the master and the other members.
LATE_ANSWERS = (
    Fault(0.0, "delay", (), 12.5, 1.0),
    *(Fault(0.0, "clock_rate", (host,), 12.5, 0.9) for host in HOSTS),
    *(
        Fault(2.0 + 3.5 * n, kind, (host, other), 3.2)
        for n, host in enumerate(HOSTS)
        for kind, other in (("cut_one_way", "master"), *(("cut", each) for each in HOSTS if each != host))
    ),
)
# Many messages are late while servers start again and again.
LATE_BEACONS = (
    Fault(0.0, "delay", (), 12.0, 3.0),
    *(Fault(1.5 + 0.5 * n, "crash", (HOSTS[n % 3],), 0.05) for n in range(12)),
)
# Many messages are late. The first server starts again, and leads again because the others do.
ENDED_LONG_AGO = (
    Fault(0.0, "delay", (), 12.0, 3.0),
    *(Fault(at_s + 0.4 * n, "crash", (host,), 0.05) for at_s in (1.5, 6.0) for n, host in enumerate(HOSTS)),
)
# The master starts again while the first server is cut off, and another server does so, too.
UNKNOWN_TO_A_NEW_MASTER = (
    Fault(2.3, "crash", ("host-2",), 0.02),
    Fault(2.8, "isolate", ("host-1",), 3.5),
    Fault(2.82, "crash", ("master",), 0.02),
)
# From one server after the other nothing arrives at the other members, and nothing from the master at the server.
ASKED_AND_NOT_ANSWERED = tuple(
    Fault(2.0 + 3.5 * n, kind, between, 3.2)
    for n, host in enumerate(HOSTS)
    for kind, between in (
        ("cut_one_way", ("master", host)),
        *(("cut", (host, each)) for each in HOSTS if each != host),
    )
)
# The master makes a learner a voter. Its answers to the primary are lost, and the learner is cut off.
GRANTED_AND_NOT_ANSWERED = (
    Fault(2.0, "crash", ("host-3",), 1.6),
    *(Fault(4.1, "cut_one_way", ("master", host), 3.0) for host in ("host-1", "host-2")),
    Fault(4.25, "isolate", ("host-3",), 4.0),
)
# A host is down while the others go on in later ballots. An older catalog is accepted when only that host, and a fourth one, are up.
ACCEPTED_WITHOUT_VOTERS = (
    Fault(2.0, "accept_catalog", (), 4.6),
    Fault(2.5, "crash", ("host-1",), 4.0),
    *(Fault(6.3, "crash", (host,), 7.0) for host in ("host-2", "host-3")),
)


@defect("pacifica-registers", 20, Lease, "__init__", seed=1, faults=CUT_OFF_AND_SLOW)
def lease_equals_the_grace(original: Any, self: Lease, limits: DetectorLimits) -> None:
    """A server's lease is as long as the master's grace, as if all clocks had the same speed."""
    original(self, replace(limits, lease_s=limits.grace_s))


@defect("pacifica-leases", 40, Lease, "acknowledged", seed=1, faults=LATE_ANSWERS)
def server_lease_from_answer(original: Any, self: Lease, now: float, number: int, sent_at: float) -> None:
    """A server's lease counts from the answer to its beacon, not from the sending."""
    original(self, now, number, now)


@defect("pacifica-registers", 20, Lease, "holds", seed=1, faults=CUT_OFF_AND_SLOW)
def lease_without_end(self: Lease, now: float, number: int) -> bool:
    """A primary continues to serve when its lease is over."""
    return self._begun or number < self.number


@defect("pacifica-restores", 60, Appointer, "__post_init__", seed=7)
def lease_by_an_older_catalog(original: Any, self: Appointer) -> None:
    """A master on an older copy of its catalog gives leases until a heartbeat comes."""
    original(self)
    self._require_newest = lambda uuid, seen: None


@defect("pacifica-registers", 20, seed=1, faults=APART_FROM_ITS_GROUP)
def stale_primary_serves() -> list[Swap]:
    """A primary whose lease was over serves again in the next lease, without a new ballot."""
    tick = PacificaCore.tick

    def tick_with_a_lease(self: PacificaCore, now: float) -> None:
        if self._leases.holds(now, self._lease):
            tick(self, now)

    def holds_any(self: Lease, now: float, number: int) -> bool:
        return self._begun and now < self.until

    return [(PacificaCore, "tick", tick_with_a_lease), (Lease, "holds", holds_any)]


@defect("pacifica-restarts", 60, Detector, "beacon", seed=1)
def beacon_acknowledged_too_early(
    original: Any, self: Detector, now: float, shown: ServerInstance, lease: int
) -> str:
    """A beacon is acknowledged while the edit of its server's end is being made durable."""
    refused: str = original(self, now, shown, lease)
    server = self._servers.get(shown.uuid)
    return ACKNOWLEDGED if server is not None and server.state == ENDING else refused


@defect("pacifica-masters", 60, Detector, "__init__")
def no_grace_after_take_over(
    original: Any, self: Detector, limits: DetectorLimits, now: float, servers: Iterable[Any], *more: Any
) -> None:
    """A new master takes away the replicas of every server whose beacon it has not received yet."""
    original(self, limits, now, servers, *more)
    for server in self._servers.values():
        server.heard_at = now - limits.grace_s


@defect("pacifica-registers", 20, Appointer, "_decide")
def incarnation_not_recorded(original: Any, self: Appointer) -> list[Edit]:
    """The end of a server is recorded without the incarnation that follows."""
    edits = [replace(edit, incarnations=()) for edit in original(self)]
    return [edit for edit in edits if edit.configurations]


@defect("pacifica-leases", 60, seed=0, faults=LATE_BEACONS)
def earlier_incarnation_followed() -> list[Swap]:
    """A beacon of a former process, which arrives late, makes the present one look like the former."""
    meet = Detector._meet

    def meet_any(self: Detector, server: Any, shown: ServerInstance, now: float) -> bool:
        if server.instance is not None and server.instance.start != shown.start:
            server.instance = replace(server.instance, seqno=0)
        return meet(self, server, shown, now)

    return [(Appointer, "_meet", lambda self, instance: None), (Detector, "_meet", meet_any)]


# -- the master's rules


@defect("pacifica-masters", 60, Detector, "process_ended", seed=4, faults=ENDED_LONG_AGO)
def end_of_a_former_process_counted(
    original: Any, self: Detector, now: float, process: ServerInstance
) -> bool:
    """The news that a former process of a server has ended, which arrives late, ends its present one."""
    server = self._servers.get(process.uuid)
    present = server.instance if server is not None else None
    ended: bool = original(self, now, present or process)
    return ended


@defect("pacifica-leases", 60, Appointer, "_decide", seed=1)
def granted_before_durable(original: Any, self: Appointer) -> Any:
    """The master answers a primary's request before the configuration is durable."""
    edits = original(self)
    made = self._plan.configurations
    for waiting in self._planned_for:
        stamp = self.detector.lease(waiting.request.instance.uuid)
        asked = [each.tablet for each in waiting.request.requested if each.tablet in made]
        if stamp is not None and asked and not waiting.answer.done():
            found = tuple(Appointed(tablet, made[tablet]) for tablet in asked)
            waiting.answer.set_result(Appointments(stamp.start, stamp.number, found))
    return edits


@defect("pacifica-leases", 60, seed=5, faults=UNKNOWN_TO_A_NEW_MASTER)
def unknown_taken_for_gone() -> list[Swap]:
    """A new master replaces a primary whose beacon it has not received yet, because another server has restarted."""
    original = appointments.after_end

    def after_end(stored: Configuration, ended: str, **known: Any) -> Any:
        alive = known["alive"]
        return original(stored, ended, **{**known, "gone": lambda uuid: not alive(uuid)})

    return [(planner, "after_end", after_end), (planner.Planner, "_waits", lambda *given: False)]


@defect("pacifica-elections", 60, planner, "after_end", seed=3)
def learner_appointed(
    stored: Configuration,
    ended: str,
    *,
    silent: bool,
    gone: Callable[[str], bool],
    alive: Callable[[str], bool],
    rank: Callable[[str], tuple[int, ...]],
) -> Configuration | None:
    """Any live member may become the primary, a learner too."""
    others = [peer.uuid for peer in stored.peers if peer.uuid != ended and alive(peer.uuid)]
    if ended != stored.primary or not others:
        return None
    peers = tuple(replace(peer, member="voter", promote=False) for peer in stored.peers)
    return appointments.appointed(replace(stored, peers=peers), others[-1])


@defect("pacifica-elections", 60, seed=1)
def too_few_voters_stay() -> list[Swap]:
    """A change leaves fewer voters than `min_members`, and the primary and the master allow that."""
    grant = appointments.grant

    def next_members(configuration: Configuration, ready: Any, failing: Any) -> Any:
        return appointments.next_members(replace(configuration, min_members=1), ready, failing)

    def grant_any(stored: Configuration, asked: Configuration, sender: str) -> Configuration | None:
        granted = grant(replace(stored, min_members=1), replace(asked, min_members=1), sender)
        return granted and replace(granted, min_members=stored.min_members)

    return [
        (core, "next_members", next_members),
        (planner, "grant", grant_any),
        (PacificaCore, "_may_commit", lambda self: True),
    ]


@defect("pacifica-accepts", 60, planner, "Doubts", seed=1)
def older_catalog_not_doubted(original: Any, *given: Any) -> Any:
    """A master on an accepted older copy of its catalog appoints primaries by that copy."""
    return original()


@defect("pacifica-accepts", 60, Doubts, "_knows", faults=ACCEPTED_WITHOUT_VOTERS)
def doubt_ended_too_early(
    original: Any, self: Doubts, tablet: str, peer: Peer, last: Any, stamp: Any
) -> bool:
    """A tablet of an accepted older catalog gets a primary before every member of its last ballot has shown its replica."""
    return stamp is None or original(self, tablet, peer, last, stamp)


# -- the core


@defect("pacifica-elections", 60, seed=3)
def secondary_acknowledges_before_sync() -> list[Swap]:
    """A secondary acknowledges entries before they are on disk."""

    def durable(self: Replica, index: int) -> None:
        return None

    def answer(self: PacificaCore, pending: Pending) -> AppendReply:
        if pending.term != self.term:
            return self._refuse_append(hint=0)
        return self._append_reply(True, pending.until, pending.until)

    return [(Replica, "entries_durable", durable), (PacificaCore, "answer", answer)]


@defect("pacifica-elections", 60, PacificaCore, "_ask")
def adopted_before_the_catalog(original: Any, self: PacificaCore, configuration: Configuration) -> Any:
    """A primary follows the configuration that it asks for before the master has granted it."""
    made = original(self, configuration)
    if configuration.primary == self.me:
        self._lead_ballot(configuration, self._lease)
    return made


def _held(self: Primary, own_durable: int, uuids: Iterable[str]) -> list[int]:
    return sorted(own_durable if uuid == self.me else self.held_by(uuid) for uuid in uuids)


@defect("pacifica-elections", 60, Primary, "replicated_index", seed=1)
def committed_by_majority(self: Primary, own_durable: int, needed: Iterable[str]) -> int:
    """A primary commits an entry when a majority of the voters has it."""
    held = _held(self, own_durable, needed)
    return held[(len(held) - 1) // 2]


@defect("pacifica-elections", 60, Primary, "replicated_index", seed=7)
def learner_counts(self: Primary, own_durable: int, needed: Iterable[str]) -> int:
    """A learner's acknowledgement counts in place of a voter's."""
    held = _held(self, own_durable, [self.me, *self.peers])
    return held[-len(list(needed))]


@defect("pacifica-leases", 60, PacificaCore, "_needed", seed=13, faults=GRANTED_AND_NOT_ANSWERED)
def request_does_not_count(self: PacificaCore, lead: Primary) -> list[str]:
    """A primary commits without the voters of the configuration that the master may have granted already."""
    return list(dict.fromkeys([*(peer.uuid for peer in self.configuration.voters()), *lead.joining]))


@defect("pacifica-truncations", 60, PacificaCore, "_consider", seed=12)
def learner_with_a_gap(self: PacificaCore, lead: Primary) -> None:
    """A learner becomes a voter before it holds everything."""
    if self.asked is not None or lead.transfer is not None:
        return
    ready = [peer.uuid for peer in self.configuration.peers if peer.promote and lead.peers[peer.uuid].streams]
    members = appointments.next_members(self.configuration, ready, lead.failing(self._now))
    if members != self.configuration.peers:
        self._ask(appointments.appointed(replace(self.configuration, peers=members), self.me))


@defect("pacifica-reads", 60, PacificaCore, "read_index", seed=1)
def read_before_inherited(self: PacificaCore, now: float) -> int:
    """A new primary serves reads before the entries that it inherited are committed."""
    self._require_lead("serves no linearizable reads")
    if not self._leases.holds(now, self._lease):
        raise errors.Unavailable("no lease")
    return self.commit_index


@defect("pacifica-handovers", 60, PacificaCore, "_continue_transfer", seed=10, faults=ASKED_AND_NOT_ANSWERED)
def asks_before_stepping_down(
    self: PacificaCore, lead: Primary, transfer: Transfer, sent: Sent, answer: AppendReply
) -> None:
    """A primary asks the master for its successor while it still serves reads."""
    if self.asked is None and answer.success and answer.match == self.last_index:
        lead.transfer, self.successor = None, sent.process
        self._ask(appointments.appointed(self.configuration, transfer.successor))


@defect("pacifica-leases", 20, Leasing, "_report_waiting", seed=1, faults=APART_FROM_ITS_GROUP)
def ballot_led_twice(self: Leasing) -> None:
    """A replica whose lease was over, or that starts again, leads the ballot again for which it was appointed."""

    def lead_again(core: PacificaCore, now: float) -> None:
        if self.lease.holds(now, self.lease.number) and core.configuration.primary == core.me:
            core.hard_state = replace(core.hard_state, vote=None)
            core._lead_ballot(core.configuration, self.lease.number)

    for replica in self.replicas.values():
        if isinstance(replica.core, PacificaCore) and replica.core.awaits_ballot:
            self.rounds.step(replica, lead_again, replica.core, self.world.clock.monotonic())
