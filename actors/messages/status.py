"""The status of servers and masters, as clients get it; a part of __init__.py, from where they are
imported."""

from __future__ import annotations

import msgspec

from ebla.storage.space import DiskSpace


class ServerInstance(msgspec.Struct, frozen=True):
    """A server's identity: what is on its disk, and its incarnation (see actors/incarnations.py).

    Attributes:
        uuid: The id of its directory on disk.
        seqno: The number of its start; it only grows, and is on disk before it is shown.
        start: A word that is drawn at every start.
    """

    uuid: str
    seqno: int
    start: str


class RecordedInstance(ServerInstance, frozen=True, omit_defaults=True):
    """The last incarnation of a server that may have had a lease, in the catalog.

    Attributes:
        uuid: The id of its directory on disk.
        seqno: The number that it showed then.
        start: A word that is drawn at every start.
        restarts: How many restarts in a row came soon after the one before, this one included (actors/detector).
    """

    restarts: int = 0


class ServerStatus(msgspec.Struct, frozen=True):
    """A tablet server as the master sees it.

    A marked server that has sent no heartbeat since the master began has an empty `uuid`, and a `heartbeat_age_s` since then.

    Attributes:
        uuid: The id of its directory on disk.
        seqno: The number of its start.
        address: The address of its actor, such as "tablet-server/host-a".
        host: The name of its host.
        alive: A heartbeat arrived within the master's `unresponsive_timeout_s`.
        heartbeat_age_s: Seconds since its last heartbeat.
        replicas: The replicas that it has.
        leaders: Those of them that lead their tablet.
        disk_bytes: The size of its directories, measured periodically.
        memory_bytes: The size of the rows that are in memory until the next flush; they are in the log on disk, too.
        version: The version of ebla that it runs.
        draining: All replicas shall leave this server.
        drained: It drains, and is a member of no tablet any more.
        maintained: It may be silent, and gets no new replicas.
        suspended: It gets no lease and no new replicas, because of an operator.
        disks: The space of its directory, then of each data directory that is not lost.
        lease: "alive", "ending", "ended", or "unknown" before the first beacon to this master; "" if it needs none.
        lease_number: The number of the last acknowledged beacon.
        beacon_age_s: Seconds since the last acknowledged beacon; None if there was none.
        unlisted: It is suspended because it is not on the allow list.
    """

    uuid: str
    seqno: int
    address: str
    host: str
    alive: bool
    heartbeat_age_s: float
    replicas: int
    leaders: int
    disk_bytes: int
    memory_bytes: int
    version: str
    draining: bool = False
    drained: bool = False
    maintained: bool = False
    suspended: bool = False
    disks: tuple[DiskSpace, ...] = ()
    lease: str = ""
    lease_number: int = 0
    beacon_age_s: float | None = None
    unlisted: bool = False


class ListServersReply(msgspec.Struct, frozen=True):
    servers: tuple[ServerStatus, ...]


class MasterStatus(msgspec.Struct, frozen=True):
    """A master as it sees itself.

    Attributes:
        instance: Its identity.
        address: The address of its actor, such as "master/0".
        tables: The number of tables.
        tablets: The number of their tablets.
        tablets_not_running: Those of them that take no writes yet.
        edits: Transactions in the edit log; of a standby, as far as it knows them.
        tablets_ending: Dropped or replaced tablets of which a server may still hold a replica.
        tablets_unknown: Replicas that servers report and the catalog does not know; they are left alone.
        leader_conflicts: Reports of a second leader in one term, which must never occur.
        role: "active" or "standby".
        active: The address of the active master, if known.
        epoch: The epoch of the journal, while this master is active.
        checkpointed: The transaction of its last checkpoint.
        masters: The addresses of all masters.
        journals: The addresses of the nodes of their journal, if there is one.
        tables_kept: Dropped tables that can be recalled.
        sessions: Sessions of coordination, while this master is active.
        sessions_overdue: Sessions that should have expired some time ago.
        caught_up: As far as it knows, it could take over now.
        read_error: The error of its last read of the journal, "" if that succeeded.
        frozen: Why the active master repairs nothing, "" if it does.
        disks: The space of its directory.
    """

    instance: ServerInstance
    address: str
    tables: int
    tablets: int
    tablets_not_running: int
    edits: int
    tablets_ending: int = 0
    tablets_unknown: int = 0
    leader_conflicts: int = 0
    role: str = "active"
    active: str | None = None
    epoch: int = 0
    checkpointed: int = 0
    masters: tuple[str, ...] = ()
    journals: tuple[str, ...] = ()
    tables_kept: int = 0
    sessions: int = 0
    sessions_overdue: int = 0
    caught_up: bool = True
    read_error: str = ""
    frozen: str = ""
    disks: tuple[DiskSpace, ...] = ()
