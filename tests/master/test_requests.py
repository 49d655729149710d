"""Requests that are accepted, and refusals that name the field."""

from __future__ import annotations

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
        ({"replication": "pacifica"}, "replication must be one of raft"),
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
