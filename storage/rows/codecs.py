"""The codec of a schema, shared by all tablets of a table."""

from __future__ import annotations

from functools import lru_cache

from ebla.storage.errors import InvalidArgument
from ebla.storage.rows.rows import RowCodec
from ebla.storage.schema import TableSchema

CODECS_MAX = 256  # kept for the next tablet of the same schema


@lru_cache(CODECS_MAX)
def shared(schema: TableSchema) -> TableSchema:
    """The one instance that all tablets of a table have of equal schemas."""
    return schema


@lru_cache(CODECS_MAX)
def codec_of(schema: TableSchema) -> RowCodec:
    """Raises InvalidArgument if this machine cannot use the schema, for example an unknown time zone."""
    try:
        return RowCodec(schema)
    except InvalidArgument:
        raise
    except Exception as error:
        raise InvalidArgument(
            f"rows of this schema cannot be kept here: {type(error).__name__}: {error}; change its columns"
        ) from error
