"""Reads of a tablet's runs: single keys through filters and directories, and ranges block by block.

Nothing unverified is returned: a block passes its checksum when it is read as a whole, and its header and a group of its rows
when one row is read. A key is absent only if the directory names no block that could have it, or if the verified rows on both
sides of its place in that block are its neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ebla.storage.environment import Reader
from ebla.storage.errors import Corruption
from ebla.storage.predicates.conditions import Node
from ebla.storage.rows import checksum
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.blocks import PLACE, Block
from ebla.storage.runs.directory import ROWS, Directory, Run, Tier
from ebla.storage.runs.filters import hash_of, hashes, may_have, may_have_many
from ebla.storage.runs.pieces import Piece
from ebla.storage.runs.statistics import may_match

SEVERAL = 16  # keys from which on a filter, and the hash, take all of them at once


class Place(NamedTuple):
    """A block of a run, of which rows count from the key `begin` on."""

    run: Run
    number: int
    begin: bytes


class RunReader:
    """Reads of one state: of a snapshot, or of the environment as long as its directory is the newest one."""

    def __init__(self, reader: Reader, directory: Directory, codec: RowCodec, seed: int, path: str) -> None:
        self.reader = reader
        self.directory = directory
        self.codec = codec
        self.seed = seed
        self.path = path
        self._recent: dict[
            int, tuple[tuple[object, ...], Piece]
        ] = {}  # by tier: the block that was last read

    def piece(self, run: Run, number: int, names: Sequence[str]) -> Piece:
        """The rows of a block with the value columns `names`: verified where they lie, then copied. Raises Corruption if the block
        is missing or damaged."""
        key = PLACE.pack(run.number, number)

        def taken(data: memoryview) -> Piece:
            checksum.verify_row(key, data, self.seed, self.path)
            return self._opened(run, number, data).piece(names)

        found = self.reader.look(ROWS, key, taken)
        if found is None:
            raise self._missing(run, number)
        return found

    def _opened(self, run: Run, number: int, data: memoryview) -> Block:
        block = Block(data, self.codec, PLACE.pack(run.number, number), self.seed, self.path)
        if block.rows != run.counts[number]:
            raise Corruption(
                f"block {number} of run {run.number} of {self.path} has {block.rows} rows, not {run.counts[number]}",
                path=self.path,
            )
        return block

    def _missing(self, run: Run, number: int) -> Corruption:
        return Corruption(f"block {number} of run {run.number} of {self.path} is missing", path=self.path)

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
        if len(keys) < SEVERAL:
            hashed = list(map(hash_of, keys))
        else:
            hashed = hashes(pa.array(keys, pa.binary())).tolist()
        left = dict.fromkeys(range(len(keys)))
        for tier in self.directory.tiers:
            if not left:
                break
            for (run, number), among in self._asked(tier, keys, hashed, left).items():
                found = self.reader.look(
                    ROWS, PLACE.pack(run.number, number), partial(self._taken, run, number, keys, among, take)
                )
                if found is None:
                    raise self._missing(run, number)
                for at, value in found:
                    values[at] = value
                    del left[at]
        return values

    def _taken(
        self,
        run: Run,
        number: int,
        keys: Sequence[bytes],
        among: Sequence[int],
        take: Callable[[Block, int], bytes],
        data: memoryview,
    ) -> list[tuple[int, bytes | None]]:
        """The keys that the block has, with their values."""
        block = self._opened(run, number, data)
        found: list[tuple[int, bytes | None]] = []
        for at in among:
            row = block.find(keys[at])
            if row is not None:
                found.append((at, None if block.is_gone(row) else take(block, row)))
        return found

    def _asked(
        self, tier: Tier, keys: Sequence[bytes], hashed: Sequence[int], left: Iterable[int]
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
            bits = self.directory.filters[run.number].bits
            if len(among) < SEVERAL:
                some = [at for at in among if may_have(bits, hashed[at])]
            else:
                maybe = may_have_many(bits, np.array([hashed[at] for at in among], np.uint64))
                some = [at for at, may in zip(among, maybe.tolist(), strict=True) if may]
            for at in some:
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
        found = self.reader.look(
            ROWS,
            PLACE.pack(place.run.number, place.number),
            lambda data: self._opened(place.run, place.number, data).statistics(),
        )
        if found is None:
            raise self._missing(place.run, place.number)
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
