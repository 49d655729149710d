"""The figures of the channels that a writer has to the nodes of a journal: see actors/figures.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ebla.actors.figures import Figure, Sheet, counter, gauge
from ebla.actors.journal.writer.channel import ChannelStatus

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
        "writer_lag_ms",
        "ms",
        "time from the node's last acknowledged edit to the last committed one",
        lambda s: s.lag_ms,
    ),
    gauge("writer_queue_txns", "txns", "edits that wait for the node", lambda s: s.queue_txns),
    gauge("writer_queue_bytes", "bytes", "bytes that wait for the node", lambda s: s.queue_bytes),
    counter(
        "writer_sent_batches", "batches", "batches that the node has acknowledged", lambda s: s.rpc_ms.count
    ),
    gauge("writer_rpc_p50_ms", "ms", "from sending to acknowledgement, median", lambda s: s.rpc_ms.p50),
    gauge(
        "writer_rpc_p99_ms", "ms", "from sending to acknowledgement, 99th percentile", lambda s: s.rpc_ms.p99
    ),
    gauge(
        "writer_end_to_end_p50_ms",
        "ms",
        "from queueing to acknowledgement, median",
        lambda s: s.end_to_end_ms.p50,
    ),
    gauge(
        "writer_end_to_end_p99_ms",
        "ms",
        "from queueing to acknowledgement, 99th percentile",
        lambda s: s.end_to_end_ms.p99,
    ),
)


def measure_lines(nodes: Sequence[ChannelStatus]) -> Iterator[Figure]:
    for each in nodes:
        yield from LINE.read(each, each.node)
