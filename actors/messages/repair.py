"""Messages that change a tablet's members, and that copy a tablet to another server; a part of
__init__.py.

    configuration   master or operator -> leader: ChangeMembersRequest; the last resort: UnsafeChangeRequest
    copy            leader -> the server that shall hold a copy: StartCopyRequest; then that server -> source:
                    BeginCopyRequest, FetchRequest (several under way), EndCopyRequest
    operators       CopyJobs, CancelCopyRequest; QuarantineEntries, QuarantineRequest

Source: seed 000 (StartTabletCopy, states, quarantine), Kudu's tablet copy and ChangeConfig.
"""

from __future__ import annotations

import msgspec

from ebla.actors.replication.configuration import Configuration, Peer
from ebla.storage.logs.entries import Position
from ebla.storage.schema import TableSchema

# Kinds of a change of one member.
ADD, REMOVE, MODIFY = "add", "remove", "modify"


class MemberChange(msgspec.Struct, frozen=True):
    """A change of one member. `kind`: add, remove or modify. `peer`: the member as it shall be; in
    a removal only its uuid counts."""

    kind: str
    peer: Peer


class ChangeMembersRequest(msgspec.Struct, frozen=True):
    """Asks the leader to make all changes in one configuration; at most one of them adds or removes
    a voter.

    `configuration_index`, `configuration_unsafe`: compare-and-set on the committed configuration,
    by its index and forced epoch; without an index the present one is taken. Answered when
    committed. Idempotent: if every change is in force already, the leader answers with the
    committed configuration, for any index.
    """

    dest_uuid: str
    tablet: str
    changes: tuple[MemberChange, ...]
    configuration_index: int | None = None
    timeout_s: float = 5.0
    configuration_unsafe: int = 0


class MembersReply(msgspec.Struct, frozen=True):
    tablet: str
    configuration: Configuration


class UnsafeChangeRequest(msgspec.Struct, frozen=True):
    """Forces a configuration when a majority is lost for good. One surviving voter makes itself the
    leader of `keep` (uuids of its committed configuration, its own included). Entries that only the
    other members had committed are lost. `configuration_index` and `configuration_unsafe` must be
    those of its committed configuration. The new configuration, and all that follow, keep the
    raised forced epoch for ever."""

    dest_uuid: str
    tablet: str
    keep: tuple[str, ...]
    configuration_index: int
    reason: str
    configuration_unsafe: int = 0


# -- copies --------------------------------------------------------------------------------------------------


class StartCopyRequest(msgspec.Struct, frozen=True):
    """Leader to a server that should hold the tablet and does not, or that lacks entries that are
    gone. Idempotent; answered before anything is copied, when the new replica's state is durable as
    copying.

    `source`: the leader of `term`, from which the tablet is copied. `state`: the state that the
    receiver reported of its replica (does_not_exist, deleted, failed or running); the replica must
    still be in it. `last`: of a running replica, index and term of the last entry that it reported,
    or None. `unsafe`: the forced epoch that the leader knows.
    """

    dest_uuid: str
    tablet: str
    source: Peer
    term: int
    state: str
    last: tuple[int, int] | None = None
    unsafe: int = 0


class BeginCopyRequest(msgspec.Struct, frozen=True):
    """Begins a copy session. `requestor`: the uuid of the server that copies; its second request
    ends its first session. Refused unless the receiver leads in `term`: only then the receiver
    holds every entry that the requestor may have acknowledged before. `forgetful`: the requestor
    has lost its record of votes. Then refused unless no other replica can lead now, and the
    requestor is no voter (copy/copies.py says why)."""

    dest_uuid: str
    tablet: str
    requestor: str
    term: int
    forgetful: bool = False


class CopyBegun(msgspec.Struct, frozen=True):
    """The source's snapshot: rows and answers as of `flushed`, then the whole log up to `last`,
    synced or not; `configuration`, the committed one, was read after the log. `data_bytes` are sent
    before the log. The session ends after `idle_s` without a request."""

    session: str
    idle_s: float
    table: str
    table_name: str
    schema: TableSchema
    bucket: int
    flushed: Position
    last: Position
    term: int
    configuration: Configuration
    data_bytes: int


class FetchRequest(msgspec.Struct, frozen=True):
    """Asks for chunk `number` of the session, from 0. A few requests may be under way at once; the
    source keeps their chunks for a repeated request until the copy has passed them."""

    session: str
    number: int


class Chunk(msgspec.Struct, frozen=True):
    """One chunk of a copy. `part`: first data, as bytes of a storage stream, then log, as encoded
    lists of ascending (key, value). `digest` is xxh3-64 over session, number, part and bytes.
    `end`: this is the last chunk."""

    session: str
    number: int
    part: str
    data: bytes
    digest: int
    end: bool = False


class EndCopyRequest(msgspec.Struct, frozen=True):
    """Ends a copy session; an unknown session is no error. `error`: why the copy failed, if it did.
    `damaged`: data that arrived as it was sent failed its checks; the source then verifies its own
    data."""

    session: str
    error: str | None = None
    damaged: bool = False


class CopyJob(msgspec.Struct, frozen=True):
    """One copy under way, at its target. `phase`: metadata, data, log, finishing; or stalled.
    `data_bytes`: the size of the data to copy, as far as known; times are seconds, `rate` is recent
    bytes per second, `eta_s` is None if unknown."""

    tablet: str
    table_name: str
    source: str
    target: str
    phase: str
    copied_bytes: int
    data_bytes: int
    elapsed_s: float
    rate: float
    eta_s: float | None
    attempt: int = 1


class CopyJobs(msgspec.Struct, frozen=True):
    """The copies to this server, and the number of copy sessions of others on it. `ended`: the last
    copies to this server, each as it was at its end."""

    jobs: tuple[CopyJob, ...]
    sessions: int
    ended: tuple[CopyJob, ...] = ()


class CancelCopyRequest(msgspec.Struct, frozen=True):
    """Ends a copy: the copied data is deleted, the tombstone stays. The leader may start the copy
    again, after a pause."""

    dest_uuid: str
    tablet: str


# -- deletion and quarantine ---------------------------------------------------------------------------------


class DeleteTabletRequest(msgspec.Struct, frozen=True):
    """Deletes a replica, only on evidence. Without `tombstone`, the table was dropped or the tablet
    replaced: the whole replica is deleted. An absent replica is ok.

    `tombstone`: the server is not a member of the configuration with this index and forced epoch.
    Its data goes to quarantine, and a tombstone stays that votes with the state that the replica
    had. A replica refuses with ConfigurationMoved if it has committed a newer configuration. It
    also refuses if it knows of a newer one, not committed, that includes it and is of `term` or
    later: in `term` a leader reported that no change adds it.
    """

    dest_uuid: str
    tablet: str
    reason: str
    tombstone: bool = False
    configuration_index: int | None = None
    configuration_unsafe: int = 0
    term: int = 0


class QuarantineEntry(msgspec.Struct, frozen=True):
    """The quarantined data of a replica that was deleted, or copied over."""

    name: str
    tablet: str
    table_name: str
    reason: str
    at_us: int
    last_index: int
    bytes: int


class QuarantineEntries(msgspec.Struct, frozen=True):
    entries: tuple[QuarantineEntry, ...]


class QuarantineRequest(msgspec.Struct, frozen=True):
    """Names entries of the quarantine; if `names` is empty, all. `directory`: of a restore, an
    absolute path on the server's host."""

    dest_uuid: str
    names: tuple[str, ...] = ()
    directory: str = ""
