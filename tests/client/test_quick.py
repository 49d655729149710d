"""The fast path: a lone get or upsert in its caller's own thread, and the cases for the ordinary path."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from ebla.actors.asking.certainty import Tries
from ebla.actors.errors import NotDelivered, NotLeader, OutcomeUnknown, RequestReused
from ebla.options import Written
from ebla.storage.errors import InvalidArgument
from ebla.table import Table
from ebla.transport.batches import Ids
from ebla.transport.fast_path import MISS, FastGets, FastUpserts
from ebla.write.writer import send_again
from tests.client.loopback import Loopback
from tests.client.tables import row


class BlockingNetwork:
    """Waits for answers of the toy deployment in the caller's thread."""

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


class Fast:
    """The fast paths of a table."""

    def __init__(self, loopback: Loopback, table: Table) -> None:
        self.table = table
        self.network = BlockingNetwork(loopback)
        routes, session = table._awaited._routes, table._awaited._client

        def resend(route: Any, batch: bytes, deadline_s: float, tries: Tries) -> Written:
            return loopback.bridge.run(send_again(session, route, batch, deadline_s, tries))

        self.gets = FastGets(self.network, routes)
        self.upserts = FastUpserts(self.network, routes, Ids(random.Random(1)), resend)


@pytest.fixture
def fast(loopback: Loopback, table: Table) -> Fast:
    return Fast(loopback, table)


each_refusal = pytest.mark.parametrize("error", [NotDelivered("gone"), NotLeader("not I")])


def test_a_lone_get_is_one_call_in_its_own_thread(fast: Fast) -> None:
    fast.table.upsert(row(1))
    assert fast.gets.get({"id": 1}, 5.0) == (fast.table.get({"id": 1}), 5.0)
    assert fast.gets.get({"id": 2}, 5.0) == (None, 5.0)
    assert fast.network.calls == 2


@each_refusal
def test_a_refused_or_unanswered_get_takes_the_ordinary_path_with_the_remaining_time(
    fast: Fast, error: Exception
) -> None:
    fast.network.fail = error
    found, left_s = fast.gets.get({"id": 1}, 5.0)
    assert found is MISS and 0 < left_s <= 5.0


def test_a_concurrent_get_takes_the_ordinary_path(fast: Fast) -> None:
    seen: list[Any] = []
    fast.network.meanwhile = lambda: seen.append(fast.gets.get({"id": 2}, 5.0))
    assert fast.gets.get({"id": 1}, 5.0) == (None, 5.0)
    assert seen == [(MISS, 5.0)] and fast.network.calls == 1


def test_without_a_blocking_network_every_get_takes_the_ordinary_path(fast: Fast, loopback: Loopback) -> None:
    gets = FastGets(loopback.session.world.network, fast.table._awaited._routes)
    assert gets.get({"id": 1}, 5.0) == (MISS, 5.0)


@pytest.mark.parametrize("key", ["a", None, [1], {"id": "x"}])
def test_the_ordinary_path_refuses_an_invalid_key(fast: Fast, key: Any) -> None:
    fast.table._fast = fast.gets, fast.upserts
    with pytest.raises(InvalidArgument):
        fast.table.get(key)
    assert fast.network.calls == 0 and fast.gets.get({"id": 1}, 5.0) == (None, 5.0)


# -- upserts


def requests(loopback: Loopback) -> list[tuple[bytes, int, int]]:
    return [(batch.client, batch.sequence, batch.first_incomplete) for _, batch in loopback.toy.batches()]


def test_a_lone_upsert_is_one_call_in_its_own_thread(fast: Fast, loopback: Loopback) -> None:
    assert [fast.upserts.upsert(row(n), 5.0) for n in range(3)] == [Written(1)] * 3
    assert [fast.table.get({"id": n}) for n in range(3)] == [row(n) for n in range(3)]
    assert fast.network.calls == 3 and loopback.toy.count("write") == 3
    assert [(number, oldest) for _, number, oldest in requests(loopback)] == [(1, 1), (2, 2), (3, 3)]


@each_refusal
def test_an_upsert_that_was_not_applied_takes_the_ordinary_path(fast: Fast, error: Exception) -> None:
    fast.network.fail = error
    assert fast.upserts.upsert(row(1), 5.0) == Written(1)
    assert fast.table.get({"id": 1}) == row(1) and fast.network.calls == 1


def test_an_upsert_whose_answer_is_lost_is_sent_again_as_the_same_request(
    fast: Fast, loopback: Loopback
) -> None:
    honest = fast.network.call_blocking

    def lossy(*arguments: Any) -> Any:
        honest(*arguments)
        raise OutcomeUnknown("the answer was lost")

    fast.network.call_blocking = lossy  # type: ignore[method-assign]
    assert fast.upserts.upsert(row(1), 5.0) == Written(1)
    sent = requests(loopback)
    assert len(sent) == 2 and sent[0] == sent[1]
    assert fast.table.get({"id": 1}) == row(1)


def test_a_final_refusal_of_an_upsert_is_raised(fast: Fast, loopback: Loopback) -> None:
    fast.network.fail = RequestReused("used before")
    with pytest.raises(RequestReused):
        fast.upserts.upsert(row(1), 5.0)
    assert loopback.toy.count("write") == 0


def test_a_concurrent_upsert_takes_the_ordinary_path(fast: Fast) -> None:
    seen: list[Any] = []
    fast.network.meanwhile = lambda: seen.append(fast.upserts.upsert(row(2), 5.0))
    assert fast.upserts.upsert(row(1), 5.0) == Written(1)
    assert seen == [MISS] and fast.network.calls == 1


@pytest.mark.parametrize(
    "wrong", [{"id": "x"}, {"id": 1, "nope": 2}, {"v": "no key"}, {"id": 1, "n": 1 << 40}]
)
def test_both_paths_refuse_a_row_that_does_not_fit_alike(fast: Fast, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as quickly:
        fast.upserts.upsert(wrong, 5.0)
    with pytest.raises(InvalidArgument) as ordinarily:
        fast.table.upsert(wrong)
    assert str(quickly.value) == str(ordinarily.value)
    assert fast.network.calls == 0
