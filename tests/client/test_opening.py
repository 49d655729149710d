"""How a connection is opened: awaited, with `async with`, and with arguments that cannot work."""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Mapping
from typing import Any

import pytest

import ebla
from ebla import aio, deployment
from ebla.placement.connection import choose
from tests.client.toy import Bench, on_toys


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The arguments with which deployments were reached. Their connections send nothing."""
    calls: list[tuple[Any, ...]] = []

    async def open_client(*arguments: Any) -> Any:
        calls.append(arguments)
        return Client()

    monkeypatch.setattr(deployment, "open_client", open_client)
    monkeypatch.setattr(deployment, "make_client", lambda *arguments: Client())
    return calls


class Client:
    name = "ebla"
    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_connection_is_awaited_or_used_with_async_with(reached: list[tuple[Any, ...]]) -> None:
    async def main() -> None:
        db = await ebla.aio.connect("one", "host:6379")
        assert isinstance(db, aio.Database) and not db.closed
        await db.close()
        assert repr(db) == "<ebla.aio.Database 'ebla', closed>"
        async with ebla.aio.connect(progress=False) as other:
            assert not other.closed
        assert other.closed
        async with await ebla.aio.connect() as third:
            assert not third.closed
        assert third.closed
        assert isinstance(await asyncio.create_task(ebla.aio.connect()), aio.Database)

    asyncio.run(main())
    assert reached[:2] == [("one", "host:6379", True), ("ebla", None, False)]
    assert isinstance(asyncio.run(ebla.aio.connect()), aio.Database)


def test_a_block_that_fails_closes_the_connection_and_keeps_its_error(
    reached: list[tuple[Any, ...]],
) -> None:
    opened: list[aio.Database] = []

    async def main() -> None:
        async with ebla.aio.connect() as db:
            opened.append(db)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())
    assert opened[0].closed


def test_what_is_not_open_yet_says_how_to_open_it(reached: list[tuple[Any, ...]]) -> None:
    opening: Any = ebla.aio.connect()
    remedy = "`await` it, or use it with `async with`"
    assert repr(opening) == f"<ebla.aio connect(): {remedy}>"
    with pytest.raises(AttributeError, match=f"'table' before it is open: {re.escape(remedy)}"):
        _ = opening.table
    assert copy.copy(opening) is not opening, "an object without its attributes has the sentence, too"
    opening.close()


@on_toys
async def test_a_session_is_awaited_or_used_with_async_with(bench: Bench) -> None:
    with pytest.raises(ebla.InvalidArgument, match="timeout_s"):
        bench.db.session(-1.0)
    opening = bench.db.session(5.0, name="n")
    assert asyncio.iscoroutine(opening)
    opening.close()


@pytest.mark.parametrize("awaited", [False, True])
def test_local_passes_masters_and_journals_on(monkeypatch: pytest.MonkeyPatch, awaited: bool) -> None:
    class Started(Exception):
        """The wanted settings."""

    def configure(wanted: Mapping[str, Any], before: object) -> None:
        raise Started(wanted)

    monkeypatch.setattr("ebla.placement.config.configure", configure)
    arguments: dict[str, Any] = {"settings": {"masters": 1, "a": 2}, "masters": 2, "journals": 3}
    with pytest.raises(Started) as caught:
        asyncio.run(ebla.aio.local(3, **arguments)) if awaited else ebla.local(3, **arguments)
    (wanted,) = caught.value.args
    assert (wanted["masters"], wanted["journals"], wanted["a"]) == (2, 3, 2)


BAD: list[tuple[str, str, dict[str, Any]]] = [
    ("connect", "name is the name of a deployment, a str such as 'ebla', not 3", {"name": 3}),
    ("connect", "name is .* not None", {"name": None}),
    ("connect", "address is a str, such as '10.0.0.5:6379', not 5", {"address": 5}),
    ("local", "hosts must be a whole number, 1 to 64, not '3'", {"hosts": "3"}),
    ("local", "hosts must be a whole number, 1 to 64, not 0", {"hosts": 0}),
    ("local", "name is a str, such as 'ebla', not None", {"name": None}),
    ("local", "data_dir is a path, such as '/data/ebla', not 5", {"data_dir": 5}),
    ("local", "settings is a dict, such as .* not 5", {"settings": 5}),
    ("local", "masters: expected `int", {"masters": "2"}),
    ("local", "journals: expected `int", {"journals": 2.5}),
]


@pytest.mark.parametrize("api", [ebla, aio])
@pytest.mark.parametrize(("opening", "words", "arguments"), BAD)
def test_an_opening_refuses_a_bad_argument_by_name(
    api: Any, opening: str, words: str, arguments: dict[str, Any]
) -> None:
    async def main() -> None:
        await getattr(aio, opening)(**arguments)

    with pytest.raises(ebla.InvalidArgument, match=words):
        asyncio.run(main()) if api is aio else getattr(ebla, opening)(**arguments)


@pytest.mark.parametrize("name", ["localhost:6379", "ray://head:10001"])
def test_an_address_in_the_place_of_the_name_is_refused_with_the_right_call(name: str) -> None:
    with pytest.raises(ebla.InvalidArgument) as caught:
        ebla.connect(name)
    assert f"write ebla.connect(address={name!r})" in caught.value.message


def test_an_address_of_ray_client_is_refused_at_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ebla.InvalidArgument, match="Ray Client, which ebla does not use; give the address"):
        ebla.connect(address="ray://10.0.0.5:10001")
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.5:10001")
    with pytest.raises(ebla.InvalidArgument, match="Ray Client"):
        choose(None, tmp_path)
