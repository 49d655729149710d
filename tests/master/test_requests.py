"""Requests that are accepted, and refusals that name the field."""

from __future__ import annotations

import random
from typing import Any

import pytest

from ebla.actors.errors import Unavailable
from ebla.actors.master.options import MasterOptions
from ebla.actors.master.tables import requests
from ebla.storage.errors import InvalidArgument
from ebla.storage.schema import Column, TableSchema
from tests.master.builders import create_request, schema


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"request_id": "r" * 129}, "request_id"),
        ({"name": ""}, "name"),
        ({"name": "x" * 257}, "name"),
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
        ({"properties": {str(n): "" for n in range(65)}}, "properties"),
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
    with pytest.raises(Unavailable, match=r"3 replicas.* 2 hosts are live"):
        requests.validate_room(create_request(replicas=3), 2, MasterOptions())


def test_create_refuses_more_replicas_than_live_servers_may_have():
    requests.validate_room(create_request(replicas=3, buckets=200), 3, MasterOptions())
    with pytest.raises(InvalidArgument, match="partitioning makes 201 tablets"):
        requests.validate_room(create_request(replicas=3, buckets=201), 3, MasterOptions())


def test_the_digest_depends_on_the_body_but_not_on_the_order_of_properties():
    one = create_request(properties={"a": "1", "b": "2"})
    assert requests.digest(one) == requests.digest(create_request(properties={"b": "2", "a": "1"}))
    for other in (create_request(replicas=5), create_request(schema=schema(4)), create_request("other")):
        assert requests.digest(one) != requests.digest(other)
