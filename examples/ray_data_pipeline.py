"""Ray Data reads a table beside its replicas, changes the rows in parallel tasks, and writes them into another table.

ebla up --local 3 && python examples/ray_data_pipeline.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import ebla

SCHEMA = pa.schema([("sensor", pa.int64()), ("celsius", pa.float64())])


def to_fahrenheit(batch: dict[str, Any]) -> dict[str, Any]:
    return {"sensor": batch["sensor"], "fahrenheit": batch["celsius"] * 9 / 5 + 32}


def main() -> None:
    with ebla.connect() as db:
        for name in ("celsius", "fahrenheit"):
            try:
                db.drop_table(name)
            except ebla.NotFound:
                pass
        source = db.create_table(
            "celsius", schema=SCHEMA, primary_key=["sensor"], partition_by=ebla.hash("sensor", buckets=4)
        )
        target = db.create_table(
            "fahrenheit", schema=SCHEMA.set(1, pa.field("fahrenheit", pa.float64())), primary_key=["sensor"]
        )
        sensors = np.arange(50_000)
        source.upsert(pa.table({"sensor": sensors, "celsius": sensors % 40}, schema=SCHEMA))
        warm = ebla.ray_data.read_table(source, where=ebla.col("celsius") >= 20.0)
        written = ebla.ray_data.write_table(warm.map_batches(to_fahrenheit), target)
        print(f"{written:,} warm sensors, the first is {target.get({'sensor': 20})}")
        assert written == 25_000


if __name__ == "__main__":
    main()
