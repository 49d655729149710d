"""Rules for the growth of a journal from one node to several, decided as in rules.py.

    joining     a new node is like a node that rejoins (rejoin.py): it counts for no majority, and fetches
                finalized segments
    grow        at the single node: the commit point. From then on the journal has the new nodes, and the
                node refuses requests of the old set
    admission   from that node, afterwards: each new node counts, if it has every edit up to the commit
                point

actors/master/leadership/growth.py has the order of the steps and says why they are safe.
"""

from __future__ import annotations

from msgspec.structs import replace

from ebla.actors.journal import messages as m
from ebla.actors.journal.node import rules
from ebla.actors.journal.node.rejoin import reached
from ebla.actors.journal.node.rules import Change, View
from ebla.actors.journal.records import LAYOUT, Format


def joining(view: View) -> m.Joining:
    end = reached([segment.state for segment in view.all()], view.state.purged)
    return m.Joining(end, digest_at(view, end), view.state.token)


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
    admits = tuple(zip(request.nodes[1:], request.tokens, strict=True))
    state = replace(view.state, admits=admits, grown=request.end, grown_epoch=request.epoch)
    journal = replace(request.journal, version=request.journal.version + 1)
    return Change(state, dropped=rules.empties(view), form=Format(LAYOUT, journal, request.nodes))


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
    """
    state = view.state
    if state.token != request.token:
        return None
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
        purged=max(state.purged, request.purged),
        held_ms=max(state.held_ms, request.held_ms),
        token="",
        joined=0,
    )
    if request.end > state.committed:
        state = replace(state, committed=request.end, committed_epoch=request.epoch)
    return Change(state, open=view.open)
