"""Random faults of a PacificA group: those of every group, and of the master, of disks, of leases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

from ebla.actors.detector.limits import DetectorLimits
from ebla.actors.errors import AlreadyInProgress, NotLeader, Unavailable
from ebla.actors.replication.configuration import NON_VOTER, Peer
from ebla.actors.tablet.pacifica.limits import PacificaLimits
from ebla.storage.errors import InvalidArgument
from tests.pacifica.group import Group
from tests.pacifica.node import Node
from tests.stream.faults import RandomFaults


class PacificaFaults(RandomFaults[Group]):
    def __init__(
        self, seed: int, voters: str, spares: str = "", *, min_members: int, loses: bool = False
    ) -> None:
        random = Random(f"{seed}/{voters}/{spares}/{min_members}")
        self.loses = loses
        limits = PacificaLimits(
            append_bytes_max=random.choice([1, 200, 1 << 20]),
            inflight_max=random.choice([1, 2, 4]),
            inflight_bytes_max=300,
        )
        times = DetectorLimits(beacon_s=0.5, lease_s=2.0, grace_s=2.5)
        group = Group(voters, min_members=min_members, spares=spares, seed=seed, limits=limits, times=times)
        super().__init__(random, group)
        group.master.late_s = random.choice([0.0, 0.0, 0.0, 8.0])
        if random.random() < 0.5:
            # DetectorLimits allows a ratio of 1.25 between two clocks.
            group.master.rate = random.uniform(0.9, 1.12)
            for node in group.nodes.values():
                node.rate, node.origin = random.uniform(0.9, 1.12), random.uniform(0, 1e6)
                node.crash()
                node.start()

    def verbs(self) -> list[Callable[[], None]]:
        verbs = [*self.common(), self.cut_from_master, self.stop_master, self.start_master, self.slow_catalog]
        verbs += [
            self.pause_leader_past_its_lease,
            self.lonely_leader,
            self.late_order,
            self.restart_after_takeover,
        ]
        if self.loses:
            verbs += [self.lose_disk] * 2
        if len(self.group.nodes) > len(self.group.first.peers):
            verbs += [self.add] * 3 + [self.remove]
        return verbs

    def cut_from_master(self) -> None:
        self.group.cut(self.random_node().name, "master")

    def stop_master(self) -> None:
        self.group.master.stop()

    def start_master(self) -> None:
        """Another master takes over: it is active at once, or the one before still is."""
        if self.group.master.detector is not None:
            self.group.master.stop()
        self.group.master.start()

    def restart_after_takeover(self) -> None:
        """Another master takes over, and hears of a restarted server before it hears of the primary."""
        self.start_master()
        node = self.random_node()
        if node.alive:
            node.crash(commits_kept=99)
            self.start(node)

    def slow_catalog(self) -> None:
        self.group.master.edit_s = self.random.choice([0.01, 0.01, 0.3, 1.5])

    def pause_leader_past_its_lease(self) -> None:
        """Pause a primary until another may lead, propose there, and let the first continue."""
        leaders = self.group.leaders()
        for node in leaders:
            node.pause()
        self.group.run(self.random.uniform(1.0, 5.0))
        self.propose()
        for node in leaders:
            node.resume()

    def lonely_leader(self) -> None:
        """Propose entries that only the primary gets, then let another lead."""
        self.isolate_leader()
        self.propose()
        self.group.run(self.random.uniform(1.0, 5.0))

    def late_order(self) -> None:
        """The order to a new primary takes seconds. Meanwhile another replaces it, and it reaches the master only."""
        group, before = self.group, self.group.master.stored.primary
        group.master.late_s, kept = 8.0, group.master.late_s
        self.isolate_leader()
        group.run(4.0, until=lambda: group.master.stored.primary != before)
        late = group.master.stored.primary
        assert late is not None
        group.heal()
        group.isolate(late)
        group.master.late_s = 0.0
        group.run(4.0, until=lambda: group.master.stored.primary != late)
        group.network.cut.pop((late, "master"), None)
        group.network.cut.pop(("master", late), None)
        self.propose()
        group.run(self.random.uniform(1.0, 4.0))
        group.master.late_s = kept

    def lose_disk(self) -> None:
        """Lose the replica of one server, if another voter keeps its own. It stays without until a primary copies it."""
        node = self.random_node()
        voters = [self.group.nodes[peer.uuid] for peer in self.group.master.stored.voters()]
        if any(each.lost for each in voters) or all(each is node for each in voters) or node.core is None:
            return
        node.lose_disk()

    def start(self, node: Node) -> None:
        if not node.lost:
            super().start(node)

    def add(self) -> None:
        """Ask the primary for one more learner."""
        for node in self.group.leaders():
            core = node.running()
            name = self.random_node().name
            if core.configuration.peer(name) is None:
                learner = Peer(name, f"host-{name}", NON_VOTER, promote=True)
                self.request(node.name, (*core.configuration.peers, learner))

    def remove(self) -> None:
        for node in self.group.leaders():
            name = self.random_node().name
            peers = node.running().configuration.peers
            self.request(node.name, tuple(peer for peer in peers if peer.uuid != name))

    def request(self, name: str, peers: tuple[Peer, ...]) -> None:
        node = self.group.nodes[name]
        with suppress(NotLeader, Unavailable, AlreadyInProgress, InvalidArgument):
            node.running().request_members(node.clock(), peers)
            node.absorb()

    def copy_lagging(self) -> None:
        for source in self.group.leaders():
            for name in source.running().progress:
                target = self.group.nodes[name]
                if source.paused or target.paused or source.core is None:
                    continue
                if target.lost or (target.alive and source.running().needs_copy(name)):
                    self.group.copy(source, target)

    def recover(self) -> None:
        self.group.master.edit_s, self.group.master.late_s = 0.01, 0.0
        if self.group.master.detector is None:
            self.group.master.start()
        super().recover()


def survive(seed: int, voters: str, spares: str = "", *, min_members: int = 2, loses: bool = False) -> Group:
    return PacificaFaults(seed, voters, spares, min_members=min_members, loses=loses).survive()
