"""The records of a journal on a node's disk, and the checksums that verify them.

One LMDB environment per journal, `journals/<name>`:

    state      format                  the journal's id, and its nodes
    state      state                   epochs, committed txid, serial: see State
    segments   start                   the segment's header: see Segment
    edits      start, copy, txid       digest + edit

A segment's edits are stored under the number of their *copy*. To replace a copy, the node writes the
new copy beside it, in several commits, and then points the header at the new copy in one commit. So a
segment is never half replaced. A crash may leave a copy that no header points at; the next start
removes it.

Format, state and headers end in a checksum bound to their key. An edit's digest binds the edit to its
txid and to every edit before it. So bit rot, a record served for another and a missing record are all
found; each raises Corruption.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec
import xxhash

from ebla.actors.journal.messages import JournalId, SegmentState
from ebla.storage.environment import Item, Reader
from ebla.storage.errors import Corruption

STATE, SEGMENTS, EDITS = "state", "segments", "edits"
DATABASES = (STATE, SEGMENTS, EDITS)
FORMAT_KEY, STATE_KEY = b"format", b"state"
LAYOUT = 1
_U64 = 8
T = TypeVar("T")


class Format(msgspec.Struct, frozen=True, array_like=True):
    layout: int
    journal: JournalId
    nodes: tuple[str, ...]


class Admission(msgspec.Struct, frozen=True, array_like=True):
    """A new node that has yet to count. `token`: the one by which the node joins. `asked`: the node may have
    been asked to count, so it may have promised something and taken edits."""

    node: str
    token: str
    asked: bool = False


class State(msgspec.Struct, frozen=True, array_like=True):
    """The promises of one journal on one node.

    promised    requests of a lower epoch are refused
    writer      the epoch of the last writer that started a segment here
    serial      the last request of the promised epoch
    committed   the last committed txid that this node knows, from the writer of `committed_epoch`
    copies      the number of the newest copy
    purged      edits up to here are never fetched again
    held_ms     the longest lease granted; after a start this node promises no other an epoch for as long
    token       of a node that joins or rejoins, else empty
    joined      the first segment that was started here since the token was drawn
    admits      the new nodes that this node, which was the only one, has yet to admit; the writer of
                `grown_epoch` ended the journal of one node at edit `grown`
    joining     the node with this token is new: it has never counted, and has promised nothing
    old         the directory is an older copy: it has forgotten promises and edits, and takes part in nothing
    """

    promised: int = 0
    writer: int = 0
    serial: int = 0
    committed: int = 0
    committed_epoch: int = 0
    copies: int = 0
    purged: int = 0
    held_ms: int = 0
    token: str = ""
    joined: int = 0
    admits: tuple[Admission, ...] = ()
    grown: int = 0
    grown_epoch: int = 0
    joining: bool = False
    old: bool = False


def validate(before: State, after: State) -> None:
    """Assert the order of a node's states, which every recovery relies on."""
    assert after.promised >= before.promised and after.writer <= after.promised, (before, after)
    assert after.copies >= before.copies and after.purged >= before.purged, (before, after)
    assert after.held_ms >= before.held_ms, (before, after)
    known = before.committed_epoch, before.committed
    assert (after.committed_epoch, after.committed) >= known, (before, after)


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """The header of a segment. `accepted`: the epoch of the recovery that chose this content (0: none).
    `learned`: only a peer, no writer, has said that the segment is finalized."""

    state: SegmentState
    copy: int
    accepted: int = 0
    bytes: int = 0
    learned: bool = False

    @property
    def start(self) -> int:
        return self.state.start

    @property
    def end(self) -> int:
        return self.state.end

    @property
    def finalized(self) -> bool:
        return self.state.finalized

    @property
    def count(self) -> int:
        return self.state.end - self.state.start + 1


# -- digests -------------------------------------------------------------------------------------------------


def first_digest(journal: JournalId) -> int:
    """The digest before a journal's first edit; no two journals share one."""
    return int(xxhash.xxh3_64_intdigest(f"journal {journal.name} {journal.id}".encode()))


def digest_after(before: int, txid: int, edit: bytes) -> int:
    return int(xxhash.xxh3_64_intdigest(b"edit" + u64(before) + u64(txid) + edit))


def digest_of(before: int, first: int, edits: Sequence[bytes]) -> int:
    for txid, edit in enumerate(edits, first):
        before = digest_after(before, txid, edit)
    return before


# -- bytes ---------------------------------------------------------------------------------------------------


def u64(number: int) -> bytes:
    return number.to_bytes(_U64, "big")


def edit_key(start: int, copy: int, txid: int) -> bytes:
    return u64(start) + u64(copy) + u64(txid)


def copy_range(start: int, copy: int) -> tuple[bytes, bytes]:
    """The keys of one copy's edits: first <= key < second."""
    return u64(start) + u64(copy), u64(start) + u64(copy + 1)


def edit_items(start: int, copy: int, first: int, before: int, edits: Sequence[bytes]) -> list[Item]:
    items: list[Item] = []
    for txid, edit in enumerate(edits, first):
        before = digest_after(before, txid, edit)
        items.append((edit_key(start, copy, txid), u64(before) + edit))
    return items


def last_digest(items: Sequence[Item]) -> int:
    """The digest after the last of the edits that `edit_items` made."""
    return int.from_bytes(items[-1][1][:_U64], "big")


def seal(key: bytes, value: msgspec.Struct) -> Item:
    body = msgspec.msgpack.encode(value)
    return key, body + xxhash.xxh3_64_digest(b"journal" + key + body)


def load_format(reader: Reader, path: str) -> Format | None:
    """Load the format; None if the journal was never formatted here."""
    value = reader.get(STATE, FORMAT_KEY)
    if value is None:
        return None
    found = _open(FORMAT_KEY, value, Format, path)
    if found.layout != LAYOUT:
        raise Corruption(
            f"the journal in {path} has layout {found.layout}, this ebla reads {LAYOUT}", path=path
        )
    return found


def load_state(reader: Reader, path: str) -> State:
    value = reader.get(STATE, STATE_KEY)
    if value is None:
        raise _damaged(path, "its state is missing")
    return _open(STATE_KEY, value, State, path)


def load_segments(reader: Reader, path: str) -> list[Segment]:
    """Load the headers, ordered by their start."""
    found = []
    for key, value in reader.items(SEGMENTS):
        segment = _open(key, value, Segment, path)
        if u64(segment.start) != key:
            raise _damaged(path, f"the segment at {key.hex()} says that it starts at {segment.start}")
        found.append(segment)
    return found


def load_copies(reader: Reader) -> list[tuple[int, int]]:
    """List (start, copy) of every copy that has edits, also of copies that no header points at."""
    found: list[tuple[int, int]] = []
    after = b""
    while items := reader.items(EDITS, after, limit=1):
        key = items[0][0]
        start, copy = int.from_bytes(key[:_U64], "big"), int.from_bytes(key[_U64 : 2 * _U64], "big")
        found.append((start, copy))
        after = copy_range(start, copy)[1]
    return found


def load_edits(
    reader: Reader, segment: Segment, first: int, last: int, bytes_max: int, path: str
) -> tuple[int, tuple[bytes, ...]]:
    """Load and verify edits `first` to `last`, at most about `bytes_max`; return the digest before, too."""
    assert segment.start <= first <= last <= segment.end, (segment, first, last)
    start, copy = segment.start, segment.copy
    begin = max(first - 1, start)  # the edit before the first, for its digest
    page = reader.items(
        EDITS, edit_key(start, copy, begin), edit_key(start, copy, last + 1), bytes_max=bytes_max
    )
    if len(page) == 1 and begin < first:
        page += reader.items(EDITS, edit_key(start, copy, first), edit_key(start, copy, first + 1))
    before = segment.state.before
    if begin < first:
        if not page or page[0][0] != edit_key(start, copy, begin):
            raise _damaged(path, f"edit {begin} is missing")
        before = int.from_bytes(page.pop(0)[1][:_U64], "big")
    edits: list[bytes] = []
    digest = before
    for txid, (key, value) in enumerate(page, first):
        if key != edit_key(start, copy, txid):
            raise _damaged(path, f"edit {txid} is missing")
        edit = value[_U64:]
        digest = digest_after(digest, txid, edit)
        if value[:_U64] != u64(digest):
            raise _damaged(path, f"edit {txid} fails its checksum")
        edits.append(edit)
    if not edits:
        raise _damaged(path, f"edit {first} is missing")
    if first + len(edits) - 1 == segment.end and digest != segment.state.digest:
        raise _damaged(path, f"the segment from {start} does not end as its header says")
    return before, tuple(edits)


def _open(key: bytes, value: bytes, kind: type[T], path: str) -> T:
    body, sum_ = value[:-_U64], value[-_U64:]
    if sum_ != xxhash.xxh3_64_digest(b"journal" + key + body):
        raise _damaged(path, f"the record {key.hex()} fails its checksum")
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise _damaged(path, f"the record {key.hex()} cannot be read: {error}") from error


def _damaged(path: str, what: str) -> Corruption:
    return Corruption(f"the journal in {path} is damaged: {what}; its peers have it", path=path)
