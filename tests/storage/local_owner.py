"""A tablet's owner in a process of its own: `python -m tests.storage.local_owner`, with its commands on stdin.

open ROOT               close the last tablet and create one below ROOT; answers `open DIRECTORY`
put FIRST COUNT TAG     upsert rows (k, "TAG-k") and flush; answers `index N`
large FIRST COUNT SIZE  the same with values of SIZE characters
alter                   alter the table to ALTERED; the next `put` writes this to the disk
rot K                   write the row with key K with a wrong byte in it
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pyarrow as pa

from ebla.storage.environment import Put
from ebla.storage.lmdb.disk import LmdbDisk
from ebla.storage.logs.entries import START, Position
from ebla.storage.rows import alteration
from ebla.storage.rows.alteration import AddColumn, Alteration, DropColumn
from ebla.storage.rows.altered import altered
from ebla.storage.rows.checksum import seed
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import COLUMNS, Column, TableSchema
from ebla.storage.schema import ROWS as ROW_STORAGE
from ebla.storage.tablets.positions import META, put_position
from ebla.storage.tablets.results import NO_ANSWERS, RESULTS, Results
from ebla.storage.tablets.tablet_store import ROWS, TabletStore, path_of

TABLET = "0123456789abcdef0123456789abcdef"
SCHEMA = TableSchema.from_arrow(pa.schema([("k", pa.int64()), ("v", pa.string()), ("n", pa.int32())]), ["k"])
CODEC = RowCodec(SCHEMA)
ALTERED = altered(SCHEMA, [DropColumn("n"), AddColumn(Column("n", "string", default=b"new"))])
MAP_BYTES = 4 << 20  # small, so that it has to grow


def encoded(first: int, values: list[str], codec: RowCodec = CODEC) -> tuple[list[bytes], list[bytes]]:
    rows = {"k": list(range(first, first + len(values))), "v": values, "n": [None] * len(values)}
    return codec.encode(codec.arrow(rows), seed(TABLET))


def stored(schema: TableSchema, storage: str) -> TableSchema:
    return msgspec.structs.replace(schema, storage=storage)


class Owner:
    def __init__(self, disk: LmdbDisk, store: TabletStore) -> None:
        self.disk = disk
        self.store = store
        self.codec = CODEC
        self.storage = ROW_STORAGE if store.runs is None else COLUMNS

    @staticmethod
    async def open(root: str, storage: str) -> Owner:
        disk = LmdbDisk(Path(root))
        await disk.open_instance("one")
        environment = await disk.open_environment(
            path_of(TABLET), [ROWS, RESULTS, META], create=True, map_bytes=MAP_BYTES
        )
        await environment.commit([put_position(START, NO_ANSWERS, None)])
        return Owner(disk, TabletStore(environment, Results(), seed(TABLET), stored(SCHEMA, storage)))

    async def put(self, first: int, values: list[str]) -> int:
        self.store.put(*encoded(first, values, self.codec))
        self.store.applied = Position(self.store.applied.index + 1, 1, 0)
        return (await self.store.flush()).index

    async def rot(self, key: int) -> None:
        """Damage the row, or the first block."""
        environment = self.store.environment
        (row,), (value,) = encoded(key, ["fine"])
        if self.store.runs is not None:
            ((row, value),) = environment.items(ROWS, limit=1)
        wrong = value[:200] + bytes([value[200] ^ 1]) + value[201:] if len(value) > 200 else b"\1" + value[1:]
        await environment.commit([Put(ROWS, [(row, wrong)])])

    async def run(self, line: str) -> str:
        verb, *words = line.split()
        if verb == "put":
            return f"index {await self.put(int(words[0]), [f'{words[2]}-{n}' for n in range(int(words[1]))])}"
        if verb == "large":
            return f"index {await self.put(int(words[0]), ['x' * int(words[2])] * int(words[1]))}"
        if verb == "alter":
            self.codec = RowCodec(ALTERED)
            schema = stored(ALTERED, self.storage)
            self.store.alter(alteration.encode(Alteration(schema)))
            return "altered"
        assert verb == "rot"
        await self.rot(int(words[0]))
        return "rotten"


async def main() -> None:
    owner: Owner | None = None
    for line in sys.stdin:
        if line.startswith("open "):
            if owner is not None:
                await owner.disk.close()
            owner = await Owner.open(*line.split()[1:])
            print("open", owner.store.environment.directory, flush=True)
        else:
            assert owner is not None
            print(await owner.run(line), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
