"""The toy deployment behind the API that does not await."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.loopback import Loopback


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    with Loopback() as running:
        yield running
