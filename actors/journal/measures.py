"""The figures of a journal node, and of the line that a writer has to each node: see actors/figures.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ebla.actors.figures import Figure, Sheet, counter, gauge
from ebla.actors.journal import messages as m
from ebla.actors.journal.channel import ChannelStatus
from ebla.actors.journal.journal import status

if TYPE_CHECKING:
    from ebla.actors.journal.node import JournalNode

JOURNALS_MAX = 16  # that are told, by name; a deployment has one

NODE: Sheet[JournalNode] = Sheet(
    (),
    gauge("journal_unserved", "journals", "journals whose state is damaged here", lambda n: len(n.failed)),
)

JOURNAL: Sheet[m.JournalStatus] = Sheet(
    ("journal",),
    gauge("journal_promised_epoch", "", "older writers than this are refused", lambda s: s.promised),
    gauge("journal_writer_epoch", "", "of the last writer that began a segment here", lambda s: s.writer),
    gauge("journal_committed_txid", "", "as far as this node knows", lambda s: s.committed),
    gauge("journal_last_txid", "", "of the last edit here", lambda s: s.last),
    gauge("journal_lag_txns", "txns", "committed edits that are not here yet", lambda s: s.lag_txns),
    gauge("journal_segments", "segments", "segments held here", lambda s: len(s.segments)),
    gauge(
        "journal_damaged_segments", "segments", "fail their checks; fetched anew", lambda s: len(s.damaged)
    ),
    gauge(
        "journal_rejoining", "0/1", "lost its directory, counts for no majority yet", lambda s: s.rejoining
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

LINE: Sheet[ChannelStatus] = Sheet(
    ("node",),
    gauge(
        "writer_out_of_sync", "0/1", "the node is left out until the next segment", lambda s: s.out_of_sync
    ),
    gauge("writer_acked_txid", "", "the last edit that the node has acknowledged", lambda s: s.acked),
    gauge(
        "writer_lag_txns", "txns", "committed edits that the node has not acknowledged", lambda s: s.lag_txns
    ),
    gauge(
        "writer_lag_ms", "ms", "how long before the last commit the node's last edit was", lambda s: s.lag_ms
    ),
    gauge("writer_queue_txns", "txns", "edits that wait for the node", lambda s: s.queue_txns),
    gauge("writer_queue_bytes", "bytes", "bytes that wait for the node", lambda s: s.queue_bytes),
    counter(
        "writer_sent_batches", "batches", "batches that the node has acknowledged", lambda s: s.rpc_ms.count
    ),
    gauge("writer_rpc_p50_ms", "ms", "sent until acknowledged, median", lambda s: s.rpc_ms.p50),
    gauge("writer_rpc_p99_ms", "ms", "sent until acknowledged, 99th percentile", lambda s: s.rpc_ms.p99),
    gauge(
        "writer_end_to_end_p50_ms", "ms", "queued until acknowledged, median", lambda s: s.end_to_end_ms.p50
    ),
    gauge(
        "writer_end_to_end_p99_ms",
        "ms",
        "queued until acknowledged, 99th percentile",
        lambda s: s.end_to_end_ms.p99,
    ),
)

SHEETS = (NODE, JOURNAL)


def measure_node(node: JournalNode) -> Iterator[Figure]:
    yield from NODE.read(node)
    for name in sorted(node.journals)[:JOURNALS_MAX]:
        yield from JOURNAL.read(status(node.journals[name]), name)


def measure_lines(nodes: Sequence[ChannelStatus]) -> Iterator[Figure]:
    for each in nodes:
        yield from LINE.read(each, each.node)
