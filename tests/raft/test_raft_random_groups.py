"""Random faults of a Raft group by seed, with all of the model's faults, and every promise checked after every step.

Act one draws faults. Act two heals everything, and the group must elect, commit and agree again, so that a deadlock
does not count as safety. Repeat one seed with `survive(seed, voters)`.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from ebla.actors.errors import AlreadyInProgress, InvalidArgument, NotLeader, Unavailable
from ebla.actors.replication.configuration import (
    NON_VOTER,
    VOTER,
    Configuration,
    Peer,
)
from ebla.actors.tablet.raft.events import RaftLimits
from ebla.storage.logs.entries import CONFIG
from tests.raft.group import Group, configuration
from tests.raft.node import Node
from tests.sweeps import seeds

ACTS = 36
SEEDS_PER_TEST = 20


class RandomFaults:
    def __init__(
        self, seed: int, voters: str, others: str = "", spares: str = "", *, deletes: bool = False
    ) -> None:
        self.random = Random(f"{seed}/{voters}/{others}/{spares}")
        self.deletes = deletes
        # Small limits, so that runs reach them. Lease and election timeout keep their default ratio.
        limits = RaftLimits(
            append_bytes_max=self.random.choice([1, 200, 1 << 20]),
            inflight_max=self.random.choice([1, 2, 4]),
            inflight_bytes_max=300,
        )
        self.group = Group(configuration(voters, others), spares=spares, seed=seed, limits=limits)
        self.proposed = 0
        network = self.group.network
        network.loss = self.random.choice([0.0, 0.02, 0.2])
        network.twice = self.random.choice([0.0, 0.1])
        network.jitter_s = self.random.choice([0.0, 0.05, 2.5])
        if self.random.random() < 0.5:
            for node in self.group.nodes.values():
                # RaftLimits allows a ratio of 1.25 between two clocks.
                node.rate, node.origin = self.random.uniform(0.9, 1.12), self.random.uniform(0, 1e6)
                core = node.core
                assert core is not None
                node.crash()
                node.start()

    def random_node(self) -> Node:
        return self.random.choice(list(self.group.nodes.values()))

    def act(self) -> None:
        verbs = [self.propose] * 6 + [self.mend] * 4 + [self.crash, self.restart, self.pause, self.resume]
        verbs += [self.cut, self.split, self.cut_one_way, self.isolate_leader, self.group.heal]
        verbs += [self.step_down, self.slow_disk, self.campaign, self.drop_log, self.lonely_leader]
        verbs += [self.crash_in_a_write, self.forget_the_lease, self.copy_lagging]
        if self.deletes:
            verbs += [self.delete] * 2
        if len(self.group.nodes) > len(self.group.nodes["a"].initial.peers):
            verbs += [self.configure] * 3 + [self.grow] * 2
        self.random.choice(verbs)()
        self.group.run(self.random.choice([0.003, 0.02, 0.3, 1.5]))

    def propose(self) -> None:
        for node in self.group.leaders():
            for _ in range(self.random.choice([1, 2, 9])):
                self.proposed += 1
                try:
                    self.group.propose(node.name, b"%d" % self.proposed)
                except NotLeader:
                    return

    def crash(self) -> None:
        node = self.random_node()
        if node.alive:
            node.crash(commits_kept=self.random.choice([0, 1, 99]))

    def delete(self) -> None:
        """Delete a replica, which a leader copies again later. A majority of voters always keeps its replicas."""
        node = self.random_node()
        if node.core is None or node.paused or not self.group.leaders():
            return
        newest = self.group.leader().running()
        for members in (newest.configuration, newest.committed_configuration):
            left = [peer for peer in members.voters() if not self.group.nodes[peer.uuid].disk.tombstone]
            if sum(peer.uuid != node.name for peer in left) < members.majority:
                return
        node.delete()

    def crash_in_a_write(self) -> None:
        """Crash most servers at once, with the leader's entries on some disks only."""
        self.propose()
        self.group.run(self.random.uniform(0.0, 0.02))
        for node in self.group.nodes.values():
            if node.core is not None and self.random.random() < 0.8:
                node.crash(commits_kept=self.random.choice([0, 1, 99]))
                self.start(node)

    def restart(self) -> None:
        node = self.random_node()
        if not node.alive:
            self.start(node)

    def start(self, node: Node) -> None:
        """Start a server; sometimes it knows a flushed position, which was committed and durable."""
        flushed = min(len(node.disk.entries), len(self.group.oracle.committed))
        known = flushed if node.disk.entries[:flushed] == self.group.oracle.committed[:flushed] else 0
        node.disk.dropped = min(node.disk.dropped, known)
        node.start(commit_index=max(node.disk.dropped, self.random.choice([0, known])))

    def pause(self) -> None:
        node = self.random_node()
        if node.core is not None:
            node.pause()

    def resume(self) -> None:
        self.random_node().resume()

    def cut(self) -> None:
        self.group.cut(self.random_node().name, self.random_node().name)

    def split(self) -> None:
        """Cut the group into two halves, and propose entries in both."""
        names = list(self.group.nodes)
        self.random.shuffle(names)
        half = self.random.randrange(1, len(names))
        for one in names[:half]:
            for other in names[half:]:
                self.group.cut(one, other)
        for _ in range(3):
            self.propose()
            self.group.run(0.9)

    def cut_one_way(self) -> None:
        self.group.network.cut[self.random_node().name, self.random_node().name] = None

    def isolate_leader(self) -> None:
        for node in self.group.leaders():
            self.group.isolate(node.name)

    def lonely_leader(self) -> None:
        """Propose entries that only the leader gets, then let the others elect."""
        self.isolate_leader()
        self.propose()
        self.group.run(self.random.uniform(1.0, 4.0))

    def forget_the_lease(self) -> None:
        """Restart all but the leader, and campaign early, while the leader may still hold its lease."""
        leaders = self.group.leaders()
        self.isolate_leader()
        for node in self.group.nodes.values():
            if node.alive and node not in leaders:
                node.crash(commits_kept=99)
                self.start(node)
        for _ in range(4):
            self.group.run(0.1)
            self.campaign()

    def mend(self) -> None:
        """Undo all faults except those of the network's settings, so that the next fault meets a working group."""
        self.group.heal()
        for node in self.group.nodes.values():
            node.resume()
            node.disk_s = 0.001
            if not node.alive:
                self.start(node)
        self.copy_lagging()
        self.group.run(2.0, until=lambda: len(self.group.leaders()) > 0)

    def copy_lagging(self) -> None:
        """Replace each log that cannot be continued by the leader's durable log."""
        for source in self.group.leaders():
            for name in source.running().progress:
                target = self.group.nodes[name]
                if source.paused or target.paused or not target.alive:
                    continue
                if source.running().needs_copy(name) or target.tombstone is not None:
                    self.group.copy(source, target)

    def step_down(self) -> None:
        for node in self.group.leaders():
            try:
                node.running().step_down(node.clock(), self.random.choice([None, self.random_node().name]))
            except (InvalidArgument, Unavailable):
                continue
            node.absorb()

    def slow_disk(self) -> None:
        self.random_node().disk_s = self.random.choice([0.001, 0.05, 0.9, 2.0])

    def campaign(self) -> None:
        """Campaign at the earliest time that the rules allow."""
        node = self.random_node()
        core = node.core
        if core is None or node.paused or core.role == "leader" or node.clock() < core.timer.withheld_until:
            return
        self.group.campaign(node.name)

    def drop_log(self) -> None:
        for node in self.group.nodes.values():
            if node.core is not None:
                core = node.core
                index = min(core.commit_index, core.durable_index, core.all_replicated_index)
                core.log.drop_to(index)
                node.disk.dropped = max(node.disk.dropped, index)

    def configure(self) -> None:
        """Propose random changes of members, of which the rules refuse some."""
        for node in self.group.leaders() * 3:
            if node.core is None or node.core.role != "leader":
                continue
            current = node.core.configuration
            name = self.random_node().name
            kept = tuple(peer for peer in current.peers if peer.uuid != name)
            member = self.random.choice([VOTER, VOTER, NON_VOTER])
            added = (Peer(name, f"host-{name}", member, member == NON_VOTER and self.random.random() < 0.7),)
            wanted = Configuration(kept + self.random.choice([added, ()]), index=current.index)
            with suppress(NotLeader, Unavailable, AlreadyInProgress, InvalidArgument):
                node.configure(wanted)
                node.absorb()
            self.group.run(self.random.choice([0.001, 0.05]))

    def grow(self) -> None:
        """Add a pre-voter while there are no faults, so that a later fault meets its promotion."""
        self.mend()
        for node in self.group.leaders():
            core = node.running()
            current = core.configuration
            nonmembers = [name for name in self.group.nodes if current.peer(name) is None]
            if nonmembers:
                name = self.random.choice(nonmembers)
                joins = Peer(name, f"host-{name}", NON_VOTER, promote=True)
                with suppress(NotLeader, Unavailable, AlreadyInProgress):
                    node.configure(Configuration((*current.peers, joins), current.index))
                    node.absorb()
        self.group.run(self.random.uniform(0.0, 1.0))

    def recover(self) -> None:
        """Heal everything and wait until the group agrees."""
        group = self.group
        group.heal()
        group.network.loss = group.network.twice = group.network.jitter_s = 0.0
        for node in group.nodes.values():
            node.disk_s = 0.001
            node.resume()
            if not node.alive:
                self.start(node)
        for _ in range(200):  # a slow disk may have a long queue of commits
            if group.run(1.0, until=self.agreed):
                break
            self.copy_lagging()
        assert self.agreed(), self.why()
        self.group.oracle.logs_match()

    def agreed(self) -> bool:
        leaders = self.group.leaders()
        if len(leaders) != 1:
            return False
        core = leaders[0].running()
        members = [self.group.nodes[peer.uuid] for peer in core.configuration.peers]
        if not all(node.core for node in members):
            return False
        return core.commit_index == core.last_index and all(
            node.running().commit_index == core.commit_index and node.entries == leaders[0].entries
            for node in members
        )

    def why(self) -> str:
        stories = [f"--- {node.name}\n{node.core.story()}" for node in self.group.nodes.values() if node.core]
        return "the healed group does not agree:\n" + "\n".join(stories)


def survive(seed: int, voters: str, others: str = "", spares: str = "", *, deletes: bool = False) -> Group:
    faults = RandomFaults(seed, voters, others, spares, deletes=deletes)
    for _ in range(ACTS):
        faults.act()
    faults.group.oracle.logs_match()
    faults.recover()
    return faults.group


@pytest.mark.parametrize("block", seeds(4))
def test_three_replicas_keep_every_promise_under_random_faults(block: int) -> None:
    groups = [survive(block * SEEDS_PER_TEST + i, "abc") for i in range(SEEDS_PER_TEST)]
    assert sum(len(group.oracle.committed) for group in groups) > 20 * len(groups)
    assert sum(group.oracle.reads for group in groups) > 100 * len(groups), (
        "the test must not pass by doing nothing"
    )


@pytest.mark.parametrize(("voters", "others", "count"), [("abcde", "", 20), ("abc", "de", 10)])
def test_five_replicas_keep_every_promise_under_random_faults(voters: str, others: str, count: int) -> None:
    for seed in seeds(count):
        survive(seed, voters, others)


def test_a_group_keeps_every_promise_while_its_members_change() -> None:
    changes = promotions = 0
    for seed in seeds(20):
        group = survive(seed, "abc", spares="de")
        changes += sum(entry.kind == CONFIG for entry in group.oracle.committed)
        promotions += sum(" configures " in event for _, event in group.transcript)
    assert changes > 20 and promotions > 6


@pytest.mark.parametrize("block", seeds(2))
def test_deleted_and_copied_replicas_lose_no_entry_and_no_vote(block: int) -> None:
    groups = [survive(block * 10 + i, "abc", spares="de", deletes=True) for i in range(10)]
    groups += [survive(block * 10 + i, "abcde", deletes=True) for i in range(5)]
    assert sum(group.tombstone_votes for group in groups) > len(groups)


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = survive(7, "abc"), survive(7, "abc")
    assert first.transcript == second.transcript
    assert first.random.random() == second.random.random()
