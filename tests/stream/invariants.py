"""The promises of every protocol, checked on a whole group after every step. The oracle's own memory survives all faults.

one leader a term          a leader has all that was committed before its term
acknowledged is durable    an append is acknowledged only when it is on the disk
committed never changes    state machine safety and leader completeness
logs match                 log matching
one reader                 at most one replica passes read_index at a time, and it has every committed entry
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ebla.actors.errors import NotLeader, Unavailable
from ebla.actors.replication.configuration import Configuration
from ebla.storage.logs.entries import CONFIG, Entry

if TYPE_CHECKING:
    from tests.stream.group import Group
    from tests.stream.node import Node


class Oracle:
    def __init__(self, group: Group[Any]) -> None:
        self.group = group
        self.leaders: dict[int, str] = {}
        self.committed: list[Entry] = []
        self.committed_in: list[int] = []  # the term in which each was committed
        self.reads = 0
        self._seen: dict[tuple[str, int], int] = {}  # (node, incarnation) -> commit index checked

    def observe(self, node: Node[Any]) -> None:
        core = node.running()
        core.validate()
        assert core.last_index == len(node.entries), core.story()
        assert node.entries[-1].term == core.log.last_term if node.entries else core.last_index == 0
        if core.role == "leader":
            self._one_leader_a_term(node)
        self._committed_never_changes(node)

    def _one_leader_a_term(self, node: Node[Any]) -> None:
        term = node.running().term
        if term not in self.leaders:
            self.leaders[term] = node.name
            self._has_all_committed(node, term)
        assert self.leaders[term] == node.name, (
            f"term {term} has two leaders: {self.leaders[term]}, {node.name}"
        )

    def _has_all_committed(self, node: Node[Any], term: int) -> None:
        for entry, committed_in in zip(self.committed, self.committed_in, strict=True):
            if committed_in < term:
                assert entry.index <= len(node.entries), f"{node.name} leads term {term} without {entry}"
                assert node.entries[entry.index - 1] == entry, (
                    f"{node.name} leads {term} with another {entry}"
                )

    def _committed_never_changes(self, node: Node[Any]) -> None:
        core = node.running()
        key = node.name, node.incarnation
        seen = self._seen.get(key, 0)
        for index in range(seen + 1, core.commit_index + 1):
            entry = node.entries[index - 1]
            if index <= len(self.committed):
                known = self.committed[index - 1]
                assert known == entry, f"{index} was committed as {known}, on {node.name} as {entry}"
            else:
                self.committed.append(entry)
                self.committed_in.append(core.term)
        self._seen[key] = max(seen, core.commit_index)

    def acknowledged(self, node: Node[Any], match: int) -> None:
        assert node.disk.entries[:match] == node.entries[:match], f"{node.name} acknowledges {match}"
        assert node.disk.hard_state.term >= node.running().term

    def check_reads(self) -> None:
        readers = []
        for node in self.group.leaders():
            core = node.running()
            try:
                index = core.read_index(node.clock())
            except (NotLeader, Unavailable):
                continue
            readers.append(node.name)
            assert index >= len(self.committed), (
                f"{node.name} reads at {index}, {len(self.committed)} is committed: {core.story()}"
            )
        assert len(readers) <= 1, f"two replicas serve reads at once: {readers}"
        self.reads += len(readers)

    def logs_match(self) -> None:
        nodes = list(self.group.nodes.values())
        for i, one in enumerate(nodes):
            for other in nodes[:i]:
                pairs = list(zip(one.entries, other.entries, strict=False))
                same = [position for position, (x, y) in enumerate(pairs) if x.term == y.term]
                last = same[-1] + 1 if same else 0
                assert one.entries[:last] == other.entries[:last], (
                    f"{one.name} and {other.name} differ before {last}"
                )

    def committed_configuration(self, upto: int) -> Configuration | None:
        """Return the newest committed configuration at or below an index, which a server would have on its disk."""
        for entry in reversed(self.committed[:upto]):
            if entry.kind == CONFIG:
                found = msgspec.msgpack.decode(entry.payload, type=Configuration)
                return found if found.primary else msgspec.structs.replace(found, index=entry.index)
        return None
