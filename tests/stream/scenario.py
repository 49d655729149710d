"""What the scenario languages of all protocols share: files of commands, verbs on a group, and views of it.

    run 2s                   time passes                      stabilize     messages and disk writes, no timers
    read a                   a linearizable read
    propose a 3              three entries                    step-down a to b
    pause a / resume a       crash a / restart a              cut a b / isolate a / heal
    disk a 2s                every commit takes 2 s
    health a                 the peers' health in a's view, with 60 s of silence as a failure
    drop a 5                 drop a's log up to index 5       copy a to c    a tablet copy in one step
    lose a b 2               the next two messages from a to b are lost, answers too
    trace a / trace off      show a's appends and their answers
    log / members / progress a

A file consists of blocks: comments, commands, `----`, output, an empty line. `pytest --rewrite` writes all outputs
again; commit a difference only when you understand it.

In a log, `1-3@2` is entries 1 to 3 of term 2. Entries before `|` are committed, entries after `~` are not durable.
Nodes with equal logs or members share a line.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from ebla.actors.messages.protocols import Answer, Request
from ebla.actors.messages.stream import AppendReply, AppendRequest
from ebla.storage.errors import EblaError
from ebla.storage.logs.entries import Entry
from tests.stream.group import Group
from tests.stream.node import Node, shown

G = TypeVar("G", bound=Group[Any])


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


def play(path: Path, stage: Stage[Any]) -> str:
    """Return the file with the outputs that its commands have now."""
    blocks = parse(path.read_text())
    for block in blocks:
        block.output = [line for command in block.commands for line in stage.perform(command)]
        if block.commands and not block.output:
            block.output = ["ok"]
    if stage.group is not None:
        stage.group.oracle.logs_match()
    return render(blocks)


GROUP_VERBS = {"stabilize": "settle"} | {verb: verb for verb in ("cut", "isolate", "heal", "lose")}
NODE_VERBS = {"restart": "start"} | {verb: verb for verb in ("pause", "resume", "crash")}


class Stage(ABC, Generic[G]):
    """Carries out commands: a method of the group, of a node, or `do_<verb>`, with the words after it as arguments."""

    group: G | None = None
    group_verbs: dict[str, str] = GROUP_VERBS
    node_verbs: dict[str, str] = NODE_VERBS

    @property
    def current(self) -> G:
        assert self.group is not None, "a scenario begins with `cluster`"
        return self.group

    def node(self, name: str) -> Any:
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
        if verb in self.group_verbs:
            return getattr(self.current, self.group_verbs[verb])
        if verb in self.node_verbs:
            return lambda name: getattr(self.node(name), self.node_verbs[verb])()
        return getattr(self, "do_" + verb.replace("-", "_"))

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

    def do_disk(self, name: str, time: str) -> None:
        self.node(name).disk_s = seconds(time)

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

    def do_health(self, name: str) -> list[str]:
        node = self.node(name)
        found = node.running().health(node.clock(), 60.0)
        return ["  ".join(f"{uuid} {health}" for uuid, health in found.items())]

    def do_drop(self, name: str, index: str) -> None:
        self.node(name).running().log.drop_to(int(index))

    def do_copy(self, source: str, _to: str, target: str) -> None:
        self.current.copy(self.node(source), self.node(target))

    def do_status(self) -> list[str]:
        return [self.status(node) for node in self.current.nodes.values()]

    @abstractmethod
    def status(self, node: Any) -> str: ...

    def drawn(self, node: Any) -> str:
        core = node.core
        if core is None:
            return f"(down) {runs(node.disk.entries)}"
        commit, durable = core.commit_index, max(core.commit_index, core.durable_index)
        entries = node.entries
        parts = [runs(entries[:commit]), runs(entries[commit:durable]), runs(entries[durable:])]
        text = parts[0]
        text += f" | {parts[1]}" if parts[1] else ""
        text += f" ~ {parts[2]}" if parts[2] else ""
        return text.strip() or "empty"

    def do_members(self) -> list[str]:
        return grouped({node.name: members(node) for node in self.current.nodes.values() if node.core})

    def do_log(self) -> list[str]:
        return grouped({node.name: self.drawn(node) for node in self.current.nodes.values()})

    def do_progress(self, name: str) -> list[str]:
        progress = self.node(name).running().progress
        return [
            f"{uuid}  {peer.state:9}  match {peer.match}  next {peer.next}" for uuid, peer in progress.items()
        ]

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


def members(node: Node[Any]) -> str:
    return shown(node.running().configuration)
