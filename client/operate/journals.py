"""The nodes of the masters' journal, as they and the active master report them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ebla.actors.journal.messages import JournalStatus, SegmentStatus
from ebla.actors.journal.writer.channel import ChannelStatus
from ebla.actors.master.messages import JournalWriterStatus
from ebla.health.masters import judge_journals
from ebla.health.verdicts import Survey, Unanswered
from ebla.operate.cluster import Cluster
from ebla.wording import brief, size


class NodeReport(msgspec.Struct, frozen=True):
    """One journal node. `status` and `error` are the verdict; `journal` is the node's own report, `writer` the active master's
    report of the node."""

    address: str
    host: str | None
    status: str
    error: str | None
    journal: JournalStatus | None
    writer: ChannelStatus | None


class JournalReport(msgspec.Struct, frozen=True):
    """`writer`: the active master's report, or why there is none."""

    nodes: tuple[NodeReport, ...]
    active: str | None
    writer: JournalWriterStatus | Unanswered | None


async def report(cluster: Cluster) -> JournalReport:
    seen = await cluster.survey(tables=())
    return report_of(seen, await cluster.hosts(list(seen.journals)))


def report_of(seen: Survey, slots: Mapping[str, str | None]) -> JournalReport:
    """`slots`: where the nodes are, as far as they answer."""
    writer = seen.writer
    channels = {} if writer is None or isinstance(writer, Unanswered) else {n.node: n for n in writer.nodes}
    found = []
    for health in judge_journals(seen):
        status = seen.journals[health.address]
        own = None if isinstance(status, Unanswered) else next(iter(status.journals), None)
        host, channel = slots.get(health.address), channels.get(health.address)
        found.append(NodeReport(health.address, host, health.status, health.error, own, channel))
    return JournalReport(tuple(found), seen.active, writer)


def document(report: JournalReport) -> dict[str, Any]:
    """The report for `--json`. The writer's report of a node is with the node only. Digests are hexadecimal, since many
    readers of JSON have no integers of 64 bits."""
    document: dict[str, Any] = msgspec.to_builtins(report)
    if document["writer"] is not None:
        document["writer"].pop("nodes", None)
    for node, shown in zip(report.nodes, document["nodes"], strict=True):
        if node.journal is not None:
            shown["journal"]["segments"] = [_segment(each) for each in node.journal.segments]
    return document


def _segment(segment: SegmentStatus) -> dict[str, Any]:
    state = segment.state
    return {
        **msgspec.structs.asdict(state),
        "before": f"{state.before:016x}",
        "digest": f"{state.digest:016x}",
        "bytes": segment.bytes,
        "accepted": segment.accepted,
        "open": segment.open,
    }


def summary(report: JournalReport) -> list[tuple[str, str]]:
    """Names and values of what is known of the journal as a whole."""
    known = [node.journal for node in report.nodes if node.journal is not None and node.status != "FAILED"]
    well = sum(node.status == "HEALTHY" for node in report.nodes)
    pairs = [("nodes", f"{well} of {len(report.nodes)} healthy")]
    if known:
        pairs.insert(0, ("journal", f"{known[0].journal.name} ({known[0].journal.id})"))
    writer = report.writer
    if writer is None or isinstance(writer, Unanswered):
        why = "no master is active" if writer is None else writer.message
        return [*pairs, ("writer", f"not known: {why}")]
    writing = f"{report.active} in epoch {writer.epoch}, segment {writer.segment}"
    return [*pairs, ("writer", f"{writing}, committed up to {writer.committed:,}")]


HEADERS = ("NODE>", "HOST", "STATUS", "EPOCHS>", "SEGS>", "COMMITTED>", "LAG>", "QUEUE>", "SYNC MS>")


def rows(report: JournalReport) -> list[tuple[Any, ...]]:
    """One row below HEADERS for each node."""
    found = []
    for node in report.nodes:
        own, writer = node.journal, node.writer
        lag = queue = "-"
        if writer is not None:
            lag = f"{writer.lag_txns:,} / {writer.lag_ms:.0f} ms"
            queue = f"{writer.queue_txns:,} / {size(writer.queue_bytes)}"
        elif own is not None:
            lag = f"{own.lag_txns:,}"
        found.append(
            (
                node.address.rpartition("/")[2],
                node.host or "-",
                _status(node),
                "-" if own is None else f"{own.promised}/{own.writer}",
                None if own is None else len(own.segments),
                None if own is None else own.committed,
                lag,
                queue,
                "-" if own is None else f"{own.sync_ms.p50:.1f}/{own.sync_ms.p99:.1f}",
            )
        )
    return found


def _status(node: NodeReport) -> str:
    """The status to show: a fault says more than that the writer has left the node out."""
    left_out = node.writer is not None and node.writer.out_of_sync
    return "out of sync" if left_out and node.status in ("HEALTHY", "LAGGING") else node.status


def remarks(report: JournalReport) -> list[str]:
    return [f"  {node.address}: {brief(node.error)}" for node in report.nodes if node.error]
