"""Every message of the journal, in the order in which a journal's life needs them.

A txid numbers an edit: 1, 2, 3, ... A segment is a run of them, named by its first. A digest is a running one, of every
edit from the journal's first up to some txid. An epoch numbers a writer.
"""

from __future__ import annotations

import msgspec

from ebla.actors.figures import Percentiles


class Done(msgspec.Struct, frozen=True):
    """It is durable here."""


ANY_VERSION = 0


class JournalId(msgspec.Struct, frozen=True):
    """`name` is the directory, `id` says which journal: one of the same name and another id is a foreign one. `version` numbers
    the journal's sets of nodes: a node answers only requests of the set that it belongs to. ANY_VERSION is for peers that fetch
    finalized segments."""

    name: str
    id: str
    version: int = 1

    def of_any_version(self) -> JournalId:
        return msgspec.structs.replace(self, version=ANY_VERSION)


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """Of every request of a writer. `serial` grows by one with each request to a node, so that one that was given up
    and arrives late is refused. `committed` is the last txid that this writer knows a majority to have (0: none)."""

    journal: JournalId
    epoch: int
    serial: int
    committed: int = 0


class SegmentState(msgspec.Struct, frozen=True, array_like=True):
    """One copy of a segment: edits start .. end, end is start - 1 if there are none.

    `epoch` is of the writer who wrote them; `before` and `digest` are the running digests before the first edit
    and after the last. Two copies are the same if start, end and digest are.
    """

    start: int
    end: int
    finalized: bool
    epoch: int
    before: int
    digest: int

    def same_edits(self, other: SegmentState) -> bool:
        return (self.start, self.end, self.digest) == (other.start, other.end, other.digest)


# -- making a journal ----------------------------------------------------------------------------------------


class FormatRequest(msgspec.Struct, frozen=True):
    """`nodes` are the addresses of all its nodes, in order. `force` gives up what is there."""

    journal: JournalId
    nodes: tuple[str, ...]
    force: bool = False


class JournalName(msgspec.Struct, frozen=True):
    name: str


class FormatState(msgspec.Struct, frozen=True):
    """`id` is None if there is no such journal here; `used` if this node has ever promised anything of it."""

    id: str | None
    nodes: tuple[str, ...] = ()
    used: bool = False


# -- becoming the writer -------------------------------------------------------------------------------------


class JournalStateReply(msgspec.Struct, frozen=True):
    """The last two are for a peer that has lost its directory: see State in records.py, and node/rejoin.py."""

    promised: int
    nodes: tuple[str, ...]
    purged: int = 0
    held_ms: int = 0


class RejoinRequest(msgspec.Struct, frozen=True):
    """To a node that has lost its directory. `nodes` are the addresses of all, in order."""

    journal: JournalId
    nodes: tuple[str, ...]


class Joining(msgspec.Struct, frozen=True):
    """The answer of a node that is to join: it has every finalized edit up to `end`, and `digest` is the digest there."""

    end: int
    digest: int


class GrowRequest(msgspec.Struct, frozen=True):
    """To the only node of a journal, from the writer of `epoch`, which has finalized the last segment at `end`: from now on the
    journal has these `nodes`, of which the first is the receiver."""

    journal: JournalId
    epoch: int
    nodes: tuple[str, ...]
    end: int
    digest: int


class AdmitRequest(msgspec.Struct, frozen=True):
    """To a node that joins, from the node that was the only one: the joining node counts from now on, if it has every edit up to
    `end`. `digest`: 0 if the sender has purged that edit. `helps`: the address that need not wait until the lease is over."""

    journal: JournalId
    promised: int
    epoch: int
    end: int
    digest: int
    purged: int
    held_ms: int
    helps: str


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """Who wants the lease: `holder` is an address, for others to know; `token` is of this one claim. A node that grants
    it promises no later epoch for `held_ms`."""

    holder: str
    token: str
    held_ms: int


class NewEpochRequest(msgspec.Struct, frozen=True):
    """With a `claim` the promise grants the lease, too. `after`: the sender writes in this epoch and moves on to the next; a
    node that has promised an epoch above it refuses. 0: the sender is a new writer."""

    journal: JournalId
    epoch: int
    claim: Claim | None = None
    after: int = 0


class NewEpochReply(msgspec.Struct, frozen=True):
    """`last` is the newest segment here that has edits."""

    last: SegmentState | None


class PrepareRequest(msgspec.Struct, frozen=True):
    stamp: Stamp
    start: int


class Prepared(msgspec.Struct, frozen=True):
    """`accepted` is the epoch in which this copy was accepted (0: never), `writer` that of the last writer who started
    a segment here, `committed` the last txid that a writer called committed."""

    segment: SegmentState | None
    accepted: int
    writer: int
    committed: int


class AcceptRequest(msgspec.Struct, frozen=True):
    """Make this the content of the segment; whoever lacks it fetches it from one of `sources`."""

    stamp: Stamp
    segment: SegmentState
    sources: tuple[str, ...]


# -- the lease -----------------------------------------------------------------------------------------------


class RenewRequest(msgspec.Struct, frozen=True):
    """By the writer of `epoch`. Not one of its ordered requests: it overtakes edits that wait for a slow disk."""

    journal: JournalId
    epoch: int
    claim: Claim


class ReleaseRequest(msgspec.Struct, frozen=True):
    """If a `successor` is named, nobody else is helped for as long as the lease was."""

    journal: JournalId
    token: str
    successor: str | None = None


class LeaseState(msgspec.Struct, frozen=True):
    """Whom this node granted the lease last (None: nobody since it was started), and for how long it helps nobody but the
    `successor` that was named when it was released."""

    holder: str | None
    epoch: int
    left_s: float
    successor: str | None = None

    def is_free(self, address: str) -> bool:
        return self.left_s <= 0 or self.successor == address


# -- writing -------------------------------------------------------------------------------------------------


class StartSegment(msgspec.Struct, frozen=True):
    """`token`: what the node answered to the last heartbeat."""

    stamp: Stamp
    start: int
    before: int
    token: str = ""


class JournalRequest(msgspec.Struct, frozen=True):
    """Edits first, first + 1, ... of the segment that starts at `segment`; `digest` is the one after the last."""

    stamp: Stamp
    segment: int
    first: int
    edits: tuple[bytes, ...]
    digest: int


class FinalizeRequest(msgspec.Struct, frozen=True):
    stamp: Stamp
    start: int
    end: int
    digest: int


class Heartbeat(msgspec.Struct, frozen=True):
    """Only the stamp, for the committed txid in it."""

    stamp: Stamp


class Heard(msgspec.Struct, frozen=True):
    """`token`: of a node that has lost its directory, to be sent along when the next segment is started; else empty. `segment`:
    where the one begins that takes edits here; None after a restart."""

    token: str = ""
    segment: int | None = None


class PurgeRequest(msgspec.Struct, frozen=True):
    """Segments that end before `before` are needed no more."""

    stamp: Stamp
    before: int


# -- reading -------------------------------------------------------------------------------------------------


class ManifestRequest(msgspec.Struct, frozen=True):
    journal: JournalId


class Manifest(msgspec.Struct, frozen=True):
    """Finalized segments whole; the one in progress up to what is committed, if anything of it is."""

    segments: tuple[SegmentState, ...]
    promised: int
    writer: int
    committed: int
    purged: int


class ReadRequest(msgspec.Struct, frozen=True):
    """Edits after `after`, of one segment, about `bytes_max` of them. With `in_progress` also committed ones of a
    segment that is not finalized."""

    journal: JournalId
    after: int
    bytes_max: int
    in_progress: bool = False


class FetchRequest(msgspec.Struct, frozen=True):
    """Between nodes: edits from `first` on of the copy that the asker was told of, whatever its state here."""

    journal: JournalId
    segment: SegmentState
    first: int
    bytes_max: int


class Edits(msgspec.Struct, frozen=True):
    """`edits` are first, first + 1, ...; `before` is the digest before the first of them."""

    first: int
    before: int
    edits: tuple[bytes, ...]


# -- operations ----------------------------------------------------------------------------------------------


class SegmentStatus(msgspec.Struct, frozen=True):
    state: SegmentState
    bytes: int
    accepted: int
    open: bool


class JournalStatus(msgspec.Struct, frozen=True):
    """`lag_txns`: how far this node's last edit is behind what it knows to be committed. `damaged`: the segments
    whose edits fail their checks, and how; they are not served, and fetched anew from a peer. `rejoining`: this node lost
    its directory, and counts for no majority yet."""

    journal: JournalId
    nodes: tuple[str, ...]
    promised: int
    writer: int
    committed: int
    last: int
    lag_txns: int
    segments: tuple[SegmentStatus, ...]
    batches: int
    batches_lagging: int
    edits: int
    bytes: int
    served_edits: int
    synced_segments: int
    sync_ms: Percentiles
    damaged: dict[int, str] = {}
    rejoining: bool = False


class JournalNodeStatus(msgspec.Struct, frozen=True):
    """`failed`: journals that are not served because their state is damaged, and why."""

    uuid: str
    seqno: int
    address: str
    journals: tuple[JournalStatus, ...]
    failed: dict[str, str] = {}
