"""Linked lists that grow at one end: no acknowledged node is ever lost, and no chain is ever broken.

    append      key = the node, value = the node before it in its chain, or None for the first
    read-list   -> {node: the node before it}

Each process has a chain of its own and appends to a node that it knows to be there. Every read contains all nodes that were
acknowledged, or shown by an earlier read, before it began; with the values that were written; and only attempted nodes. In the
last read also every chain leads from node to node to None. A read may span several tablets, and so need not be one snapshot.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from ebla.chaos.checkers.verdict import (
    Problem,
    Recorded,
    Verdict,
    brief,
    broken,
    canonical,
    described,
    nothing,
    operations_of,
)
from ebla.chaos.history import Operation
from ebla.storage.errors import InvalidArgument

APPEND, READ = "append", "read-list"
NAMES = (APPEND, READ)


def check_list(recorded: Recorded) -> Verdict:
    operations = operations_of(recorded, NAMES)
    judged = sum(each.known for each in operations)
    reads = [each for each in operations if each.name == READ and each.known]
    chains = _Chains([each for each in operations if each.name == APPEND])
    if not reads:
        return nothing("no read of the list was answered")
    by_end = sorted(reads, key=lambda read: read.ended or 0)
    for read in by_end:
        problem = next(chains.wrong_read(read), None)
        if problem:
            return broken(*problem, judged)
    problem = next(chains.broken_chains(reads[-1]), None)
    return broken(*problem, judged) if problem else Verdict(True, judged=judged)


@dataclass
class _Node:
    append: Operation
    seen: Operation | None = None  # the first operation whose answer proved the node

    @property
    def there_by(self) -> int | None:
        return self.seen.ended if self.seen else None


class _Chains:
    def __init__(self, appends: Sequence[Operation]) -> None:
        self.nodes: dict[Hashable, _Node] = {}
        self.failed: dict[Hashable, Operation] = {}
        for append in appends:
            name = canonical(append.key)
            if append.failed:
                self.failed[name] = append
            elif name in self.nodes:
                earlier = self.nodes[name].append
                raise InvalidArgument(
                    f"{described(append)} follows {described(earlier)}: take a fresh node each time"
                )
            else:
                self.nodes[name] = _Node(append, append if append.known else None)

    def wrong_read(self, read: Operation) -> Iterator[Problem]:
        """Call it in the order in which reads ended: later ones must show the nodes of earlier ones."""
        if not isinstance(read.answer, dict):
            raise InvalidArgument(f"{described(read)}: the answer must map nodes to the nodes before them")
        assert read.ended is not None, "only answered reads are judged"
        found = {canonical(node): value for node, value in read.answer.items()}
        for name, node in self.nodes.items():
            there_by = node.there_by
            if there_by is not None and there_by < read.began and name not in found:
                assert node.seen is not None
                proof = described(node.append) if node.seen is node.append else brief(node.seen)
                yield (
                    f"{brief(read)} lacks node {node.append.key!r}, which {proof} proves was there before",
                    [node.append, node.seen, read],
                )
        for name, value in found.items():
            if name not in self.nodes:
                failed = self.failed.get(name)
                why = f"{described(failed)} surely did not take place" if failed else "no process appended it"
                yield f"{brief(read)} holds node {name!r}, but {why}", [failed, read] if failed else [read]
                continue
            node = self.nodes[name]
            if node.append.began > read.ended:
                yield (
                    f"{brief(read)} holds node {name!r} before {described(node.append)} began",
                    [node.append, read],
                )
            if canonical(value) != canonical(node.append.argument):
                yield (
                    f"{brief(read)} has node {name!r} follow {value!r}, but {described(node.append)} wrote otherwise",
                    [node.append, read],
                )
            if node.there_by is None or read.ended < node.there_by:
                node.seen = read

    def broken_chains(self, read: Operation) -> Iterator[Problem]:
        """Follow every chain of the last read, each node once."""
        found = {canonical(node): canonical(value) for node, value in read.answer.items()}
        whole: dict[Hashable, None] = {None: None}
        for start in found:
            path: dict[Hashable, None] = {}
            name: Hashable = start
            while name not in whole:
                if name in path:
                    yield f"{brief(read)}: the chain of node {start!r} comes back to node {name!r}", [read]
                    break
                if name not in found:
                    if not self._was_on_its_way(name, read):
                        last = next(reversed(path))
                        yield (
                            f"{brief(read)}: the chain of node {start!r} breaks at node {last!r}, which follows "
                            f"node {name!r}; that node is missing",
                            [self.nodes[each].append for each in (name, last) if each in self.nodes] + [read],
                        )
                    break
                path[name] = None
                name = found[name]
            whole.update(path)

    def _was_on_its_way(self, name: Hashable, read: Operation) -> bool:
        """Whether the node was acknowledged during the read, which need not be one snapshot of all chains."""
        there_by = self.nodes[name].there_by if name in self.nodes else None
        return there_by is not None and there_by > read.began
