"""The edits of the catalog: each is one fact, in the past tense, as stored in the edit log.

An edit carries all data that applying it needs (ids, times, configurations), so that replaying the log
gives the same catalog on any machine. Facts that servers report again after a restart, such as leaders and
terms, are not edits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ebla.actors.coordination.edits import CoordinationEdit
from ebla.actors.messages import RecordedInstance
from ebla.actors.replication.configuration import Configuration, Forced
from ebla.storage.errors import Corruption
from ebla.storage.schema import TableSchema


class TableCreated(msgspec.Struct, frozen=True, tag="table_created"):
    """The table is running, and its tablets, one per partition in the order of their numbers, are preparing.

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
    min_members: int = 0


class TabletAssigned(msgspec.Struct, frozen=True, tag="tablet_assigned"):
    """Servers were chosen: preparing -> creating. Only now may they be asked to make replicas."""

    tablet: str
    configuration: Configuration


class TabletReplaced(msgspec.Struct, frozen=True, tag="tablet_replaced"):
    """The servers did not create the tablet in time: creating -> replaced; `successor` is preparing for the
    same partition."""

    tablet: str
    successor: str
    replaced_us: int


class TabletRunning(msgspec.Struct, frozen=True, tag="tablet_running"):
    """A running replica named a leader of the committed configuration, and, with PacificA, has a committed entry:
    creating -> running."""

    tablet: str


class ConfigurationChanged(msgspec.Struct, frozen=True, tag="configuration_changed"):
    """The group committed a newer configuration. Members that left stay known until their data is
    certainly gone."""

    tablet: str
    configuration: Configuration


class ConfigurationsAppointed(msgspec.Struct, frozen=True, tag="configurations_appointed"):
    """PacificA tablets have these configurations, by tablet, each of a later ballot than the one before.

    Only now may a server get to know them. Members that left stay known until their data is certainly gone.
    `incarnations`: of servers, which may get leases from now on; every earlier one has ended (actors/detector).
    """

    configurations: dict[str, Configuration]
    incarnations: tuple[RecordedInstance, ...] = ()


class ConfigurationForced(msgspec.Struct, frozen=True, tag="configuration_forced"):
    """An operator gave up all members of a PacificA tablet but one, which leads in this configuration: it is of a later
    ballot and a later forced epoch than the one before.

    Only now may a server get to know it. The members that were given up stay known until their data is set aside; `record`
    stays for ever.
    """

    tablet: str
    configuration: Configuration
    record: Forced


class ReplicasSeen(msgspec.Struct, frozen=True, tag="replicas_seen"):
    """Server `uuid` reported replicas of `tablets` for the first time.

    The server is never asked to create them again: a replica that existed may have voted, and a new empty
    one would have forgotten the vote.
    """

    uuid: str
    tablets: tuple[str, ...]


class FormerMembersGone(msgspec.Struct, frozen=True, tag="former_members_gone"):
    """Server `uuid` had left the configurations of `tablets` and now has no data of them, or only a
    `tombstone`, which stays until the table is dropped."""

    uuid: str
    tablets: tuple[str, ...]
    tombstone: bool = False


class ServerDraining(msgspec.Struct, frozen=True, tag="server_draining"):
    """`on`: the server at `address`, also a later one there, gets no new replicas, and its replicas move."""

    address: str
    on: bool


class ServerMaintained(msgspec.Struct, frozen=True, tag="server_maintained"):
    """`on`: the server at `address`, also a later one there, may be silent, and gets no new replicas."""

    address: str
    on: bool


class ServerSuspended(msgspec.Struct, frozen=True, tag="server_suspended"):
    """`on`: the server at `address`, also a later one there, gets no lease, and no new replicas."""

    address: str
    on: bool


class ServerAllowed(msgspec.Struct, frozen=True, tag="server_allowed"):
    """`on`: the server at `address`, also a later one there, is on the allow list. If there is a list, all others are as if
    suspended."""

    address: str
    on: bool


Mark = ServerDraining | ServerMaintained | ServerSuspended | ServerAllowed


class ServerForgotten(msgspec.Struct, frozen=True, tag="server_forgotten"):
    """The servers `uuids`, all that were ever known at `address`, are gone for good.

    Nothing waits for them any more. Their heartbeats are refused, even if one of their directories returns.
    """

    address: str
    uuids: tuple[str, ...]


class LevelSet(msgspec.Struct, frozen=True, tag="level_set"):
    """An operator set the level of the cluster (cluster/levels.py). `since_us`: for people only."""

    level: str
    since_us: int


class TableDropped(msgspec.Struct, frozen=True, tag="table_dropped"):
    """The name is free, the table removed and its tablets deleted; their replicas are deleted afterwards."""

    request: str
    digest: int
    table: str
    dropped_us: int


class TableAltered(msgspec.Struct, frozen=True, tag="table_altered"):
    """The table has this schema, name and `min_members`. Every tablet gets the schema if its version is a new one. Every PacificA
    tablet gets a new configuration if `min_members` is another one; edits of earlier versions have 0, which keeps it."""

    request: str
    digest: int
    table: str
    name: str
    schema: TableSchema
    min_members: int = 0


class TableSetAside(msgspec.Struct, frozen=True, tag="table_set_aside"):
    """The table was dropped, and is kept for `left_us` more of counted time (see ReservesCounted).

    The name is free; the replicas stay and refuse all requests. `until_us` is for people only: no decision
    depends on a wall clock.
    """

    request: str
    digest: int
    table: str
    dropped_us: int
    until_us: int
    left_us: int


class TableRecalled(msgspec.Struct, frozen=True, tag="table_recalled"):
    """The table is running again, as `name`, with all its rows."""

    request: str
    digest: int
    table: str
    name: str


class ReservesCounted(msgspec.Struct, frozen=True, tag="reserves_counted"):
    """`passed_us` more have passed on the active master's monotonic clock, for all kept tables."""

    passed_us: int


class ReserveEnded(msgspec.Struct, frozen=True, tag="reserve_ended"):
    """The table was not recalled in time: it is removed, and its tablets are deleted."""

    table: str
    ended_us: int


class TabletsForgotten(msgspec.Struct, frozen=True, tag="tablets_forgotten"):
    """No server has data of these deleted or replaced tablets; a removed table is forgotten with its last
    tablet."""

    tablets: tuple[str, ...]


class MasterBegan(msgspec.Struct, frozen=True, tag="master_began"):
    """A master of this catalog begins to serve; `start` is the token of its start. Numbers ascend.

    `accepted`: tokens of masters whose changes this catalog may lack, as an operator accepts from now on. If there are any, every
    PacificA tablet is in doubt (master/pacifica/doubts.py), until a ConfigurationsAppointed or ConfigurationForced of it.
    """

    number: int
    start: str
    accepted: tuple[str, ...] = ()


class CatalogWritten(msgspec.Struct, frozen=True, tag="catalog_written"):
    """`chunk` is one of the `chunks` of the encoded catalog, with this number. It changes nothing.

    A master without a checkpoint begins with the catalog. Each chunk is a transaction of its own, directly
    after the one before; the catalog is that before the first of them.
    """

    chunk: bytes
    number: int
    chunks: int


Edit = (
    TableCreated
    | TabletAssigned
    | TabletReplaced
    | TabletRunning
    | ConfigurationChanged
    | ConfigurationsAppointed
    | ConfigurationForced
    | ReplicasSeen
    | FormerMembersGone
    | ServerDraining
    | ServerMaintained
    | ServerSuspended
    | ServerAllowed
    | ServerForgotten
    | LevelSet
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

# One transaction: its edits are applied together or not at all.
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(list[Edit]).decode


def decoded(journal: str, transactions: Iterable[tuple[int, bytes]]) -> Iterator[list[Edit]]:
    """The edits of each transaction of a journal. Raises Corruption if one holds no edits."""
    for txid, payload in transactions:
        try:
            edits = decode(payload)
        except msgspec.MsgspecError as error:
            raise damaged(journal, f"transaction {txid} holds no edits: {error}") from error
        yield edits


def damaged(journal: str, what: str) -> Corruption:
    return Corruption(f"journal {journal} is damaged: {what}; restore the master's catalog", path=journal)
