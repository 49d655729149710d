"""A log entry and its record on disk, bound to its tablet, its index and its whole history.

An entry's `chain` digests the entry and the position before it: two replicas with the same chain at an index have the
same entries up to it, so one comparison finds divergence. A record on disk carries the predecessor's term, time and
chain, so that it can be checked alone; a wrong byte anywhere in it is Corruption.

    record = format u8, kind u8, payload length u32, index u64, term u64, time_us u64,
             previous term u64, previous time_us u64, previous chain u64, chain u64, payload
"""

from __future__ import annotations

import struct

import crc32c
import msgspec
import xxhash

from ebla.storage.errors import Corruption, Damaged

# Kinds of log entries
NO_OP, WRITE, CONFIG, CHECKPOINT, ALTER, EXPIRE = 0, 1, 2, 3, 4, 5

FORMAT = 1
_HEADER = struct.Struct("<BBIQQQQQQQ")
HEADER_BYTES = _HEADER.size
NAME_BYTES = 4


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One log entry. `time_us` is log time (actors/tablet/engine/log_time.py), which never decreases along the log."""

    index: int
    term: int
    kind: int
    time_us: int
    payload: bytes
    chain: int

    @property
    def position(self) -> Position:
        return Position(self.index, self.term, self.chain, self.time_us)


class Position(msgspec.Struct, frozen=True):
    """A point in a tablet's history: all entries up to `index`, whose entry has `term`, `chain` and `time_us`."""

    index: int
    term: int
    chain: int
    time_us: int = 0


START = Position(0, 0, 0)


def chained(
    tablet: str, previous: Position, index: int, term: int, kind: int, time_us: int, payload: bytes
) -> int:
    """The chain value of an entry that follows `previous` (START before the first)."""
    body = xxhash.xxh3_64_digest(payload)
    before = f"{previous.chain}/{previous.term}/{previous.time_us}"
    header = f"{tablet}/{before}/{index}/{term}/{kind}/{time_us}/".encode()
    return xxhash.xxh3_64_intdigest(header + body)


def make_entry(tablet: str, previous: Position, term: int, kind: int, time_us: int, payload: bytes) -> Entry:
    assert time_us >= previous.time_us, (tablet, time_us, previous)
    index = previous.index + 1
    chain = chained(tablet, previous, index, term, kind, time_us, payload)
    return Entry(index, term, kind, time_us, payload, chain)


def follows(tablet: str, previous: Position, entry: Entry) -> bool:
    """Whether the entry is unchanged and its writer chained it to `previous`."""
    return entry.chain == chained(
        tablet, previous, entry.index, entry.term, entry.kind, entry.time_us, entry.payload
    )


def to_record(entry: Entry, previous: Position) -> bytes:
    header = _HEADER.pack(
        FORMAT,
        entry.kind,
        len(entry.payload),
        entry.index,
        entry.term,
        entry.time_us,
        previous.term,
        previous.time_us,
        previous.chain,
        entry.chain,
    )
    return header + entry.payload


def to_item(key: bytes, entry: Entry, previous: Position) -> tuple[bytes, bytes]:
    """Key and value of an entry in a log. The value begins with a checksum of the key alone, so that a good key
    identifies an entry whose body is damaged."""
    return key, _name(key) + to_record(entry, previous)


def from_item(tablet: str, index: int, key: bytes, value: bytes, path: str) -> Record:
    """Check and decode an item of `to_item`. Raises Corruption if only the body is damaged, Damaged if the entry cannot
    be identified either."""
    try:
        return from_record(tablet, index, value[NAME_BYTES:], path)
    except Corruption:
        if value[:NAME_BYTES] == _name(key):
            raise
    raise Damaged(
        f"an entry of the log in {path} is damaged, and so is its key {key.hex()}: its tablet and index are unknown",
        path=path,
    )


def _name(key: bytes) -> bytes:
    return int(crc32c.crc32c(key)).to_bytes(NAME_BYTES, "little")


class Record(msgspec.Struct, frozen=True):
    """A checked record: the entry and the position that it follows."""

    entry: Entry
    previous: Position


def from_record(tablet: str, index: int, data: bytes, path: str) -> Record:
    """Decode a record and check it against its digest, the tablet, and the index under which it was found."""
    where = f"entry {index} of tablet {tablet}"
    if len(data) < HEADER_BYTES:
        raise Corruption(f"{where} is cut short", path=path)
    version, kind, length, found, term, time_us, *before, chain = _HEADER.unpack_from(data)
    previous_term, previous_time_us, previous_chain = before
    previous = Position(index - 1, previous_term, previous_chain, previous_time_us)
    payload = data[HEADER_BYTES:]
    if version != FORMAT or found != index or length != len(payload):
        raise Corruption(f"{where} does not match its header", path=path)
    entry = Entry(index, term, kind, time_us, payload, chain)
    if not follows(tablet, previous, entry):
        raise Corruption(f"{where} fails its checksum", path=path)
    return Record(entry, previous)
