"""The messages of the journal, in the order in which a journal needs them.

A txid numbers an edit: 1, 2, 3, ... A segment is a run of edits, named by its first txid. A digest is a
running one, over every edit from the journal's first up to some txid. An epoch numbers a writer.
"""

from __future__ import annotations

import msgspec

from ebla.actors.figures import Percentiles
from ebla.storage.space import DiskSpace


class Done(msgspec.Struct, frozen=True):
    """The change is durable here."""


ANY_VERSION = 0


class JournalId(msgspec.Struct, frozen=True):
    """`name` is the directory, `id` the identity: a journal of the same name and another id is a foreign one.

    `version` numbers the journal's sets of nodes: a node answers only requests of the set that it belongs
    to. ANY_VERSION is for peers that fetch finalized segments.
    """

    name: str
    id: str
    version: int = 1

    def of_any_version(self) -> JournalId:
        return msgspec.structs.replace(self, version=ANY_VERSION)


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """A part of every request of a writer.

    `serial` grows by one with each request to a node, so that the node refuses an abandoned request that
    arrives late. `committed` is the last txid that this writer knows a majority to have (0: none). `acknowledged`:
    the last of these edits that this node itself has acknowledged to this writer; without it, the node's directory
    is an older copy.
    """

    journal: JournalId
    epoch: int
    serial: int
    committed: int = 0
    acknowledged: int = 0


class SegmentState(msgspec.Struct, frozen=True, array_like=True):
    """One copy of a segment: edits start .. end; end is start - 1 if there are none.

    `epoch` is the epoch of the edits' writer; `before` and `digest` are the running digests before the
    first edit and after the last. Two copies are the same if their start, end and digest are.
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
    """`nodes` are the addresses of all nodes, in order. `force` gives up a journal that is there."""

    journal: JournalId
    nodes: tuple[str, ...]
    force: bool = False


class JournalName(msgspec.Struct, frozen=True):
    name: str


class FormatState(msgspec.Struct, frozen=True):
    """`id` is None if there is no such journal here; `used`: this node has ever made a promise for it."""

    id: str | None
    nodes: tuple[str, ...] = ()
    used: bool = False


# -- becoming the writer -------------------------------------------------------------------------------------


class JournalStateReply(msgspec.Struct, frozen=True):
    """`purged` and `held_ms` are for a peer that lost its directory: see records.py and node/rejoin.py."""

    promised: int
    nodes: tuple[str, ...]
    purged: int = 0
    held_ms: int = 0


class RejoinRequest(msgspec.Struct, frozen=True):
    """The request to a node that has lost its directory. `nodes`: the addresses of all nodes, in order."""

    journal: JournalId
    nodes: tuple[str, ...]


class Joining(msgspec.Struct, frozen=True):
    """The answer of a joining node: it has every finalized edit up to `end`, with this `digest`.

    `token` names this joining: a node that loses its directory draws another one. It is empty if the node no
    longer joins, because it counts or rejoins.
    """

    end: int
    digest: int
    token: str


class GrowRequest(msgspec.Struct, frozen=True):
    """The request to the only node of a journal: from now on the journal has these `nodes`.

    The first of `nodes` is the receiver, and `tokens` are those of the others. The sender is the writer of
    `epoch`, which has finalized the last segment at `end`.
    """

    journal: JournalId
    epoch: int
    nodes: tuple[str, ...]
    tokens: tuple[str, ...]
    end: int
    digest: int


class AdmitRequest(msgspec.Struct, frozen=True):
    """The request to a joining node, from the node that was the only one.

    The node counts from now on, if it still joins by this `token` and has every edit up to `end`. `digest`:
    0 if the sender has purged that edit. `helps`: the address that need not wait until the lease is over;
    empty if a writer of the new set may hold a lease.
    """

    journal: JournalId
    token: str
    promised: int
    epoch: int
    end: int
    digest: int
    purged: int
    held_ms: int
    helps: str


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """A claim to the lease. `holder` is an address, for others to know; `token` names this one claim.

    A node that grants the claim promises no other a later epoch for `held_ms`.
    """

    holder: str
    token: str
    held_ms: int


class NewEpochRequest(msgspec.Struct, frozen=True):
    """With a `claim`, the promise also grants the lease.

    `after`: the epoch that the sender writes in and leaves for the next one; a node that has promised an
    epoch above it refuses. 0: the sender is a new writer.
    """

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
    """`accepted`: the epoch in which this copy was accepted (0: never). `writer`: the epoch of the last
    writer that started a segment here. `committed`: the last txid that a writer called committed."""

    segment: SegmentState | None
    accepted: int
    writer: int
    committed: int


class AcceptRequest(msgspec.Struct, frozen=True):
    """Make this the segment's content. A node without the content fetches it from one of `sources`."""

    stamp: Stamp
    segment: SegmentState
    sources: tuple[str, ...]


# -- the lease -----------------------------------------------------------------------------------------------


class RenewRequest(msgspec.Struct, frozen=True):
    """The renewal by the writer of `epoch`. Unordered: overtakes edits that wait for a slow disk."""

    journal: JournalId
    epoch: int
    claim: Claim


class ReleaseRequest(msgspec.Struct, frozen=True):
    """With a `successor`, only this holder is promised an epoch for as long as the lease was granted."""

    journal: JournalId
    token: str
    successor: str | None = None


class LeaseState(msgspec.Struct, frozen=True):
    """The last holder that this node granted the lease to (None: no one since its start).

    For `left_s`, the node promises an epoch only to the `successor` that the release named.
    """

    holder: str | None
    epoch: int
    left_s: float
    successor: str | None = None

    def is_free(self, address: str) -> bool:
        return self.left_s <= 0 or self.successor == address


# -- writing -------------------------------------------------------------------------------------------------


class StartSegment(msgspec.Struct, frozen=True):
    """`token`: the token in the node's answer to the last heartbeat."""

    stamp: Stamp
    start: int
    before: int
    token: str = ""


class JournalRequest(msgspec.Struct, frozen=True):
    """Edits first, first + 1, ... of the segment from `segment`; `digest` is that after the last."""

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
    """Carries only the stamp, for the committed txid in it."""

    stamp: Stamp


class HeartbeatAnswer(msgspec.Struct, frozen=True):
    """The answer to a heartbeat.

    `token`: of a node that has lost its directory, to be sent along with the next start of a segment; else
    empty. `segment`: the start of the segment that takes edits here; None after a restart.
    """

    token: str = ""
    segment: int | None = None


class PurgeRequest(msgspec.Struct, frozen=True):
    """Segments that end before `before` are no longer needed."""

    stamp: Stamp
    before: int


# -- reading -------------------------------------------------------------------------------------------------


class ManifestRequest(msgspec.Struct, frozen=True):
    journal: JournalId


class Manifest(msgspec.Struct, frozen=True):
    """Finalized segments in full, and the committed part of a segment in progress if there is one."""

    segments: tuple[SegmentState, ...]
    promised: int
    writer: int
    committed: int
    purged: int


class ReadRequest(msgspec.Struct, frozen=True):
    """Read about `bytes_max` bytes of the edits after `after`, of one segment. With `in_progress` also
    committed edits of a segment that is not finalized."""

    journal: JournalId
    after: int
    bytes_max: int
    in_progress: bool = False


class FetchRequest(msgspec.Struct, frozen=True):
    """Fetch, between nodes, edits from `first` on of the copy `segment`, finalized here or not."""

    journal: JournalId
    segment: SegmentState
    first: int
    bytes_max: int


class Edits(msgspec.Struct, frozen=True):
    """`edits` have the txids first, first + 1, ...; `before` is the digest before the first one."""

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
    """The state of one journal on one node.

    `lag_txns`: how far this node's last edit is behind the committed txid that it knows. `damaged`: the
    segments whose edits fail their checks, and how; the node does not serve them and fetches them again
    from a peer. `rejoining`: this node lost its directory, and does not yet count for any majority;
    `joining`: the same of a new node. `old`: its directory is an older copy, and it counts for no majority until it
    rejoins. `admits`: the new nodes that this node has yet to admit.
    """

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
    joining: bool = False
    admits: tuple[str, ...] = ()
    old: bool = False


class JournalNodeStatus(msgspec.Struct, frozen=True):
    """`failed`: journals that are not served because their state is damaged, and why. `disks`: the space of its directory."""

    uuid: str
    seqno: int
    address: str
    journals: tuple[JournalStatus, ...]
    failed: dict[str, str] = {}
    disks: tuple[DiskSpace, ...] = ()
