"""The columns of a small table, and a file with rows for it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("x", pa.float64())])
ROWS = 1000


def write_csv(path: Path, *extra: str, rows: int = ROWS) -> Path:
    frame = pd.DataFrame(
        {"id": range(rows), "name": [f"n{n}\n" for n in range(rows)], "x": [n / 3 for n in range(rows)]}
    )
    path.write_text(frame.to_csv(index=False) + "".join(line + "\n" for line in extra))
    return path
