"""Short constructors for the values of the master's tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ebla.actors.master.catalog.catalog import Catalog
from ebla.actors.master.catalog.edits import Edit, TabletAssigned, TabletRunning
from ebla.actors.master.tables import requests
from ebla.actors.messages import (
    CreateTableRequest,
    HeartbeatRequest,
    Registration,
    ReplicaReport,
    ServerInstance,
    TabletReport,
)
from ebla.actors.messages.raft import RaftView
from ebla.actors.replication.configuration import (
    Configuration,
    Peer,
)
from ebla.storage.schema import Column, Hash, Partitioning, TableSchema


def schema(buckets: int = 1) -> TableSchema:
    columns = (Column("id", "int64", nullable=False), Column("note", "string"))
    hashed = Hash(("id",), buckets) if buckets > 1 else None
    return TableSchema(columns, ("id",), Partitioning(hash=hashed))


def create_request(
    name: str = "flights", request_id: str | None = None, **changes: Any
) -> CreateTableRequest:
    values: dict[str, Any] = {"schema": schema(changes.pop("buckets", 1)), "replicas": 3, **changes}
    return CreateTableRequest(request_id=request_id or f"create {name}", name=name, **values)


def configuration(*uuids: str, index: int = -1) -> Configuration:
    return Configuration(tuple(Peer(uuid, f"tablet-server/{uuid}") for uuid in uuids), index)


def replica(tablet: str, members: Configuration, leader: str | None = None, **changes: Any) -> ReplicaReport:
    seen = {"role": "follower", "term": 1, "last_index": 1, "commit_index": 1}
    seen |= {name: changes.pop(name) for name in seen if name in changes}
    values: dict[str, Any] = {"state": "running", "applied_index": 1, **changes}
    return ReplicaReport(tablet=tablet, view=RaftView(leader=leader, **seen), configuration=members, **values)


def report(
    *replicas: ReplicaReport, sequence: int = 0, full: bool = False, removed: Sequence[str] = ()
) -> TabletReport:
    return TabletReport(sequence, not full, replicas, tuple(removed))


def heartbeat(
    uuid: str,
    seqno: int = 1,
    *,
    start: str = "",
    register: bool = False,
    host: str | None = None,
    **changes: Any,
) -> HeartbeatRequest:
    host = host or uuid
    registration = Registration(f"tablet-server/{host}", host, "0.1.0") if register else None
    return HeartbeatRequest(ServerInstance(uuid, seqno, start or f"start {seqno}"), registration, **changes)


class Story:
    """A catalog and its edits."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.catalog = Catalog()
        self.edits: list[Edit] = []

    def apply(self, *edits: Edit) -> None:
        self.edits.extend(edits)
        self.catalog.apply(edits)

    def create(self, name: str = "flights", **changes: Any) -> tuple[str, ...]:
        """The ids of the table's tablets, all preparing."""
        edit = requests.created(create_request(name, **changes), self.random, 1_000_000)
        self.apply(edit)
        return edit.tablets

    def creating(self, *uuids: str, name: str = "flights") -> str:
        """A table of one tablet, being created on these servers."""
        (tablet,) = self.create(name, replicas=len(uuids))
        self.apply(TabletAssigned(tablet, configuration(*uuids)))
        return tablet

    def appointed(
        self, voters: str, buckets: int = 1, least: int = 2, primary: str = "", name: str = "flights"
    ) -> tuple[str, ...]:
        """Running PacificA tablets on the servers `voters`, led by `primary`, or by each in turn."""
        least = min(least, len(voters))
        changes = {"replication": "pacifica", "replicas": len(voters), "min_members": least}
        tablets = self.create(name, buckets=buckets, **changes)
        for number, tablet in enumerate(tablets):
            led = primary or voters[number % len(voters)]
            first = replace(configuration(*voters, index=1), primary=led, min_members=least)
            self.apply(TabletAssigned(tablet, first), TabletRunning(tablet))
        return tablets

    def running(self, *uuids: str, name: str = "flights") -> str:
        tablet = self.creating(*uuids, name=name)
        self.apply(TabletRunning(tablet))
        return tablet
