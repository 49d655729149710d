"""Members change under constant writes: no write waits longer than the change takes."""

from __future__ import annotations

from contextlib import suppress

from ebla.actors.errors import NotLeader
from ebla.actors.replication.configuration import NON_VOTER, Peer
from tests.pacifica.group import Group

EVERY_S = 0.005


class Writer:
    """Proposes an entry every EVERY_S at the primary, and remembers when each was committed first."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.proposed = self.refused = 0
        self.last_commit_at, self.longest_s, self._seen = group.now, 0.0, 0
        self._step()

    def _step(self) -> None:
        for node in self.group.leaders():
            with suppress(NotLeader):
                self.group.propose(node.name)
                self.proposed += 1
        committed = len(self.group.oracle.committed)
        if committed > self._seen:
            self.longest_s = max(self.longest_s, self.group.now - self.last_commit_at)
            self.last_commit_at, self._seen = self.group.now, committed
        self.group.after(EVERY_S, "timer", self._step)


def add_learner(group: Group) -> None:
    node = group.nodes["a"]
    learner = Peer("d", "host-d", NON_VOTER, promote=True)
    node.running().request_members(node.clock(), (*node.running().configuration.peers, learner))
    node.absorb()


def voters(group: Group) -> str:
    return "".join(peer.uuid for peer in group.master.stored.voters())


def test_a_learner_gets_its_vote_under_constant_writes() -> None:
    """Its disk is slower than the others', so it never holds all that they have committed unless they wait for it."""
    group = Group("abc", spares="d")
    group.nodes["d"].disk_s = 0.03
    group.run(0.5)
    writer = Writer(group)
    group.run(2.0)
    add_learner(group)
    assert group.run(3.0, until=lambda: voters(group) == "abcd")
    group.run(1.0)
    assert writer.longest_s < 0.2
    assert writer.proposed > 500


def test_a_killed_secondary_delays_writers_for_one_change_and_gets_its_vote_back() -> None:
    group = Group("abc")
    group.run(0.5)
    writer = Writer(group)
    group.run(1.0)
    group.nodes["b"].crash()
    assert group.run(3.0, until=lambda: voters(group) == "ac")
    group.run(1.0)
    assert group.limits.silent_s < writer.longest_s < group.limits.silent_s + 0.3
    group.nodes["b"].start()
    assert group.run(5.0, until=lambda: voters(group) == "abc")
    assert writer.longest_s < group.limits.silent_s + 0.3


def test_a_killed_primary_is_followed_within_the_grace() -> None:
    group = Group("abc")
    group.run(0.5)
    writer = Writer(group)
    group.run(1.0)
    group.nodes["a"].crash()
    group.run(10.0)
    assert group.master.stored.primary == "b"
    assert writer.longest_s < group.times.grace_s + 0.5


def test_a_primary_that_starts_again_is_followed_at_once() -> None:
    group = Group("abc")
    group.run(0.5)
    writer = Writer(group)
    group.run(1.0)
    group.nodes["a"].crash()
    group.nodes["a"].start()
    group.run(3.0)
    assert group.master.stored.primary == "b"
    assert writer.longest_s < 0.5
