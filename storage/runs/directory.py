"""Which runs a tablet has, and which blocks a run has: enough to prove that a key is not there.

    meta `runs`              the runs, and the index that they reflect
    meta `run/<number>`      the blocks of a run: the first key, the last key and the rows of each
    meta `bloom/<number>`    the filter of its keys
    rows `<number><block>`   the blocks

Every record has a checksum bound to its key, and `runs` has the checksum of each other record, so that a missing record, or an
older one, is damage. Records and blocks are written in one transaction with the position.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import msgspec
import xxhash

from ebla.storage.directories.records import seal, unseal
from ebla.storage.environment import Change, Delete, DeleteRange, Item, Put, Reader
from ebla.storage.errors import Corruption
from ebla.storage.rows.keys import successor
from ebla.storage.runs.blocks import PLACE

T = TypeVar("T")

META, ROWS = "meta", "rows"
RUNS = b"runs"
PREFIXES = b"run/", b"bloom/"
NUMBER_BYTES = 8  # of a run, at the beginning of each block's key


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Sorted blocks that one flush or one step of a compaction has written.

    `index`: of the newest entry whose rows it may have. Of two runs with rows of one key, the one with the higher index has the
    newer row. Of each block: its last key, its rows, its bytes before compression. Only rows with keys above `after` count; the first `removed`
    blocks have none of them. `rows` and `gone` (of them, deleted ones) are as written.
    """

    number: int
    index: int
    rows: int
    gone: int
    first: bytes
    lasts: tuple[bytes, ...]
    counts: tuple[int, ...]
    sizes: tuple[int, ...]
    layout: int
    after: bytes | None = None
    removed: int = 0

    @property
    def last(self) -> bytes:
        return self.lasts[-1]

    def block_of(self, key: bytes) -> int | None:
        """The block that has the key if the run has it."""
        if key < self.first or (self.after is not None and key <= self.after):
            return None
        place = bisect_left(self.lasts, key)
        return place if place < len(self.lasts) else None

    def overlaps(self, start: bytes, stop: bytes | None) -> bool:
        return self.last >= start and (stop is None or self.begin < stop)

    @property
    def begin(self) -> bytes:
        """No row of the run that counts is below this key."""
        return self.first if self.after is None else self.after + b"\0"

    def trimmed(self, upto: bytes) -> Run:
        """Without the rows up to this key."""
        assert self.after is None or self.after <= upto
        return msgspec.structs.replace(self, after=upto, removed=bisect_right(self.lasts, upto))

    def live_bytes(self) -> int:
        return sum(self.sizes[self.removed :])


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """`runs`: number, checksum of the run's record and of its filter. `index`: of the position. `following`: the next number."""

    index: int
    following: int
    runs: tuple[tuple[int, int, int], ...]


class Filter(NamedTuple):
    bits: bytes
    digest: int


class Tier(NamedTuple):
    """The runs of one index, which have no key in common, in the order of their keys; where each begins, its last key, and the
    bytes of all."""

    runs: Sequence[Run]
    begins: Sequence[bytes]
    lasts: Sequence[bytes]
    size_bytes: int
    of_index: int


class Directory:
    """The runs, and their filters by number. Never changes; a flush or a compaction makes another one."""

    def __init__(
        self, runs: Sequence[Run], filters: Mapping[int, Filter], index: int, following: int
    ) -> None:
        self.runs = tuple(sorted(runs, key=lambda run: (-run.index, run.begin)))  # the newest first
        self.filters = filters
        self.index = index
        self.following = following

    @cached_property
    def tiers(self) -> tuple[Tier, ...]:
        """The newest first."""
        found: dict[int, list[Run]] = {}
        for run in self.runs:
            found.setdefault(run.index, []).append(run)
        return tuple(
            Tier(
                runs,
                [r.begin for r in runs],
                [r.last for r in runs],
                sum(r.live_bytes() for r in runs),
                index,
            )
            for index, runs in found.items()
        )

    @property
    def size_bytes(self) -> int:
        return sum(tier.size_bytes for tier in self.tiers)

    def manifest(self) -> Manifest:
        return Manifest(
            self.index,
            self.following,
            tuple((run.number, _digest(_encode(run)), self.filters[run.number].digest) for run in self.runs),
        )


EMPTY = Directory((), {}, 0, 1)

_encode = msgspec.msgpack.Encoder().encode
_run = msgspec.msgpack.Decoder(Run).decode
_manifest = msgspec.msgpack.Decoder(Manifest).decode
_digest = xxhash.xxh3_64_intdigest


def filter_of(bits: bytes) -> Filter:
    return Filter(bits, _digest(bits))


def changes(before: Directory, after: Directory) -> list[Change]:
    """The changes of records that lead from one directory to the other."""
    old = {run.number: run for run in before.runs}
    new = {run.number: run for run in after.runs}
    items: list[Item] = []
    for number, run in new.items():
        if old.get(number) != run:
            items.append(_sealed(_run_key(number), _encode(run)))
        if number not in old:
            items.append(_sealed(_filter_key(number), after.filters[number].bits))
    items.append(_sealed(RUNS, _encode(after.manifest())))
    gone = [key(number) for number in old if number not in new for key in (_run_key, _filter_key)]
    return [Put(META, items), *([Delete(META, gone)] if gone else [])]


def leftovers(before: Directory, after: Directory) -> list[Change]:
    """The changes that remove the blocks which no longer count."""
    new = {run.number: run for run in after.runs}
    found: list[Change] = []
    for run in before.runs:
        upto = new[run.number].removed if run.number in new else len(run.lasts)
        if upto > run.removed:
            found.append(DeleteRange(ROWS, PLACE.pack(run.number, run.removed), PLACE.pack(run.number, upto)))
    return found


def load(reader: Reader, path: str, *, filters: bool = True) -> Directory:
    """Read the directory; ranges need no filters. Raises Corruption."""
    data = reader.get(META, RUNS)
    if data is None:
        return EMPTY
    manifest = _decoded(_manifest, RUNS, unseal(RUNS, data, path), path)
    runs, found = [], {}
    for number, run_digest, digest in manifest.runs:
        key = _run_key(number)
        runs.append(_decoded(_run, key, _record(reader, key, run_digest, path), path))
        if filters:
            found[number] = Filter(_record(reader, _filter_key(number), digest, path), digest)
    return Directory(runs, found, manifest.index, manifest.following)


def require_as_of(index: int, found: Directory, path: str) -> None:
    """Raise Corruption if the runs are not those of rows as of the index."""
    if found.index != index:
        raise Corruption(
            f"the rows of {path} are as of index {index}, its runs as of {found.index}: one of both records is missing or an "
            "older one",
            path=path,
        )


def unlisted(reader: Reader, directory: Directory, path: str) -> list[Change]:
    """The changes that remove blocks and records which an interrupted flush or compaction has left. Raises Corruption."""
    listed = {run.number: run for run in directory.runs}
    known = dict.fromkeys(key(number) for number in listed for key in (_run_key, _filter_key))
    records = [key for prefix in PREFIXES for key in reader.keys(META, prefix, successor(prefix))]
    orphans = [key for key in records if key not in known]
    found: list[Change] = [Delete(META, orphans)] if orphans else []
    start: bytes | None = b""
    while start is not None and (keys := reader.keys(ROWS, start, limit=1)):
        if len(keys[0]) != PLACE.size or keys[0] < start:
            raise Corruption(f"{path} has a block at a place that no block can have", path=path)
        number = PLACE.unpack(keys[0])[0]
        low, following = PLACE.pack(number, 0), successor(keys[0][:NUMBER_BYTES])
        run = listed.get(number)
        if run is None:
            found.append(DeleteRange(ROWS, low, following))
        elif run.removed and reader.keys(ROWS, low, PLACE.pack(number, run.removed), limit=1):
            found.append(DeleteRange(ROWS, low, PLACE.pack(number, run.removed)))
        start = following
    return found


def _run_key(number: int) -> bytes:
    return b"run/%d" % number


def _filter_key(number: int) -> bytes:
    return b"bloom/%d" % number


def _sealed(key: bytes, body: bytes) -> Item:
    return key, seal(key, body)


def _record(reader: Reader, key: bytes, digest: int, path: str) -> bytes:
    data = reader.get(META, key)
    body = None if data is None else unseal(key, data, path)
    if body is None or _digest(body) != digest:
        raise Corruption(f"the record {key.decode()} of {path} is missing, or is an older one", path=path)
    return body


def _decoded(decode: Callable[[bytes], T], key: bytes, body: bytes, path: str) -> T:
    try:
        return decode(body)
    except msgspec.MsgspecError as error:
        raise Corruption(f"the record {key.decode()} of {path} cannot be read: {error}", path=path) from error
