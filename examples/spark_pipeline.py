"""Spark on the Ray cluster reads a table beside its replicas, aggregates it, and writes the result into another table.

ebla up --local 3 && python examples/spark_pipeline.py      needs: pip install "ebla[spark]"
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import functions as F

import ebla
from ebla.pipelines.feed import feed, table_for
from ebla.pipelines.read import read_table
from ebla.pipelines.session import spark

ORDERS = pa.schema([("order", pa.int64()), ("city", pa.string()), ("cents", pa.int64())])
CITIES = ("Aleppo", "Ebla", "Mari")


def main() -> None:
    with ebla.connect() as db:
        for name in ("orders", "sales"):
            try:
                db.drop_table(name)
            except ebla.NotFound:
                pass
        orders = db.create_table(
            "orders", schema=ORDERS, primary_key=["order"], partition_by=ebla.hash("order", buckets=4)
        )
        numbers = range(30_000)
        cities = [CITIES[number % 3] for number in numbers]
        orders.upsert(pa.table({"order": numbers, "city": cities, "cents": numbers}, schema=ORDERS))
        with spark("sales", executors=1, cores=1) as session:
            by_city = (
                read_table(session, orders)
                .groupBy("city")
                .agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))
            )
            sales = table_for(db, "sales", by_city, primary_key=["city"])
            feed(session, by_city, sales)
        for row in sorted(sales.scan(), key=lambda row: row["city"]):
            print(f"{row['city']:<8} {row['orders']:>7,} orders {row['cents'] / 100:>14,.2f}")
        assert sum(row["cents"] for row in sales.scan()) == sum(numbers)


if __name__ == "__main__":
    main()
