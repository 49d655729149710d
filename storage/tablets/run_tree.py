"""Rows on disk as sorted runs of blocks, column by column: the columnar layout (storage/runs)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from operator import add

import pyarrow as pa

from ebla.storage.environment import Change, Environment, Snapshot
from ebla.storage.errors import StorageError
from ebla.storage.logs.entries import Position
from ebla.storage.predicates.conditions import Expression, condition
from ebla.storage.rows.codecs import codec_of
from ebla.storage.rows.rows import RowCodec
from ebla.storage.runs import directory as directories
from ebla.storage.runs import writing
from ebla.storage.runs.directory import Directory
from ebla.storage.runs.pieces import merged
from ebla.storage.runs.reading import Heads, RunReader
from ebla.storage.runs.writing import Made, Merge, Step
from ebla.storage.schema import TableSchema
from ebla.storage.tablets import positions
from ebla.storage.tablets.columns_memtable import ColumnsMemtable


@dataclass(eq=False)
class Ongoing:
    """A compaction: rows up to the key `after` are merged."""

    merge: Merge
    after: bytes | None = None


class RunTree:
    def __init__(
        self,
        environment: Environment,
        seed: int,
        schema: TableSchema,
        altered: bytes | None,
        flushed: Position,
    ) -> None:
        self.environment = environment
        self.seed = seed
        self.codec = codec_of(schema)
        self._heads: Heads = {}
        if altered is not None:
            self.altered(altered)
        self._flushed = self.codec  # a restart knows no later alteration, so a compaction must not use one
        self._attempt = flushed.index, self.codec  # the last flush that was begun, and its codec
        self.wanted = 0  # an operator wants the rows up to this index in one tier
        self._merges: list[Ongoing] = []  # of the oldest tiers first
        self._adopt(directories.load(environment, environment.path))
        directories.require_as_of(flushed.index, self.directory, environment.path)
        self._following = self.directory.following

    def _adopt(self, found: Directory) -> None:
        """Take over the directory on disk."""
        self.directory = found
        self._leftovers = directories.unlisted(self.environment, found, self.environment.path)
        self._uncertain = False  # whether a commit was cancelled, and may have been carried out

    def altered(self, encoded: bytes) -> None:
        self.codec = codec_of(positions.altered(encoded, self.environment.path).schema)
        self._heads.clear()

    # -- reads

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return self._reader(self.codec, self._heads).get_many(keys)

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        return self._reader(self.codec, self._heads).contains(keys)

    def snapshot(self, tables: tuple[ColumnsMemtable, ...], position: Position) -> RunSnapshot:
        pinned = self.environment.snapshot(views=True)
        reader = RunReader(pinned, self.directory, self.codec, self.seed, self.environment.path)
        return RunSnapshot(pinned, reader, tables, position)

    def memtable(self) -> ColumnsMemtable:
        return ColumnsMemtable(self.seed)

    def _reader(self, codec: RowCodec, heads: Heads | None = None) -> RunReader:
        path = self.environment.path
        return RunReader(self.environment, self.directory, codec, self.seed, path, heads)

    # -- changes, one at a time; the caller waits for each of them

    async def flush(
        self, tables: Sequence[ColumnsMemtable], position: Position, others: Sequence[Change]
    ) -> None:
        """Make the rows and the other changes durable, in one synced transaction."""
        # Of `position`, as `tables` and `others`: while this waits, an alteration may be applied, which `others` does not have.
        codec, made = self.codec, None
        await self._settle()
        # At an index that is known already, a flush that was cancelled has stored these rows.
        if position.index > self.directory.index:
            made = await self.environment.run(self._made, tables, position.index, codec, self._number())
        after = writing.with_flush(self.directory, made, position.index)
        self._attempt = position.index, codec
        await self._commit(after, made, others)
        self._flushed = codec

    def scattered(self) -> int:
        """The bytes of rows that an operator wants in one tier and that are not: rows of all tiers but the newest of them, and of
        runs with deleted rows or of a former layout."""
        among = [run for run in self.directory.runs if run.index <= self.wanted]
        layout = self._flushed.layout
        return sum(
            run.live_bytes()
            for run in among
            if run.index < among[0].index or run.gone or run.layout != layout
        )

    def counts(self) -> tuple[int, int, int, int]:
        """Runs, tiers, blocks, and the bytes of the rows that merges under way, or due, have yet to merge."""
        found = self.directory
        due = writing.choose(found, self._merges[-1].merge.newest if self._merges else 0)
        merges = [(each.merge, each.after) for each in self._merges] + ([] if due is None else [(due, None)])
        debt = sum(writing.left_bytes(found, merge, after) for merge, after in merges)
        return (
            len(found.runs),
            len(found.tiers),
            sum(len(run.lasts) - run.removed for run in found.runs),
            debt,
        )

    def due(self) -> Ongoing | None:
        """The merge to go on with, if any. Newer tiers are smaller, and their merge is due before that of older ones ends."""
        directory = self.directory
        chosen = writing.choose(directory, self._merges[-1].merge.newest if self._merges else 0)
        if chosen is None and not self._merges and self.wanted:
            chosen = self._whole()
        if chosen is not None:
            self._merges.append(Ongoing(chosen))
        return self._merges[-1] if self._merges else None

    def _whole(self) -> Merge | None:
        if not self.scattered():
            self.wanted = 0
            return None
        tiers = self.directory.tiers
        begin = next(at for at, tier in enumerate(tiers) if tier.of_index <= self.wanted)
        return writing.merge_of(self.directory, begin, len(tiers))

    async def merge(self, ongoing: Ongoing) -> Step:
        """Read and merge the next range of a compaction. Nothing is stored."""
        reader = self._reader(self._flushed)
        return await self.environment.run(writing.step, reader, ongoing.merge, ongoing.after, self._number())

    async def store(self, ongoing: Ongoing, done: Step) -> None:
        """Make a step durable, in one synced transaction. A step of runs that are there no longer is left out."""
        await self._settle()
        if not set(done.inputs) <= set(self.directory.runs):
            self._merges.remove(ongoing)
            return
        await self._commit(writing.with_step(self.directory, done), done.made, ())
        ongoing.after = done.upto
        if done.upto is None:
            self._merges.remove(ongoing)

    async def clean(self) -> None:
        """Remove blocks that no longer count."""
        await self._settle()
        if self._leftovers:
            await self._commit(self.directory, None, ())

    async def _settle(self) -> None:
        """After a commit that was cancelled: wait until it was carried out or given up, and read which runs there are."""
        if self._uncertain:
            await self.environment.reserve(0)  # waits for all commits before it
            self._adopt(directories.load(self.environment, self.environment.path))
            index, codec = self._attempt
            if self.directory.index == index:
                self._flushed = codec

    async def _commit(self, after: Directory, made: Made | None, others: Sequence[Change]) -> None:
        before, blocks = self.directory, [] if made is None else [made.put()]
        changes = directories.changes(before, after)
        self._uncertain = True
        try:
            await self.environment.commit([*self._leftovers, *blocks, *changes, *others])
        except StorageError:
            self._uncertain = False  # nothing was changed
            raise
        assert self.directory is before, "one change at a time"
        self._uncertain = False
        self.directory = after
        self._leftovers = directories.leftovers(before, after)

    def _number(self) -> int:
        self._following += 1
        return self._following - 1

    def _made(
        self, tables: Sequence[ColumnsMemtable], index: int, codec: RowCodec, number: int
    ) -> Made | None:
        pieces = [table.sorted(codec, self.environment.path).piece for table in tables]
        return writing.make_run(merged(pieces), number, index, codec, self.seed) if pieces else None

    async def scrub(self, pause: Callable[[], Awaitable[None]] | None) -> int:
        """Verify every block, and that blocks and keys are as the directory says. Return the number of rows."""
        rows, pinned, path = 0, self.environment.snapshot(views=True), self.environment.path
        try:
            found = await self.environment.run(directories.load, pinned, path)
            directories.require_as_of(positions.position_of(pinned, path).index, found, path)
            reader = RunReader(pinned, found, self.codec, self.seed, path)
            for run in found.runs:
                for number in range(run.removed, len(run.lasts)):
                    rows += await self.environment.run(reader.verify, run, number)
                    if pause is not None:
                        await pause()
        finally:
            pinned.close()
        return rows


@dataclass(eq=False)
class RunSnapshot:
    """One position of a tablet's rows, read piece by piece. Reads are CPU-heavy: call them through `environment.run`."""

    pinned: Snapshot
    reader: RunReader
    tables: tuple[ColumnsMemtable, ...]
    position: Position

    def read(
        self,
        codec: RowCodec,
        start: bytes,
        stop: bytes | None,
        limit: int,
        bytes_max: int,
        names: Sequence[str],
        where: Expression | None = None,
    ) -> tuple[pa.RecordBatch, bytes | None]:
        """Rows with start <= key < stop, ascending, as Arrow with the columns `names`, and the key to continue from, None at
        the end. `where`: a bound condition; some rows for which it is not true are left out. From each tier at most `limit` rows of a block, from each memtable also about `bytes_max` bytes; there may be no
        row although more follow."""
        assert codec.schema == self.reader.codec.schema, "a scan has the schema of its snapshot"
        columns = [name for name in names if name in codec.header.bit]
        pieces, until = self.reader.sources(
            start, stop, columns, limit, None if where is None else condition(where)
        )
        for table in self.tables:
            whole = table.sorted(self.reader.codec, self.reader.path)
            piece, following = whole.range(start, stop, limit, bytes_max)
            pieces.append(piece.of(columns))
            if following is not None:
                until = following if until is None else min(until, following)
        sources = [found for piece in pieces if len(found := piece.between(start, until))]
        if not sources:
            return codec.decode([], None, names), until
        return merged(sources).present().rows(codec, names), until

    def packed(self, start: bytes, limit: int, bytes_max: int) -> tuple[list[bytes], bytes | None]:
        """As `read`: key and value of each row as the codec packs them, joined. Equal rows are equal, whatever their runs."""
        codec = self.reader.codec
        batch, following = self.read(codec, start, None, limit, bytes_max, codec.names)
        return list(map(add, *codec.encode(batch, self.reader.seed))), following

    def close(self) -> None:
        self.pinned.close()
