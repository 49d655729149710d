"""Types of arguments and results, for type checkers and editors. `ebla.storage.rows.convert` checks the values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

Row = dict[str, Any]


class ArrowStream(Protocol):
    """Rows that any library of the Arrow family offers: a Table, a reader, a DataFrame of pandas or Polars."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class ArrowBatch(Protocol):
    """A RecordBatch of any library of the Arrow family."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object: ...


Rows = Mapping[str, Any] | Iterable[Mapping[str, Any]] | ArrowStream | ArrowBatch
WriteIdLike = tuple[bytes, int]
IfRefused = Literal["error", "ignore"]
