"""Polars writes rows into a table, and DuckDB and Polars query scans of it as streams of Arrow batches.

ebla up --local 3 && python examples/polars_and_duckdb.py      needs: pip install polars duckdb
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import duckdb
import polars as pl

import ebla

TRIPS = 20_000


def main() -> None:
    begin = datetime(2026, 1, 1, tzinfo=timezone.utc)
    trips = pl.DataFrame({"trip": range(TRIPS)}).with_columns(
        city=pl.col("trip").replace_strict({0: "Aleppo", 1: "Mari"}, default="Ebla"),
        km=pl.col("trip") % 40 + 0.5,
        at=begin + pl.col("trip") * timedelta(minutes=1),
        tags=pl.concat_list(pl.lit("taxi"), pl.lit("shared")),
    )
    with ebla.connect() as db:
        try:
            db.drop_table("trips")
        except ebla.NotFound:
            pass
        table = db.create_table(
            "trips",
            schema=trips.to_arrow().schema,
            primary_key=["trip"],
            partition_by=ebla.hash("trip", buckets=4),
        )
        table.upsert(trips)

        long = table.scan(["city", "km"], where=ebla.col("km") > 30.0)  # noqa: F841  DuckDB finds it by its name
        print(duckdb.sql("select city, count(*) trips, sum(km) km from long group by city order by city"))
        by_city = pl.DataFrame(table.scan(["city", "km"])).group_by("city").agg(pl.sum("km")).sort("city")
        print(by_city)
        assert by_city["km"].sum() == trips["km"].sum()
        assert table.scan().to_polars().sort("trip").equals(trips), "every value and type is unchanged"

        # A relation of DuckDB is written as a stream, so it may be larger than memory.
        table.upsert(duckdb.sql("select * replace (km + 1 as km) from trips where city = 'Mari'"))
        changed = table.get({"trip": 1})
        assert changed is not None
        print(f"trip 1 is {changed['km']} km long now")


if __name__ == "__main__":
    main()
