"""The toy deployment behind the API that does not await."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import ebla
from tests.client.loopback import Loopback
from tests.client.tables import RICH, SCHEMA


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    with Loopback() as running:
        yield running


@pytest.fixture
def table(loopback: Loopback) -> ebla.Table:
    by = ebla.hash("id", buckets=4)
    return loopback.db.create_table("t", schema=SCHEMA, primary_key=["id"], partition_by=by)


@pytest.fixture
def rich(loopback: Loopback) -> ebla.Table:
    by = ebla.hash("id", buckets=2)
    return loopback.db.create_table("rich", schema=RICH, primary_key=["id"], partition_by=by)
