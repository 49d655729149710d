"""A PacificA group in memory: real cores, leases, the real detector and the master's real rules, in a network, with disks and
clocks that the test controls. `master` is a name in the network like a server's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ebla.actors.detector.detector import ACKNOWLEDGED, SILENT, Detector
from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.messages import ServerInstance
from ebla.actors.replication.appointments import after_end, appointed, grant
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.tablet.pacifica.limits import PacificaLimits
from tests.pacifica.invariants import PacificaOracle
from tests.pacifica.node import Node
from tests.stream import group
from tests.stream.node import shown

DECIDE_S = 0.1


class Master:
    """The active master of one tablet: the catalog's configuration, made durable edit by edit, and the detector."""

    def __init__(self, owner: Group, first: Configuration) -> None:
        self.group = owner
        self.stored = first
        self.history = {first.index: first}
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
        servers = [(name, None) for name in self.group.names]
        self.detector = Detector(self.group.times, self.clock(), servers)
        self.term += 1
        self._editing = False
        self._decide(self.term)

    def stop(self) -> None:
        self.detector = None
        self.term += 1

    # -- what servers say

    def beacon(
        self, instance: ServerInstance, lease: int, report: tuple[int, bool], acknowledge: Callable[[], None]
    ) -> None:
        if self.detector is None:
            return
        if self.detector.beacon(self.clock(), instance, lease) != ACKNOWLEDGED:
            return
        for delay in self.group.network.delays("master", instance.uuid):
            self.group.after(delay, "network", acknowledge)
        ballot, leads = report
        if instance.uuid == self.stored.primary and not self._editing:
            if ballot < self.stored.index:
                self._order(instance.uuid)
            elif not leads:
                self._edit(appointed(self.stored, instance.uuid), lambda: None)

    def asked(self, sender: str, asked: Configuration) -> None:
        if self.detector is None or self._editing:
            return  # the sender asks again
        granted = grant(self.stored, asked, sender)
        if granted is None:
            self._order(sender)
        else:
            self._edit(granted, lambda: self._order(sender))

    # -- decisions

    def _decide(self, term: int) -> None:
        detector = self.detector
        if detector is None or term != self.term:
            return
        for end in detector.decide(self.clock()):
            recorded = partial(detector.ended, end.uuid)
            self._replace(detector, end.uuid, silent=end.reason == SILENT, then=recorded)
        primary = self.stored.primary
        if primary is not None and detector.has_ended(primary):
            self._replace(detector, primary, silent=True, then=lambda: None)
        self.group.after(DECIDE_S, "timer", lambda: self._decide(term))

    def _replace(self, detector: Detector, uuid: str, *, silent: bool, then: Callable[[], None]) -> None:
        """Take the replicas of a server away, by one edit; `then` is called when it is durable."""
        if self._editing:
            return
        made = after_end(
            self.stored,
            uuid,
            silent=silent,
            alive=self._alive,
            primaries=lambda other: 0,
        )
        if made is None:
            then()
        else:
            self._edit(made, then)

    def _alive(self, uuid: str) -> bool:
        """Whether a server may lead now; of the primary, whether it may still serve."""
        assert self.detector is not None
        if uuid == self.stored.primary:
            ending = [end.uuid for end in self.detector.decide(self.clock())]
            return not self.detector.has_ended(uuid) and uuid not in ending
        return self.detector.lease(uuid) is not None

    def _edit(self, made: Configuration, then: Callable[[], None]) -> None:
        assert not self._editing and made.index == self.stored.index + 1, (made, self.stored)
        self._editing, term = True, self.term

        def durable() -> None:
            if term != self.term:
                return  # this master ended before; the edit was lost
            self._editing = False
            self.stored = self.history[made.index] = made
            self.group.record(f"ballot {made.index}: {made.primary} leads {shown(made)}")
            self.group.oracle.catalog_changed()
            then()
            assert made.primary is not None
            self._order(made.primary)

        self.group.after(self.edit_s, "disk", durable)

    def _order(self, uuid: str) -> None:
        """Send the configuration to a server, with the lease that it is alive in."""
        stamp = self.detector.lease(uuid) if self.detector else None
        if stamp is None:
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
        self.limits = limits or PacificaLimits()
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
