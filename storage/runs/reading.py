"""Reads of a tablet's runs: single keys through filters and directories, and ranges block by block.

Nothing unverified is returned: a block passes its checksum when it is read as a whole, and its header and a group of its rows
when one row is read. A key is absent only if the directory names no block that could have it, or if the verified rows on both
sides of its place in that block are its neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar, cast

import pyarrow.compute as pc

from ebla.storage.environment import Reader
from ebla.storage.errors import Corruption
from ebla.storage.predicates.conditions import Node
from ebla.storage.rows import checksum
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.blocks import PLACE, Block, Head, open_block
from ebla.storage.runs.directory import ROWS, Directory, Run, Tier
from ebla.storage.runs.filters import Hashed
from ebla.storage.runs.pieces import Piece
from ebla.storage.runs.statistics import Span, may_match

T = TypeVar("T")
Heads = dict[bytes, Head]  # by the keys of their blocks
HEADS_MAX = 512  # kept for a tablet, of 2 to 3 kB each; the oldest go first


class Place(NamedTuple):
    """A block of a run, of which rows count from the key `begin` on."""

    run: Run
    number: int
    begin: bytes


class RunReader:
    """Reads of one state: of a snapshot, or of the environment as long as its directory is the newest one. `heads`: what reads
    of single keys keep for the next reader, while the codec is the same."""

    def __init__(
        self,
        reader: Reader,
        directory: Directory,
        codec: RowCodec,
        seed: int,
        path: str,
        heads: Heads | None = None,
    ) -> None:
        self.reader = reader
        self.directory = directory
        self.codec = codec
        self.seed = seed
        self.path = path
        self._heads = {} if heads is None else heads
        self._recent: dict[
            int, tuple[tuple[object, ...], Piece]
        ] = {}  # by tier: the block that was last read

    def piece(self, run: Run, number: int, names: Sequence[str]) -> Piece:
        """The rows of a block with the value columns `names`: verified where they lie, then copied. Raises Corruption if the block
        is missing or damaged."""

        def taken(at: int, data: memoryview) -> Piece:
            checksum.verify_row(PLACE.pack(run.number, number), data, self.seed, self.path)
            return self._opened(run, number, data).piece(names)

        return self._look([(run, number)], taken)[0]

    def _look(self, blocks: Sequence[tuple[Run, int]], work: Callable[[int, memoryview], T]) -> list[T]:
        """The results of `work` with the place of each block in `blocks`, and its data."""
        found = self.reader.look(ROWS, [PLACE.pack(run.number, number) for run, number in blocks], work)
        if None in found:
            run, number = blocks[found.index(None)]
            raise Corruption(f"block {number} of run {run.number} of {self.path} is missing", path=self.path)
        return cast(list[T], found)

    def _opened(self, run: Run, number: int, data: memoryview) -> Block:
        key = PLACE.pack(run.number, number)
        block = open_block(data, self.codec, key, self.seed, self.path)
        if block.rows != run.counts[number]:
            raise block.damaged(f"{block.rows} rows, not {run.counts[number]}")
        return block

    def _reopened(self, run: Run, number: int, data: memoryview) -> Block:
        """As `_opened`, with the head that was kept, if any."""
        key = PLACE.pack(run.number, number)
        head = self._heads.get(key)
        if head is not None:
            return Block(data, head, self.codec, key, self.path)
        block = self._opened(run, number, data)
        while len(self._heads) >= HEADS_MAX:
            del self._heads[next(iter(self._heads))]
        self._heads[key] = block.head
        return block

    def verify(self, run: Run, number: int) -> int:
        """Verify a block against the directory, and return its number of rows. Raises Corruption."""
        keys = self.piece(run, number, ()).keys
        edges = [keys[0].as_py(), keys[-1].as_py()]
        before = run.lasts[number - 1] if number else None
        out_of_place = (number == 0 and edges[0] != run.first) or (before is not None and edges[0] <= before)
        if (
            out_of_place
            or edges[1] != run.lasts[number]
            or not pc.all(pc.less(keys[:-1], keys[1:]), min_count=0).as_py()
        ):
            raise Corruption(
                f"block {number} of run {run.number} of {self.path} has keys of other places", path=self.path
            )
        return len(keys)

    # -- single keys

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        return [found is not None for found in self._each(keys, lambda block, row: b"")]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values as the row codec packs them, in the layouts in which they were written; None if absent."""
        return self._each(keys, lambda block, row: block.packed(row, self.seed))

    def _each(self, keys: Sequence[bytes], take: Callable[[Block, int], bytes]) -> list[bytes | None]:
        """What `take` makes of the newest row of each key; None if there is none, or it is deleted."""
        values: list[bytes | None] = [None] * len(keys)
        hashed = Hashed(keys)
        left = dict.fromkeys(range(len(keys)))
        for tier in self.directory.tiers:
            if not left:
                break
            asked = self._asked(tier, keys, hashed, left)
            if not asked:
                continue
            for found in self._look(list(asked), partial(self._taken, keys, list(asked.items()), take)):
                for at, value in found:
                    values[at] = value
                    del left[at]
        return values

    def _taken(
        self,
        keys: Sequence[bytes],
        asked: Sequence[tuple[tuple[Run, int], list[int]]],
        take: Callable[[Block, int], bytes],
        place: int,
        data: memoryview,
    ) -> list[tuple[int, bytes | None]]:
        """The keys that a block has, with their values."""
        (run, number), among = asked[place]
        block = self._reopened(run, number, data)
        rows = block.places_of([keys[at] for at in among])
        return [
            (at, None if block.is_gone(row) else take(block, row))
            for at, row in zip(among, rows, strict=True)
            if row is not None
        ]

    def _asked(
        self, tier: Tier, keys: Sequence[bytes], hashed: Hashed, left: Iterable[int]
    ) -> dict[tuple[Run, int], list[int]]:
        """The blocks of a tier that may have some of the keys."""
        by_run: dict[int, list[int]] = {}
        for at in left:
            place = bisect_right(tier.begins, keys[at]) - 1
            if place >= 0:
                by_run.setdefault(place, []).append(at)
        found: dict[tuple[Run, int], list[int]] = {}
        for place, among in by_run.items():
            run = tier.runs[place]
            for at in hashed.among(among, self.directory.filters[run.number].bits):
                number = run.block_of(keys[at])
                if number is not None:
                    found.setdefault((run, number), []).append(at)
        return found

    # -- ranges

    def sources(
        self, start: bytes, stop: bytes | None, names: Sequence[str], limit: int, where: Node | None
    ) -> tuple[list[Piece], bytes | None]:
        """A piece of each tier from `start` on, of at most `limit` rows, the oldest first; and the key up to which they are complete
        (None: `stop`). Some rows for which `where` is not true are left out."""
        places, until = self.places(start, stop)
        if where is not None:
            # A newer block without a match may hide older rows that match, so only the oldest blocks are left out.
            while places and not self._may_match(places[-1], where):
                places.pop()
        pieces = []
        for run, number, begin in places:
            # Another tier may have ended the last range in the middle of this block.
            wanted = (run.number, number, *names)
            known = self._recent.get(run.index)
            if known is None or known[0] != wanted:
                known = self._recent[run.index] = wanted, self.piece(run, number, names)
            piece = known[1].between(begin, stop)
            if len(piece) > limit:
                following = piece.keys[limit].as_py()
                until = following if until is None else min(until, following)
                piece = piece.slice(0, limit)
            pieces.append(piece)
        return pieces[::-1], until

    def _may_match(self, place: Place, where: Node) -> bool:
        def taken(at: int, data: memoryview) -> dict[str, Span]:
            return self._opened(place.run, place.number, data).statistics()

        found = self._look([(place.run, place.number)], taken)[0]
        return may_match(where, self.codec.schema, found)

    def places(self, start: bytes, stop: bytes | None) -> tuple[list[Place], bytes | None]:
        """The first block of each tier with keys from `start` on, the newest tier first, and the key up to which these
        blocks are complete."""
        found: list[Place] = []
        until = None
        for tier in self.directory.tiers:
            at = bisect_left(tier.lasts, start)
            if at == len(tier.runs) or not tier.runs[at].overlaps(start, stop):
                continue
            run = tier.runs[at]
            begin = max(start, run.begin)
            number = bisect_left(run.lasts, begin)
            found.append(Place(run, number, begin))
            following = run.lasts[number] + b"\0"
            is_last = number + 1 == len(run.lasts) and at + 1 == len(tier.runs)
            if not is_last and (stop is None or following < stop):
                until = following if until is None else min(until, following)
        return found, until
