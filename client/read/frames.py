"""Results of scans for packages that ebla does not need itself: Polars and DuckDB."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ebla.placement.extras import MissingPackage as MissingPackage
from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.python_values import shown

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation


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
    made: DuckDBPyRelation = own.from_arrow(table)
    return made
