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
from ebla.storage.logs.entries import CONFIG
from tests.pacifica.group import Group
from tests.pacifica.node import Node
from tests.stream.faults import RandomFaults
from tests.stream.node import Disk


class PacificaFaults(RandomFaults[Group]):
    all_end = True  # sometimes, before one voter returns on a copy of its disk: then no member knows what is committed

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
            self.alter_minimum,
            self.return_in_turn,
        ]
        if self.loses:
            verbs += [self.lose_disk, self.lose_disk, self.old_copy, self.recent_copy]
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
        """Another master takes over, and hears of a restarted server before it hears of the primary, which has just got a lease and is
        cut off."""
        group, leaders = self.group, self.group.leaders()
        if len(leaders) == 1:
            lease = leaders[0].lease
            group.run(1.0, until=lambda: lease.until > leaders[0].clock() + 0.95 * group.times.lease_s)
            group.isolate(leaders[0].name)
        self.start_master()
        node = self.random_node()
        if node.alive and node not in leaders:
            node.crash(commits_kept=99)
            self.start(node)
        group.run(self.random.uniform(0.0, group.times.lease_s))

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

    def return_in_turn(self) -> None:
        """All voters end, because the master does not hear them. The primary returns while its successor's edit is being made
        durable."""
        group, master = self.group, self.group.master
        first, kept = master.stored.primary, master.edit_s
        voters = [peer.uuid for peer in master.stored.voters()]
        for name in voters:
            group.cut(name, "master")
        group.run(4.0, until=lambda: all(map(self.has_ended, voters)))
        master.edit_s = 1.0
        for name in sorted(voters, key=lambda each: each == first):
            group.network.cut.pop((name, "master"), None)
            group.network.cut.pop(("master", name), None)
            group.run(1.0, until=lambda: master._editing)
        group.run(self.random.uniform(0.5, 2.0))
        master.edit_s = kept

    def has_ended(self, name: str) -> bool:
        detector = self.group.master.detector
        return detector is not None and detector.has_ended(name)

    def alter_minimum(self) -> None:
        self.group.master.alter(self.random.randint(1, len(self.group.first.peers)))

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
        voters = self.voters()
        without = any(each.lost or each.restored for each in voters)
        few = self.group.master.stored.min_members < 2  # a request under way may leave this voter alone
        if few or without or all(each is node for each in voters) or node.core is None:
            return
        node.lose_disk()

    def old_copy(self) -> None:
        """Start one secondary with a copy of its disk from before a ballot that all voters held, as the catalog knows, soon after the
        primary has stopped. Another voter has everything. A copy that is not complete after a while is given up."""
        group, master = self.group, self.group.master
        backups = {node: node.back_up() for node in group.nodes.values()}
        for _ in range(3):
            self.mend()
            self.propose()
            self.step_down()
            group.run(2.0)
        voters = self.voters()
        old = [each for each in voters if ballot_of(backups[each]) < master.settled]
        old = [each for each in old if each.name != master.stored.primary]
        if not old or len(voters) < 3 or any(each.lost or each.restored or not each.alive for each in voters):
            return
        for leader in group.leaders():
            leader.crash(commits_kept=99)
        node = self.random.choice(old)
        node.restore(backups[node])
        super().start(node)
        group.run(self.random.uniform(0.5, 6.0))
        if node.restored:
            node.lose_disk()

    def recent_copy(self) -> None:
        """Start one voter with a copy of its disk that lacks the last committed entries, and perhaps the ballot that it has led since. No
        number shows its age, and it may lead; but the others, which are well, know what is committed."""
        group, network = self.group, self.group.network
        self.mend()
        kept = network.loss, network.twice, network.jitter_s
        network.loss = network.twice = network.jitter_s = 0.0
        group.run(1.0)
        backups = {node: node.back_up() for node in group.nodes.values()}
        if self.random.random() < 0.5:
            self.step_down()
            group.run(1.0)
        self.propose()
        group.run(1.0)
        voters, committed = self.voters(), len(group.oracle.committed)
        old = [each for each in voters if len(backups[each].entries) < committed]
        well = all(
            each.core is not None
            and each.running().commit_index == committed
            and not (each.lost or each.restored)
            and self.may_restart(each)
            for each in voters
        )
        if well and old and len(voters) >= 3 and group.master.stored.min_members >= 2:
            node = self.random.choice(old)
            if self.random.random() < 0.3:
                self.hand_over_to(node, backups[node])
            else:
                self.return_on(node, backups[node])
        network.loss, network.twice, network.jitter_s = kept

    def may_restart(self, node: Node) -> bool:
        """Whether the master gives it a lease after two more restarts. One that restarts too often is not waited for."""
        detector = self.group.master.detector
        watched = detector._servers.get(node.name) if detector is not None else None
        return watched is not None and watched.restarts + 2 < self.group.times.restarts_max

    def return_on(self, node: Node, backup: Disk) -> None:
        """The primary ends, or all voters and perhaps the master, and this one starts with the copy. The others follow within a second."""
        group = self.group
        ended = self.voters() if self.all_end and self.random.random() < 0.5 else group.leaders()
        for each in ended:
            each.crash(commits_kept=99)
        if self.random.random() < 0.5:
            self.start_master()
        node.restore(backup, recent=True)
        super().start(node)
        for each in ended if len(ended) > 1 else ():
            group.run(self.random.choice([0.0, 0.3]))
            if each is not node:
                super().start(each)
        if len(ended) > 1 and self.random.random() < 0.5:
            self.end_the_next_primary(node)
        group.run(self.random.uniform(0.5, 6.0))
        if node.restored:
            node.lose_disk()

    def hand_over_to(self, node: Node, backup: Disk) -> None:
        """The primary steps down for this voter, and does not reach the master. The voter starts with the copy, and perhaps another master
        begins; then the master gets the request. The others restart."""
        group, master = self.group, self.group.master
        others = [each for each in self.voters() if each is not node]
        for leader in group.leaders():
            if leader is node:
                return
            group.cut(leader.name, "master")
            leader.running().step_down(leader.clock(), node.name)
            leader.absorb()
        if not group.run(1.0, until=lambda: any(each.running().awaits_successor for each in others)):
            return
        node.restore(backup, recent=True)
        super().start(node)
        if self.random.random() < 0.5:
            self.start_master()
        group.run(1.0, until=lambda: self.has_lease(node))
        group.heal()
        ballot = master.stored.index
        group.run(1.0, until=lambda: master.stored.index > ballot)
        for each in others:
            each.crash(commits_kept=99)
        group.run(self.random.choice([0.0, 0.3]))
        for each in others:
            super().start(each)
        group.run(self.random.uniform(0.5, 6.0))
        if node.restored:
            node.lose_disk()

    def has_lease(self, node: Node) -> bool:
        detector = self.group.master.detector
        stamp = detector.lease(node.name) if detector is not None else None
        return stamp is not None and stamp.start == node.instance.start

    def end_the_next_primary(self, node: Node) -> None:
        """The next primary ends as soon as the copy counts as verified, before it has sent what the copy lacks. It returns later."""
        group = self.group
        if group.run(8.0, until=lambda: node.alive and node.running().verified):
            for leader in group.leaders():
                if leader is not node:
                    group.cut(leader.name, node.name)
                    group.run(self.random.choice([0.0, 0.3]))
                    leader.crash(commits_kept=99)
                    group.heal()
                    group.run(10.0)
                    super().start(leader)

    def voters(self) -> list[Node]:
        return [self.group.nodes[peer.uuid] for peer in self.group.master.stored.voters()]

    def start(self, node: Node) -> None:
        """Start a server that has its disk. One that crashes again before it has made up for an older copy loses it."""
        if node.restored:
            node.lose_disk()
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
        """A primary may be alone: give it a learner, as the master does."""
        group, master = self.group, self.group.master
        master.edit_s, master.late_s = 0.01, 0.0
        if master.detector is None:
            master.start()
        for _ in range(60):
            group.run(1.0, until=lambda: not master._editing)
            if master.stored.min_members != group.first.min_members:
                master.alter(group.first.min_members)
            elif len(master.stored.voters()) >= master.stored.min_members:
                break
            else:
                self.mend()
                self.add()
            group.run(1.0)
        super().recover()


def ballot_of(disk: Disk) -> int:
    """The ballot of the newest configuration in the log of a copy; that of the tablet's creation if there is none."""
    return max((entry.term for entry in disk.entries if entry.kind == CONFIG), default=1)


def survive(seed: int, voters: str, spares: str = "", *, min_members: int = 2, loses: bool = False) -> Group:
    return PacificaFaults(seed, voters, spares, min_members=min_members, loses=loses).survive()


class Disasters(PacificaFaults):
    """All voters are lost, and an operator forces a configuration. `forced`: how often."""

    forced = 0

    def propose(self) -> None:
        with suppress(Unavailable):  # a survivor alone takes no writes
            super().propose()

    def verbs(self) -> list[Callable[[], None]]:
        return [*super().verbs(), *[self.disaster] * 4]

    def disaster(self) -> None:
        """Every voter dies or is cut off, with writes under way. An operator chooses a replica that is none. The voters return
        at any time afterwards."""
        group = self.group
        voters = [peer.uuid for peer in group.master.stored.voters()]
        others = [node for name, node in group.nodes.items() if name not in voters]
        if group.master.detector is None or not others:
            return
        self.propose()
        for name in voters:
            node = group.nodes[name]
            if node.alive and self.random.random() < 0.5:
                node.crash(commits_kept=self.random.choice([0, 1, 99]))
            else:
                group.isolate(name)
        survivor = self.random.choice(others)
        for name in group.nodes:
            if name not in voters:
                for other in ("master", *group.nodes):
                    if other not in voters:
                        group.network.cut.pop((name, other), None)
                        group.network.cut.pop((other, name), None)
        survivor.resume()
        if not survivor.alive:
            self.start(survivor)
        if group.run(8.0, until=lambda: group.master.force(survivor.name)):
            self.forced += 1
            group.run(self.random.choice([0.02, 0.3, 3.0]))


def recover_from_disasters(seed: int) -> tuple[Group, int]:
    faults = Disasters(seed, "abc", "de", min_members=2)
    return faults.survive(), faults.forced
