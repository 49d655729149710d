"""Random faults of a group by seed, of all faults of the model.

Act one draws faults. Act two heals everything, and the group must agree again, so that a deadlock does not count as
safety. Every promise is checked after every step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import Any, Generic, TypeVar

from ebla.actors.errors import NotLeader, Unavailable
from ebla.storage.errors import InvalidArgument
from tests.stream.group import Group
from tests.stream.node import Node

G = TypeVar("G", bound=Group[Any])

ACTS = 36


class RandomFaults(ABC, Generic[G]):
    def __init__(self, random: Random, group: G) -> None:
        self.random = random
        self.group = group
        self.proposed = 0
        network = group.network
        network.loss = random.choice([0.0, 0.02, 0.2])
        network.twice = random.choice([0.0, 0.1])
        network.jitter_s = random.choice([0.0, 0.05, 2.5])
        chance = Random()
        chance.setstate(random.getstate())  # so that no other fault depends on this choice
        group.ends_are_seen = chance.random() > 0.7

    @abstractmethod
    def verbs(self) -> list[Callable[[], None]]:
        """The faults to draw from, and proposals; a verb that comes twice is drawn twice as often."""

    @abstractmethod
    def copy_lagging(self) -> None:
        """Replace each log that cannot be continued by the leader's durable log."""

    def survive(self) -> G:
        for _ in range(ACTS):
            self.random.choice(self.verbs())()
            self.group.run(self.random.choice([0.003, 0.02, 0.3, 1.5]))
        self.group.oracle.logs_match()
        self.recover()
        return self.group

    def common(self) -> list[Callable[[], None]]:
        verbs = [self.propose] * 6 + [self.mend] * 4 + [self.crash, self.restart, self.pause, self.resume]
        verbs += [self.cut, self.split, self.cut_one_way, self.isolate_leader, self.group.heal]
        return [
            *verbs,
            self.step_down,
            self.slow_disk,
            self.drop_log,
            self.crash_in_a_write,
            self.copy_lagging,
        ]

    def random_node(self) -> Any:
        return self.random.choice(list(self.group.nodes.values()))

    def propose(self) -> None:
        for node in self.group.leaders():
            for _ in range(self.random.choice([1, 2, 9])):
                self.proposed += 1
                try:
                    self.group.propose(node.name, b"%d" % self.proposed)
                except (NotLeader, Unavailable):
                    return

    def crash(self) -> None:
        node = self.random_node()
        if node.alive:
            node.crash(commits_kept=self.random.choice([0, 1, 99]))

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

    def start(self, node: Node[Any]) -> None:
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
        half = self.random.randint(0, len(names) - 1)
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

    def mend(self) -> None:
        """Undo all faults except those of the network's settings, so that the next fault meets a working group."""
        self.undo()
        self.copy_lagging()
        self.group.run(2.0, until=lambda: len(self.group.leaders()) > 0)

    def undo(self) -> None:
        self.group.heal()
        for node in self.group.nodes.values():
            node.resume()
            node.disk_s = 0.001
            if not node.alive:
                self.start(node)

    def step_down(self) -> None:
        for node in self.group.leaders():
            try:
                node.running().step_down(node.clock(), self.random.choice([None, self.random_node().name]))
            except (InvalidArgument, Unavailable):
                continue
            node.absorb()

    def slow_disk(self) -> None:
        self.random_node().disk_s = self.random.choice([0.001, 0.05, 0.9, 2.0])

    def drop_log(self) -> None:
        for node in self.group.nodes.values():
            if node.core is not None:
                core = node.core
                index = min(core.commit_index, core.durable_index, core.all_replicated_index)
                core.log.drop_to(index)
                node.disk.dropped = max(node.disk.dropped, index)

    def recover(self) -> None:
        """Heal everything and wait until the group agrees."""
        group = self.group
        group.network.loss = group.network.twice = group.network.jitter_s = 0.0
        self.undo()
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
