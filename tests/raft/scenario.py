"""The scenario language of Raft groups: see tests/stream/scenario.py for what all languages share.

cluster voters=3 nonvoters=1 spares=1 seed=1    a, b, c, then the others; spares are in no configuration yet
                         one_by_one=yes: a message carries one entry, and one is under way at a time
campaign a               a's election timeout ends now    wait 2s       time passes, but no timer starts a campaign
elect a                  campaign, stabilize and run 200ms
delete a                 a becomes a tombstone
configure a add d        a proposes a change: also prevoter d, nonvoter d, replace d, remove d
force a keep a,b         a gives up all others for good
ask b for c term=1 last=4@1               a forged vote request; its answer is only shown
challenge b for c times=100 every=10ms    many forged requests at growing terms, with the longest log
status / members
"""

from __future__ import annotations

import itertools

from ebla.actors.messages.raft import Answer, VoteReply, VoteRequest
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.actors.tablet.engine.core import Pending
from ebla.actors.tablet.raft.events import RaftLimits
from tests.raft.group import Group, configuration
from tests.raft.node import Node
from tests.stream import scenario
from tests.stream.scenario import members, runs, seconds

NAMES = "abcdefg"


class Stage(scenario.Stage[Group]):
    group_verbs = scenario.GROUP_VERBS | {"campaign": "campaign"}
    node_verbs = scenario.NODE_VERBS | {"delete": "delete"}

    # -- the stage

    def do_cluster(
        self,
        voters: str = "3",
        nonvoters: str = "0",
        spares: str = "0",
        seed: str = "1",
        one_by_one: str = "no",
    ) -> None:
        counts = int(voters), int(nonvoters), int(spares)
        names = iter(NAMES)
        member, learner, spare = ("".join(itertools.islice(names, count)) for count in counts)
        limits = RaftLimits(append_bytes_max=1, inflight_max=1) if one_by_one == "yes" else RaftLimits()
        self.group = Group(configuration(member, learner), spares=spare, seed=int(seed), limits=limits)

    # -- requests to replicas

    def do_elect(self, name: str) -> list[str]:
        self.current.campaign(name)
        self.current.settle()
        self.current.run(0.2)
        assert self.current.leader().name == name, self.node(name).running().story()
        self.current.transcript.clear()
        return [f"{name} leads term {self.node(name).running().term}"]

    def do_configure(self, name: str, how: str, uuid: str) -> list[str]:
        node = self.node(name)
        current = node.running().configuration
        kept = tuple(peer for peer in current.peers if peer.uuid != uuid)
        members_of = {"add": "voter", "replace": "voter", "nonvoter": "non_voter", "prevoter": "non_voter"}
        member = members_of.get(how)
        made = member and Peer(uuid, f"host-{uuid}", member, how == "prevoter", how == "replace")
        peers = (*kept, made) if made else kept
        entry = node.configure(Configuration(peers, current.index, current.unsafe))
        node.absorb()
        return [f"{name} took {runs([entry])}: {members(node)}"]

    def do_force(self, name: str, _keep: str, names: str) -> None:
        node = self.node(name)
        node.running().force_configuration(node.clock(), names.split(","), "a scenario")
        node.absorb()

    def do_ask(self, name: str, _for: str, candidate: str, term: str, last: str = "9@9") -> list[str]:
        index, of = last.split("@")
        request = VoteRequest(int(term), candidate, int(index), int(of))
        return [f"{name} answers: {self._asked(name, request)}"]

    def do_challenge(
        self, name: str, _for: str, candidate: str, times: str = "1", every: str = "0s"
    ) -> list[str]:
        """Send the requests of a disruptive server; the answers are only shown."""
        reasons = []
        term = self.node(name).running().term
        for attempt in range(int(times)):
            self.current.run(seconds(every))
            request = VoteRequest(term + 1 + attempt, candidate, 1_000 + attempt, term + attempt)
            reasons.append(self._asked(name, request))
        counted = [(reason, len(list(same))) for reason, same in itertools.groupby(reasons)]
        return [f"{name} answers {count} times: {reason}" for reason, count in counted]

    def _asked(self, name: str, request: VoteRequest) -> str:
        node = self.node(name)
        answer: Pending | Answer | None
        if node.tombstone is not None:
            answer = node.tombstone.receive(node.clock(), request)
            node.disk.hard_state = node.tombstone.hard_state
            node.tombstone.saved(node.tombstone.hard_state)
        else:
            answer = node.running().receive(node.clock(), request.candidate, request)
            node.absorb()
        assert isinstance(answer, VoteReply)
        return f"{answer.reason} in term {answer.term}"

    # -- views

    def status(self, node: Node) -> str:
        core = node.core
        if node.tombstone is not None:
            state = node.tombstone.hard_state
            voted = f"voted for {state.vote}" if state.vote else "has not voted"
            return f"{node.name}  tombstone     term {state.term}  {voted}"
        if core is None:
            return f"{node.name}  down"
        own = core.configuration.peer(node.name)
        kind = own.kind.replace("_", "-") if own else "non-voter"
        role = core.role if kind == "voter" else kind
        leader = f"of {core.leader}" if core.leader else "no leader"
        line = f"{node.name}  {role:13} term {core.term}  {leader:9}  commit {core.commit_index}  last {core.last_index}"
        return line + ("  paused" if node.paused else "")

    def drawn(self, node: Node) -> str:
        return (
            "(tombstone) {}@{}".format(*node.disk.tombstone) if node.disk.tombstone else super().drawn(node)
        )
