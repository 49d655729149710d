"""The writes of a table in the replicated log, read from outside of every node: hints for a checker.

Clients' histories alone do not show quickly whether an unknown write took place, and do not show that two answers were given
in another order than the log's. The simulation reads every entry once, when an invariant first sees it committed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from ebla.actors.messages import DELETE, UPDATE, RowBatch
from ebla.actors.tablet.engine.batches import decode_batch, packed
from ebla.actors.tablet.engine.replica import Replica
from ebla.chaos.checkers.sides import Side
from ebla.chaos.workloads.registers import Applied
from ebla.storage.errors import StorageError
from ebla.storage.logs.entries import WRITE
from ebla.storage.rows.codecs import codec_of
from ebla.storage.rows.rows import RowCodec
from ebla.storage.tablets.results import Client

COLUMN = "v"


@dataclass
class _Tablet:
    codec: RowCodec
    seen: dict[int, None] = field(default_factory=dict)  # indexes of entries that were read
    last: int = 0  # the highest index that any replica has committed
    values: dict[Hashable, int] = field(default_factory=dict)

    def up_to(self, index: int) -> _Tablet:
        values = {value: at for value, at in self.values.items() if at <= index}
        return _Tablet(self.codec, {at: None for at in self.seen if at <= index}, index, values)

    def codec_of(self, batch: RowBatch) -> RowCodec:
        return (
            self.codec if batch.kind != UPDATE else self.codec.of_patch(batch.columns, batch.schema_version)
        )


class AppliedLog:
    """Collects writes of the named tables; the values of COLUMN identify writes."""

    def __init__(self, tables: tuple[str, ...]) -> None:
        self.tables = tables
        # By table, then by tablet and mark (observers/sides.py).
        self._tablets: dict[str, dict[tuple[str, int], _Tablet]] = {}

    def begin(self, tablet: str, mark: int, shared: int) -> None:
        """Begin a new side of the tablet, equal to the one before up to index `shared`."""
        for of_table in self._tablets.values():
            before = max((each for of, each in of_table if of == tablet and each < mark), default=None)
            if before is not None:
                of_table[tablet, mark] = of_table[tablet, before].up_to(shared)

    def take(self, replica: Replica, first: int, last: int) -> None:
        """Read the committed entries first..last."""
        block = replica.superblock
        if block.table_name not in self.tables:
            return
        of_table = self._tablets.setdefault(block.table_name, {})
        side = replica.tablet, replica.core.committed_configuration.unsafe
        if side not in of_table:
            of_table[side] = _Tablet(codec_of(block.schema))
        tablet = of_table[side]
        tablet.last = max(tablet.last, replica.core.commit_index)
        for index in range(first, last + 1):
            batch = None if index in tablet.seen else self._read(replica, tablet, index)
            if batch is None:
                continue
            codec = tablet.codec_of(batch)
            for key, row in zip(*packed(tablet.codec, batch, 0), strict=True):
                value = codec.decode_row(key, row, None, (COLUMN,))[COLUMN]
                tablet.values.setdefault(value, index)
                tablet.values[value] = min(index, tablet.values[value])  # a retry is a second entry

    def _read(self, replica: Replica, tablet: _Tablet, index: int) -> RowBatch | None:
        try:
            (entry,) = replica.log.load(index, index)
        except StorageError:
            return None  # the disk is lost, or the record is damaged: another replica may show it
        tablet.seen[index] = None
        batch = decode_batch(entry.payload) if entry.kind == WRITE else None
        return None if batch is None or batch.kind == DELETE else batch

    def of(self, table: str) -> Applied:
        """The writes of a table without forced configurations."""
        tablets = self._tablets.get(table, {}).values()
        indexes = {value: index for tablet in tablets for value, index in tablet.values.items()}
        return Applied(indexes, all(len(tablet.seen) == tablet.last for tablet in tablets))

    def sides(self, table: str) -> dict[str, dict[int, Side]]:
        """The writes of each side, by tablet and mark."""
        found: dict[str, dict[int, Side]] = {}
        for (tablet, mark), side in self._tablets.get(table, {}).items():
            found.setdefault(tablet, {})[mark] = Side(side.values, len(side.seen) == side.last)
        return found


def answers_match(group: Iterable[tuple[object, Replica]]) -> None:
    """Replicas that applied the same entries keep the same answers, and forget them at the same time."""
    first: dict[int, tuple[object, dict[bytes, Client]]] = {}
    for who, replica in group:
        store = replica.store
        answers = dict(store.results.clients)
        other, theirs = first.setdefault(store.applied.index, (who, answers))
        assert answers == theirs, f"{who} and {other} would not answer retries alike: {answers}, {theirs}"
