"""A lone get in its caller's own thread, and when it must go the ordinary way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ebla.actors.errors import NotDelivered, NotLeader
from ebla.quick import MISS, QuickGets
from ebla.storage.errors import InvalidArgument
from ebla.table import Table
from tests.client.loopback import Loopback
from tests.client.tables import row
from tests.client.test_sync import table_of


class BlockingNetwork:
    """Waits for the toy deployment in the caller's thread."""

    def __init__(self, loopback: Loopback) -> None:
        self.loopback = loopback
        self.calls = 0
        self.fail: Exception | None = None
        self.meanwhile: Any = None

    def known(self, address: str) -> bool:
        return True

    def call_blocking(self, address: str, method: str, message: Any, reply: Any, timeout_s: float) -> Any:
        self.calls += 1
        if self.meanwhile is not None:
            self.meanwhile()
        if self.fail is not None:
            raise self.fail
        network = self.loopback.session.world.network
        call = network.call(address, method, message, reply, timeout_s)
        return asyncio.run_coroutine_threadsafe(call, self.loopback.bridge.loop).result(10)


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    with Loopback() as made:
        yield made


def quick_of(table: Table, network: Any) -> QuickGets:
    return QuickGets(network, table._awaited._routes)


def test_a_lone_get_is_answered_by_one_call_in_its_own_thread(loopback: Loopback) -> None:
    table = table_of(loopback)
    table.upsert(row(1))
    network = BlockingNetwork(loopback)
    quick = quick_of(table, network)
    assert quick.get({"id": 1}, 5.0) == (table.get({"id": 1}), 5.0)
    assert quick.get({"id": 2}, 5.0) == (None, 5.0)
    assert network.calls == 2


@pytest.mark.parametrize("error", [NotDelivered("gone"), NotLeader("not I")])
def test_a_refusal_or_silence_goes_the_ordinary_way_with_the_time_that_is_left(
    loopback: Loopback, error: Exception
) -> None:
    network = BlockingNetwork(loopback)
    network.fail = error
    found, left_s = quick_of(table_of(loopback), network).get({"id": 1}, 5.0)
    assert found is MISS and 0 < left_s <= 5.0


def test_a_second_get_at_the_same_time_goes_the_ordinary_way(loopback: Loopback) -> None:
    network = BlockingNetwork(loopback)
    quick = quick_of(table_of(loopback), network)
    seen: list[Any] = []
    network.meanwhile = lambda: seen.append(quick.get({"id": 2}, 5.0))
    assert quick.get({"id": 1}, 5.0) == (None, 5.0)
    assert seen == [(MISS, 5.0)] and network.calls == 1


def test_a_network_that_cannot_block_sends_every_get_the_ordinary_way(loopback: Loopback) -> None:
    table = table_of(loopback)
    assert quick_of(table, loopback.session.world.network).get({"id": 1}, 5.0) == (MISS, 5.0)


def test_a_key_that_cannot_be_is_told_by_the_ordinary_way(loopback: Loopback) -> None:
    table = table_of(loopback)
    assert quick_of(table, BlockingNetwork(loopback)).get({"id": "x"}, 5.0)[0] is MISS
    with pytest.raises(InvalidArgument):
        table.get({"id": "x"})
