"""`ebla journal status | rejoin`: the nodes that keep the masters' catalog, as they and the active master report them;
and a node whose directory was lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ebla.cli.frame.cluster import JOURNAL_NODE, Cluster, within
from ebla.cli.frame.commands import command
from ebla.cli.frame.problems import Refused
from ebla.cli.frame.render import brief, facts, listing, size
from ebla.cli.frame.ui import Ui
from ebla.cli.masters.masters import hosts

if TYPE_CHECKING:
    from ebla.actors.journal.messages import JournalStatus, SegmentStatus
    from ebla.actors.journal.writer.channel import ChannelStatus
    from ebla.actors.master.messages import JournalWriterStatus
    from ebla.health.verdicts import JournalHealth, Survey, Unanswered

REJOIN_S = 30.0


class NodeLine(msgspec.Struct, frozen=True):
    """One journal node. `status` and `error` are the verdict; `journal` is what the node says itself, `writer` what the
    active master knows of it."""

    address: str
    host: str | None
    status: str
    error: str | None
    journal: JournalStatus | None
    writer: ChannelStatus | None


class Told(msgspec.Struct, frozen=True):
    """`writer` is what the active master says, or why nobody says it."""

    nodes: tuple[NodeLine, ...]
    active: str | None
    writer: JournalWriterStatus | Unanswered | None


def status(ui: Ui) -> None:
    """Show each node of the masters' journal: epochs, segments, lag."""
    told = within(ui, look)
    if not told.nodes:
        raise Refused(
            "no master answers, so the nodes of the journal are not known", hint="`ebla check` tells why"
        )
    ui.show(*shown(told))


def shown(told: Told) -> list[Any]:
    """The document, and what is printed."""
    return [_document(told), *_head(told), "", _table(told), *_remarks(told)]


async def look(cluster: Cluster) -> Told:
    seen = await cluster.survey(tables=())
    return told_by(seen, await hosts(cluster, list(seen.journals)))


def told_by(seen: Survey, slots: Mapping[str, str | None]) -> Told:
    """`slots`: of the nodes that said where they are."""
    from ebla.health.masters import judge_journals
    from ebla.health.verdicts import Unanswered

    active = next(
        (a for a, said in seen.masters.items() if not isinstance(said, Unanswered) and said.role == "active"),
        None,
    )
    writer = seen.writer
    channels = {} if writer is None or isinstance(writer, Unanswered) else {n.node: n for n in writer.nodes}
    found = []
    for health in judge_journals(seen):
        said = seen.journals[health.address]
        own = None if isinstance(said, Unanswered) else next(iter(said.journals), None)
        found.append(_line(health, slots.get(health.address), own, channels.get(health.address)))
    return Told(tuple(found), active, writer)


def _document(told: Told) -> dict[str, Any]:
    """Everything by name, and once: what the writer knows of a node stands with the node. Digests are hexadecimal, since
    many readers of JSON have no integers of 64 bits."""
    document: dict[str, Any] = msgspec.to_builtins(told)
    if document["writer"] is not None:
        document["writer"].pop("nodes", None)
    for node, shown in zip(told.nodes, document["nodes"], strict=True):
        if node.journal is not None:
            shown["journal"]["segments"] = [_segment(each) for each in node.journal.segments]
    return document


def _segment(segment: SegmentStatus) -> dict[str, Any]:
    state = segment.state
    return {
        "start": state.start,
        "end": state.end,
        "finalized": state.finalized,
        "epoch": state.epoch,
        "before": f"{state.before:016x}",
        "digest": f"{state.digest:016x}",
        "bytes": segment.bytes,
        "accepted": segment.accepted,
        "open": segment.open,
    }


def _line(
    health: JournalHealth, host: str | None, own: JournalStatus | None, writer: ChannelStatus | None
) -> NodeLine:
    return NodeLine(health.address, host, health.status, health.error, own, writer)


def _head(told: Told) -> list[Any]:
    from ebla.health.verdicts import Unanswered

    sound = [node.journal for node in told.nodes if node.journal is not None and node.status != "FAILED"]
    well = sum(node.status == "HEALTHY" for node in told.nodes)
    pairs: list[tuple[str, Any]] = [("nodes", f"{well} of {len(told.nodes)} healthy")]
    if sound:
        pairs.insert(0, ("journal", f"{sound[0].journal.name} ({sound[0].journal.id})"))
    if told.writer is None or isinstance(told.writer, Unanswered):
        why = "no master is active" if told.writer is None else told.writer.message
        return [facts([*pairs, ("writer", f"not known: {why}")])]
    epoch, segment = told.writer.epoch, told.writer.segment
    writing = f"{told.active} in epoch {epoch}, segment {segment}, committed up to {told.writer.committed:,}"
    return [facts([*pairs, ("writer", writing)])]


def _table(told: Told) -> Any:
    rows = []
    for node in told.nodes:
        own, writer = node.journal, node.writer
        lag = queue = "-"
        if writer is not None:
            lag = f"{writer.lag_txns:,} / {writer.lag_ms:.0f} ms"
            queue = f"{writer.queue_txns:,} / {size(writer.queue_bytes)}"
        elif own is not None:
            lag = f"{own.lag_txns:,}"
        rows.append(
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
    headers = ("NODE>", "HOST", "STATUS", "EPOCHS>", "SEGS>", "COMMITTED>", "LAG>", "QUEUE>", "SYNC MS>")
    return listing(headers, rows)


def _status(node: NodeLine) -> str:
    """That the writer has left it out says less than what keeps the node from being let in again."""
    left_out = node.writer is not None and node.writer.out_of_sync
    return "out of sync" if left_out and node.status in ("HEALTHY", "LAGGING") else node.status


def _remarks(told: Told) -> list[str]:
    """Below the table, which has no room for them."""
    found = [f"  {node.address}: {brief(node.error)}" for node in told.nodes if node.error]
    return ["", *found] if found else []


# -- rejoin --------------------------------------------------------------------------------------------------


class Rejoined(msgspec.Struct, frozen=True):
    node: str
    learned_from: tuple[str, ...]


def rejoin(
    ui: Ui,
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="The node that lost its directory: journal/1, or 1.")
    ],
) -> None:
    """Let a journal node that lost its directory take part again. It learns the missing state from the others.

    It counts again when the next segment has begun and it has caught up. Never put the lost directory back.
    """
    done = within(ui, lambda cluster: let_rejoin(cluster, node))
    ui.show(
        msgspec.to_builtins(done),
        f"{done.node} rejoins; `ebla journal status` shows when it counts again",
    )


async def let_rejoin(cluster: Cluster, node: str) -> Rejoined:
    from ebla.actors.journal.messages import Done, RejoinRequest
    from ebla.health.masters import journal_id
    from ebla.health.verdicts import Unanswered

    node = f"{JOURNAL_NODE}{node}" if node.isdigit() else node
    seen = await cluster.survey(tables=())
    if node not in seen.journals:
        raise Refused(
            f"there is no journal node {node!r}", hint=f"the nodes are {', '.join(seen.journals) or 'none'}"
        )
    others = {a: s for a, s in seen.journals.items() if a != node and not isinstance(s, Unanswered)}
    id = journal_id(seen)
    known = [s for said in others.values() for s in said.journals if id in ("", s.journal.id)]
    if not known:
        raise Refused(
            f"no other journal node answers, to restore the state of {node}", hint="start the others first"
        )
    request = RejoinRequest(known[0].journal, known[0].nodes)
    await cluster.call(node, "rejoin", request, Done, REJOIN_S)
    return Rejoined(node, tuple(others))


def register(app: typer.Typer) -> None:
    command(app, "status")(status)
    command(app, "rejoin")(rejoin)
