"""The partitioning of a new table into tablets.

ebla.hash("carrier", "flight", buckets=8)                     spreads rows evenly
ebla.range("time_hour", splits=[january, july])               keeps neighbouring keys together
ebla.hash("carrier", buckets=4) + ebla.range(...)             both: every bucket is divided at the splits
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.partition import hash_spec, range_spec
from ebla.storage.rows.python_values import shown
from ebla.storage.schema import Hash, Partitioning, TableSchema


@dataclass(frozen=True)
class PartitionBy:
    """`splits` are values; they are encoded when the schema is known."""

    hashed: Hash | None = None
    columns: tuple[str, ...] = ()
    splits: tuple[Any, ...] = ()

    def __add__(self, other: PartitionBy) -> PartitionBy:
        if not isinstance(other, PartitionBy):
            return NotImplemented
        if (self.hashed and other.hashed) or (self.columns and other.columns):
            raise InvalidArgument("a table is divided by one hash and one range at most")
        return PartitionBy(
            self.hashed or other.hashed, self.columns or other.columns, self.splits or other.splits
        )

    def __repr__(self) -> str:
        parts = []
        if self.hashed:
            names = ", ".join(map(repr, self.hashed.columns))
            parts.append(f"ebla.hash({names}, buckets={self.hashed.buckets})")
        if self.columns:
            parts.append(f"ebla.range({', '.join(map(repr, self.columns))}, splits={list(self.splits)!r})")
        return " + ".join(parts) or "ebla.PartitionBy()"


def hash(*columns: str, buckets: int) -> PartitionBy:
    """`buckets` tablets; a hash of these key columns chooses a row's tablet."""
    return PartitionBy(hash_spec(*columns, buckets=buckets))


def range(*columns: str, splits: Sequence[Any]) -> PartitionBy:
    """len(splits) + 1 tablets. `columns` are the first columns of the primary key; each split is the first key of its tablet
    (a tuple for several columns)."""
    if isinstance(splits, (str, bytes)) or not isinstance(splits, Iterable):
        raise InvalidArgument(
            f"splits is a list of values, each the first key of its tablet, such as [10, 20], not {shown(splits)}"
        )
    values = tuple(splits)
    if not columns or not values:
        raise InvalidArgument("a range needs columns and one split at least")
    for name in columns:
        if not isinstance(name, str):
            raise InvalidArgument(
                f'range columns are names, such as range("id", splits=[10]), not {shown(name)}'
            )
    return PartitionBy(None, columns, values)


def resolve(partition_by: PartitionBy | None, schema: TableSchema) -> Partitioning:
    """The partitioning for this schema; one tablet for None. Raises InvalidArgument."""
    if partition_by is None:
        return Partitioning()
    if not isinstance(partition_by, PartitionBy):
        raise InvalidArgument(
            f"partition_by is made with ebla.hash(...), ebla.range(...) or their sum, not {shown(partition_by)}"
        )
    ranged = range_spec(partition_by.columns, partition_by.splits, schema) if partition_by.columns else None
    return Partitioning(partition_by.hashed, ranged)
