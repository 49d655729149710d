"""The scenario language: verbs on a Raft group, and the transcript of their results.

    cluster voters=3 nonvoters=1 spares=1 seed=1    a, b, c, then the others; spares are in no configuration yet
                             one_by_one=yes: a message carries one entry, and one is under way at a time
    campaign a               a's election timeout ends now    stabilize     messages and disk writes, no timers
    run 2s                   time passes                      wait 2s       the same, but no timer starts a campaign
    elect a                  campaign, stabilize and run 200ms
    read a                   a linearizable read
    propose a 3              three entries                    step-down a to b
    pause a / resume a       crash a / restart a / delete a     cut a b / isolate a / heal
    disk a 2s                every commit takes 2 s           latency 50ms
    configure a add d        a proposes a change: also prevoter d, nonvoter d, replace d, remove d
    force a keep a,b         a gives up all others for good
    health a                 the peers' health in a's view, with 60 s of silence as a failure
    drop a 5                 drop a's log up to index 5       copy a to c    a tablet copy in one step
    ask b for c term=1 last=4@1               a forged vote request; its answer is only shown
    challenge b for c times=100 every=10ms    many forged requests at growing terms, with the longest log
    trace a / trace off      show a's appends and their answers
    status / log / members / progress a

A file consists of blocks: comments, commands, `----`, output, an empty line. `pytest --rewrite` writes all outputs
again; commit a difference only when you understand it.

In a log, `1-3@2` is entries 1 to 3 of term 2. Entries before `|` are committed, entries after `~` are not durable.
Nodes with equal logs or members share a line.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ebla.actors.messages.raft import Answer, Request, VoteReply, VoteRequest
from ebla.actors.messages.stream import AppendReply, AppendRequest
from ebla.actors.replication.configuration import (
    Configuration,
    Peer,
)
from ebla.actors.tablet.engine.core import Pending
from ebla.actors.tablet.raft.events import RaftLimits
from ebla.storage.errors import EblaError
from ebla.storage.logs.entries import Entry
from tests.raft.group import Group, configuration
from tests.raft.node import Node
from tests.stream.node import shown

NAMES = "abcdefg"


@dataclass
class Block:
    text: list[str]  # comments and commands
    output: list[str]

    @property
    def commands(self) -> list[str]:
        return [line for line in self.text if line and not line.startswith("#")]


def parse(text: str) -> list[Block]:
    blocks = []
    for part in text.strip().split("\n\n"):
        head, separator, tail = part.partition("\n----")
        if not separator and all(line.startswith("#") for line in part.splitlines()):
            blocks.append(Block(part.splitlines(), []))
            continue
        blocks.append(Block(head.splitlines(), tail.strip("\n").splitlines()))
    return blocks


def render(blocks: list[Block]) -> str:
    parts = []
    for block in blocks:
        lines = block.text + (["----", *block.output] if block.commands else [])
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def play(path: Path) -> str:
    """Return the file with the outputs that its commands have now."""
    blocks = parse(path.read_text())
    stage = Stage()
    for block in blocks:
        block.output = [line for command in block.commands for line in stage.perform(command)]
        if block.commands and not block.output:
            block.output = ["ok"]
    if stage.group is not None:
        stage.group.oracle.logs_match()
    return render(blocks)


GROUP_VERBS = {"stabilize": "settle"} | {verb: verb for verb in ("campaign", "cut", "isolate", "heal")}
NODE_VERBS = {"restart": "start"} | {verb: verb for verb in ("pause", "resume", "crash", "delete")}


class Stage:
    """Carries out commands: a method of the group, of a node, or `do_<verb>`, with the words after it as arguments."""

    def __init__(self) -> None:
        self.group: Group | None = None

    @property
    def current(self) -> Group:
        assert self.group is not None, "a scenario begins with `cluster`"
        return self.group

    def node(self, name: str) -> Node:
        return self.current.nodes[name]

    def perform(self, command: str) -> list[str]:
        verb, *words = command.split()
        plain = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        began = self.group.now if self.group else 0.0
        if self.group:
            self.group.transcript.clear()
        try:
            answer = self.method(verb)(*plain, **options) or []
        except EblaError as error:
            answer = [f"{plain[0]} refuses: {type(error).__name__}: {error}"]
        timed = verb in ("run", "wait")
        events = [
            f"{f'+{at - began:.2f}s  ' if timed else ''}{event}" for at, event in self.current.transcript
        ]
        self.current.transcript.clear()
        return events + answer

    def method(self, verb: str) -> Callable[..., list[str] | None]:
        if verb in GROUP_VERBS:
            return getattr(self.current, GROUP_VERBS[verb])
        if verb in NODE_VERBS:
            return lambda name: getattr(self.node(name), NODE_VERBS[verb])()
        return getattr(self, "do_" + verb.replace("-", "_"))

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

    def do_run(self, time: str) -> None:
        self.current.run(seconds(time))

    def do_wait(self, time: str) -> None:
        self.current.patient = True
        self.current.run(seconds(time))
        self.current.patient = False

    def do_trace(self, name: str) -> None:
        def show(source: str, target: str, message: Request | Answer) -> None:
            if name in (source, target):
                self._trace(source, target, message)

        self.current.trace = None if name == "off" else show

    def do_latency(self, time: str) -> None:
        self.current.network.latency_s = seconds(time)

    def do_disk(self, name: str, time: str) -> None:
        self.node(name).disk_s = seconds(time)

    # -- requests to replicas

    def do_elect(self, name: str) -> list[str]:
        self.current.campaign(name)
        self.current.settle()
        self.current.run(0.2)
        assert self.current.leader().name == name, self.node(name).running().story()
        self.current.transcript.clear()
        return [f"{name} leads term {self.node(name).running().term}"]

    def do_propose(self, name: str, count: str = "1") -> list[str]:
        node = self.node(name)
        entries = [node.propose(b"x") for _ in range(int(count))]
        node.absorb()
        return [f"{name} took {runs(entries)}"]

    def do_read(self, name: str) -> list[str]:
        node = self.node(name)
        return [f"{name} reads at {node.running().read_index(node.clock())}"]

    def do_step_down(self, name: str, _to: str = "to", successor: str | None = None) -> list[str]:
        node = self.node(name)
        chosen = node.running().step_down(node.clock(), successor)
        node.absorb()
        return [f"{name} hands over to {chosen}"]

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

    def do_health(self, name: str) -> list[str]:
        node = self.node(name)
        found = node.running().health(node.clock(), 60.0)
        return ["  ".join(f"{uuid} {health}" for uuid, health in found.items())]

    def do_drop(self, name: str, index: str) -> None:
        self.node(name).running().log.drop_to(int(index))

    def do_copy(self, source: str, _to: str, target: str) -> None:
        self.current.copy(self.node(source), self.node(target))

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
            answer, save = node.tombstone.receive(node.clock(), request)
            if save is not None:
                node.disk.hard_state = save
                node.tombstone.saved(save)
        else:
            answer = node.running().receive(node.clock(), request.candidate, request)
            node.absorb()
        assert isinstance(answer, VoteReply)
        return f"{answer.reason} in term {answer.term}"

    # -- views

    def do_status(self) -> list[str]:
        return [self._status(node) for node in self.current.nodes.values()]

    def _status(self, node: Node) -> str:
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

    def do_log(self) -> list[str]:
        return grouped({node.name: drawn(node) for node in self.current.nodes.values()})

    def do_progress(self, name: str) -> list[str]:
        progress = self.node(name).running().progress
        return [
            f"{uuid}  {peer.state:9}  match {peer.match}  next {peer.next}" for uuid, peer in progress.items()
        ]

    def do_members(self) -> list[str]:
        return grouped({node.name: members(node) for node in self.current.nodes.values() if node.core})

    def _trace(self, source: str, target: str, message: Request | Answer) -> None:
        if isinstance(message, AppendRequest):
            entries = runs(list(message.entries)) or "nothing"
            after = f"{message.previous_index}@{message.previous_term}"
            self.current.record(
                f"{source} -> {target}: {entries} after {after}, commit {message.commit_index}"
            )
        elif isinstance(message, AppendReply):
            answer = f"has all to {message.match}" if message.success else f"no, try after {message.hint}"
            self.current.record(f"{source} -> {target}: {answer}")


def grouped(views: dict[str, str]) -> list[str]:
    """One line for each view, with the names of all nodes that share it."""
    names: dict[str, list[str]] = {}
    for name, view in views.items():
        names.setdefault(view, []).append(name)
    return [f"{','.join(same)}  {view}" for view, same in names.items()]


def seconds(time: str) -> float:
    return float(time[:-2]) / 1000 if time.endswith("ms") else float(time.removesuffix("s"))


def runs(entries: list[Entry]) -> str:
    """Entries by term: `1-3@1 4@2`."""
    parts = []
    for term, same in itertools.groupby(entries, key=lambda entry: entry.term):
        indexes = [entry.index for entry in same]
        first, last = indexes[0], indexes[-1]
        parts.append(f"{first}@{term}" if first == last else f"{first}-{last}@{term}")
    return " ".join(parts)


def drawn(node: Node) -> str:
    core = node.core
    if node.disk.tombstone:
        return "(tombstone) {}@{}".format(*node.disk.tombstone)
    if core is None:
        return f"(down) {runs(node.disk.entries)}"
    commit, durable = core.commit_index, max(core.commit_index, core.durable_index)
    parts = [runs(node.entries[:commit]), runs(node.entries[commit:durable]), runs(node.entries[durable:])]
    text = parts[0]
    text += f" | {parts[1]}" if parts[1] else ""
    text += f" ~ {parts[2]}" if parts[2] else ""
    return text.strip() or "empty"


def members(node: Node) -> str:
    return shown(node.running().configuration)
