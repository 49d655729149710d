"""Encodes and decodes a table's rows, for one version of its schema.

A table may be altered while it is used. One operation uses one codec from its beginning to its end; the next operation uses
the codec that is current then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa

from ebla.storage.rows.partition import Partitioner
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import TableSchema


class TableCodec:
    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.version = schema.version
        self._partial: dict[tuple[str, ...], RowCodec] = {}

    @cached_property
    def arrow(self) -> pa.Schema:
        return self.schema.arrow()

    @cached_property
    def partitioner(self) -> Partitioner:
        return Partitioner(self.schema)

    @cached_property
    def rows(self) -> RowCodec:
        return RowCodec(self.schema)

    @cached_property
    def keys(self) -> RowCodec:
        return RowCodec(self.schema, ())

    @cached_property
    def values(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.schema.value_columns())

    def partial(self, columns: Sequence[str]) -> RowCodec:
        """The codec of an UPDATE of these columns."""
        chosen = tuple(columns)
        codec = self._partial.get(chosen)
        if codec is None:
            codec = self._partial[chosen] = RowCodec(self.schema, chosen)
        return codec
