"""The shared log: every append of every tablet of a server, one synced commit per round. The write path's only sync.

    durable    `append` returns when the entries of the round are synced; all of them or none
    ordered    positions (`seq`) grow by one per entry; a tablet's later entry at an index replaces its earlier entries
               at and after that index (so a truncation needs no write)
    trimmed    from the front only, once private logs or flushed data have the trimmed entries

Key: seq u64, tablet 16 bytes, index u64, term u64, big endian. The identity is in the key, apart from the body, so
that a damaged entry can be identified. Value: storage/logs/entries.py (`to_item`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import msgspec

from ebla.storage.environment import DeleteRange, Disk, Environment, Item, Put
from ebla.storage.errors import Corruption, Damaged
from ebla.storage.logs.entries import Entry, Position, Record, from_item, to_item

PATH = "wals/shared"
ENTRIES = "entries"
RECOVER_ITEMS = 256  # per read while recovering; entries may be large
_KEY = struct.Struct(">Q16sQQ")
_SEQ = struct.Struct(">Q")
SEQ_BYTES = _SEQ.size  # at the start of every key


class Found(msgspec.Struct, frozen=True):
    """One entry of recovery. If its body fails its check, `damage` is set instead of `record`."""

    seq: int
    tablet: str
    index: int
    term: int
    record: Record | None
    damage: Corruption | None


class SharedLog:
    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        first = environment.items(ENTRIES, limit=1)
        last = environment.last(ENTRIES)
        self.first_seq = self._parts(first[0][0])[0] if first else 1
        self.next_seq = self._parts(last[0])[0] + 1 if last else self.first_seq
        self.bytes = 0  # of entries between first_seq and next_seq; recovery adds the old ones
        self._sizes: dict[int, int] = {}

    @staticmethod
    async def open(disk: Disk, *, create: bool) -> SharedLog:
        environment = await disk.open_environment(PATH, [ENTRIES], create=create, map_bytes=1 << 30)
        return SharedLog(environment)

    def recover(self) -> Iterator[Found]:
        """Every entry in log order, each checked. Raises Damaged if entries are missing or cannot be identified: the
        server then does not know what it acknowledged."""
        start, seq = b"", self.first_seq
        while items := self.environment.items(ENTRIES, start, limit=RECOVER_ITEMS):
            for key, value in items:
                found = self._found(key, value)
                if found.seq != seq:
                    raise self._damaged(f"entry {found.seq} is in the place of entry {seq}")
                seq += 1
                yield found
            start = items[-1][0] + b"\0"
        if seq - self.first_seq != self.environment.count(ENTRIES) or seq != self.next_seq:
            raise self._damaged(
                f"it has {self.environment.count(ENTRIES)} entries, {seq - self.first_seq} are found"
            )

    def reserve(self, count: int) -> int:
        """Take `count` seqs for the next `append` and return the first."""
        first = self.next_seq
        self.next_seq += count
        return first

    async def append(self, first_seq: int, entries: Sequence[tuple[str, Entry, Position]]) -> None:
        """Write (tablet, entry, the position it follows) at seqs from `first_seq` on, durably."""
        items: list[Item] = []
        for seq, (tablet, entry, previous) in enumerate(entries, first_seq):
            items.append(to_item(_key(seq, tablet, entry.index, entry.term), entry, previous))
        await self.environment.commit([Put(ENTRIES, items, sorted_keys=True)])
        for seq, (_, value) in enumerate(items, first_seq):
            self._count(seq, len(value))

    def read(self, tablet: str, wanted: Sequence[tuple[int, int, int]]) -> list[Record]:
        """Checked records by (seq, index, term). An absent one is Corruption, because the caller knows it was written."""
        keys = [_key(seq, tablet, index, term) for seq, index, term in wanted]
        found: list[Record] = []
        stored = self.environment.get_many(ENTRIES, keys)
        for (_, index, _), key, data in zip(wanted, keys, stored, strict=True):
            if data is None:
                raise Corruption(f"entry {index} of tablet {tablet} is missing", path=self.environment.path)
            found.append(from_item(tablet, index, key, data, self.environment.path))
        return found

    async def trim(self, below_seq: int) -> None:
        """Drop every entry with seq < below_seq, none of which may be needed."""
        below_seq = min(below_seq, self.next_seq)
        if below_seq <= self.first_seq:
            return
        await self.environment.commit([DeleteRange(ENTRIES, b"", _SEQ.pack(below_seq))])
        for seq in range(self.first_seq, below_seq):
            self.bytes -= self._sizes.pop(seq, 0)
        self.first_seq = below_seq

    def _parts(self, key: bytes) -> tuple[int, bytes, int, int]:
        """Seq, tablet, index and term."""
        if len(key) != _KEY.size:
            raise self._damaged(f"an entry has a key of {len(key)} bytes, not {_KEY.size}")
        seq, tablet, index, term = _KEY.unpack(key)
        return seq, tablet, index, term

    def _damaged(self, what: str) -> Damaged:
        path = self.environment.path
        return Damaged(
            f"the log in {path} is damaged: {what}. Move the server's directory aside and start again: it comes back "
            "as a new server",
            path=path,
        )

    def _count(self, seq: int, size: int) -> None:
        self._sizes[seq] = size
        self.bytes += size

    def _found(self, key: bytes, value: bytes) -> Found:
        seq, raw, index, term = self._parts(key)
        tablet = raw.hex()
        self._count(seq, len(value))
        try:
            record = from_item(tablet, index, key, value, self.environment.path)
        except Corruption as error:
            return Found(seq, tablet, index, term, None, error)
        return Found(seq, tablet, index, term, record, None)


def _key(seq: int, tablet: str, index: int, term: int) -> bytes:
    return _KEY.pack(seq, bytes.fromhex(tablet), index, term)
