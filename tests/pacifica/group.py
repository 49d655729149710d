"""A PacificA group in memory: real cores, leases, the real detector and the master's real rules, in a network, with disks and
clocks that the test controls. `master` is a name in the network like a server's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from ebla.actors.detector.detector import (
    ACKNOWLEDGED,
    DECIDED,
    DIED,
    NEW,
    REPORT_GRACES,
    SILENT,
    Detector,
    End,
)
from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.messages import ServerInstance
from ebla.actors.replication.appointments import after_end, appointed, forced, grant
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.tablet.pacifica.limits import PacificaLimits
from tests.pacifica.invariants import PacificaOracle
from tests.pacifica.node import Node, Report
from tests.stream import group
from tests.stream.node import shown

DECIDE_S = 0.1


class Held(NamedTuple):
    """The last report of a server, by the process `start`."""

    start: str = ""
    in_force: int = 0
    last_index: int = 0
    verified: bool = False


class Master:
    """The active master of one tablet: the catalog's configuration, made durable edit by edit, and the detector."""

    def __init__(self, owner: Group, first: Configuration) -> None:
        self.group = owner
        self.stored = first
        self.history = {first.index: first}
        self.recorded: dict[str, ServerInstance] = {}  # in the catalog: every incarnation that got a lease
        self.primary_start = ""  # in the catalog: the process that the ballot is for
        self.held: dict[str, Held] = {}
        self.settled = (
            0  # the ballot that primaries say all voters held; the stored configuration says so, too
        )
        self.edit_s = 0.01
        self.late_s = 0.0  # orders may take this much longer than other messages
        self.rate, self.origin = 1.0, 0.0
        self.detector: Detector | None = None
        self.term = 0  # of the active master
        self._editing = False
        self.start()

    def clock(self) -> float:
        return self.origin + self.group.now * self.rate

    def start(self) -> None:
        """A master becomes active. It knows the catalog only."""
        servers = [(name, self.recorded.get(name)) for name in self.group.names]
        self.detector = Detector(self.group.times, self.clock(), servers)
        self.term += 1
        self._editing = False
        self._decides(self.term)

    def stop(self) -> None:
        self.detector = None
        self.term += 1

    # -- what servers say

    def beacon(
        self,
        instance: ServerInstance,
        lease: int,
        report: Report,
        answer: Callable[[str], None],
    ) -> None:
        if self.detector is None:
            return
        word = self.detector.beacon(self.clock(), instance, lease)
        for delay in self.group.network.delays("master", instance.uuid):
            self.group.after(delay, "network", lambda: answer(word))
        if word == DECIDED:
            self._decide()
        if word != ACKNOWLEDGED:
            return
        ends = report.in_force, report.last_index
        self.held[instance.uuid] = Held(instance.start, *ends, report.verified)
        if instance.uuid == self.stored.primary and self._may_order():
            if report.ballot < self.stored.index and not self._is_over(self.detector):
                self._order(instance.uuid)
            elif not report.leads:
                self._edit(self._unless_it_waits(self.detector, self._again(self.detector, self.stored)))

    def process_ended(self, process: ServerInstance) -> None:
        if self.detector is not None:
            self.detector.process_ended(self.clock(), process)

    def _is_over(self, detector: Detector) -> bool:
        """Whether the primary has another process than the one that its ballot is for."""
        stamp = detector.lease(self.stored.primary or "")
        return stamp is not None and stamp.start != self.primary_start

    def _again(self, detector: Detector, stored: Configuration) -> Configuration:
        """The primary, or a voter with a longer log, in the next ballot."""
        assert stored.primary is not None, stored
        able = [peer.uuid for peer in stored.voters() if self._may_lead(detector, peer.uuid)]
        return appointed(stored, min(able or [stored.primary], key=self._rank))

    def _rank(self, uuid: str) -> tuple[int, ...]:
        held = self.held.get(uuid, Held())
        if held.verified:
            return 0, 0, 0, uuid != self.stored.primary
        return 1, -held.in_force, -held.last_index, uuid != self.stored.primary

    def _unless_it_waits(self, detector: Detector, made: Configuration) -> Configuration | None:
        """A process that has begun of late waits for the other voters, and any that is not verified for those whose beacons come."""
        now, held = self.clock(), self._present(detector, made.primary or "")
        if held is not None and held.verified:
            return made
        begins = detector.is_new(now, made.primary or "")
        others = (peer.uuid for peer in self.stored.voters() if peer.uuid != made.primary)
        waits = any(
            begins or (detector.was_met(now, uuid) and detector.is_new(now, uuid, REPORT_GRACES))
            for uuid in others
            if self._present(detector, uuid) is None
        )
        return None if waits else made

    def _may_order(self) -> bool:
        """While an edit is under way, the stored configuration may be over: another primary may be about to be appointed."""
        return not self._editing

    def declined(self, sender: str, start: str, ballot: int) -> None:
        """The process does not lead in this ballot, and never will: another voter may, at once."""
        stamp = self.detector.lease(sender) if self.detector else None
        if (
            stamp is None
            or stamp.start != start
            or (sender, ballot) != (self.stored.primary, self.stored.index)
        ):
            return
        assert self.detector is not None
        self._edit(self._replaced(self.detector, sender, silent=True))

    def alter(self, least: int) -> None:
        """Change the least number of voters, whatever the primary does."""
        if self.detector is not None and self.stored.primary is not None:
            self._edit(appointed(replace(self.stored, min_members=least), self.stored.primary))

    def asked(self, sender: str, asked: Configuration, successor: ServerInstance | None) -> None:
        if self.detector is None or self._editing:
            return  # the sender asks again
        granted = grant(self.stored, asked, sender)
        if granted is None:
            self._order(sender)
        else:
            if asked.primary != sender and not self._lives(self.detector, successor):
                granted = replace(appointed(self.stored, sender), settled=asked.settled)

            def durable() -> None:
                self.settled = max(self.settled, asked.settled)
                self._order(sender)

            self._edit(granted, durable)

    def _lives(self, detector: Detector, process: ServerInstance | None) -> bool:
        """Whether the process for which the primary has stepped down has not ended."""
        return process is not None and detector.has_ended_process(process) is False

    def force(self, name: str) -> bool:
        """Give up every member but `name`, as an operator does. Returns whether it is possible: every voter has ended, and the
        server of `name` has a lease and its replica."""
        voters = [peer.uuid for peer in self.stored.voters()]
        if self.detector is None or self._editing or not all(map(self.detector.has_ended, voters)):
            return False
        if self.group.nodes[name].lost or self.detector.lease(name) is None:
            return False
        self._edit(forced(self.stored, Peer(name, f"host-{name}")))
        return True

    # -- decisions

    def _decides(self, term: int) -> None:
        if self.detector is not None and term == self.term:
            self._decide()
            self.group.after(DECIDE_S, "timer", lambda: self._decides(term))

    def _decide(self) -> None:
        detector = self.detector
        assert detector is not None
        for end in detector.decide(self.clock()):
            self._end(detector, end)
        primary = self.stored.primary
        if primary is not None and detector.has_ended(primary):
            self._edit(self._replaced(detector, primary, silent=True))

    def _end(self, detector: Detector, end: End) -> None:
        """Take the replicas of a server away and record its incarnation, by one edit."""
        died, leads = end.reason == DIED, end.uuid == self.stored.primary
        stays = end.reason == NEW or (died and not leads)
        made = None if stays else self._replaced(detector, end.uuid, silent=died or end.reason == SILENT)

        def durable() -> None:
            if end.instance is not None:
                if end.uuid not in self.recorded and end.uuid == self.stored.primary:
                    self.primary_start = end.instance.start
                self.recorded[end.uuid] = end.instance
            detector.ended(end)

        self._edit(made, durable)

    def _replaced(self, detector: Detector, uuid: str, *, silent: bool) -> Configuration | None:
        made = after_end(
            self.stored,
            uuid,
            silent=silent,
            gone=detector.has_ended,
            alive=lambda other: self._may_lead(detector, other),
            rank=self._rank,
        )
        if made is None or (made.primary == self.stored.primary and not self._is_over(detector)):
            return made
        if made.primary == self.stored.primary:
            made = replace(self._again(detector, made), index=made.index)
        return self._unless_it_waits(detector, made)

    def _present(self, detector: Detector, uuid: str) -> Held | None:
        stamp, held = detector.lease(uuid), self.held.get(uuid)
        return held if held is not None and stamp is not None and stamp.start == held.start else None

    def _may_lead(self, detector: Detector, uuid: str) -> bool:
        held = self._present(detector, uuid)
        return held is not None and held.in_force >= self.stored.settled

    def _edit(self, made: Configuration | None, then: Callable[[], None] = lambda: None) -> None:
        """Make a configuration durable, and what `then` does, unless another edit is under way: callers come again."""
        if self._editing:
            return
        assert made is None or made.index == self.stored.index + 1, (made, self.stored)
        self._editing, term = True, self.term

        def durable() -> None:
            if term != self.term:
                return  # this master ended before; the edit was lost
            self._editing = False
            if made is not None:
                assert made.primary is not None
                if made.unsafe > self.stored.unsafe:
                    self.group.oracle.given_up(self.group.nodes[made.primary])
                self.stored = self.history[made.index] = made
                self.group.record(f"ballot {made.index}: {made.primary} leads {shown(made)}")
                self.group.oracle.catalog_changed()
            then()
            if made is not None and made.primary is not None:
                recorded = self.recorded.get(made.primary)
                self.primary_start = "" if recorded is None else recorded.start
                self._order(made.primary)

        self.group.after(self.edit_s, "disk", durable)

    def _order(self, uuid: str) -> None:
        """Send the configuration to a server, with the lease that it is alive in."""
        stamp = self.detector.lease(uuid) if self.detector else None
        if self.detector is None or stamp is None:
            return
        if uuid == self.stored.primary and self._is_over(self.detector):
            return
        node, made = self.group.nodes[uuid], self.stored
        for delay in self.group.network.delays("master", uuid):
            late_s = self.group.random.random() ** 2 * self.late_s
            self.group.after(delay + late_s, "network", lambda: node.order(made, *stamp))


def configuration(voters: str, min_members: int) -> Configuration:
    """The configuration at creation: the first voter is the primary."""
    peers = tuple(Peer(name, f"host-{name}") for name in voters)
    return Configuration(peers, 1, primary=voters[0], min_members=min_members)


class Group(group.Group[Node]):
    oracle: PacificaOracle

    def __init__(
        self,
        voters: str = "abc",
        *,
        min_members: int = 2,
        spares: str = "",
        seed: int = 0,
        limits: PacificaLimits | None = None,
        times: DetectorLimits | None = None,
    ) -> None:
        # Quiescent groups rely on messages between servers, which are not here.
        self.limits = dataclasses.replace(limits or PacificaLimits(), quiesce_after_s=math.inf)
        self.times = times or DetectorLimits()
        self.names = voters + spares
        self.first = configuration(voters, min_members)
        super().__init__(self.first, spares=spares, seed=seed)

    def prepare(self) -> None:
        self.oracle = PacificaOracle(self)
        self.master = Master(self, self.first)

    def make_node(self, name: str, initial: Configuration) -> Node:
        return Node(self, name, initial)

    def isolate(self, name: str) -> None:
        super().isolate(name)
        self.cut(name, "master")

    def copy(self, source: Node, target: Node) -> None:
        """Copy a tablet in one step: the source's durable log replaces the target's."""
        target.crash()
        core, disk = source.running(), target.disk
        disk.entries = list(source.disk.entries)
        disk.dropped = core.log.dropped_index
        disk.hard_state = max(disk.hard_state, source.disk.hard_state, key=lambda state: state.term)
        target.lost = False
        target.start(commit_index=disk.dropped)
