"""The scenario language of PacificA groups: see tests/stream/scenario.py for what all languages share. The network has one more
name, `master`.

    cluster voters=3 spares=1 min=2 seed=1    a leads b and c; spares are in no configuration yet
    add a d / remove a d     a asks the master for a learner, or to remove a member
    stop-master / start-master                nobody is the active master; another one is
    edit 2s                  every edit of the catalog takes 2 s
    late-orders 5s           orders of the master take up to 5 s
    lose-replica a           a crashes and its replica is gone
    force d                  an operator gives up every member but d
    status / catalog
"""

from __future__ import annotations

from ebla.actors.replication.configuration import NON_VOTER, Peer
from tests.pacifica.group import Group
from tests.pacifica.node import Node
from tests.stream import scenario
from tests.stream.node import shown
from tests.stream.scenario import seconds

NAMES = "abcdefg"


class Stage(scenario.Stage[Group]):
    node_verbs = scenario.NODE_VERBS | {"lose-replica": "lose_disk"}

    def do_cluster(self, voters: str = "3", spares: str = "0", min: str = "2", seed: str = "1") -> None:
        first = int(voters)
        names, others = NAMES[:first], NAMES[first : first + int(spares)]
        self.group = Group(names, min_members=int(min), spares=others, seed=int(seed))

    def do_add(self, name: str, uuid: str) -> None:
        peers = self.node(name).running().configuration.peers
        self._request(name, (*peers, Peer(uuid, f"host-{uuid}", NON_VOTER, promote=True)))

    def do_remove(self, name: str, uuid: str) -> None:
        peers = self.node(name).running().configuration.peers
        self._request(name, tuple(peer for peer in peers if peer.uuid != uuid))

    def _request(self, name: str, peers: tuple[Peer, ...]) -> None:
        node = self.node(name)
        node.running().request_members(node.clock(), peers)
        node.absorb()

    def do_stop_master(self) -> None:
        self.current.master.stop()

    def do_start_master(self) -> None:
        self.current.master.start()

    def do_edit(self, time: str) -> None:
        self.current.master.edit_s = seconds(time)

    def do_late_orders(self, time: str) -> None:
        self.current.master.late_s = seconds(time)

    def do_force(self, name: str) -> list[str]:
        master = self.current.master
        if not self.current.run(0.05, until=lambda: master.force(name)):  # an edit may be under way
            return [f"the master refuses to force {name}"]
        self.current.run(0.1)
        return [f"{self.current.oracle.lost} committed entries are given up"]

    def do_catalog(self) -> list[str]:
        made = self.current.master.stored
        return [f"ballot {made.index}: {made.primary} leads {shown(made)}"]

    def status(self, node: Node) -> str:
        core = node.core
        if core is None:
            return f"{node.name}  down"
        view = core.view()
        leader = f"of {view.leader}" if view.leader else "no primary"
        line = f"{node.name}  {view.role:9}  ballot {view.term}  {leader:10}  commit {view.commit_index}  last {view.last_index}"
        asked = f"  asks for {core.asked.index}" if core.asked else ""
        return line + asked + ("  paused" if node.paused else "")
