"""Rules for the growth of a journal from one node to several, decided as in rules.py.

    joining     a new node counts for no majority, refuses all writers, and fetches finalized segments
    grow        at the single node: the commit point. From then on the journal has the new nodes, and the
                node refuses requests of the old set
    admission   from that node, afterwards: each new node counts, if it has every edit up to the commit
                point

A new node that loses its directory before its admission has promised nothing, so it may join again. The
single node finds out: before it first asks a node to count, it asks for the token of the joining, and makes
durable that it is about to ask. Once that is durable, the node may have counted. A node that loses its
directory afterwards must rejoin (rejoin.py).

actors/master/leadership/growth.py has the order of the steps and says why they are safe.
"""

from __future__ import annotations

from msgspec.structs import replace

from ebla.actors.errors import Unavailable
from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import Rejoining
from ebla.actors.journal.node import rules
from ebla.actors.journal.node.rejoin import reached
from ebla.actors.journal.node.rules import Change, View
from ebla.actors.journal.records import LAYOUT, Admission, Format


def joining(view: View) -> m.Joining:
    end = reached([segment.state for segment in view.all()], view.state.purged)
    return m.Joining(end, digest_at(view, end), view.state.token if view.state.joining else "")


def digest_at(view: View, end: int) -> int:
    """Return the digest after this edit, if a finalized segment ends with it; else 0."""
    return next((s.state.digest for s in view.all() if s.finalized and s.end == end), 0)


def grow(view: View, request: m.GrowRequest) -> Change:
    """Decide the commit point: the writer of this epoch is the last, and all its edits are finalized."""
    if request.epoch != view.state.promised:
        rules.fence(view, request.epoch)
        raise rules.out_of_sync(view, f"epoch {request.epoch} was never promised here")
    if view.last != request.end or digest_at(view, request.end) != request.digest:
        raise rules.out_of_sync(
            view, f"the journal does not end here with a segment finalized at {request.end}"
        )
    pairs = zip(request.nodes[1:], request.tokens, strict=True)
    admits = tuple(Admission(node, token) for node, token in pairs)
    state = replace(view.state, admits=admits, grown=request.end, grown_epoch=request.epoch)
    journal = replace(request.journal, version=request.journal.version + 1)
    return Change(state, dropped=rules.empties(view), form=Format(LAYOUT, journal, request.nodes))


def pending(view: View, node: str) -> Admission | None:
    """Return the admission of this node that is still to be done."""
    return next((each for each in view.state.admits if each.node == node), None)


def asking(view: View, node: str, joining: m.Joining) -> Change:
    """Decide to ask a node to count that has joined, and was never asked. It may have lost its directory, and
    have joined again by another token. Raises Unavailable if it lacks edits."""
    if joining.end < view.state.grown:
        raise Unavailable(
            f"{node} has fetched the journal up to edit {joining.end} of {view.state.grown}; wait until it has the rest"
        )
    asked = Admission(node, joining.token, asked=True)
    admits = tuple(asked if each.node == node else each for each in view.state.admits)
    return Change(replace(view.state, admits=admits), open=view.open)


def admitted(view: View, node: str) -> Change:
    left = tuple(each for each in view.state.admits if each.node != node)
    return Change(replace(view.state, admits=left), open=view.open)


def admission(view: View, journal: m.JournalId, token: str, address: str) -> m.AdmitRequest:
    """The request that lets a joining node count.

    An epoch of the new set needs the promise of the node at `address`, the only one that counts before.
    As long as it promised none since the growth, no writer of the new set has held a lease.
    """
    state = view.state
    helps = address if state.promised == state.grown_epoch else ""
    digest = digest_at(view, state.grown)
    return m.AdmitRequest(
        journal, token, state.promised, state.writer, state.grown, digest, state.purged, state.held_ms, helps
    )


def admit_joining(view: View, request: m.AdmitRequest) -> Change | None:
    """Let this joining node count. Raises OutOfSync if it lacks an edit.

    None: that joining is over. The node counts already, or it has lost its directory and rejoins. Then
    edits that it acknowledged after its admission are missing, and it counts by the rules of rejoin.py.
    Raises Rejoining if it joins again since it was asked to count: then it has to rejoin, too.
    """
    state = view.state
    if not state.joining:
        return None
    if state.token != request.token:
        raise Rejoining(
            f"{view.node} lost its directory after it was asked to count in journal {view.journal.name}; `ebla journal rejoin "
            f"{view.node}`",
            journal=view.journal.name,
        )
    here = reached([segment.state for segment in view.all()], max(state.purged, request.purged))
    digest = digest_at(view, request.end)
    same = request.digest in (0, digest) or state.purged >= request.end
    if here < request.end or not same:
        raise rules.out_of_sync(
            view, f"this node has edits up to {here}, and joins with all up to {request.end}"
        )
    state = replace(
        state,
        promised=max(state.promised, request.promised),
        serial=state.serial if state.promised >= request.promised else 0,
        purged=max(state.purged, request.purged),
        held_ms=max(state.held_ms, request.held_ms),
        token="",
        joining=False,
    )
    if request.end > state.committed:
        state = replace(state, committed=request.end, committed_epoch=request.epoch)
    return Change(state, open=view.open)
