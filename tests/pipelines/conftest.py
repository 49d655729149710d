"""A deployment without Ray, a table on it, and a file with rows for the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ebla
from ebla.pipelines.target import table_for
from ebla.table import Table
from tests.client.loopback import Loopback
from tests.pipelines.small_sources import SCHEMA, write_csv


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    with Loopback() as running:
        yield running


@pytest.fixture
def table(loopback: Loopback) -> Table:
    return table_for(loopback.db, "t", SCHEMA, primary_key=["id"], partition_by=ebla.hash("id", buckets=4))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "rows.csv")
