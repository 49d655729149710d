"""Bad days of a Raft group: every fault the model has, by seed, with every promise checked after every step.

Two acts. In the first anything may happen; in the second everything is healed, and the group must elect, commit and
agree again: otherwise a deadlock would pass for safety. A failing seed fails alone: `survive(seed, voters)`.
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

ACTS = 36
SEEDS_PER_TEST = 20


class BadDay:
    def __init__(
        self, seed: int, voters: str, others: str = "", spares: str = "", *, buries: bool = False
    ) -> None:
        self.random = Random(f"{seed}/{voters}/{others}/{spares}")
        self.buries = buries
        # Small, so that limits are reached; the ratio of lease and election timeout is the shipped one.
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
                # The bound that RaftLimits states is 1.25 between two clocks.
                node.rate, node.origin = self.random.uniform(0.9, 1.12), self.random.uniform(0, 1e6)
                core = node.core
                assert core is not None
                node.crash()
                node.start()

    def anyone(self) -> Node:
        return self.random.choice(list(self.group.nodes.values()))

    def act(self) -> None:
        verbs = [self.propose] * 6 + [self.mend] * 4 + [self.crash, self.restart, self.pause, self.resume]
        verbs += [
            self.cut,
            self.split,
            self.cut_one_way,
            self.isolate_leader,
            self.heal,
            self.step_down,
            self.slow_disk,
        ]
        verbs += [
            self.campaign,
            self.drop_log,
            self.lonely_leader,
            self.crash_in_a_write,
            self.forget_the_lease,
            self.copy_lagging,
        ]
        if self.buries:
            verbs += [self.bury] * 2
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
        node = self.anyone()
        if node.alive:
            node.crash(commits_kept=self.random.choice([0, 1, 99]))

    def bury(self) -> None:
        """Some server deletes its replica; a leader that finds out copies it anew, sooner or later. Never so many that no
        majority of voters is left: that would be the end."""
        node = self.anyone()
        if node.core is None or node.paused or not self.group.leaders():
            return
        newest = self.group.leader().running()
        for members in (newest.configuration, newest.committed_configuration):
            left = [peer for peer in members.voters() if not self.group.nodes[peer.uuid].disk.buried]
            if sum(peer.uuid != node.name for peer in left) < members.majority:
                return
        node.bury()

    def crash_in_a_write(self) -> None:
        """Every server at once, with the leader's entries on some disks and not on others."""
        self.propose()
        self.group.run(self.random.uniform(0.0, 0.02))
        for node in self.group.nodes.values():
            if node.core is not None and self.random.random() < 0.8:
                node.crash(commits_kept=self.random.choice([0, 1, 99]))
                self.start(node)

    def restart(self) -> None:
        node = self.anyone()
        if not node.alive:
            self.start(node)

    def start(self, node: Node) -> None:
        """Sometimes the server knows how far its rows were flushed, which was committed and durable."""
        flushed = min(len(node.disk.entries), len(self.group.oracle.committed))
        known = flushed if node.disk.entries[:flushed] == self.group.oracle.committed[:flushed] else 0
        node.disk.dropped = min(node.disk.dropped, known)
        node.start(commit_index=max(node.disk.dropped, self.random.choice([0, known])))

    def pause(self) -> None:
        node = self.anyone()
        if node.core is not None:
            node.pause()

    def resume(self) -> None:
        self.anyone().resume()

    def cut(self) -> None:
        self.group.cut(self.anyone().name, self.anyone().name)

    def split(self) -> None:
        """Two halves that do not hear each other, and work for both."""
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
        self.group.network.cut[self.anyone().name, self.anyone().name] = None

    def isolate_leader(self) -> None:
        for node in self.group.leaders():
            self.group.isolate(node.name)

    def lonely_leader(self) -> None:
        """Entries that only the leader has, then an election among the others."""
        self.isolate_leader()
        self.propose()
        self.group.run(self.random.uniform(1.0, 4.0))

    def forget_the_lease(self) -> None:
        """All but the leader restart, and hurry to elect another while it may still hold its lease."""
        leaders = self.group.leaders()
        self.isolate_leader()
        for node in self.group.nodes.values():
            if node.alive and node not in leaders:
                node.crash(commits_kept=99)
                self.start(node)
        for _ in range(4):
            self.group.run(0.1)
            self.campaign()

    def relay(self) -> None:
        """Figure 8 of the paper: leaders that reach few, one after the other, each in the middle of its work."""
        for _ in range(4):
            for node in self.group.leaders():
                others = [name for name in self.group.nodes if name != node.name]
                self.random.shuffle(others)
                for name in others[self.random.choice([0, 1, 2]) :]:
                    self.group.cut(node.name, name)
                with suppress(NotLeader):
                    self.group.propose(node.name, b"%d" % self.proposed)
                self.group.run(self.random.choice([0.004, 0.012, 0.03]))
                node.crash(commits_kept=99)
            self.group.heal()
            for node in self.group.nodes.values():
                if not node.alive:
                    self.start(node)
            self.group.run(1.05)
            self.campaign()
            self.group.run(self.random.choice([0.02, 0.03, 0.045, 0.06]))

    def heal(self) -> None:
        self.group.heal()

    def mend(self) -> None:
        """Everything but the weather, so that the next fault finds a group at work."""
        self.group.heal()
        for node in self.group.nodes.values():
            node.resume()
            node.disk_s = 0.001
            if not node.alive:
                self.start(node)
        self.copy_lagging()
        self.group.run(2.0, until=lambda: len(self.group.leaders()) > 0)

    def copy_lagging(self) -> None:
        """The leader's durable log replaces one that cannot be continued."""
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
                node.running().step_down(node.clock(), self.random.choice([None, self.anyone().name]))
            except (InvalidArgument, Unavailable):
                continue
            node.absorb()

    def slow_disk(self) -> None:
        self.anyone().disk_s = self.random.choice([0.001, 0.05, 0.9, 2.0])

    def campaign(self) -> None:
        """At the earliest moment the rules allow, as if the clock had drawn it."""
        node = self.anyone()
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
        """Any changes that the rules allow, one after the other, and some that they do not."""
        for node in self.group.leaders() * 3:
            if node.core is None or node.core.role != "leader":
                continue
            current = node.core.configuration
            name = self.anyone().name
            kept = tuple(peer for peer in current.peers if peer.uuid != name)
            member = self.random.choice([VOTER, VOTER, NON_VOTER])
            added = (Peer(name, f"host-{name}", member, member == NON_VOTER and self.random.random() < 0.7),)
            wanted = Configuration(kept + self.random.choice([added, ()]), index=current.index)
            with suppress(NotLeader, Unavailable, AlreadyInProgress, InvalidArgument):
                node.configure(wanted)
                node.absorb()
            self.group.run(self.random.choice([0.001, 0.05]))

    def grow(self) -> None:
        """A pre-voter joins, in better weather, so that it is likely to be promoted in the next worse one."""
        self.mend()
        for node in self.group.leaders():
            core = node.running()
            current = core.configuration
            strangers = [name for name in self.group.nodes if current.peer(name) is None]
            if strangers:
                name = self.random.choice(strangers)
                joins = Peer(name, f"host-{name}", NON_VOTER, promote=True)
                with suppress(NotLeader, Unavailable, AlreadyInProgress):
                    node.configure(Configuration((*current.peers, joins), current.index))
                    node.absorb()
        self.group.run(self.random.uniform(0.0, 1.0))

    def recover(self) -> None:
        """The second act."""
        group = self.group
        group.heal()
        group.network.loss = group.network.twice = group.network.jitter_s = 0.0
        for node in group.nodes.values():
            node.disk_s = 0.001
            node.resume()
            if not node.alive:
                self.start(node)
        for _ in range(200):  # a slow disk may have a long queue
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
        told = [f"--- {node.name}\n{node.core.story()}" for node in self.group.nodes.values() if node.core]
        return "the healed group does not agree:\n" + "\n".join(told)


def survive(seed: int, voters: str, others: str = "", spares: str = "", *, buries: bool = False) -> Group:
    day = BadDay(seed, voters, others, spares, buries=buries)
    for _ in range(ACTS):
        day.act()
    day.group.oracle.logs_match()
    day.recover()
    return day.group


@pytest.mark.parametrize("block", range(8))
def test_three_replicas_keep_every_promise_on_bad_days(block: int) -> None:
    groups = [survive(block * SEEDS_PER_TEST + i, "abc") for i in range(SEEDS_PER_TEST)]
    assert sum(len(group.oracle.committed) for group in groups) > 20 * len(groups)
    assert sum(group.oracle.reads for group in groups) > 100 * len(groups), (
        "the test must not pass by doing nothing"
    )


@pytest.mark.parametrize("block", range(3))
def test_five_replicas_keep_every_promise_on_bad_days(block: int) -> None:
    for i in range(10):
        survive(block * 10 + i, "abcde")


@pytest.mark.parametrize("block", range(2))
def test_non_voters_change_nothing_about_it(block: int) -> None:
    for i in range(10):
        survive(block * 10 + i, "abc", others="de")


def test_a_group_keeps_every_promise_while_its_members_change() -> None:
    changes = promotions = 0
    for seed in range(30):
        group = survive(seed, "abc", spares="de")
        changes += sum(entry.kind == CONFIG for entry in group.oracle.committed)
        promotions += sum(" configures " in what for _, what in group.said)
    assert changes > 30 and promotions > 10


@pytest.mark.parametrize("block", range(4))
def test_deleted_and_copied_replicas_lose_nothing_and_forget_no_vote(block: int) -> None:
    groups = [survive(block * 10 + i, "abc", spares="de", buries=True) for i in range(10)]
    groups += [survive(block * 10 + i, "abcde", buries=True) for i in range(5)]
    assert sum(group.tombstone_votes for group in groups) > len(groups)


def test_the_same_seed_gives_the_same_history() -> None:
    first, second = survive(7, "abc"), survive(7, "abc")
    assert first.said == second.said
    assert first.random.random() == second.random.random()
