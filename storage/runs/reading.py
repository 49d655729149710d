"""Reads of a tablet's runs: single keys through filters and directories, and ranges block by block.

Nothing unverified is returned: each block passes its checksum when it is read. A key is absent only if the directory names no
block that could have it, or a verified block does not have it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from ebla.storage.environment import Reader
from ebla.storage.errors import Corruption
from ebla.storage.rows import checksum
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs.blocks import Block
from ebla.storage.runs.directory import PLACE, ROWS, Directory, Run
from ebla.storage.runs.filters import hash_of, may_have, may_have_many
from ebla.storage.runs.pieces import Piece, joined, place_of

SEVERAL = 16  # keys from which on a filter is asked about all of them at once
Found = tuple[Block, int]


class Place(NamedTuple):
    """A block of a run, of which rows count from the key `begin` on."""

    run: Run
    number: int
    begin: bytes


def read_block(reader: Reader, run: Run, number: int, codec: RowCodec, seed: int, path: str) -> Block:
    """Raises Corruption if the block is missing or damaged."""
    key = PLACE.pack(run.number, number)
    data = reader.get(ROWS, key)
    if data is None:
        raise Corruption(f"block {number} of run {run.number} of {path} is missing", path=path)
    checksum.verify_row(key, data, seed, path)
    block = Block(data, codec, path)
    if block.rows != run.counts[number]:
        raise Corruption(
            f"block {number} of run {run.number} of {path} has {block.rows} rows, not {run.counts[number]}",
            path=path,
        )
    return block


class RunReader:
    """Reads of one state: of a snapshot, or of the environment as long as its directory is the newest one."""

    def __init__(self, reader: Reader, directory: Directory, codec: RowCodec, seed: int, path: str) -> None:
        self.reader = reader
        self.directory = directory
        self.codec = codec
        self.seed = seed
        self.path = path

    def block(self, run: Run, number: int) -> Block:
        return read_block(self.reader, run, number, self.codec, self.seed, self.path)

    def verify(self, run: Run, number: int) -> int:
        """Verify a block against the directory, and return its number of rows. Raises Corruption."""
        keys = self.block(run, number).keys()
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
        return [found is not None for found in self._present(keys)]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values as the row codec packs them, None if absent."""
        places: dict[int, list[tuple[int, int]]] = {}  # of a block: (place in `keys`, place in the block)
        blocks: dict[int, Block] = {}
        for at, found in enumerate(self._present(keys)):
            if found is not None:
                blocks[id(found[0])] = found[0]
                places.setdefault(id(found[0]), []).append((at, found[1]))
        values: list[bytes | None] = [None] * len(keys)
        if not blocks:
            return values
        names = list(self.codec.header.bit)
        pieces = [
            block.piece(names).take(np.array([row for _, row in places[number]]))
            for number, block in blocks.items()
        ]
        whole = joined([Piece(piece.keys, piece.closed, piece.columns) for piece in pieces])
        rows = whole.rows(self.codec, self.codec.names)
        packed = self.codec.encode(rows, self.seed, whole.keys)[1]
        for (at, _), value in zip((each for found in places.values() for each in found), packed, strict=True):
            values[at] = value
        return values

    def _present(self, keys: Sequence[bytes]) -> list[Found | None]:
        """Where the newest row of each key is, None if there is none or it is deleted."""
        places: list[Found | None] = [None] * len(keys)
        hashed = list(map(hash_of, keys))
        left = list(range(len(keys)))
        for level in self.directory.levels:
            if not left:
                break
            asked = self._asked(level, keys, hashed, left)
            for (run, number), among in asked.items():
                block = self.block(run, number)
                ordered = block.keys()
                for at in among:
                    row = place_of(ordered, keys[at])
                    if row < block.rows and ordered[row].as_py() == keys[at]:
                        places[at] = block, row
            left = [at for at in left if places[at] is None]
        return [None if found is None or found[0].is_gone(found[1]) else found for found in places]

    def _asked(
        self, level: Sequence[Run], keys: Sequence[bytes], hashed: Sequence[int], left: Sequence[int]
    ) -> dict[tuple[Run, int], list[int]]:
        """The blocks of a level that may have some of the keys."""
        begins = [run.begin for run in level]
        by_run: dict[int, list[int]] = {}
        for at in left:
            place = bisect_right(begins, keys[at]) - 1
            if place >= 0:
                by_run.setdefault(place, []).append(at)
        found: dict[tuple[Run, int], list[int]] = {}
        for place, among in by_run.items():
            run, bits = level[place], self.directory.bits[level[place].number]
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
        self, start: bytes, stop: bytes | None, names: Sequence[str]
    ) -> tuple[list[Piece], bytes | None]:
        """A piece of each level from `start` on, the newest first, and the key up to which they are complete (None: `stop`)."""
        places, until = self.places(start, stop)
        pieces = [self.block(run, number).piece(names).between(begin, stop) for run, number, begin in places]
        return pieces, until

    def places(self, start: bytes, stop: bytes | None) -> tuple[list[Place], bytes | None]:
        """The first block of each level with keys from `start` on, the newest level first, and the key up to which these
        blocks are complete."""
        found: list[Place] = []
        until = None
        for level in self.directory.levels:
            at = bisect_left([run.last for run in level], start)
            if at == len(level) or not level[at].overlaps(start, stop):
                continue
            run = level[at]
            begin = max(start, run.begin)
            number = bisect_left(run.lasts, begin)
            found.append(Place(run, number, begin))
            following = run.lasts[number] + b"\0"
            is_last = number + 1 == len(run.lasts) and at + 1 == len(level)
            if not is_last and (stop is None or following < stop):
                until = following if until is None else min(until, following)
        return found, until
