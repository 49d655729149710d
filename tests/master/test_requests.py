"""Requests that are accepted, and refusals that name the field, or the limit and the remedy."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ebla.actors.errors import Unavailable
from ebla.actors.master.catalog.invariants import require_sound
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.tables import requests
from ebla.actors.messages import TableInfo
from ebla.actors.world import Dispatcher, decode_answer, encode
from ebla.storage.errors import InvalidArgument, OverLimit
from ebla.storage.rows.alteration import AddColumn, RenameColumn
from ebla.storage.schema import Column, Partitioning, Range, TableSchema
from tests.master.builders import create_request, schema
from tests.master.stage import MASTER, OPTIONS, Stage, play
from tests.staged import staged


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"request_id": "r" * 129}, "request_id"),
        ({"name": ""}, "name"),
        ({"name": "tab\tname"}, "name"),
        ({"name": "line\nname"}, "name"),
        ({"name": "null\x00"}, "name"),
        ({"replicas": 0}, "replicas"),
        ({"replicas": 2}, "replicas"),
        ({"replicas": 9}, "replicas"),
        ({"replicas": -1}, "replicas"),
        ({"replication": "paxos"}, "replication must be one of raft, pacifica"),
        ({"min_members": 2}, "min_members is for tables with replication 'pacifica'.*leave it out"),
        ({"replication": "pacifica", "replicas": 0}, "replicas must be 1 to 7"),
        ({"replication": "pacifica", "replicas": 8}, "replicas must be 1 to 7"),
        (
            {"replication": "pacifica", "min_members": 0},
            "min_members must be 1 to replicas, which is 3, not 0",
        ),
        (
            {"replication": "pacifica", "min_members": 4},
            "min_members must be 1 to replicas, which is 3, not 4",
        ),
        ({"schema": TableSchema((Column("id", "int64", nullable=False),), ())}, "primary_key"),
        ({"schema": TableSchema((Column("id", "int64"),), ("id",))}, "'id'"),
        ({"buckets": 5000}, "buckets"),
        ({"properties": {"note": "x" * 5000}}, "properties"),
    ],
)
def test_an_impossible_create_is_refused_with_the_field(changes: dict[str, Any], named: str):
    values: dict[str, Any] = {"name": "flights", "request_id": "r", **changes}
    with pytest.raises(InvalidArgument, match=named):
        requests.validate_create(create_request(**values))


@pytest.mark.parametrize(
    ("changes", "least"),
    [
        ({"replicas": 3}, 0),
        ({"replication": "pacifica", "replicas": 1}, 1),
        ({"replication": "pacifica", "replicas": 2}, 2),
        ({"replication": "pacifica", "replicas": 3}, 2),
        ({"replication": "pacifica", "replicas": 4}, 3),
        ({"replication": "pacifica", "replicas": 4, "min_members": 4}, 4),
        ({"replication": "pacifica", "replicas": 7, "min_members": 1}, 1),
    ],
)
def test_a_pacifica_table_has_any_number_of_replicas_and_a_minimum(changes: dict[str, Any], least: int):
    request = create_request(request_id="r", **changes)
    requests.validate_create(request)
    assert requests.created(request, random.Random(0), 0).min_members == least


@pytest.mark.parametrize("name", ["x", "x" * 256, "飛行便\u30002024", "a/b.c-d", "with space"])
def test_create_accepts_any_name_without_control_characters(name: str):
    requests.validate_create(create_request(name, request_id="r"))


def test_a_refused_create_says_how_many_hosts_are_live():
    requests.validate_room(create_request(replicas=3), 3, MasterOptions())
    with pytest.raises(Unavailable, match=r"3 replicas.* has 2 live hosts"):
        requests.validate_room(create_request(replicas=3), 2, MasterOptions())
    with pytest.raises(
        Unavailable, match=r"has 1 live host; .* create it with `--replicas 1` \(replicas=1\)"
    ):
        requests.validate_room(create_request(replicas=3), 1, MasterOptions())


def test_create_refuses_more_replicas_than_live_servers_may_have():
    requests.validate_room(create_request(replicas=3, buckets=200), 3, MasterOptions())
    with pytest.raises(InvalidArgument, match="partitioning makes 201 tablets"):
        requests.validate_room(create_request(replicas=3, buckets=201), 3, MasterOptions())


def test_the_digest_depends_on_the_body_but_not_on_the_order_of_properties():
    one = create_request(properties={"a": "1", "b": "2"})
    assert requests.digest(one) == requests.digest(create_request(properties={"b": "2", "a": "1"}))
    for other in (create_request(replicas=5), create_request(schema=schema(4)), create_request("other")):
        assert requests.digest(one) != requests.digest(other)


def wide(columns: int, characters: int = 4) -> TableSchema:
    made = [Column(f"{n:0{characters}}", "int8") for n in range(columns - 1)]
    return TableSchema((Column("id", "int64", nullable=False), *made), ("id",))


def split(splits: int) -> TableSchema:
    ranges = Range(("id",), tuple(n.to_bytes(400, "big") for n in range(splits)))
    return TableSchema((Column("id", "string", nullable=False),), ("id",), Partitioning(range=ranges))


@pytest.mark.parametrize(
    ("changes", "limit", "most"),
    [
        ({"name": "x" * 257}, "NAME_MAX", 256),
        ({"schema": wide(301)}, "COLUMNS_MAX", 300),
        ({"schema": wide(2, 257)}, "NAME_MAX", 256),
        ({"schema": split(3000)}, "SCHEMA_BYTES_MAX", 1 << 20),
        ({"properties": {str(n): "" for n in range(65)}}, "PROPERTIES_MAX", 64),
    ],
)
def test_a_too_large_table_is_refused_with_the_limit(changes: dict[str, Any], limit: str, most: int):
    with pytest.raises(OverLimit) as caught:
        requests.validate_create(create_request(**{"name": "t", "request_id": "r", **changes}))
    assert (caught.value.limit, caught.value.most) == (limit, most)
    assert isinstance(caught.value, InvalidArgument) and str(most) in str(caught.value)


def test_the_widest_table_is_accepted():
    requests.validate_create(create_request("x" * 256, request_id="r", schema=wide(300, 256)))


def test_tables_tablets_and_replicas_are_limited_and_kept_tables_count():
    async def scenario(stage: Stage) -> None:
        async def refused(limit: str, name: str, **changes: Any) -> None:
            with pytest.raises(OverLimit) as caught:
                await stage.create(name, **changes)
            assert caught.value.limit == limit

        await stage.open("a", "b", "c")
        await refused("tablets_per_table_max", "many", buckets=11)
        await refused("replicas_per_server_max", "wide", buckets=9)
        await stage.create("one", buckets=8)
        await refused("replicas_of_server_max", "two", buckets=6)
        await stage.create("two", buckets=4)
        await refused("replicas_of_server_max", "three", replicas=1)
        await stage.drop("one", reserve_s=3600.0)
        await refused("replicas_of_server_max", "three", replicas=1)
        await stage.cluster.restart(MASTER)
        await stage.until(lambda: all(stage.alive(host) for host in "abc"))
        await asyncio.sleep(stage.options.settle_s)
        await refused("replicas_of_server_max", "three", replicas=1)
        (kept,) = await stage.kept()
        await stage.drop(kept.table, "for good", reserve_s=0)
        await stage.create("three", replicas=1)
        await stage.create("four", replicas=1)
        await refused("tables_max", "five", replicas=1)
        require_sound(stage.master.catalog)

    limits = {
        "tables_max": 3,
        "tablets_per_table_max": 10,
        "replicas_per_server_max": 8,
        "replicas_of_server_max": 12,
    }
    play(scenario, options=replace(OPTIONS, **limits))


def called(turn: int, number: int) -> str:
    return f"{number:0{250}}.{turn:05}" if turn else f"{number:0{256}}"


@staged(play, hosts="abc")
async def test_a_schema_does_not_outgrow_its_limit_by_alterations(stage: Stage) -> None:
    await stage.create("t", schema=wide(200, 256))
    with pytest.raises(OverLimit) as caught:
        for turn in range(30):
            renamed = [RenameColumn(called(turn, n), called(turn + 1, n)) for n in range(199)]
            await stage.alter(*renamed, name="t", request_id=f"turn {turn}")
    assert caught.value.limit == "SCHEMA_BYTES_MAX"
    with pytest.raises(OverLimit) as caught:
        await stage.alter(*(AddColumn(Column(f"c{n}", "int8")) for n in range(101)), name="t")
    assert caught.value.limit == "COLUMNS_MAX"


def test_a_schema_with_an_endless_type_is_malformed():
    """It must not end the master's decoder in an error that looks like a defect."""
    column = Column("c", "int8")
    level = msgspec.msgpack.encode({"name": "item", "type": "list", "fields": [0]})[:-1]
    request = create_request(
        request_id="r", schema=TableSchema((Column("id", "int64", False), column), ("id",))
    )
    held = msgspec.msgpack.encode(column)
    deep = encode(request).replace(held, level * 5000 + held)

    async def scenario(stage: Stage) -> None:
        await stage.open("a")
        defects: list[BaseException] = []
        dispatcher = Dispatcher(stage.cluster.role(MASTER), lambda method, error: defects.append(error))
        with pytest.raises(InvalidArgument, match="malformed create_table request"):
            decode_answer(await dispatcher.answer("create_table", deep), TableInfo)
        assert defects == []

    play(scenario)
