"""Random faults of a Raft group by seed. Repeat one seed with `survive(seed, voters)`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from ebla.actors.errors import AlreadyInProgress, InvalidArgument, NotLeader, Unavailable
from ebla.actors.replication.configuration import NON_VOTER, VOTER, Configuration, Peer
from ebla.actors.tablet.raft.events import RaftLimits
from ebla.storage.logs.entries import CONFIG
from tests.raft.group import Group, configuration
from tests.stream.faults import RandomFaults
from tests.sweeps import seeds

SEEDS_PER_TEST = 20


class RaftFaults(RandomFaults[Group]):
    def __init__(
        self, seed: int, voters: str, others: str = "", spares: str = "", *, deletes: bool = False
    ) -> None:
        random = Random(f"{seed}/{voters}/{others}/{spares}")
        self.deletes = deletes
        # Small limits, so that runs reach them. Lease and election timeout keep their default ratio.
        limits = RaftLimits(
            append_bytes_max=random.choice([1, 200, 1 << 20]),
            inflight_max=random.choice([1, 2, 4]),
            inflight_bytes_max=300,
        )
        super().__init__(
            random, Group(configuration(voters, others), spares=spares, seed=seed, limits=limits)
        )
        if random.random() < 0.5:
            for node in self.group.nodes.values():
                # RaftLimits allows a ratio of 1.25 between two clocks.
                node.rate, node.origin = random.uniform(0.9, 1.12), random.uniform(0, 1e6)
                core = node.core
                assert core is not None
                node.crash()
                node.start()

    def verbs(self) -> list[Callable[[], None]]:
        verbs = [*self.common(), self.campaign, self.lonely_leader, self.forget_the_lease]
        if self.deletes:
            verbs += [self.delete] * 2
        if len(self.group.nodes) > len(self.group.nodes["a"].initial.peers):
            verbs += [self.configure] * 3 + [self.grow] * 2
        return verbs

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

    def copy_lagging(self) -> None:
        """Replace each log that cannot be continued by the leader's durable log."""
        for source in self.group.leaders():
            for name in source.running().progress:
                target = self.group.nodes[name]
                if source.paused or target.paused or not target.alive:
                    continue
                if source.running().needs_copy(name) or target.tombstone is not None:
                    self.group.copy(source, target)

    def campaign(self) -> None:
        """Campaign at the earliest time that the rules allow."""
        node = self.random_node()
        core = node.core
        if core is None or node.paused or core.role == "leader" or node.clock() < core.timer.withheld_until:
            return
        self.group.campaign(node.name)

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


def survive(seed: int, voters: str, others: str = "", spares: str = "", *, deletes: bool = False) -> Group:
    return RaftFaults(seed, voters, others, spares, deletes=deletes).survive()


@pytest.mark.parametrize("block", seeds(2))
def test_three_replicas_keep_every_promise_under_random_faults(block: int) -> None:
    groups = [survive(block * SEEDS_PER_TEST + i, "abc") for i in range(SEEDS_PER_TEST)]
    assert sum(len(group.oracle.committed) for group in groups) > 20 * len(groups)
    assert sum(group.oracle.reads for group in groups) > 100 * len(groups), (
        "the test must not pass by doing nothing"
    )


@pytest.mark.parametrize(("voters", "others", "count"), [("abcde", "", 10), ("abc", "de", 5)])
def test_five_replicas_keep_every_promise_under_random_faults(voters: str, others: str, count: int) -> None:
    for seed in seeds(count):
        survive(seed, voters, others)


def test_a_group_keeps_every_promise_while_its_members_change() -> None:
    changes = promotions = 0
    for seed in seeds(10):
        group = survive(seed, "abc", spares="de")
        changes += sum(entry.kind == CONFIG for entry in group.oracle.committed)
        promotions += sum(" configures " in event for _, event in group.transcript)
    assert changes > 10 and promotions > 3


@pytest.mark.parametrize("block", seeds(1))
def test_deleted_and_copied_replicas_lose_no_entry_and_no_vote(block: int) -> None:
    groups = [survive(block * 10 + i, "abc", spares="de", deletes=True) for i in range(10)]
    groups += [survive(block * 10 + i, "abcde", deletes=True) for i in range(5)]
    assert sum(group.tombstone_votes for group in groups) > len(groups) / 2


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = survive(7, "abc"), survive(7, "abc")
    assert first.transcript == second.transcript
    assert first.random.random() == second.random.random()
