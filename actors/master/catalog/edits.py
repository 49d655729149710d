"""What can happen to the catalog: each edit is one fact, in the past tense, as it stands in the edit log.

An edit carries everything that applying it needs (ids, times, configurations), so that replaying the log
gives the same catalog on any machine. What only servers can tell anew, such as leaders and terms, is not an
edit.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ebla.actors.coordination.edits import CoordinationEdit
from ebla.actors.replication.configuration import Configuration
from ebla.storage.schema import TableSchema


class TableCreated(msgspec.Struct, frozen=True, tag="table_created"):
    """The table is running and its tablets, one per partition in order of their number, are preparing.

    `request` and `digest` (of the request's body) are remembered, so that a retry gets the first answer.
    """

    request: str
    digest: int
    table: str
    name: str
    schema: TableSchema
    replicas: int
    replication: str
    properties: dict[str, str]
    created_us: int
    tablets: tuple[str, ...]


class TabletAssigned(msgspec.Struct, frozen=True, tag="tablet_assigned"):
    """Servers were chosen: preparing -> creating. Only now may they be asked to make replicas."""

    tablet: str
    configuration: Configuration


class TabletReplaced(msgspec.Struct, frozen=True, tag="tablet_replaced"):
    """Its servers did not make it in time: creating -> replaced, and `successor` prepares for the same
    partition."""

    tablet: str
    successor: str
    replaced_us: int


class TabletRunning(msgspec.Struct, frozen=True, tag="tablet_running"):
    """A running replica named a leader of the committed configuration: creating -> running."""

    tablet: str


class ConfigurationChanged(msgspec.Struct, frozen=True, tag="configuration_changed"):
    """The group committed a newer configuration. Members that left stay known until their data is surely
    gone."""

    tablet: str
    configuration: Configuration


class ReplicasSeen(msgspec.Struct, frozen=True, tag="replicas_seen"):
    """Server `uuid` reported replicas of `tablets` for the first time. It is never asked to create them
    again: a replica that existed may have voted, and an empty new one in its place would not remember."""

    uuid: str
    tablets: tuple[str, ...]


class FormerMembersGone(msgspec.Struct, frozen=True, tag="former_members_gone"):
    """Server `uuid` had left the configurations of `tablets` and now holds nothing of them, or a `tombstone`, which stays
    until the table is dropped."""

    uuid: str
    tablets: tuple[str, ...]
    tombstone: bool = False


class ServerDraining(msgspec.Struct, frozen=True, tag="server_draining"):
    """`on`: the server at `address`, whichever it is by then, gets nothing new, and what it has goes elsewhere."""

    address: str
    on: bool


class ServerMaintained(msgspec.Struct, frozen=True, tag="server_maintained"):
    """`on`: the server at `address`, whichever it is by then, may be silent, and gets nothing new."""

    address: str
    on: bool


class ServerForgotten(msgspec.Struct, frozen=True, tag="server_forgotten"):
    """The servers `uuids`, all that were ever known at `address`, are gone for good: nobody waits for them any more, and none of
    them is heard again, whatever directory returns."""

    address: str
    uuids: tuple[str, ...]


class TableDropped(msgspec.Struct, frozen=True, tag="table_dropped"):
    """The name is free, the table removed and its tablets deleted; their replicas are deleted from now on."""

    request: str
    digest: int
    table: str
    dropped_us: int


class TableAltered(msgspec.Struct, frozen=True, tag="table_altered"):
    """It has this schema and this name from now on. Every tablet hears of it if the schema's version is a new one."""

    request: str
    digest: int
    table: str
    name: str
    schema: TableSchema


class TableSetAside(msgspec.Struct, frozen=True, tag="table_set_aside"):
    """Dropped, and kept for `left_us` more of counted time (see ReservesCounted): the name is free, the replicas stay and serve nobody.
    `until_us` is what people are told: no decision rests on a wall clock."""

    request: str
    digest: int
    table: str
    dropped_us: int
    until_us: int
    left_us: int


class TableRecalled(msgspec.Struct, frozen=True, tag="table_recalled"):
    """It runs again, as `name`, with everything that it held."""

    request: str
    digest: int
    table: str
    name: str


class ReservesCounted(msgspec.Struct, frozen=True, tag="reserves_counted"):
    """So much time has passed on the monotonic clock of the active master: tables are kept for so much less from now on."""

    passed_us: int


class ReserveEnded(msgspec.Struct, frozen=True, tag="reserve_ended"):
    """Nobody recalled it in time: it is removed, and its tablets deleted, as with a drop that keeps nothing."""

    table: str
    ended_us: int


class TabletsForgotten(msgspec.Struct, frozen=True, tag="tablets_forgotten"):
    """No server holds anything of these deleted or replaced tablets; a removed table goes with its last
    one."""

    tablets: tuple[str, ...]


class MasterBegan(msgspec.Struct, frozen=True, tag="master_began"):
    """A master of this catalog begins to serve; `start` is the token of its start. Numbers ascend."""

    number: int
    start: str


class CatalogWritten(msgspec.Struct, frozen=True, tag="catalog_written"):
    """`image` is the whole catalog before this edit, encoded. It changes nothing; a master without a checkpoint begins with it."""

    image: bytes


Edit = (
    TableCreated
    | TabletAssigned
    | TabletReplaced
    | TabletRunning
    | ConfigurationChanged
    | ReplicasSeen
    | FormerMembersGone
    | ServerDraining
    | ServerMaintained
    | ServerForgotten
    | TableDropped
    | TableAltered
    | TableSetAside
    | TableRecalled
    | ReservesCounted
    | ReserveEnded
    | TabletsForgotten
    | CoordinationEdit
    | MasterBegan
    | CatalogWritten
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Edit]).decode


def encode(edits: Sequence[Edit]) -> bytes:
    """One transaction: its edits are applied together or not at all."""
    return _encode(edits)


def decode(data: bytes) -> list[Edit]:
    """Raises msgspec.MsgspecError if these are not edits."""
    return _decode(data)
