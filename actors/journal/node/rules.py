"""The rules by which a journal node accepts requests. They never wait.

Each function that carries out a request reads a View and returns a Change, or raises. Recovery relies
on three promises of a node:

    fenced       once epoch e is promised, no request of a lower epoch changes anything
    continuous   an edit is taken only after the edit before, of the same segment and by the same writer
    remembered   every later recovery learns the content that a recovery chose here, until the segment is
                 started again

A Change is made durable in one commit before the node answers (journal.py); only then does the View show it.
A refused request changes nothing on disk. Some refusals close the open segment, in memory only: the writer
must then start the next segment before this node takes edits again, as after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace
from sortedcontainers import SortedDict

from ebla.actors.journal import messages as m
from ebla.actors.journal.errors import JournalBroken, OutOfSync, StaleEpoch, broken
from ebla.actors.journal.node.rejoin import covered, old_copy
from ebla.actors.journal.records import Format, Segment, State, edit_items, last_digest
from ebla.storage.environment import Item
from ebla.storage.errors import InvalidArgument


@dataclass
class View:
    """The durable state of one journal, and the start of the segment that is open for edits."""

    journal: m.JournalId
    state: State
    node: str
    segments: SortedDict = field(default_factory=SortedDict)
    open: int | None = None

    def segment(self, start: int) -> Segment | None:
        found: Segment | None = self.segments.get(start)
        return found

    def all(self) -> Sequence[Segment]:
        return list(self.segments.values())

    def newest(self) -> Segment | None:
        """The last segment that has edits."""
        for segment in reversed(self.segments.values()):
            if segment.count:
                return segment  # type: ignore[no-any-return]
        return None

    @property
    def last(self) -> int:
        newest = self.newest()
        return newest.end if newest else 0


@dataclass(frozen=True)
class Change:
    """One commit. `put` are headers to write, with their `edits`. Of segments in `dropped`, header and edits
    are deleted; of segments in `replaced` only the edits, since `put` has another copy. `open` is the open
    segment afterwards. `form`: the format with other nodes."""

    state: State
    put: tuple[Segment, ...] = ()
    edits: tuple[Item, ...] = ()
    dropped: tuple[Segment, ...] = ()
    replaced: tuple[Segment, ...] = ()
    open: int | None = None
    form: Format | None = None


# -- fencing -------------------------------------------------------------------------------------------------


def admit(view: View, stamp: m.Stamp) -> State:
    """Return the state after a request of this writer. A node that missed the new epoch promises it now."""
    fence(view, stamp.epoch)
    state = view.state
    if state.joining:
        raise out_of_sync(view, "this node joins the journal and does not count yet")
    # What was purged everywhere is not missing: a node that has rejoined may have no edit after it yet.
    if state.old or (stamp.acknowledged > max(view.last, state.purged) and not state.token):
        raise old_copy(view.journal.name, view.node)
    if stamp.epoch > state.promised:
        state = replace(state, promised=stamp.epoch, serial=0)
    if stamp.serial <= state.serial:
        raise OutOfSync(
            f"request {stamp.serial} of epoch {stamp.epoch} came after request {state.serial}",
            journal=view.journal.name,
        )
    state = replace(state, serial=stamp.serial)
    if not stamp.committed:
        return state
    if stamp.committed < state.committed:
        raise _broken(
            view,
            f"the writer of epoch {stamp.epoch} says that edits up to {stamp.committed} are committed, and "
            f"{state.committed} are",
        )
    return replace(state, committed=stamp.committed, committed_epoch=stamp.epoch)


def fence(view: View, epoch: int) -> None:
    if epoch < view.state.promised:
        raise StaleEpoch(
            f"epoch {epoch} is over: this node has promised epoch {view.state.promised}; stop writing",
            journal=view.journal.name,
            epoch=epoch,
            promised=view.state.promised,
        )


def new_epoch(view: View, epoch: int, held_ms: int = 0, after: int = 0) -> Change:
    """Promise a strictly greater epoch: of two writers that want the same number at most one gets a
    majority. `held_ms`: of the lease that is granted with the promise. `after`: see NewEpochRequest."""
    if not is_new(view.state, epoch) or is_overtaken(view.state, after):
        raise StaleEpoch(
            f"epoch {epoch} is not above {view.state.promised}, which this node has promised; ask again",
            journal=view.journal.name,
            epoch=epoch,
            promised=view.state.promised,
        )
    state = replace(view.state, promised=epoch, serial=0, held_ms=max(view.state.held_ms, held_ms))
    return Change(state, dropped=empties(view))


def longer_lease(view: View, held_ms: int) -> Change:
    return Change(replace(view.state, held_ms=held_ms), open=view.open)


def is_new(state: State, epoch: int) -> bool:
    return epoch > state.promised


def is_overtaken(state: State, after: int) -> bool:
    """Whether this node has promised another writer an epoch above the sender's current one."""
    return 0 < after < state.promised


def empties(view: View) -> tuple[Segment, ...]:
    """List segments without edits: nothing was decided about them, and nothing is lost with them."""
    return tuple(segment for segment in view.all() if not segment.count)


# -- writing -------------------------------------------------------------------------------------------------


def start(view: View, request: m.StartSegment) -> Change:
    """Start a segment. The segment before, if it is still open, stays in progress.

    An older segment at the same start may be replaced if nothing in it can have been committed: it is empty,
    or has only the first edit, the marker, of an older writer."""
    state = admit(view, request.stamp)
    if not knows_of_loss(state, request.token):
        raise out_of_sync(view, "this node has lost its directory, and the writer did not know it yet")
    old = view.segment(request.start)
    if old is not None and not may_start_over(old, request.stamp.epoch):
        raise _wrong(view, f"segment {request.start} exists here, with edits up to {old.end}")
    others_committed = committed_before(view, request.stamp.epoch)
    if request.start <= others_committed:
        raise _broken(view, f"a segment starts at {request.start}, and {others_committed} is committed")
    joined = state.joined or (request.start if state.token else 0)
    state = replace(state, writer=request.stamp.epoch, copies=state.copies + 1, joined=joined)
    begun = m.SegmentState(
        request.start, request.start - 1, False, request.stamp.epoch, request.before, request.before
    )
    # The new header forgets an older recovery's choice: had it held, no later writer would start here.
    made = Segment(begun, state.copies)
    return Change(state, put=(made,), replaced=() if old is None else (old,), open=request.start)


def knows_of_loss(state: State, token: str) -> bool:
    """Whether the directory was not lost, or the writer knew of the loss when it sent this: see rejoin.py."""
    return not state.token or token == state.token


def caught_up(view: View, purged: int = 0) -> Change | None:
    """End the rejoining if this node has all edits that it must have. No peer has edits up to `purged`."""
    state = view.state
    purged = max(state.purged, purged)
    if not state.joined:
        return None
    if not covered([segment.state for segment in view.all()], purged, state.joined):
        return None
    return Change(replace(state, token="", joined=0, purged=purged), open=view.open)


def committed_before(view: View, epoch: int) -> int:
    """Return the committed txid of another writer than that of `epoch`, or 0. That of the writer itself may
    be ahead of its request: it continued with the other nodes while this one was slow."""
    return view.state.committed if view.state.committed_epoch != epoch else 0


def may_start_over(old: Segment, epoch: int) -> bool:
    if old.finalized or old.count > 1:
        return False
    return old.count == 0 or old.state.epoch < epoch


def journal(view: View, request: m.JournalRequest) -> Change:
    state = admit(view, request.stamp)
    writes(view, request.stamp.epoch)
    segment = taking(view, request.segment)
    follows(view, segment, request.first)
    if not request.edits:
        return Change(state, open=view.open)
    header = segment.state
    items = edit_items(segment.start, segment.copy, request.first, header.digest, request.edits)
    if not continues(items, request.digest):
        raise out_of_sync(view, f"edits from {request.first} do not continue what is here")
    longer = replace(
        segment,
        state=replace(header, end=request.first + len(request.edits) - 1, digest=request.digest),
        bytes=segment.bytes + sum(map(len, request.edits)),
    )
    return Change(state, put=(longer,), edits=tuple(items), open=view.open)


def writes(view: View, epoch: int) -> None:
    """Require that the writer of `epoch` has started a segment here; a promise is not enough."""
    if epoch != view.state.writer:
        raise out_of_sync(view, f"epoch {epoch} has started no segment here; {view.state.writer} has")


def taking(view: View, start: int) -> Segment:
    """Return the open segment, if the writer is in it. Otherwise close it: the writer has left it, and this
    node missed the start of the next one."""
    opened = view.open
    if opened is None:
        raise out_of_sync(view, "no segment is open here")
    if opened != start:
        view.open = None
        raise out_of_sync(view, f"segment {opened} was open here, and the writer is in segment {start}")
    segment = view.segment(opened)
    assert segment is not None
    return segment


def follows(view: View, segment: Segment, first: int) -> None:
    if first != segment.end + 1:
        raise out_of_sync(view, f"edit {first} does not follow edit {segment.end}")


def continues(items: Sequence[Item], digest: int) -> bool:
    """Whether the edits here, with these appended, have the digest that the writer computed."""
    return last_digest(items) == digest


def finalize(view: View, request: m.FinalizeRequest) -> Change:
    state = admit(view, request.stamp)
    segment = view.segment(request.start)
    if segment is None:
        raise out_of_sync(view, f"there is no segment {request.start} here")
    if not is_whole(segment, request):
        what = f"segment {request.start} ends here at {segment.end}, not at {request.end} as it was finalized"
        if segment.finalized and not segment.learned:
            raise _broken(view, what)
        raise out_of_sync(view, what)
    final = replace(segment, state=replace(segment.state, finalized=True), accepted=0, learned=False)
    opened = None if view.open == request.start else view.open
    return Change(state, put=(final,), open=opened)


def is_whole(segment: Segment, request: m.FinalizeRequest) -> bool:
    return (segment.end, segment.state.digest) == (request.end, request.digest)


def heartbeat(view: View, request: m.Heartbeat) -> Change:
    return Change(admit(view, request.stamp), open=view.open)


def purge(view: View, request: m.PurgeRequest) -> Change:
    """Drop segments that end before `request.before`, except the newest one with edits and the open one.

    The newest segment shows where the journal ends. A segment in progress that does not end before may hold
    the only second copy of a committed edit."""
    state = admit(view, request.stamp)
    if request.before > state.committed + 1:
        raise InvalidArgument(
            f"edits up to {request.before - 1} are not all committed; {state.committed} are"
        )
    newest = view.newest()
    old = [s for s in view.all() if s.end < request.before and s is not newest and s.start != view.open]
    state = replace(state, purged=max(state.purged, request.before - 1))
    return Change(state, dropped=tuple(old), open=view.open)


# -- recovery ------------------------------------------------------------------------------------------------


def prepare(view: View, request: m.PrepareRequest) -> Change:
    """Close the open segment: from here on only this recovery, or a later one, changes it."""
    state = admit(view, request.stamp)
    return Change(state, dropped=empties(view))


def prepared(view: View, start: int) -> m.Prepared:
    segment, state = view.segment(start), view.state
    if segment is None or not segment.count:
        return m.Prepared(None, 0, state.writer, state.committed)
    return m.Prepared(segment.state, segment.accepted, state.writer, state.committed)


def accept(view: View, request: m.AcceptRequest) -> Change | None:
    """Accept the chosen content. None: the copy here is another one, and has to be replaced first."""
    state = admit(view, request.stamp)
    chosen = request.segment
    if not 0 < chosen.start <= chosen.end:
        raise InvalidArgument(f"a recovery never chooses an empty segment: {chosen}")
    if not holds(view, chosen, request.stamp.epoch):
        return None
    local = view.segment(chosen.start)
    assert local is not None
    return Change(state, put=(remembered(local, request.stamp.epoch),))


def holds(view: View, chosen: m.SegmentState, epoch: int) -> bool:
    """Whether this node already has the chosen content. Raises JournalBroken if taking it would undo a
    decision, but OutOfSync if this node learned the decision from a peer: while the recovery was delayed, a
    later epoch, unknown to this node, may have decided."""
    local = view.segment(chosen.start)
    others_committed = committed_before(view, epoch)
    if others_committed > chosen.end:
        raise _broken(view, f"{others_committed} is committed, and a recovery ends at {chosen.end}")
    if local is None or not is_same(local.state, chosen):
        if local is not None and local.finalized:
            what = f"segment {chosen.start} is finalized at {local.end}, a recovery chose {chosen.end}"
            raise out_of_sync(view, what) if local.learned else _broken(view, what)
        return False
    return True


def is_same(local: m.SegmentState, chosen: m.SegmentState) -> bool:
    """Compare by content: two writers may have left different edits under the same txids."""
    return local.same_edits(chosen)


def remembered(segment: Segment, epoch: int) -> Segment:
    """Record the accepted recovery. A finalized segment needs no record: it was decided before."""
    return segment if segment.finalized else replace(segment, accepted=epoch)


def replace_copy(view: View, request: m.AcceptRequest, copy: int, size: int, sound: bool) -> Change:
    """Decide the commit point of a recovery on a node that fetched the chosen content as `copy`. Meanwhile
    it may have learned from a peer that the content was decided. `sound`: the old copy is not known to be
    damaged."""
    fence(view, request.stamp.epoch)
    chosen, old = request.segment, view.segment(request.segment.start)
    state = admitted_again(view, request.stamp)
    if holds(view, chosen, request.stamp.epoch) and sound:
        assert old is not None
        return Change(state, put=(remembered(old, request.stamp.epoch),))
    final = old is not None and old.finalized  # then the old copy has the same content, and is damaged
    learned = old is not None and old.learned
    made = Segment(replace(chosen, finalized=final), copy, bytes=size, learned=learned)
    return Change(state, put=(remembered(made, request.stamp.epoch),), replaced=() if old is None else (old,))


def admitted_again(view: View, stamp: m.Stamp) -> State:
    """Admit again, after a wait, a request that `admit` admitted before: only a newer request refuses it."""
    if stamp.epoch == view.state.promised and stamp.serial < view.state.serial:
        raise out_of_sync(
            view, f"request {stamp.serial} took so long that request {view.state.serial} came by"
        )
    return replace(view.state, promised=stamp.epoch, serial=stamp.serial)


# -- segments from peers -------------------------------------------------------------------------------------


def wanted(view: View, offered: m.SegmentState, peer: m.Manifest, *, damaged: bool) -> bool:
    """Whether this node lacks a peer's finalized segment. It was decided, so it replaces a copy in progress,
    except one that is being written by a writer not superseded as far as this node and the peer know."""
    local = view.segment(offered.start)
    known = max(view.state.committed, peer.committed)
    if not offered.finalized or offered.end > known:
        return False
    if local is None and offered.end <= view.state.purged:
        return False
    if view.open == offered.start and peer.promised <= view.state.promised:
        return False
    return damaged or local is None or not local.finalized


def learn(view: View, offered: m.SegmentState, copy: int | None, size: int) -> Change:
    """Take a decided segment: the fetched copy, or (None) the copy that is here."""
    old = view.segment(offered.start)
    opened = None if view.open == offered.start else view.open
    learned = old is None or not old.finalized or old.learned
    if copy is None:
        assert old is not None and old.state.same_edits(offered)
        final = replace(old, state=replace(old.state, finalized=True), accepted=0, learned=learned)
        return Change(view.state, put=(final,), open=opened)
    made = Segment(offered, copy, bytes=size, learned=learned)
    return Change(view.state, put=(made,), replaced=() if old is None else (old,), open=opened)


# -- readers -------------------------------------------------------------------------------------------------


def visible_end(view: View, segment: Segment) -> int:
    """Return the last edit of the segment that is certain to stay.

    A finalized segment stays in full; of a segment in progress, the edits that its own writer called
    committed. The committed txid of another writer may refer to another edit of the same txid."""
    if segment.finalized:
        return segment.end
    if segment.state.epoch != view.state.committed_epoch:
        return segment.start - 1
    return min(segment.end, view.state.committed)


def manifest(view: View) -> m.Manifest:
    shown = []
    for segment in view.all():
        end = visible_end(view, segment)
        if end >= segment.start:
            shown.append(segment.state if segment.finalized else replace(segment.state, end=end, digest=0))
    state = view.state
    return m.Manifest(tuple(shown), state.promised, state.writer, state.committed, state.purged)


def readable(view: View, after: int, in_progress: bool) -> tuple[Segment, int] | None:
    """Return the segment with the edit after `after`, and its last readable edit; prefer a finalized one."""
    found: tuple[Segment, int] | None = None
    for segment in view.all():
        end = visible_end(view, segment)
        if segment.start <= after + 1 <= end and (segment.finalized or (in_progress and found is None)):
            found = segment, end
            if segment.finalized:
                break
    return found


def out_of_sync(view: View, what: str) -> OutOfSync:
    return OutOfSync(f"{what}; this node is left out until the next segment", journal=view.journal.name)


def _wrong(view: View, what: str) -> InvalidArgument:
    return InvalidArgument(f"journal {view.journal.name}: {what}; recover it first")


def _broken(view: View, what: str) -> JournalBroken:
    return broken(view.journal.name, f"{view.node}: {what}")
