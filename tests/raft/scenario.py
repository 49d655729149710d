"""The scenario language: a few verbs on a Raft group, and a transcript of what came of them.

    cluster voters=3 nonvoters=1 spares=1 seed=1    a, b, c, then the others; spares belong to no configuration yet
                             one_by_one=yes: messages carry one entry, and wait for each other
    campaign a               its patience ends now            stabilize     carry out what is under way, no timers
    run 2s                   let time pass                    wait 2s       the same, but nobody's patience ends
    elect a                  campaign, stabilize, run 200ms, in a word
    read a                   ask for a linearizable read
    propose a 3              three entries                    step-down a to b
    pause a / resume a       crash a / restart a / bury a     cut a b / isolate a / heal
    disk a 2s                every commit takes that long     latency 50ms
    configure a add d        also prevoter d, nonvoter d, replace d, remove d: what a proposes to make of it
    force a keep a,b         a takes the others for lost for good
    health a                 as a sees the others, 60 s of silence being a failure
    drop a 5                 forget a's log up to index 5     copy a to c    what a tablet copy does, in one step
    ask b for c term=1 last=4@1               a forged vote request; the answer goes nowhere
    challenge b for c times=100 every=10ms    many of them, at ever higher terms, with the best of logs
    trace a / trace off      show a's appends and their answers
    status / log / progress a

A file is a row of blocks, each of comments, commands, `----` and their output, up to an empty line. `pytest --rewrite`
writes the outputs anew; commit a difference only when it is understood.

In a log, `1-3@2` is entries 1 to 3 of term 2; what stands before `|` is committed there, what after `~` not durable.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ebla.actors.messages.raft import (
    Answer,
    AppendReply,
    AppendRequest,
    Request,
    VoteReply,
    VoteRequest,
)
from ebla.actors.replication.configuration import (
    Configuration,
    Peer,
)
from ebla.actors.tablet.engine.core import Pending
from ebla.actors.tablet.raft.events import RaftLimits
from ebla.storage.errors import EblaError
from ebla.storage.logs.entries import Entry
from tests.raft.group import Group, configuration
from tests.raft.node import Node, shown

NAMES = "abcdefg"


@dataclass
class Block:
    text: list[str]  # comments and commands, as they stand
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
    """The file as it would read if it were true."""
    blocks = parse(path.read_text())
    stage = Stage()
    for block in blocks:
        block.output = [line for command in block.commands for line in stage.perform(command)]
        if block.commands and not block.output:
            block.output = ["ok"]
    if stage.group is not None:
        stage.group.oracle.logs_match()
    return render(blocks)


class Stage:
    """Carries out commands. A command is a method `do_<verb>`, with the words after it as arguments."""

    def __init__(self) -> None:
        self.group: Group | None = None

    @property
    def it(self) -> Group:
        assert self.group is not None, "a scenario begins with `cluster`"
        return self.group

    def node(self, name: str) -> Node:
        return self.it.nodes[name]

    def perform(self, command: str) -> list[str]:
        verb, *words = command.split()
        method: Callable[..., list[str] | None] = getattr(self, "do_" + verb.replace("-", "_"))
        plain = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        began = self.group.now if self.group else 0.0
        if self.group:
            self.group.said.clear()
        try:
            answer = method(*plain, **options) or []
        except EblaError as error:
            answer = [f"{plain[0]} refuses: {type(error).__name__}: {error}"]
        timed = verb in ("run", "wait")
        said = [f"{f'+{at - began:.2f}s  ' if timed else ''}{what}" for at, what in self.it.said]
        self.it.said.clear()
        return said + answer

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

    def do_stabilize(self) -> None:
        self.it.settle()

    def do_run(self, time: str) -> None:
        self.it.run(seconds(time))

    def do_wait(self, time: str) -> None:
        self.it.patient = True
        self.it.run(seconds(time))
        self.it.patient = False

    def do_trace(self, whom: str) -> None:
        def show(source: str, target: str, message: Request | Answer) -> None:
            if whom in (source, target):
                self._trace(source, target, message)

        self.it.trace = None if whom == "off" else show

    def do_latency(self, time: str) -> None:
        self.it.network.latency_s = seconds(time)

    def do_disk(self, name: str, time: str) -> None:
        self.node(name).disk_s = seconds(time)

    def do_cut(self, one: str, other: str) -> None:
        self.it.cut(one, other)

    def do_isolate(self, name: str) -> None:
        self.it.isolate(name)

    def do_heal(self) -> None:
        self.it.heal()

    def do_pause(self, name: str) -> None:
        self.node(name).pause()

    def do_resume(self, name: str) -> None:
        self.node(name).resume()

    def do_crash(self, name: str) -> None:
        self.node(name).crash()

    def do_restart(self, name: str) -> None:
        self.node(name).start()

    def do_bury(self, name: str) -> None:
        self.node(name).bury()

    # -- what replicas are asked to do

    def do_campaign(self, name: str) -> None:
        self.it.campaign(name)

    def do_elect(self, name: str) -> list[str]:
        self.it.campaign(name)
        self.it.settle()
        self.it.run(0.2)
        assert self.it.leader().name == name, self.node(name).running().story()
        self.it.said.clear()
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

    def do_configure(self, name: str, how: str, who: str) -> list[str]:
        node = self.node(name)
        current = node.running().configuration
        kept = tuple(peer for peer in current.peers if peer.uuid != who)
        member = {"add": "voter", "replace": "voter", "nonvoter": "non_voter", "prevoter": "non_voter"}.get(
            how
        )
        made = member and Peer(who, f"host-{who}", member, how == "prevoter", how == "replace")
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
        told = node.running().health(node.clock(), 60.0)
        return ["  ".join(f"{uuid} {health}" for uuid, health in told.items())]

    def do_drop(self, name: str, index: str) -> None:
        self.node(name).running().log.drop_to(int(index))

    def do_copy(self, source: str, _to: str, target: str) -> None:
        self.it.copy(self.node(source), self.node(target))

    def do_ask(self, name: str, _for: str, candidate: str, term: str, last: str = "9@9") -> list[str]:
        index, of = last.split("@")
        request = VoteRequest(int(term), candidate, int(index), int(of))
        return [f"{name} answers: {self._asked(name, request)}"]

    def do_challenge(
        self, name: str, _for: str, candidate: str, times: str = "1", every: str = "0s"
    ) -> list[str]:
        """As a server out of its mind would ask; the answers go nowhere."""
        reasons = []
        term = self.node(name).running().term
        for attempt in range(int(times)):
            self.it.run(seconds(every))
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
        return [self._status(node) for node in self.it.nodes.values()]

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
        leader = f"of {core.leader}" if core.leader else "of nobody"
        line = f"{node.name}  {role:13} term {core.term}  {leader:9}  commit {core.commit_index}  last {core.last_index}"
        return line + ("  paused" if node.paused else "")

    def do_log(self) -> list[str]:
        return [f"{node.name}  {drawn(node)}" for node in self.it.nodes.values()]

    def do_progress(self, name: str) -> list[str]:
        progress = self.node(name).running().progress
        return [
            f"{uuid}  {peer.state:9}  match {peer.match}  next {peer.next}" for uuid, peer in progress.items()
        ]

    def do_members(self) -> list[str]:
        return [f"{node.name}  {members(node)}" for node in self.it.nodes.values() if node.core]

    def _trace(self, source: str, target: str, message: Request | Answer) -> None:
        if isinstance(message, AppendRequest):
            entries = runs(list(message.entries)) or "nothing"
            after = f"{message.previous_index}@{message.previous_term}"
            self.it.say(f"{source} -> {target}: {entries} after {after}, commit {message.commit_index}")
        elif isinstance(message, AppendReply):
            said = f"has all to {message.match}" if message.success else f"no, try after {message.hint}"
            self.it.say(f"{source} -> {target}: {said}")


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
    if node.disk.buried:
        return "(tombstone) {}@{}".format(*node.disk.buried)
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
