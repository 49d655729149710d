"""Results of scans for pandas, Polars and DuckDB; ebla does not need the last two itself.

No value changes on the way: an integer beside nulls stays an integer, and a value that the package cannot express is refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from ebla.placement.extras import MissingPackage as MissingPackage
from ebla.storage.errors import InvalidArgument, invalid_column
from ebla.storage.rows.python_values import UNREADABLE, inner, plain_values, refuse_least, shown

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation
    from pandas import DataFrame as PandasFrame
    from polars import DataFrame as PolarsFrame

T = TypeVar("T")


def pandas_frame(table: pa.Table) -> PandasFrame:
    """The rows as a frame of pandas: integers beside nulls as pandas' Int64 and its like, inside of nested values as objects."""
    import pandas

    def convert(part: pa.Table) -> PandasFrame:
        for plain in _plain(part):
            refuse_least(plain)
        made: PandasFrame = part.to_pandas(integer_object_nulls=True)
        for name in part.column_names:
            if _has_nanoseconds(part.schema.field(name).type):
                values = plain_values(name, part.column(name))
                made[name] = pandas.Series(values, made.index, object)
        return made

    frame = _checked(table, convert, "pandas", "scan.to_arrow().to_pandas(types_mapper=pandas.ArrowDtype)")
    for field, column in zip(table.schema, table.columns, strict=True):
        if column.null_count and pa.types.is_integer(field.type):
            dtype: Any = pandas.api.types.pandas_dtype(
                str(field.type).replace("uint", "UInt").replace("int", "Int")
            )
            frame[field.name] = dtype.__from_arrow__(column)
    return frame


def _has_nanoseconds(kind: pa.DataType) -> bool:
    """Whether a struct or map inside of the type holds times in nanoseconds, of which Arrow makes ints for pandas."""
    inside = [kind.field(place).type for place in range(kind.num_fields)]
    if pa.types.is_struct(kind) and any(
        (pa.types.is_timestamp(each) or pa.types.is_duration(each)) and each.unit == "ns" for each in inside
    ):
        return True
    return any(map(_has_nanoseconds, inside))


def polars_frame(table: pa.Table) -> PolarsFrame:
    """The rows as a frame of Polars."""
    package = polars()

    def convert(part: pa.Table) -> PolarsFrame:
        for plain in _plain(part):
            _refuse_overflow(plain)
        made: PolarsFrame = package.DataFrame(part)
        return made

    return _checked(table, convert, "Polars", "scan.to_arrow()")


def _plain(table: pa.Table) -> Iterator[pa.Array]:
    """The arrays of plain types inside of the columns."""
    for chunk in (chunk for column in table.columns for chunk in column.chunks):
        yield from inner(chunk)


def _refuse_overflow(array: pa.Array) -> None:
    """Raise ArrowInvalid for seconds that do not fit into 64 bits as milliseconds: Polars has no seconds, and overflows."""
    kind = array.type
    if pa.types.is_duration(kind) and kind.unit == "s":
        array.cast(pa.duration("ms"))
    elif pa.types.is_timestamp(kind) and kind.unit == "s":
        array.cast(pa.timestamp("ms", kind.tz))


def _checked(table: pa.Table, convert: Callable[[pa.Table], T], package: str, remedy: str) -> T:
    """The converted table; a value that the package cannot express is refused with its column."""
    try:
        return convert(table)
    except (*UNREADABLE, pa.ArrowException):
        for name in table.column_names:
            try:
                convert(table.select([name]))
            except (*UNREADABLE, pa.ArrowException) as error:
                raise invalid_column(
                    name,
                    f"({table.schema.field(name).type}) holds a value that {package} cannot express: {error}; read it with "
                    f"{remedy}",
                ) from error
        raise


def polars() -> Any:
    return _package("polars", "to_polars")


def duckdb() -> Any:
    return _package("duckdb", "to_duckdb")


def _package(name: str, method: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingPackage(
            f"{method}() needs the package {name}, which is not installed: pip install {name}", module=name
        ) from None


def relation(table: pa.Table, connection: DuckDBPyConnection | None) -> DuckDBPyRelation:
    """The rows as a relation of a DuckDB connection, or of DuckDB's own one."""
    own: Any = duckdb() if connection is None else connection
    if not hasattr(own, "from_arrow"):
        raise InvalidArgument(
            f"connection is {shown(own)}; give duckdb.connect({shown(own) if isinstance(own, str) else ''}), or leave it out"
        )

    def convert(part: pa.Table) -> DuckDBPyRelation:
        for plain in _plain(part):
            if pa.types.is_duration(plain.type):
                plain.cast(pa.duration("us"))  # DuckDB has microseconds, cuts nanoseconds off, and overflows
        made: DuckDBPyRelation = own.from_arrow(part)
        return made

    return _checked(table, convert, "DuckDB", "scan.to_arrow()")
