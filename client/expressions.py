"""Predicates: `ebla.col("origin") == "JFK"`, joined with & | ~, as immutable values that travel to the servers.

    client   bind        checks columns and types against the schema, turns literals into the columns' types
             key_bounds  which part of the key space, and with storage/partition.py which tablets, to ask
             encode      bytes for the scan request
    server   decode      the same expression
             mask        which rows of a batch it keeps

Logic is SQL's: a comparison with null is neither true nor false, and only rows for which the whole is true are kept.
Floats compare as IEEE has it: NaN equals nothing. Key bounds may admit rows that the mask then drops, never the
reverse (a property test holds it).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from typing import Any, NoReturn, Union, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ebla.storage.errors import InvalidArgument
from ebla.storage.fixed import Fixed
from ebla.storage.keys import KeyCodec, successor
from ebla.storage.partition import NOWHERE, KeyBounds
from ebla.storage.scalars import scalar
from ebla.storage.schema import KEY_BYTES_MAX, Column, TableSchema
