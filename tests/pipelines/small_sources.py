"""Small sources: the rows that are read from them, and a file with rows for a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from ebla.pipelines.sources.check import Checked, check, fitting_batches
from ebla.pipelines.sources.source import FileSource, infer, open_source
from ebla.storage.schema import TableSchema

PEOPLE = pd.DataFrame(
    {"id": [1, 2, 3], "name": ["Ada", "Zoë\nO'Neil", 'say "hi", ok'], "score": [1.5, None, -2.25]}
)
ROWS = [
    {"id": 1, "name": "Ada", "score": 1.5},
    {"id": 2, "name": "Zoë\nO'Neil", "score": None},
    {"id": 3, "name": 'say "hi", ok', "score": -2.25},
]
TYPES = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])


def read(
    path: Path | str, key: str = "id", **options: str
) -> tuple[FileSource, pa.Schema, list[dict[str, Any]]]:
    """The recognised source, the types of a new table, and all rows."""
    source, types = infer(open_source(str(path), None, options))
    assert isinstance(source, FileSource)
    schema = TableSchema.from_arrow(types, [key])
    assert check(source, schema).unfit_rows == ()
    rows = [row for batch in fitting_batches(source, schema) for row in batch.to_pylist()]
    return source, types, rows


def checked(path: Path, **types: pa.DataType) -> Checked:
    schema = TableSchema.from_arrow(pa.schema(types), [next(iter(types))])
    return check(open_source(str(path)), schema)


# -- rows for the table `t` ----------------------------------------------------------------------------------

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("x", pa.float64())])
COUNT = 1000


def write_csv(path: Path, *extra: str, rows: int = COUNT) -> Path:
    frame = pd.DataFrame(
        {"id": range(rows), "name": [f"n{n}\n" for n in range(rows)], "x": [n / 3 for n in range(rows)]}
    )
    path.write_text(frame.to_csv(index=False) + "".join(line + "\n" for line in extra))
    return path
