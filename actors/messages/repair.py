"""What is said to change a tablet's members and to copy a tablet to another server; a part of __init__.py.

    configuration   master or operator -> leader: ChangeMembersRequest; the last resort: UnsafeChangeRequest
    copy            leader -> the server that shall hold a copy: StartCopyRequest; from there on that server asks the source:
                    BeginCopyRequest, FetchRequest (several under way), EndCopyRequest
    operators       CopyJobs, CancelCopyRequest; QuarantineEntries, QuarantineRequest

Source: seed 000 (StartTabletCopy, states, quarantine), Kudu's tablet copy and ChangeConfig.
"""

from __future__ import annotations

import msgspec

from ebla.actors.replication.configuration import Configuration, Peer
from ebla.storage.logs.entries import Position
from ebla.storage.schema import TableSchema

# What a change does to one member.
ADD, REMOVE, MODIFY = "add", "remove", "modify"


class MemberChange(msgspec.Struct, frozen=True):
    """`kind`: add, remove or modify. `peer`: as it shall be; of a removal only its uuid counts."""

    kind: str
    peer: Peer


class ChangeMembersRequest(msgspec.Struct, frozen=True):
    """Asked of the leader; all changes in one configuration, of which one at most adds or removes a voter.

    `configuration_index`, `configuration_unsafe`: compare-and-set on the committed configuration, its index and how often one was
    forced; without an index it takes the present one. Idempotent: if every
    change is in force already, it answers with what is committed, whatever the index. Answered when committed.
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
    """For a majority that is lost for good: asked of one surviving voter, which makes itself the leader of `keep` (uuids of
    its committed configuration, itself among them). What only the others had committed is lost. `configuration_index` and
    `configuration_unsafe` must be those of its committed configuration. The new configuration is marked for ever."""

    dest_uuid: str
    tablet: str
    keep: tuple[str, ...]
    configuration_index: int
    reason: str
    configuration_unsafe: int = 0


# -- copies --------------------------------------------------------------------------------------------------


class StartCopyRequest(msgspec.Struct, frozen=True):
    """The leader to a server that should hold the tablet and does not, or lacks entries that are gone. Idempotent; answered
    before anything is copied, with the new replica's state durable as copying.

    `source`: who leads in `term`, and is copied from. `state`: what the receiver told of its replica (does_not_exist, deleted,
    failed or running); it must still be so. `last`: of a running one, index and term of the last entry that it told, or None.
    `unsafe`: how often a configuration was forced, as far as the leader knows.
    """

    dest_uuid: str
    tablet: str
    source: Peer
    term: int
    state: str
    last: tuple[int, int] | None = None
    unsafe: int = 0


class BeginCopyRequest(msgspec.Struct, frozen=True):
    """`requestor`: the uuid of the server that copies. A second one of the same requestor ends its first session. Refused
    unless the receiver leads in `term`: only then it holds everything that the requestor may have acknowledged before.
    `forgetful`: the requestor does not know its votes any more. Refused unless nobody else can lead now, and the requestor is no
    voter (copying.py tells why)."""

    dest_uuid: str
    tablet: str
    requestor: str
    term: int
    forgetful: bool = False


class CopyBegun(msgspec.Struct, frozen=True):
    """The source's snapshot: rows and answers as of `flushed`, then the log up to `last`, all of it, synced or not;
    `configuration`, the committed one, was read after the log. `data_bytes` are sent before the log. Without a request for `idle_s` the
    session ends."""

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
    """Chunk `number` of the session, from 0. A few may be asked for at once, and are kept for a repeat until they are behind."""

    session: str
    number: int


class Chunk(msgspec.Struct, frozen=True):
    """`part`: data, all of it as bytes of a storage stream, then log, as encoded lists of ascending (key, value).
    `digest` is xxh3-64 over session, number, part and bytes. `end`: nothing follows."""

    session: str
    number: int
    part: str
    data: bytes
    digest: int
    end: bool = False


class EndCopyRequest(msgspec.Struct, frozen=True):
    """Unknown sessions are no error. `error`: why the copy ended, if it did not succeed; `damaged` if what arrived, as it was
    sent, failed its checks: then the source looks at its own."""

    session: str
    error: str | None = None
    damaged: bool = False


class CopyJob(msgspec.Struct, frozen=True):
    """One copy under way, at its target. `phase`: metadata, data, log, finishing; or stalled. `data_bytes` is what there is to
    copy, as far as is known; times are seconds, `rate` bytes per second of late, `eta_s` None while it cannot be told."""

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
    """Copies to this server, and the sessions that others hold here. `ended`: the last copies to here as they were at their end."""

    jobs: tuple[CopyJob, ...]
    sessions: int
    ended: tuple[CopyJob, ...] = ()


class CancelCopyRequest(msgspec.Struct, frozen=True):
    """Ends the copy; what was copied is deleted, the tombstone stays. The leader may start it anew, after a pause."""

    dest_uuid: str
    tablet: str


# -- deletion and quarantine ---------------------------------------------------------------------------------


class DeleteTabletRequest(msgspec.Struct, frozen=True):
    """Only on evidence. The table was dropped, or the tablet replaced: everything goes. Absent is ok.

    `tombstone`: the server is no member of the configuration of this index and mark any more: its data goes to quarantine, and a
    tombstone stays that votes with what it had. Refused (ConfigurationMoved) by a replica that has committed a newer one, and by
    one that knows of a newer one with it, not committed, of the `term` in which a leader said that nobody is adding it, or later.
    """

    dest_uuid: str
    tablet: str
    reason: str
    tombstone: bool = False
    configuration_index: int | None = None
    configuration_unsafe: int = 0
    term: int = 0


class QuarantineEntry(msgspec.Struct, frozen=True):
    """Data that was set aside when a replica was deleted, or copied over."""

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
    """`names` empty: all. `directory`: of a restore, an absolute path on the server's host."""

    dest_uuid: str
    names: tuple[str, ...] = ()
    directory: str = ""
