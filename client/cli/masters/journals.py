"""`ebla journal status | rejoin`: the nodes that keep the masters' catalog, and a node whose directory was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from ebla.cli.frame.options import argument
from ebla.cli.frame.render import facts, listing
from ebla.cli.frame.ui import Shown
from ebla.operate.naming import JOURNAL_NODE, Refused

if TYPE_CHECKING:
    from ebla.operate.cluster import Cluster

REJOIN_S = 30.0


async def status(cluster: Cluster) -> Shown:
    """Show each node of the masters' journal: epochs, segments, lag."""
    from ebla.operate import journals

    report = await journals.report(cluster)
    if not report.nodes:
        raise Refused(
            "no master answers, so the nodes of the journal are not known", hint="`ebla check` says why"
        )
    table = listing(journals.HEADERS, journals.rows(report))
    remarks = journals.remarks(report)
    parts = (facts(journals.summary(report)), "", table, *(["", *remarks] if remarks else []))
    return journals.document(report), *parts


async def rejoin(
    cluster: Cluster,
    node: Annotated[str, argument("NODE", "The node that lost its directory: journal/1, or 1.")],
) -> Shown:
    """Let a journal node that lost its directory take part again. It learns the missing state from the others.

    It counts again when the next segment has begun and it has caught up. Never put the lost directory back.
    """
    from ebla.actors.journal.messages import Done, RejoinRequest
    from ebla.health.masters import journal_id
    from ebla.health.verdicts import answered

    seen = await cluster.survey(tables=())
    if node.isdigit():  # the first one may be in the process of master/0
        numbered = (address for address in seen.journals if address.endswith(f"/{node}"))
        node = next(numbered, f"{JOURNAL_NODE}{node}")
    if node not in seen.journals:
        raise Refused(
            f"there is no journal node {node!r}", hint=f"the nodes are {', '.join(seen.journals) or 'none'}"
        )
    others = {address: status for address, status in answered(seen.journals).items() if address != node}
    id = journal_id(seen)
    known = [s for status in others.values() for s in status.journals if id in ("", s.journal.id)]
    if not known:
        raise Refused(
            f"no other journal node answers, to restore the state of {node}", hint="start the others first"
        )
    newest = max(known, key=lambda status: status.journal.version)
    request = RejoinRequest(newest.journal, newest.nodes)
    await cluster.call(node, "rejoin", request, Done, REJOIN_S)
    document = {"node": node, "learned_from": list(others)}
    return document, f"{node} rejoins; `ebla journal status` shows when it counts again"
