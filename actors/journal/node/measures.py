"""The figures of a journal node, see actors/figures.py, and the status of each of its journals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Protocol

from ebla.actors.figures import Figure, Sheet, counter, gauge
from ebla.actors.journal import messages as m
from ebla.actors.journal.node.journal import Journal

JOURNALS_MAX = 16  # journals with figures, the first by name; a deployment has one


class MeasuredNode(Protocol):
    """The part of a journal node that its figures use."""

    @property
    def failed(self) -> Sized: ...

    @property
    def journals(self) -> Mapping[str, Journal]: ...


NODE: Sheet[MeasuredNode] = Sheet(
    (),
    gauge(
        "journal_unserved",
        "journals",
        "journals whose state on this node is damaged",
        lambda n: len(n.failed),
    ),
)

JOURNAL: Sheet[m.JournalStatus] = Sheet(
    ("journal",),
    gauge(
        "journal_promised_epoch",
        "",
        "the promised epoch; writers of lower epochs are refused",
        lambda s: s.promised,
    ),
    gauge(
        "journal_writer_epoch",
        "",
        "epoch of the last writer that began a segment on this node",
        lambda s: s.writer,
    ),
    gauge(
        "journal_committed_txid", "", "the last committed edit that this node knows of", lambda s: s.committed
    ),
    gauge("journal_last_txid", "", "the last edit on this node", lambda s: s.last),
    gauge(
        "journal_lag_txns", "txns", "committed edits that this node does not have yet", lambda s: s.lag_txns
    ),
    gauge("journal_segments", "segments", "segments on this node", lambda s: len(s.segments)),
    gauge(
        "journal_damaged_segments",
        "segments",
        "segments that fail their checks; they are fetched again",
        lambda s: len(s.damaged),
    ),
    gauge(
        "journal_rejoining",
        "0/1",
        "this node lost its directory, and counts for no majority yet",
        lambda s: s.rejoining,
    ),
    counter("journal_batches", "batches", "batches of edits taken from writers", lambda s: s.batches),
    counter("journal_edits", "edits", "edits taken from writers", lambda s: s.edits),
    counter("journal_bytes", "bytes", "bytes of edits taken from writers", lambda s: s.bytes),
    counter("journal_served_edits", "edits", "edits sent to readers", lambda s: s.served_edits),
    counter(
        "journal_synced_segments", "segments", "segments fetched from peers", lambda s: s.synced_segments
    ),
    counter("journal_syncs", "syncs", "commits with a sync", lambda s: s.sync_ms.count),
    gauge("journal_sync_p50_ms", "ms", "a commit with its sync, median", lambda s: s.sync_ms.p50),
    gauge("journal_sync_p99_ms", "ms", "a commit with its sync, 99th percentile", lambda s: s.sync_ms.p99),
)

SHEETS = (NODE, JOURNAL)


def measure_node(node: MeasuredNode) -> Iterator[Figure]:
    yield from NODE.read(node)
    for name in sorted(node.journals)[:JOURNALS_MAX]:
        yield from JOURNAL.read(status(node.journals[name]), name)


def status(journal: Journal) -> m.JournalStatus:
    view = journal.view
    state = view.state
    return m.JournalStatus(
        journal=view.journal,
        nodes=journal.form.nodes,
        promised=state.promised,
        writer=state.writer,
        committed=state.committed,
        last=view.last,
        lag_txns=max(0, state.committed - view.last),
        segments=tuple(
            m.SegmentStatus(s.state, s.bytes, s.accepted, view.open == s.start) for s in view.all()
        ),
        batches=journal.batches,
        batches_lagging=journal.batches_lagging,
        edits=journal.edits,
        bytes=journal.bytes,
        served_edits=journal.served_edits,
        synced_segments=journal.synced_segments,
        sync_ms=journal.sync_s.percentiles(),
        damaged=dict(journal.damaged),
        rejoining=bool(state.token) and not state.joining,
        old=state.old,
        joining=state.joining,
        admits=tuple(each.node for each in state.admits),
    )
