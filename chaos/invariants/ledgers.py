"""Invariants of ledgers, of their metadata as the serving master has it, and of the disks of their stores.

metadata_goes_forward     a closed ledger keeps its end; states and segments are never taken back
deletions_stay            a deleted ledger never comes back
closed_ledgers_have_copies   an ack quorum of the stores of each entry has it on disk, when the ledger is closed and whenever
                          its stores change. Stores whose directory was lost or damaged count, as they had it
replacements_are_full     a store that takes the place of another one in a fragment that is not written any more has all
                          entries on disk
marks_end_repaired        the mark of a store that is lost for good ends when no segment names the store, and not before
ledgers_are_named         a ledger that was made for a log is named by the log until it is deleted
one_auditor_acts          only the session that holds the lock of the auditors marks, records and counts time as an auditor
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from ebla.actors.coordination import paths as names
from ebla.actors.coordination.messages import ChangeRequest, Check
from ebla.actors.coordination.namespace import Namespace
from ebla.actors.ledger import metadata as meta
from ebla.actors.ledger.metadata import Metadata, Segment
from ebla.actors.ledger.shared import paths
from ebla.actors.ledger.shared.kept import Mark
from ebla.actors.master.server import ActiveMaster
from ebla.chaos.invariants.ledger_disks import LedgerDisks
from ebla.chaos.simulation.deployment import Deployment
from ebla.log import records
from ebla.log.records import LogRecord

RANKS = (meta.OPEN, meta.IN_RECOVERY, meta.CLOSED)
BY_AUDITORS = (f"{paths.MARKS}/", paths.AUDITS, paths.COUNTED)

_metadata = msgspec.msgpack.Decoder(Metadata).decode
_mark = msgspec.msgpack.Decoder(Mark).decode
_log = msgspec.msgpack.Decoder(LogRecord).decode


@dataclass
class Ledgers:
    """`master`: the one that serves, if there is one."""

    deployment: Deployment
    master: Callable[[], ActiveMaster | None]
    broken: str = ""
    _known: dict[int, tuple[int, Metadata]] = field(default_factory=dict)  # with the version
    _deleted: dict[int, None] = field(default_factory=dict)
    _marks: dict[int, tuple[int, Mark, float]] = field(
        default_factory=dict
    )  # with the version, and made since
    _checked_s: float = 0.0

    def __post_init__(self) -> None:
        self.disks = LedgerDisks(self.deployment)
        self.deployment.cluster.network.tap("change_nodes", ChangeRequest, self._one_auditor_acts)

    def check(self) -> None:
        """Raise AssertionError for the first invariant that does not hold."""
        assert not self.broken, self.broken
        master = self.master()
        if master is None:
            return
        namespace = master.catalog.namespace
        there = dict(ledgers_of(namespace))
        for ledger in [ledger for ledger in self._known if ledger not in there]:
            del self._known[ledger]
            self._deleted[ledger] = None
        for ledger, version in there.items():
            assert ledger not in self._deleted, f"ledger {ledger} was deleted, and is there again"
            before = self._known.get(ledger)
            if before is None or before[0] != version:
                found = read(namespace, ledger)
                self._known[ledger] = version, found
                self._on_change(None if before is None else before[1], found)
        self._check_marks(namespace)
        self._ledgers_are_named(namespace)

    def _on_change(self, before: Metadata | None, found: Metadata) -> None:
        if before is not None:
            metadata_goes_forward(before, found)
            for segment, old, new in moves(before, found):
                last = next((s.first - 1 for s in found.segments if s.first > segment.first), found.last)
                lacking = self.disks.lacking(found, segment.first, new, last)
                assert not lacking or self.is_hurt(new), (
                    f"store {new} took the place of store {old} in ledger {found.ledger}, and has no entries {lacking[:5]} of "
                    f"{segment.first} to {last} on its disk"
                )
        if found.closed:
            self._closed_ledgers_have_copies(found)

    def _closed_ledgers_have_copies(self, found: Metadata) -> None:
        stores = dict.fromkeys(store for segment in found.segments for store in segment.stores)
        held = {
            store: None
            if self.is_hurt(store)
            or (state := self.disks.state(store)) is None
            or self.disks.is_deleted(state, found.ledger)
            else self.disks.entries(state, found.ledger)
            for store in stores
        }
        for entry in range(found.last + 1):
            having = [
                store
                for store in meta.stores_of(found, entry)
                if (there := held[store]) is None or entry in there
            ]
            assert len(having) >= found.ack_quorum, (
                f"entry {entry} of closed ledger {found.ledger} is on disk at {having} only, of {found}"
            )

    def is_hurt(self, uuid: str) -> bool:
        return uuid in self.deployment.hurt_stores

    def _check_marks(self, namespace: Namespace) -> None:
        """A mark that was made after the store was lost for good has been read by every worker that deletes it."""
        since_s, self._checked_s = self._checked_s, self.deployment.cluster.loop.time()
        there = {}
        for name in namespace.children(paths.MARKS):
            node = namespace.nodes[names.join(paths.MARKS, name)]
            ledger, before = int(name), self._marks.get(int(name))
            same = before is not None and before[0] == node.version
            there[ledger] = before if same and before else (node.version, _mark(node.data), since_s)
        for ledger, (_, mark, made_s) in self._marks.items():
            if ledger in there or ledger not in self._known:
                continue
            named = [s for segment in self._known[ledger][1].segments for s in segment.stores]
            for store in mark.lost:
                lost_s = self.deployment.hurt_stores.get(store, made_s)
                gone = self.disks.state(store) is None and lost_s < made_s
                assert not gone or store not in named, (
                    f"the mark of ledger {ledger} ended, and it still names store {store}, which is lost for good"
                )
        self._marks = there

    def _ledgers_are_named(self, namespace: Namespace) -> None:
        named: dict[str, frozenset[int]] = {}
        for _, found in self._known.values():
            if found.log and found.log not in named:
                named[found.log] = named_by(namespace, found.log)
            assert not found.log or found.ledger in named[found.log], f"log {found.log} does not name {found}"

    def _one_auditor_acts(self, request: ChangeRequest) -> None:
        touched = [o.path for o in request.operations if not isinstance(o, Check)]
        if not any(path.startswith(BY_AUDITORS) for path in touched):
            return
        master = self.master()
        if master is None:
            return
        namespace = master.catalog.namespace
        session = namespace.sessions.get(request.session)
        if session is None or not session.name.startswith("auditor/"):
            return
        waiting = namespace.children(paths.AUDITOR)
        first = namespace.nodes[names.join(paths.AUDITOR, waiting[0])] if waiting else None
        if first is None or first.owner != request.session:
            self.broken = self.broken or f"{session.name} changes {touched}, and is not the elected auditor"


def ledgers_of(namespace: Namespace) -> Iterator[tuple[int, int]]:
    """The ledgers that the master knows, with the versions of their metadata."""
    for name in namespace.children(paths.LEDGERS):
        number = names.number(name)
        if number is not None:
            yield number, namespace.nodes[names.join(paths.LEDGERS, name)].version


def named_by(namespace: Namespace, log: str) -> frozenset[int]:
    """The ledgers that the log has, or is deleting."""
    node = namespace.nodes.get(names.join(paths.LOGS, log))
    if node is None:
        return frozenset()
    record = records.numbered(_log(node.data), node.version)
    return frozenset((*record.deleting, *(each.ledger for each in record.ledgers)))


def read(namespace: Namespace, ledger: int) -> Metadata:
    return meta.replace(_metadata(namespace.nodes[paths.of_ledger(ledger)].data), ledger=ledger)


def metadata_goes_forward(before: Metadata, found: Metadata) -> None:
    what = f"ledger {found.ledger} was {before}, and is {found}"
    assert before.token == found.token and RANKS.index(before.state) <= RANKS.index(found.state), what
    assert not before.closed or (before.last, before.length) == (found.last, found.length), what
    firsts = [segment.first for segment in found.segments]
    kept = [each.first for each in before.segments if not found.closed or each.first <= max(found.last, 0)]
    assert all(first in firsts for first in kept), what
    assert not before.closed or len(kept) == len(firsts), what


def moves(before: Metadata, found: Metadata) -> Iterator[tuple[Segment, str, str]]:
    """The stores that have taken the place of others in fragments that were not written any more: segment, old, new."""
    finished = before.segments if before.closed else before.segments[:-1]
    now = {segment.first: segment for segment in found.segments}
    for segment in finished:
        stores = now[segment.first].stores if segment.first in now else segment.stores
        yield from (
            (segment, old, new) for old, new in zip(segment.stores, stores, strict=True) if old != new
        )
